"""Simulated fleets are what they say."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore import Misuse
from fedcore.simulate import CASES, simulate


@pytest.mark.parametrize(
    ("case", "K", "d", "rows", "noise"),
    [
        ("demo", 100, 8, {12}, 0.5),
        ("hm1-1", 2, 5, {20, 200}, 0.05),
        ("hm1-2", 100, 8, {40, 275}, 0.1),
        ("hm1-3", 100, 8, {20}, 0.1),
        ("hm1-4", 100, 8, {200}, 0.1),
    ],
)
def test_cases(case: str, K: int, d: int, rows: set[int], noise: float) -> None:
    fleet = simulate(case, 3)
    assert fleet.Theta.shape == (d, K)
    assert list(fleet.devices) == sorted(fleet.devices)
    assert {data.train.n for data in fleet.devices.values()} == rows
    residuals = np.concatenate([data.train.y - data.train.X @ fleet.Theta[:, k] for k, data in enumerate(fleet.devices.values())])
    assert residuals.std() == pytest.approx(noise, rel=0.15)
    validation = [data.validation.y - data.validation.X @ fleet.Theta[:, k] for k, data in enumerate(fleet.devices.values())]
    assert np.concatenate(validation).std() == pytest.approx(noise, rel=0.15)
    for k, data in enumerate(fleet.devices.values()):
        assert data.validation.n == round(data.train.n / 4)
        assert data.test.n == 1000
        np.testing.assert_allclose(data.test.y, data.test.X @ fleet.Theta[:, k], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("case", "rows", "test_rows"), [("hm2-1", {100}, 1000), ("hm2-2", {20, 200}, 1000), ("hm2-3", {40}, 400)])
def test_cases_of_selection(case: str, rows: set[int], test_rows: int) -> None:
    fleet = simulate(case, 3)
    assert np.array_equal(fleet.Theta, np.repeat(fleet.Theta[:, :1], len(fleet.devices), axis=1))
    assert {data.train.n for data in fleet.devices.values()} == rows
    assert {data.test.n for data in fleet.devices.values()} == {test_rows}
    for part in ("train", "test"):
        sets = [getattr(data, part) for data in fleet.devices.values()]
        assert np.concatenate([each.y - each.X @ fleet.Theta[:, 0] for each in sets]).std() == pytest.approx(0.05, rel=0.1)


def test_theta_has_the_covariance() -> None:
    """Theta' Theta / d estimates Omega; over 3000 draws of the two-device case to about 2 %."""
    products = [fleet.Theta.T @ fleet.Theta / 5 for fleet in (simulate("hm1-1", seed) for seed in range(3000))]
    np.testing.assert_allclose(np.mean(products, axis=0), [[1, 0.7], [0.7, 1]], atol=0.05)


def test_omega_of_the_paper() -> None:
    """Eigenvalues in (1, 10); eigenvectors a Householder reflection, I - 2 v v'."""
    values, _ = np.linalg.eigh(simulate("hm1-3", 0).Omega)
    assert 1 < values.min() < values.max() < 10


def test_seeds() -> None:
    one, same, other = (simulate("demo", seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.devices["007"].train.X, same.devices["007"].train.X)
    assert not np.array_equal(one.Theta, other.Theta)


def test_a_fleet_of_a_seed_stays_what_it_is() -> None:
    """Figures in documents are of these rows."""
    data = simulate("demo", 0).devices["100"]
    assert data.train.X[0, 0] == -0.7263273732698154
    assert data.test.X[-1, -1] == 1.322421135774456


def test_unknown_case() -> None:
    with pytest.raises(Misuse, match=f"choose one of {', '.join(CASES)}"):
        simulate("hm1-5", 0)
