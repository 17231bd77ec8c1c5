"""Intervals, tests and predictions against scipy's and the textbook's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedcore import (
    DeviceData,
    Eb,
    Misuse,
    Posterior,
    coefficient_intervals,
    coefficient_tests,
    combination_tests,
    prediction_intervals,
    prediction_ranks,
)
from fedcore.algorithm import FleetSpec
from fedcore.eb import Prior
from fedcore.posterior import Reference
from fedcore.semidefinite import packed

POSTERIOR = Posterior(np.array([1.0, -2.0]), np.array([[0.25, 0.1], [0.1, 0.64]]), noise=0.36, freedom=7.0)


@pytest.mark.parametrize(("reference", "law"), [("normal", stats.norm()), ("t", stats.t(7))])
def test_against_scipy(reference: Reference, law: stats.rv_continuous) -> None:
    low, high = coefficient_intervals(POSTERIOR, 0.8, reference=reference).T
    np.testing.assert_allclose(low, [1.0 + 0.5 * law.ppf(0.1), -2.0 + 0.8 * law.ppf(0.1)], rtol=1e-12)
    np.testing.assert_allclose(high, [1.0 + 0.5 * law.ppf(0.9), -2.0 + 0.8 * law.ppf(0.9)], rtol=1e-12)

    found = coefficient_tests(POSTERIOR, reference=reference)
    np.testing.assert_allclose(found.statistic, [2.0, -2.5], rtol=1e-12)
    np.testing.assert_allclose(found.p, 2.0 * law.sf([2.0, 2.5]), rtol=1e-12)

    found = combination_tests(POSTERIOR, np.array([[1.0, 1.0], [2.0, 0.0]]), 0.5, reference=reference)
    sd = np.sqrt([0.25 + 2 * 0.1 + 0.64, 4 * 0.25])
    np.testing.assert_allclose(found.estimate, [-1.0, 2.0])
    np.testing.assert_allclose(found.sd, sd, rtol=1e-12)
    np.testing.assert_allclose(found.p, 2.0 * law.sf(np.array([1.5, 1.5]) / sd), rtol=1e-12)

    low, high = prediction_intervals(POSTERIOR, np.array([[1.0, 1.0], [0.0, 0.0]]), 0.9, reference=reference).T
    reach = law.ppf(0.95) * np.sqrt([0.25 + 2 * 0.1 + 0.64 + 0.36, 0.36])
    center = np.array([-1.0, 0.0])
    np.testing.assert_allclose([low, high], [center - reach, center + reach], rtol=1e-12)


def test_ranks_are_predictive_probabilities() -> None:
    X, y = np.array([[1.0, 1.0], [0.0, 0.0], [2.0, -1.0]]), np.array([-1.0, 0.6, 3.0])
    sd = np.sqrt([0.25 + 2 * 0.1 + 0.64 + 0.36, 0.36, 4 * 0.25 - 4 * 0.1 + 0.64 + 0.36])
    np.testing.assert_allclose(prediction_ranks(POSTERIOR, X, y), stats.norm.cdf((y - [-1.0, 0.0, 4.0]) / sd), rtol=1e-12)


def test_t_is_classical_inference_where_the_fleet_tells_nothing() -> None:
    """With noise of the device's own and a prior that is flat, intervals and p-values are those of ordinary least squares."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((9, 2))
    y = X @ [1.0, 0.2] + rng.standard_normal(9)
    eb, data = Eb(noise="own"), DeviceData.of(X, y)
    device = eb.init_device(FleetSpec(("a",), 2), data)
    down = Prior(np.zeros(2), packed(1e6 * np.eye(2)), 1.0, np.zeros(2), 0.0)
    posterior = eb.finalize(down, device, data).posterior
    assert posterior is not None

    theta, rss = np.linalg.lstsq(X, y)[:2]
    error = np.sqrt(rss / 7 * np.diag(np.linalg.inv(X.T @ X)))
    reach = stats.t(7).ppf(0.95) * error
    np.testing.assert_allclose(coefficient_intervals(posterior, reference="t"), np.stack([theta - reach, theta + reach], axis=1), rtol=1e-6)
    np.testing.assert_allclose(coefficient_tests(posterior, reference="t").p, 2 * stats.t(7).sf(np.abs(theta) / error), rtol=1e-6)


def test_a_coefficient_that_is_known() -> None:
    """Where devices do not differ at all, and all parameters count as known, there is no spread."""
    known = Posterior(np.array([0.0, 3.0]), np.zeros((2, 2)), noise=1.0, freedom=7.0)
    np.testing.assert_array_equal(coefficient_intervals(known), [[0.0, 0.0], [3.0, 3.0]])
    np.testing.assert_array_equal(coefficient_tests(known).p, [1.0, 0.0])


def test_refusals() -> None:
    with pytest.raises(Misuse, match=r"level is a number in \(0, 1\)"):
        coefficient_intervals(POSTERIOR, 90.0)
    with pytest.raises(Misuse, match="reference is one of normal, t, got 'z'"):
        coefficient_tests(POSTERIOR, reference="z")
    with pytest.raises(Misuse, match='no residual degrees of freedom: use reference="normal"'):
        coefficient_intervals(POSTERIOR._replace(freedom=0.0), reference="t")
    with pytest.raises(Misuse, match=r"X of new rows: expected shape \(rows, 2\), got \(2,\)"):
        prediction_intervals(POSTERIOR, np.ones(2))
    with pytest.raises(Misuse, match=r"combinations: expected shape \(rows, 2\), got \(1, 3\)"):
        combination_tests(POSTERIOR, np.ones((1, 3)))


NO_NUMBERS = {"text": [["a", "b"]], "ragged": [[1.0], [1.0, 2.0]], "complex": np.ones((1, 2), dtype=complex), "nothing": None}


@pytest.mark.parametrize("case", NO_NUMBERS)
def test_what_is_no_table_of_numbers_is_refused(case: str) -> None:
    posterior = Posterior(np.zeros(2), np.eye(2), 1.0, 3.0)
    with pytest.raises(Misuse, match="X of new rows: expected"):
        prediction_intervals(posterior, NO_NUMBERS[case])  # pyright: ignore[reportArgumentType]
    with pytest.raises(Misuse, match="X of new rows: expected finite numbers"):
        prediction_intervals(posterior, np.array([[1.0, np.nan]]))
    with pytest.raises(Misuse, match="value is a number"):
        combination_tests(posterior, np.eye(2), "0")  # pyright: ignore[reportArgumentType]
    with pytest.raises(Misuse, match="expected the posterior of one device"):
        coefficient_intervals({"a": posterior})  # pyright: ignore[reportArgumentType]
