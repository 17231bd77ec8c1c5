"""What is known of a device's coefficients: intervals, tests and predictions from their posterior.

All of it takes the fleet's mean and covariance as known, at their estimates. So it leaves out what is uncertain about these: little
with many devices, and much with a handful, where the intervals are too narrow.

`reference` names the distribution of (estimate - truth) / sd. "normal" is the posterior as it stands, and takes the noise variance as
known too: use it where many devices share one. "t" takes the noise variance for an estimate with `freedom` degrees of freedom: use it
where a device has a noise variance of its own. It is exact least-squares inference where the fleet tells nothing about a device, and
elsewhere wider than it need be, as the noise variance scales only a part of the posterior's.

Coefficients covered at nominally 90 %, with 200 devices of 4 coefficients: shared noise, 12 or 30 rows a device, "normal" .90; own noise,
12 rows, "normal" .86 and "t" .90; own noise, 6 rows, .81 and .94.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from fedcore.errors import Misuse
from fedcore.options import choice, number
from fedcore.rows import Floats

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


class Tested(NamedTuple):
    """Two-sided tests; each field has one entry a hypothesis.

    Attributes
    ----------
    estimate, sd
        Posterior mean and standard deviation of what is tested.
    statistic
        (estimate - value) / sd.
    p
        Probability of a statistic at least as far from zero, were the value true.
    """

    estimate: Floats
    sd: Floats
    statistic: Floats
    p: Floats


def coefficient_intervals(posterior: Posterior, level: float = 0.9, *, reference: Reference = "normal") -> Floats:
    """Equal-tailed intervals of the coefficients.

    Parameters
    ----------
    posterior
        Of one device.
    level
        Probability in (0, 1) that an interval covers its coefficient.
    reference
        See the module.

    Returns
    -------
    Floats
        Lower and upper ends, shape (d, 2).

    Raises
    ------
    Misuse
        Where the level is out of bounds, or "t" is asked for without residual degrees of freedom.
    """
    return _intervals(posterior, posterior.mean, posterior.sd, level, reference)


def prediction_intervals(posterior: Posterior, X: Floats, level: float = 0.9, *, reference: Reference = "normal") -> Floats:
    """Equal-tailed intervals of the targets of new rows, their noise included.

    Parameters
    ----------
    posterior
        Of the device that the rows belong to.
    X
        New design rows, shape (n, d).
    level, reference
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
    rows = _rows(posterior, X, "X of new rows")
    sd = np.sqrt(_variances(posterior, rows) + posterior.noise)
    return _intervals(posterior, rows @ posterior.mean, sd, level, reference)


def coefficient_tests(posterior: Posterior, *, reference: Reference = "normal") -> Tested:
    """Test each coefficient against zero; d hypotheses.

    Raises
    ------
    Misuse
        Where "t" is asked for without residual degrees of freedom.
    """
    return combination_tests(posterior, np.eye(len(posterior.mean)), reference=reference)


def combination_tests(posterior: Posterior, combinations: Floats, value: float = 0.0, *, reference: Reference = "normal") -> Tested:
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
        Where the combinations have another shape, or "t" is asked for without residual degrees of freedom.
    """
    rows = _rows(posterior, combinations, "combinations")
    _check(posterior, reference)
    estimate, sd = rows @ posterior.mean, np.sqrt(_variances(posterior, rows))
    with np.errstate(divide="ignore", invalid="ignore"):  # without spread only the estimate itself is possible
        statistic = np.where(estimate == value, 0.0, (estimate - value) / sd)
    tail = -np.abs(statistic)
    p: Floats = 2.0 * np.asarray(ndtr(tail) if reference == "normal" else stdtr(posterior.freedom, tail), dtype=np.float64)
    return Tested(estimate, sd, statistic, p)


def _intervals(posterior: Posterior, center: Floats, sd: Floats, level: float, reference: Reference) -> Floats:
    number("level", level, 0, 1, above=True, below=True)
    _check(posterior, reference)
    tail = (1.0 + level) / 2.0
    reach = sd * (ndtri(tail) if reference == "normal" else stdtrit(posterior.freedom, tail))
    return np.stack([center - reach, center + reach], axis=-1)


def _check(posterior: Posterior, reference: str) -> None:
    choice("reference", reference, ("normal", "t"))
    if reference == "t" and not posterior.freedom > 0:
        raise Misuse('the noise variance has no residual degrees of freedom: use reference="normal", or noise=shared')


def _rows(posterior: Posterior, rows: Floats, what: str) -> Floats:
    found, d = np.asarray(rows, dtype=np.float64), len(posterior.mean)
    if found.ndim != 2 or found.shape[1] != d:
        raise Misuse(f"{what}: expected shape (rows, {d}), got {found.shape}")
    return found


def _variances(posterior: Posterior, rows: Floats) -> Floats:
    return ((rows @ posterior.covariance) * rows).sum(axis=1)
