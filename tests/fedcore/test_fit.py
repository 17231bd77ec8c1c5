"""The whole thing in one process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedcore import DataError, Hm1, Misuse, Separate, fit
from fedcore.testing import small_fleet


def test_pairs_and_names() -> None:
    fleet = small_fleet()
    pairs = {name: (data.train.X.tolist(), data.train.y.tolist()) for name, data in fleet.items()}
    one, other = fit("hm1", pairs, rounds=3, seed=1), fit(Hm1(), fleet, rounds=3, seed=1)
    for name in fleet:
        np.testing.assert_array_equal(one.theta[name], other.theta[name])
    assert one.outcome.name == "completed"
    assert len(one.history) == 3
    assert set(one.history[0]) == {"cohort", "answered", "quarantined", "loss", "uplink_bytes", "downlink_bytes", "change"}
    assert one.history[0]["uplink_bytes"] == 3 * (3 + 1 + 1) * 8


def test_converges_by_name_and_stops() -> None:
    result = fit(Hm1(tolerance=1e-6), small_fleet(), rounds=5000)
    assert result.outcome.name == "converged"
    assert len(result.history) < 5000
    assert result.history[-1]["change"] < 1e-6


def test_separate_reaches_least_squares() -> None:
    fleet = small_fleet()
    result = fit(Separate(), fleet, rounds=400)
    for name, data in fleet.items():
        np.testing.assert_allclose(result.theta[name], np.linalg.lstsq(data.train.X, data.train.y)[0], rtol=1e-8)


def test_seed_decides_minibatches() -> None:
    fleet = small_fleet()
    one, same, other = (fit(Hm1(batch=2), fleet, rounds=2, seed=seed).theta["a"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_device_that_joins_changes_nobodys_draws() -> None:
    fleet = small_fleet(rows=(12, 7, 30, 9))
    fewer = {name: fleet[name] for name in ("a", "b", "d")}
    more, less = fit(Separate(batch=3), fleet, rounds=4), fit(Separate(batch=3), fewer, rounds=4)
    for name in fewer:
        np.testing.assert_array_equal(more.theta[name], less.theta[name])


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({}, "at least one device"),
        ({"a": (np.ones((2, 2)), np.ones(3))}, r"expected y of shape \(2,\)"),
        ({"a": (np.ones(2), np.ones(2))}, r"expected X of shape \(n, d\)"),
        ({"a": (np.ones((0, 2)), np.ones(0))}, r"expected X of shape \(n, d\)"),
        ({"a": (np.array([[1.0], [np.nan]]), np.ones(2))}, "1 null or non-finite values"),
        ({"a": (np.ones((2, 2)), np.ones(2)), "b": (np.ones((2, 3)), np.ones(2))}, "device b has 3 columns, device a has 2"),
    ],
)
def test_data_that_do_not_fit(devices: dict, words: str) -> None:
    with pytest.raises((DataError, Misuse), match=words):
        fit("hm1", devices)


def test_an_unsafe_rate_names_the_device() -> None:
    fleet = {"calm": (np.eye(2), np.ones(2)), "steep": (100 * np.eye(2), np.ones(2))}
    with pytest.raises(Misuse, match=r"device steep: eta=0.1 is not stable on this device's rows"):
        fit(Hm1(eta=0.1), fleet)


def test_fit_needs_neither_engine_nor_polars() -> None:
    code = "import sys, fedcore; print({'prefect', 'mlflow', 'polars', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"
