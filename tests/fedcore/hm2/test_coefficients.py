"""HM2's posteriors of a device's coefficients, asked as any other: against scipy, against draws, and against the normal posterior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, stats

from fedcore import (
    Misuse,
    Posterior,
    coefficient_draws,
    coefficient_intervals,
    coefficient_summary,
    coefficient_tests,
    combination_intervals,
    combination_tests,
    draws,
    prediction_intervals,
    prediction_ranks,
)
from fedcore.hm2.coefficients import Coefficients, Joint, Marginals
from fedcore.posterior import AnyPosterior

NORMAL = Posterior(np.array([1.0, -2.0]), np.array([[0.25, 0.1], [0.1, 0.64]]), noise=0.36, freedom=7.0)
ROWS = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 0.0]])


def normal_mixture(weight: np.ndarray, mean: np.ndarray, covariance: np.ndarray, noise: np.ndarray) -> Coefficients:
    """Coefficients without a kink in their prior, whose marginals are those of their joint distribution."""
    shape = mean.shape
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    marginals = Marginals(np.broadcast_to(weight[:, None], shape), mean, variance, np.full(shape, np.inf))
    return Coefficients(marginals, Joint(weight, mean, covariance, noise))


SINGLE = normal_mixture(np.ones(1), NORMAL.mean[None], NORMAL.covariance[None], np.array([NORMAL.noise]))
MIXTURE = normal_mixture(
    np.array([0.3, 0.5, 0.2]),
    np.array([[1.0, -2.0], [1.2, -1.0], [0.2, 0.5]]),
    np.array([[[0.25, 0.1], [0.1, 0.64]], [[0.1, -0.05], [-0.05, 0.2]], [[0.5, 0.0], [0.0, 0.02]]]),
    np.array([0.36, 0.5, 1.0]),
)
KINKED = Coefficients(
    Marginals(
        np.array([[0.4, 0.7], [0.6, 0.3]]),
        np.array([[0.5, -2.0], [0.3, -1.5]]),
        np.array([[0.25, 0.3], [0.5, 0.2]]),
        np.array([[0.4, 1.0], [0.2, np.inf]]),
    ),
    MIXTURE.joint,
)

QUESTIONS: dict[str, Callable[[AnyPosterior], object]] = {
    "coefficient_intervals": coefficient_intervals,
    "shortest": lambda posterior: coefficient_intervals(posterior, 0.8, shortest=True),
    "coefficient_tests": coefficient_tests,
    "coefficient_summary": lambda posterior: coefficient_summary(posterior, 0.7),
    "combination_intervals": lambda posterior: combination_intervals(posterior, ROWS[:2], 0.5),
    "combination_tests": lambda posterior: combination_tests(posterior, ROWS[:2], 0.3),
    "prediction_intervals": lambda posterior: prediction_intervals(posterior, ROWS),
    "prediction_ranks": lambda posterior: prediction_ranks(posterior, ROWS, np.linspace(-1.0, 1.0, len(ROWS))),
    "mean": lambda posterior: posterior.mean,
    "sd": lambda posterior: posterior.sd,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_single_component_answers_as_the_normal_posterior(question: str) -> None:
    ours, theirs = QUESTIONS[question](SINGLE), QUESTIONS[question](NORMAL)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7 if question == "shortest" else 1e-10)


@pytest.mark.parametrize(
    ("ask", "rows", "noisy"),
    [
        (coefficient_intervals, np.eye(2), False),
        (lambda posterior: combination_intervals(posterior, ROWS[:2]), ROWS[:2], False),
        (lambda posterior: prediction_intervals(posterior, ROWS), ROWS, True),
    ],
)
def test_intervals_of_mixtures_of_normals(ask: Callable[[AnyPosterior], np.ndarray], rows: np.ndarray, noisy: bool) -> None:
    joint = MIXTURE.joint
    for row, (low, high) in zip(rows, ask(MIXTURE), strict=True):
        law = stats.norm(joint.mean @ row, np.sqrt(np.einsum("a,jab,b->j", row, joint.covariance, row) + noisy * joint.noise))
        for p, end in ((0.05, low), (0.95, high)):
            expected = optimize.brentq(lambda t, p=p, law=law: joint.weight @ law.cdf(t) - p, -30, 30, xtol=1e-13)
            assert end == pytest.approx(expected, rel=1e-9)


def test_tests_are_posterior_tails() -> None:
    found = combination_tests(MIXTURE, ROWS[:1], 0.4)
    joint, row = MIXTURE.joint, ROWS[0]
    law = stats.norm(joint.mean @ row, np.sqrt(np.einsum("a,jab,b->j", row, joint.covariance, row)))
    assert found.above[0] == pytest.approx(joint.weight @ law.sf(0.4), rel=1e-12)
    assert found.p[0] == pytest.approx(2 * min(joint.weight @ law.sf(0.4), joint.weight @ law.cdf(0.4)), rel=1e-12)
    assert found.estimate[0] == pytest.approx(joint.weight @ joint.mean @ row)
    assert found.sd[0] == pytest.approx(np.sqrt(row @ joint.total_covariance @ row))
    assert found.statistic[0] == pytest.approx((found.estimate[0] - 0.4) / found.sd[0])


def test_summaries_agree_with_intervals_and_tests() -> None:
    for posterior in (NORMAL, MIXTURE, KINKED):
        for level in (0.5, 0.9, 0.99):
            found, tested = coefficient_summary(posterior, level), coefficient_tests(posterior)
            np.testing.assert_array_equal(np.stack([found.lower, found.upper], axis=1), coefficient_intervals(posterior, level))
            np.testing.assert_array_equal(found.p_positive, tested.above)
            np.testing.assert_array_equal(found.included, tested.p < 1 - level)
            np.testing.assert_allclose(found.mean, posterior.mean)
            np.testing.assert_allclose(found.sd, posterior.sd)
    assert coefficient_summary(KINKED, 0.9).included.tolist() == [False, True]


def test_the_total_covariance_is_that_of_the_marginals_where_nothing_has_a_kink() -> None:
    np.testing.assert_allclose(np.sqrt(MIXTURE.joint.total_covariance.diagonal()), MIXTURE.sd)


@pytest.mark.parametrize("posterior", [NORMAL, MIXTURE], ids=["normal", "mixture"])
def test_draws(posterior: AnyPosterior) -> None:
    sample = draws(posterior, 200_000, np.random.default_rng(0))
    covariance = posterior.covariance if isinstance(posterior, Posterior) else posterior.joint.total_covariance
    np.testing.assert_allclose(sample.mean(axis=0), posterior.mean, atol=4 * posterior.sd.max() / np.sqrt(200_000))
    np.testing.assert_allclose(np.cov(sample.T), covariance, atol=0.02 * covariance.max())
    assert np.array_equal(draws(posterior, 5, np.random.default_rng(1)), draws(posterior, 5, np.random.default_rng(1)))


@pytest.mark.parametrize("posterior", [NORMAL, MIXTURE, KINKED], ids=["normal", "mixture", "kinked"])
def test_draws_of_single_coefficients(posterior: AnyPosterior) -> None:
    sample = coefficient_draws(posterior, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(sample.mean(axis=0), posterior.mean, atol=4 * posterior.sd.max() / np.sqrt(20_000))
    np.testing.assert_allclose(sample.std(axis=0), posterior.sd, rtol=0.03)
    low, high = coefficient_intervals(posterior, 0.8).T
    np.testing.assert_allclose(((sample > low) & (sample < high)).mean(axis=0), 0.8, atol=0.012)
    assert abs(np.corrcoef(sample.T)[0, 1]) < 0.03


def test_shortest_intervals_of_kinked_coefficients() -> None:
    shortest, equal = coefficient_intervals(KINKED, shortest=True), coefficient_intervals(KINKED)
    assert (np.diff(shortest) < np.diff(equal)).all()
    above, below = (KINKED.marginals.mixture.tails(end) for end in (shortest[:, 0], shortest[:, 1]))
    np.testing.assert_allclose(above.above - below.above, 0.9, rtol=1e-12)


def test_refusals() -> None:
    with pytest.raises(Misuse, match=r"level is a number in \(0, 1\)"):
        coefficient_intervals(KINKED, 1.0)
    with pytest.raises(Misuse, match='already holds what is uncertain about the noise variance: use reference="normal"'):
        coefficient_tests(KINKED, reference="t")
    with pytest.raises(Misuse, match=r"X of new rows: expected shape \(rows, 2\), got \(2,\)"):
        prediction_intervals(KINKED, np.ones(2))
    with pytest.raises(Misuse, match=r"combinations: expected shape \(rows, 2\), got \(1, 3\)"):
        combination_intervals(KINKED, np.ones((1, 3)))
    for ask in (draws, coefficient_draws):
        with pytest.raises(Misuse, match="n is a whole number from 1"):
            ask(KINKED, 0, np.random.default_rng(0))


def test_no_rows_to_predict() -> None:
    assert prediction_intervals(KINKED, np.empty((0, 2))).shape == (0, 2)
    assert prediction_intervals(NORMAL, np.empty((0, 2))).shape == (0, 2)
