"""What is known of a device's coefficients: intervals, tests, predictions and draws from their posterior, whichever algorithm it is of.

`eb`'s is a `Posterior`, one normal distribution. It takes the fleet's mean and covariance as known, at their estimates, and so leaves
out what is uncertain about these: little with many devices, and much with a handful, where the intervals are too narrow. HM2's are
`Coefficients`, mixtures over what is uncertain about the fleet.

`reference` names the distribution of (estimate - truth) / sd. "normal" is the posterior as it stands; for `eb`'s it takes the noise
variance as known too: use it where many devices share one. "t" takes `eb`'s noise variance for an estimate with `freedom` degrees of
freedom: use it where a device has a noise variance of its own. It is exact least-squares inference where the fleet tells nothing about
a device, and elsewhere wider than it need be, as the noise variance scales only a part of the posterior's. HM2's posteriors are only
asked as they stand.

Coefficients covered by `eb` at nominally 90 %, with 200 devices of 4 coefficients: shared noise, 12 or 30 rows a device, "normal" .90; own
noise, 12 rows, "normal" .86 and "t" .90; own noise, 6 rows, .81 and .94.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from fedcore.errors import Misuse
from fedcore.hm2.coefficients import Coefficients
from fedcore.options import choice, number, whole
from fedcore.rows import Booleans, Floats
from fedcore.semidefinite import factor

Reference = Literal["normal", "t"]


class Posterior(NamedTuple):
    """A normal distribution of a device's coefficients, given its rows and the fleet's parameters.

    Attributes
    ----------
    mean
        Shape (d,).
    covariance
        Shape (d, d).
    noise
        Variance of a row's noise, in squared target units.
    freedom
        Residual degrees of freedom behind `noise`: rows less rank, of the device or, where the noise is shared, of the fleet. May be 0.
    """

    mean: Floats
    covariance: Floats
    noise: float
    freedom: float

    @property
    def sd(self) -> Floats:
        """Standard deviations of the coefficients, shape (d,)."""
        return np.sqrt(self.covariance.diagonal())


AnyPosterior = Posterior | Coefficients
"""A device's posterior; both have `mean` and `sd`, shape (d,)."""


class Tested(NamedTuple):
    """Two-sided tests of h hypotheses; each field has shape (h,).

    Attributes
    ----------
    estimate, sd
        Posterior mean and standard deviation of what is tested.
    statistic
        (estimate - value) / sd.
    p
        Twice the smaller one of the posterior probabilities that it is below and above the value. For `eb`'s posterior that is the
        probability of a statistic at least as far from zero, were the value true.
    above
        Posterior probability that it is above the value.
    """

    estimate: Floats
    sd: Floats
    statistic: Floats
    p: Floats
    above: Floats


class Summary(NamedTuple):
    """A device's coefficients one by one, each field of shape (d,).

    Attributes
    ----------
    mean, sd
        Of the posterior.
    lower, upper
        Ends of the equal-tailed interval.
    p_positive
        Posterior probability that the coefficient is above zero.
    included
        Whether the interval leaves out zero.
    """

    mean: Floats
    sd: Floats
    lower: Floats
    upper: Floats
    p_positive: Floats
    included: Booleans


def coefficient_intervals(
    posterior: AnyPosterior, level: float = 0.9, *, reference: Reference = "normal", shortest: bool = False
) -> Floats:
    """Intervals of the coefficients.

    Parameters
    ----------
    posterior
        Of one device.
    level
        Probability in (0, 1) that an interval covers its coefficient.
    reference
        See the module.
    shortest
        Instead of equal-tailed intervals the shortest ones, of highest posterior density; the same where that is symmetric, as for `eb`.

    Returns
    -------
    Floats
        Lower and upper ends, shape (d, 2).

    Raises
    ------
    Misuse
        Where the level is out of bounds, or "t" is asked for without residual degrees of freedom or of HM2's posterior.
    """
    return _intervals(_coefficients(posterior, reference), level, shortest)


def combination_intervals(
    posterior: AnyPosterior, combinations: Floats, level: float = 0.9, *, reference: Reference = "normal", shortest: bool = False
) -> Floats:
    """Intervals of linear combinations of the coefficients.

    Parameters
    ----------
    posterior
        Of one device.
    combinations
        One combination a row, shape (q, d).
    level, reference, shortest
        As for `coefficient_intervals`.

    Returns
    -------
    Floats
        Lower and upper ends, shape (q, 2).

    Raises
    ------
    Misuse
        As `coefficient_intervals` does, or where the combinations have another shape.
    """
    return _intervals(_combinations(posterior, combinations, "combinations", reference), level, shortest)


