"""Tails of normal distributions tilted by a Laplace prior: density proportional to N(t; m, v) exp(-|t| / b). `laplace` has the moments.

With s^2 = v the distance x = |t| / s from zero has on either side a density proportional to exp(-x^2 / 2 - c x), c = s/b - m/s on the
right and s/b + m/s on the left: a truncated normal, or nearly an exponential where c is large. Everything here is put together from these
sides without a difference of nearly equal terms, by Mills' ratio M(c), the integral of exp(-x^2 / 2 - c x) over x > 0. So it holds
whatever s/b and m/s are.

All functions work element by element on arrays that broadcast.

Source: Hans (2009), "Bayesian lasso regression".
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


class Side(NamedTuple):
    """What lies on one side of zero; all of the distributions' shape.

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
    """Distributions prepared for evaluation; all of one shape.

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


class Tails(NamedTuple):
    """P(T <= t), P(T > t), each accurate also where it is small, and the density at t; all of one shape."""

    below: Floats
    above: Floats
    density: Floats


def tilted_normal(mean: Floats, variance: Floats, scale: Floats) -> TiltedNormal:
    """Prepare distributions for evaluation, of any shape that the three broadcast to.

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


def tails(law: TiltedNormal, t: Floats) -> Tails:
    """Both tails and the density at t, which has the distributions' shape."""
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


def _mills(x: Floats) -> Floats:
    return (0.5 * ROOT_2PI) * np.asarray(erfcx(ROOT_HALF * x), dtype=np.float64)
