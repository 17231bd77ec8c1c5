"""Normal distributions tilted by a Laplace prior: density proportional to N(t; m, v) exp(-|t| / b).

With s^2 = v the distance x = |t| / s from zero has on either side a density proportional to exp(-x^2 / 2 - c x), c = s/b - m/s on the
right and s/b + m/s on the left: a truncated normal, or nearly an exponential where c is large. Everything here is put together from these
sides without a difference of nearly equal terms, by Mills' ratio M(c), the integral of exp(-x^2 / 2 - c x) over x > 0. So it holds
whatever s/b and m/s are; the derivatives of the normaliser in m, the textbook's way to the moments, lose all digits where s/b is large.

All functions work element by element on arrays that broadcast.

Sources: Hans (2009), "Bayesian lasso regression", for the distribution; Gautschi (1967) for the continued fraction of Mills' ratio.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, expit, ndtr

from fedcore.rows import Booleans, Floats

ROOT_2PI = float(np.sqrt(2.0 * np.pi))
ROOT_HALF = float(np.sqrt(0.5))
EPSILON = float(np.finfo(float).eps)
TINY = 1e-150

FAR, TERMS = 4.0, 40
"""From this c on the moments of a side come from so many terms of a continued fraction, which is then exact to rounding."""


class Side(NamedTuple):
    """What lies on one side of zero.

    Attributes
    ----------
    rate
        c.
    mass
        Its probability.
    norm
        M(c) where c >= 0; elsewhere M(c) exp(-c^2 / 2), which does not overflow.
    missing
        Where c < 0 what `norm` lacks of the whole normal distribution's sqrt(2 pi), elsewhere 0.
    """

    rate: Floats
    mass: Floats
    norm: Floats
    missing: Floats


class TiltedNormal(NamedTuple):
    """Distributions prepared for evaluation.

    Attributes
    ----------
    mean, sd
        Of the normal factor, m and s.
    pull
        s / b.
    right, left
        The sides above and below zero.
    """

    mean: Floats
    sd: Floats
    pull: Floats
    right: Side
    left: Side


class Moments(NamedTuple):
    """Logarithm of the integral of N(t; m, v) exp(-|t| / b), and mean and variance of the distribution."""

    log_mass: Floats
    mean: Floats
    variance: Floats


class Tails(NamedTuple):
    """P(T <= t), P(T > t), each accurate also where it is small, and the density at t."""

    below: Floats
    above: Floats
    density: Floats


def tilted_normal(mean: Floats, variance: Floats, scale: Floats) -> TiltedNormal:
    """Prepare distributions for evaluation.

    Parameters
    ----------
    mean, variance
        Of the normal factor; a standard deviation below the rounding of its mean counts as that rounding.
    scale
        b, above 0; inf leaves the normal distribution as it is.
    """
    sd = np.maximum(np.sqrt(variance), np.maximum(EPSILON * np.abs(mean), TINY))
    pull, shift = sd / scale, mean / sd
    (right, log_right), (left, log_left) = _side(pull - shift), _side(pull + shift)
    logit = log_right - log_left
    return TiltedNormal(
        mean, sd, pull, Side(right.rate, expit(logit), right.norm, right.missing), Side(left.rate, expit(-logit), left.norm, left.missing)
    )


def moments(law: TiltedNormal) -> Moments:
    """Normaliser, mean and variance."""
    (x_right, v_right), (x_left, v_left) = _distance(law.right), _distance(law.left)
    p_right, p_left = law.right.mass, law.left.mass
    mean = law.sd * (p_right * x_right - p_left * x_left)
    variance = law.sd**2 * (p_right * v_right + p_left * v_left + p_right * p_left * (x_right + x_left) ** 2)
    shift = law.mean / law.sd
    log_mass = np.logaddexp(_log_mass(law.right, law.pull, shift), _log_mass(law.left, law.pull, -shift))
    return Moments(log_mass, mean, variance)


def tails(law: TiltedNormal, t: Floats) -> Tails:
    """Both tails and the density at t."""
    right: Booleans = t > 0
    rate = np.where(right, law.right.rate, law.left.rate)
    norm = np.where(right, law.right.norm, law.left.norm)
    mass = np.where(right, law.right.mass, law.left.mass)
    missing = np.where(right, law.right.missing, law.left.missing)
    x = np.abs(t) / law.sd
    away = (t - law.mean) / law.sd
    z = law.pull + np.where(right, away, -away)  # c + x, without its rounding
    height = np.exp(np.where(rate < 0, -0.5 * z * z, -x * (0.5 * x + rate))) / norm
    end = height * _mills(np.abs(z))
    past = z >= 0  # the peak of this side's normal distribution, from where on `end` is the far tail and not the near one
    far = np.where(past, end, ROOT_2PI / norm - end)
    near = np.where(past, 1.0 - end, end - missing / norm)
    tail = mass * far
    rest = np.where(right, law.left.mass, law.right.mass) + mass * near
    return Tails(np.where(right, rest, tail), np.where(right, tail, rest), mass * height / law.sd)


def _side(rate: Floats) -> tuple[Side, Floats]:
    """A side without its mass, and log M(c)."""
    negative = rate < 0
    norm = np.where(negative, ROOT_2PI * ndtr(-rate), _mills(np.maximum(rate, 0.0)))
    missing = np.where(negative, ROOT_2PI * ndtr(rate), 0.0)
    return Side(rate, norm, norm, missing), np.log(norm) + 0.5 * np.minimum(rate, 0.0) ** 2


def _log_mass(side: Side, pull: Floats, shift: Floats) -> Floats:
    """log of the integral over one side, with m / s as seen from there."""
    return np.log(side.norm / ROOT_2PI) + np.where(side.rate < 0, pull * (0.5 * pull - shift), -0.5 * shift**2)


def _distance(side: Side) -> tuple[Floats, Floats]:
    """Mean and variance of x."""
    hazard = np.asarray(np.exp(-0.5 * np.minimum(side.rate, 0.0) ** 2) / side.norm)  # 1 / M(c)
    mean = np.asarray(hazard - side.rate)
    variance = np.asarray(1.0 - mean * hazard)
    far: Booleans = np.asarray(side.rate > FAR)
    rate = side.rate[far]
    # M(c) = 1 / (c + 1 / (c + 2 / (c + 3 / (c + ...)))).
    q = np.zeros_like(rate)
    for k in range(TERMS, 2, -1):
        q = k / (rate + q)
    mean[far] = 1.0 / (rate + 2.0 / (rate + q))
    variance[far] = mean[far] ** 2 * ((rate * rate - q * q + 4.0) / (rate + q) ** 2)
    return mean, variance


def _mills(x: Floats) -> Floats:
    return (0.5 * ROOT_2PI) * np.asarray(erfcx(ROOT_HALF * x), dtype=np.float64)