def prediction_intervals(
    posterior: AnyPosterior, X: Floats, level: float = 0.9, *, reference: Reference = "normal", shortest: bool = False
) -> Floats:
    """Intervals of the targets of new rows, their noise included.

    Parameters
    ----------
    posterior
        Of the device that the rows belong to.
    X
        New design rows, shape (n, d).
    level, reference, shortest
        As for `coefficient_intervals`.

    Returns
    -------
    Floats
        Lower and upper ends, shape (n, 2), in target units.

    Raises
    ------
    Misuse
        As `coefficient_intervals` does, or where X has another shape.
    """
    return _intervals(_combinations(posterior, X, "X of new rows", reference, noisy=True), level, shortest)


def prediction_ranks(posterior: AnyPosterior, X: Floats, y: Floats) -> Floats:
    """Where targets lie in their predictive distributions: the probability of a smaller one, noise included.

    Uniform on (0, 1) where the posterior is calibrated; |2 rank - 1| is the level of the equal-tailed interval that just holds y.

    Parameters
    ----------
    posterior
        Of the device that the rows belong to.
    X, y
        Rows that it has not learned from, shapes (n, d) and (n,).

    Returns
    -------
    Floats
        Shape (n,).

    Raises
    ------
    Misuse
        Where X has another shape, or holds what is not a finite number.
    """
    return _combinations(posterior, X, "X of the rows", "normal", noisy=True).tails(y)[0]


def coefficient_tests(posterior: AnyPosterior, *, reference: Reference = "normal") -> Tested:
    """Test each coefficient against zero; d hypotheses.

    Raises
    ------
    Misuse
        Where "t" is asked for without residual degrees of freedom or of HM2's posterior.
    """
    return _tested(_coefficients(posterior, reference), 0.0)


def combination_tests(posterior: AnyPosterior, combinations: Floats, value: float = 0.0, *, reference: Reference = "normal") -> Tested:
    """Test linear combinations of the coefficients against a value.

    Parameters
    ----------
    posterior
        Of one device.
    combinations
        One combination a row, shape (q, d).
    value
        What each equals under its hypothesis.
    reference
        See the module.

    Raises
    ------
    Misuse
        Where the combinations have another shape, or "t" is asked for without residual degrees of freedom or of HM2's posterior.
    """
    return _tested(_combinations(posterior, combinations, "combinations", reference), value)


def coefficient_summary(posterior: AnyPosterior, level: float = 0.9, *, reference: Reference = "normal") -> Summary:
    """The coefficients one by one: estimates, equal-tailed intervals and which of these leave out zero.

    Raises
    ------
    Misuse
        As `coefficient_intervals` does.
    """
    law = _coefficients(posterior, reference)
    lower, upper = _intervals(law, level, shortest=False).T
    return Summary(law.mean, np.sqrt(law.variance), lower, upper, law.tails(0.0)[1], (lower > 0) | (upper < 0))


def draws(posterior: AnyPosterior, n: int, rng: Generator) -> Floats:
    """Random draws of all coefficients at once, shape (n, d).

    They are of the joint distribution: for combinations of coefficients. HM2's, where its prior has a kink, approximates the single
    coefficients', of which `coefficient_draws` are exact.

    Raises
    ------
    Misuse
        Where n is not a whole number from 1 on.
    """
    whole("n", n, 1, 1_000_000_000)
    d = len(posterior.mean)
    if isinstance(posterior, Posterior):
        return posterior.mean + rng.standard_normal((n, d)) @ factor(posterior.covariance).T
    joint = posterior.joint
    component = rng.choice(len(joint.weight), size=n, p=joint.weight / joint.weight.sum())
    factors = np.array([factor(each) for each in joint.covariance])
    return joint.mean[component] + np.einsum("nab,nb->na", factors[component], rng.standard_normal((n, d)))


def coefficient_draws(posterior: AnyPosterior, n: int, rng: Generator) -> Floats:
    """Random draws of each coefficient for itself, shape (n, d): each column follows its coefficient's posterior, and none depends on
    another.

    Raises
    ------
    Misuse
        Where n is not a whole number from 1 on.
    """
    whole("n", n, 1, 1_000_000_000)
    uniform = (rng.integers(2**52, size=(n, len(posterior.mean))) + 0.5) / 2**52  # never 0 or 1
    return _coefficients(posterior, "normal").quantiles(uniform)


