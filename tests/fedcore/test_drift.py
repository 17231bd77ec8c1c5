"""A device's drift from a model that was trained before."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.drift import CHANCE, Drift, median_rms, residual_drift
from fedcore.rows import DeviceData, Rows


def device(n: int, n_test: int, shift: float = 0.0, seed: int = 0) -> tuple[DeviceData, np.ndarray]:
    """A device with noise 0.5 whose test rows are shifted by this many standard deviations, and its true coefficients."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(3)
    X, X_test = rng.standard_normal((n, 3)), rng.standard_normal((n_test, 3))
    y, y_test = (rows @ theta + 0.5 * rng.standard_normal(len(rows)) for rows in (X, X_test))
    return DeviceData.of(X, y, X_test=X_test, y_test=y_test + 0.5 * shift), theta


def test_figures_by_hand() -> None:
    data, theta = device(40, 10)
    found = residual_drift(theta, data, data.test, 0.25)
    own = np.linalg.lstsq(data.train.X, data.train.y)
    sd = np.sqrt(own[1][0] / 37)
    z = (data.test.y - data.test.X @ theta) / sd
    np.testing.assert_allclose(found, (10, z.mean(), np.sqrt((z**2).mean()), 37, 0.25), rtol=1e-12)


def test_a_model_that_holds_has_mean_0_and_rms_1_and_a_shift_is_in_both() -> None:
    data, theta = device(4000, 4000)
    still = residual_drift(theta, data, data.test)
    assert abs(still.mean) < 0.1
    assert still.rms == pytest.approx(1, abs=0.05)
    data, theta = device(4000, 4000, shift=3.0)
    moved = residual_drift(theta, data, data.test)
    assert moved.mean == pytest.approx(3, abs=0.1)
    assert moved.rms == pytest.approx(np.sqrt(10), abs=0.1)


def test_no_figure_without_rows_or_noise() -> None:
    data, theta = device(12, 5)
    none = residual_drift(theta, data, Rows.empty(3))
    assert none.n == 0
    assert np.isnan([none.mean, none.rms, none.move]).all()
    few, theta = device(3, 5)  # as many rows as coefficients: no degree of freedom is left for a noise
    assert np.isnan(residual_drift(theta, few, few.test).rms)
    exact = DeviceData.of(data.train.X, data.train.X * 0 @ theta, X_test=data.test.X, y_test=data.test.y)
    assert np.isnan(residual_drift(theta, exact, exact.test).rms)
    assert not residual_drift(theta, few, few.test).exceeds(1.0, 1.0, 1)


def test_limits() -> None:
    assert Drift(50, 0.0, 2.1, 50.0, np.nan).exceeds(2.0, 1.0, 10)
    assert not Drift(50, 0.0, 1.9, 50.0, np.nan).exceeds(2.0, 1.0, 10)
    assert not Drift(3, 0.0, 2.1, 4.0, np.nan).exceeds(2.0, 1.0, 10)  # three rows, against a noise that is known by four
    assert Drift(3, 0.0, 2.1, 4.0, 1.1).exceeds(2.0, 1.0, 10)
    assert not Drift(0, np.nan, np.nan, 4.0, 0.9).exceeds(2.0, 1.0, 10)


def test_chance_alone_makes_a_fleet_drift_as_rarely_as_it_says() -> None:
    """300 fleets of 20 devices that have 8 rows each, without any limit on the rms beside chance."""
    fleets = 0
    for fleet in range(300):
        found = [device(8, 5, seed=20 * fleet + k) for k in range(20)]
        fleets += any(residual_drift(theta, data, data.test).exceeds(1.0, 1.0, 20) for data, theta in found)
    assert fleets <= 300 * CHANCE + 3 * np.sqrt(300 * CHANCE)


def test_a_fleet_drifts_where_no_device_is_sure() -> None:
    """Devices of 8 rows and 3 test rows that have all moved by three standard deviations, and that have not."""
    for shift, drifts in ((3.0, True), (0.0, False)):
        found = [residual_drift(theta, data, data.test) for data, theta in (device(8, 3, shift, seed=k) for k in range(40))]
        assert sum(each.exceeds(2.0, 1.0, 40) for each in found) < 20
        assert (median_rms(found) > 2.0) == drifts
    assert np.isnan(median_rms(found[:4]))
    assert np.isnan(median_rms([*found[:4], Drift(0, np.nan, np.nan, 1.0, np.nan)]))
