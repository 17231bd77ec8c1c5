"""Median and trimmed mean in place of the mean: their limits, and what bad devices can do to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcore import Ditto, FedAvg, Misuse, fit
from fedcore.algorithm import FleetSpec
from fedcore.fedavg import GlobalModel, Up, trimmed_mean
from fedcore.fit import InProcess
from fedcore.rounds import Answers, Call, RunState, Schedule, rounds
from fedcore.rows import Floats
from fedcore.testing import small_fleet

ROWS = (12, 7, 30, 9, 15, 8, 11)
VALUES = st.floats(-1e100, 1e100)
ANY = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


def updates(rows: int, least: int = 1) -> st.SearchStrategy[Floats]:
    return st.integers(least, rows).flatmap(lambda m: arrays(np.float64, (m, 3), elements=VALUES))


def aggregated(model: GlobalModel, theta: Floats, n: Floats | None = None) -> Floats:
    server = model.init_server(FleetSpec(tuple(map(str, range(len(theta)))), theta.shape[1]))
    found = model.averaged(server, Up(theta, np.ones(len(theta)) if n is None else n)).server
    assert not found.failed
    return found.theta


@given(updates(12))
def test_nothing_trimmed_is_the_mean(theta: Floats) -> None:
    found = aggregated(FedAvg(aggregation="trimmed_mean", trimmed=0.0), theta)
    np.testing.assert_allclose(found, aggregated(FedAvg(weights="equal"), theta), rtol=1e-12, atol=1e-12 * np.abs(theta).max())


@given(updates(12))
def test_all_trimmed_but_the_middle_is_the_median(theta: Floats) -> None:
    np.testing.assert_allclose(trimmed_mean(theta, 0.499), np.median(theta, axis=0), rtol=1e-15)


@given(arrays(np.float64, 3, elements=VALUES), st.integers(1, 9), st.sampled_from(["median", "trimmed_mean"]))
def test_devices_that_agree_are_believed(theta: Floats, m: int, aggregation: Any) -> None:
    np.testing.assert_allclose(aggregated(FedAvg(aggregation=aggregation), np.tile(theta, (m, 1))), theta, rtol=1e-15)


@given(updates(11, least=2), arrays(np.float64, 3, elements=ANY), st.floats(1.0, 1e300))
def test_one_bad_device_moves_the_median_to_a_neighbour_at_most(theta: Floats, bad: Floats, rows: float) -> None:
    """Whatever it sends and however many rows it claims: the values next to the middle of the others are bounds."""
    n = len(theta)
    found = aggregated(FedAvg(aggregation="median"), np.vstack([theta, bad]), np.append(np.ones(n), rows))
    others = np.sort(theta, axis=0)
    below, above = (n // 2 - 1, n // 2) if n % 2 == 0 else (n // 2 - 1, n // 2 + 1)
    assert (others[below] <= found).all()
    assert (found <= others[above]).all()


def test_the_share_is_of_devices() -> None:
    values = np.zeros((100, 1))
    values[:29], values[71:] = -np.inf, np.inf
    assert trimmed_mean(values, 0.29) == 0.0
    assert trimmed_mean(np.array([[0.0], [3.0], [9.0]]), 0.33) == 4.0, "rounded down to none"


@given(updates(9, least=3), st.integers(1, 4), st.data())
def test_as_many_bad_devices_as_are_trimmed_keep_within_the_others(theta: Floats, bad: int, data: st.DataObject) -> None:
    m = len(theta) + bad
    if 2 * bad >= m:
        return
    wrong = data.draw(arrays(np.float64, (bad, 3), elements=ANY))
    found = aggregated(FedAvg(aggregation="trimmed_mean", trimmed=bad / m), np.vstack([wrong, theta]))
    slack = 1e-12 * np.abs(theta).max()
    assert (theta.min(axis=0) - slack <= found).all()
    assert (found <= theta.max(axis=0) + slack).all()


class Hostile(InProcess):
    """Its first device sends the opposite of its coefficients, a thousand times as large."""

    def local_steps(self, call: Call) -> Answers:
        answered, ups, infos = super().local_steps(call)
        told = [*ups]
        shared = told[0].shared if hasattr(told[0], "shared") else told[0]
        shared = shared._replace(theta=-1000.0 * shared.theta)
        told[0] = told[0]._replace(shared=shared) if hasattr(told[0], "shared") else shared
        return Answers(answered, told, infos)


def run(algorithm: GlobalModel, backend: type[InProcess]) -> Floats:
    """The global model after 50 rounds."""
    fleet = small_fleet(rows=ROWS)
    spec = FleetSpec(tuple(sorted(fleet)), 3)
    datas = [fleet[name] for name in spec.device_ids]
    made: Any = algorithm
    (*_, last) = rounds(made, spec, backend(made, spec, datas, 0), Schedule(rounds=50), RunState.initial(made, spec))
    return last.state.server.theta


@pytest.mark.parametrize("kind", [FedAvg, Ditto])
def test_a_hostile_device_decides_the_mean_alone(kind: Any) -> None:
    fleet = small_fleet(rows=ROWS)
    alone = np.array([np.linalg.lstsq(*data.train)[0] for name, data in sorted(fleet.items()) if name != "a"])
    low, high = alone.min(axis=0) - 0.1, alone.max(axis=0) + 0.1
    for options in ({"aggregation": "median"}, {"aggregation": "trimmed_mean", "trimmed": 0.2}):
        theta = run(kind(**options), Hostile)
        assert ((low < theta) & (theta < high)).all()
    assert not ((low < run(kind(), Hostile)) & (run(kind(), Hostile) < high)).all()


@pytest.mark.parametrize("options", [{"aggregation": "mode"}, {"trimmed": 0.5}, {"trimmed": -0.1}])
def test_options_out_of_bounds(options: dict[str, Any]) -> None:
    for kind in (FedAvg, Ditto):
        with pytest.raises(Misuse, match=next(iter(options))):
            kind(**options)


def test_the_median_of_devices_that_are_alike_is_their_common_least_squares() -> None:
    """With noise that goes to zero the median and the mean agree on one truth."""
    rng = np.random.default_rng(3)
    truth = rng.standard_normal(3)
    designs = {name: rng.standard_normal((20, 3)) for name in "abcdefg"}
    fleet = {name: (X, X @ truth) for name, X in designs.items()}
    for aggregation in ("mean", "median", "trimmed_mean"):
        found = fit(FedAvg(aggregation=aggregation, tolerance=1e-14), fleet, rounds=2000).theta["a"]
        np.testing.assert_allclose(found, truth, rtol=1e-9)