class _Law(Protocol):
    """The distribution of q unknowns; what `Mixture` offers."""

    @property
    def mean(self) -> Floats: ...
    @property
    def variance(self) -> Floats: ...
    def tails(self, t: Floats | float) -> tuple[Floats, ...]: ...
    def quantiles(self, below: Floats | float) -> Floats: ...
    def equal_tailed(self, level: float) -> Floats: ...
    def shortest(self, level: float) -> Floats: ...


class _Symmetric(NamedTuple):
    """Normal distributions or, with degrees of freedom, Student's, moved and scaled: their `variance` is the scale's square then."""

    mean: Floats
    variance: Floats
    freedom: float | None

    def tails(self, t: Floats | float) -> tuple[Floats, Floats]:
        with np.errstate(divide="ignore", invalid="ignore"):  # without spread only the mean itself is possible
            z = np.where(self.mean == t, 0.0, (t - self.mean) / np.sqrt(self.variance))
        return self._below(z), self._below(-z)

    def _below(self, z: Floats) -> Floats:
        return np.asarray(ndtr(z) if self.freedom is None else stdtr(self.freedom, z), dtype=np.float64)

    def quantiles(self, below: Floats | float) -> Floats:
        z = ndtri(below) if self.freedom is None else stdtrit(self.freedom, below)
        return self.mean + np.sqrt(self.variance) * z

    def equal_tailed(self, level: float) -> Floats:
        reach = self.quantiles((1.0 + level) / 2.0) - self.mean
        return np.stack([self.mean - reach, self.mean + reach], axis=-1)

    def shortest(self, level: float) -> Floats:
        return self.equal_tailed(level)


def _intervals(law: _Law, level: float, shortest: bool) -> Floats:
    number("level", level, 0, 1, above=True, below=True)
    return law.shortest(level) if shortest else law.equal_tailed(level)


def _tested(law: _Law, value: float) -> Tested:
    number("value", value, -np.inf, np.inf, above=True, below=True)
    below, above = law.tails(value)[:2]
    sd = np.sqrt(law.variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(law.mean == value, 0.0, (law.mean - value) / sd)
    return Tested(law.mean, sd, statistic, np.minimum(2.0 * np.minimum(below, above), 1.0), above)


def _coefficients(posterior: AnyPosterior, reference: Reference) -> _Law:
    _check(posterior, reference)
    if isinstance(posterior, Coefficients):
        return posterior.marginals.mixture
    return _Symmetric(posterior.mean, posterior.covariance.diagonal(), posterior.freedom if reference == "t" else None)


def _combinations(posterior: AnyPosterior, rows: Floats, what: str, reference: Reference, *, noisy: bool = False) -> _Law:
    _check(posterior, reference)
    found, d = _numbers(rows, what), len(posterior.mean)
    if found.ndim != 2 or found.shape[1] != d:
        raise Misuse(f"{what}: expected shape (rows, {d}), got {found.shape}")
    if not np.isfinite(found).all():
        raise Misuse(f"{what}: expected finite numbers, got some that are not: fill or leave out what is missing")
    if isinstance(posterior, Coefficients):
        return posterior.joint.combinations(found, posterior.joint.noise if noisy else 0.0)
    variance = ((found @ posterior.covariance) * found).sum(axis=1) + (posterior.noise if noisy else 0.0)
    return _Symmetric(found @ posterior.mean, variance, posterior.freedom if reference == "t" else None)


def _numbers(rows: object, what: str) -> Floats:
    try:
        given = np.asarray(rows)
        if np.isrealobj(given):
            return given.astype(np.float64)
    except (TypeError, ValueError):
        pass
    raise Misuse(f"{what}: expected an array of real numbers, got {type(rows).__name__}: convert it")


def _check(posterior: AnyPosterior, reference: str) -> None:
    if not isinstance(posterior, Posterior | Coefficients):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Misuse(f'expected the posterior of one device, such as result.posterior["a"], got {type(posterior).__name__}')
    choice("reference", reference, ("normal", "t"))
    if reference == "t" and isinstance(posterior, Coefficients):
        raise Misuse('this posterior already holds what is uncertain about the noise variance: use reference="normal"')
    if reference == "t" and isinstance(posterior, Posterior) and not posterior.freedom > 0:
        raise Misuse('the noise variance has no residual degrees of freedom: use reference="normal", or noise=shared')
