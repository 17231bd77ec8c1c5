"""Moments of a normal distribution times a Laplace prior, N(t; m, v) exp(-|t| / b) / 2b, or times an elastic net.

Each side of zero is a normal distribution cut off there. In units of sqrt(v) and with a = sqrt(v) / b, the side towards which m points has
the density exp(-z^2 / 2 + alpha z), z > 0, with alpha = |m| / sqrt(v) - a, and the other side, mirrored, with alpha = -|m| / sqrt(v) - a.
Mean and variance are put together from those of the sides, in sums of which no two terms of a variance cancel. The textbook's
form, derivatives of log Z, loses all digits of the variance once a is in the thousands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, expit

from fedcore.hm2.natural import LOG_2PI
from fedcore.rows import Floats

FAR = 8.0
"""From alpha = -FAR on a continued fraction gives the moments of a side, where the closed form would cancel."""

TERMS = 12
"""Of the continued fraction: enough for full precision from FAR on."""

ROOT_2 = float(np.sqrt(2.0))


class Tilt(NamedTuple):
    """log of the integral of a product of densities, and the product's mean and variance; one shape."""

    log_normaliser: Floats
    mean: Floats
    variance: Floats


class Sides(NamedTuple):
    """Of exp(-z^2 / 2 + alpha z) on z > 0: log of its integral in units of its largest value, exp(alpha^2 / 2) or 1; mean, variance.

    All have the shape of alpha.
    """

    log_integral: Floats
    mean: Floats
    variance: Floats


def laplace_tilt(mean: Floats, variance: Floats, scale: Floats) -> Tilt:
    """Moments of N(t; mean, variance) Laplace(t; 0, scale).

    To 1e-12 of themselves, the mean of sd, for sd / scale from 1e-5 to 1e4 and |mean| / sd up to 1e4.

    Parameters
    ----------
    mean, variance, scale
        Of one shape, or shapes that broadcast; `variance` and `scale` above 0.
    """
    sd = np.sqrt(variance)
    ratio = sd / scale
    away = np.abs(mean) / sd
    sides = _sides(np.stack(np.broadcast_arrays(away - ratio, -away - ratio)))
    (near, far), (near_mean, far_mean), (near_variance, far_variance) = sides
    peaked = away > ratio  # else the near side, too, falls from zero on
    odds = near - far + np.where(peaked, 0.5 * (away - ratio) ** 2, 0.0)
    share, rest = (np.asarray(expit(each), dtype=np.float64) for each in (odds, -odds))
    shifted = share * near_mean - rest * far_mean
    spread = share * near_variance + rest * far_variance + share * rest * (near_mean + far_mean) ** 2
    height = np.where(peaked, ratio * (0.5 * ratio - away), -0.5 * away**2)
    log_normaliser = near + height + np.log1p(np.exp(-odds)) - 0.5 * LOG_2PI - np.log(2.0 * scale)
    return Tilt(log_normaliser, np.copysign(sd, mean) * shifted, variance * spread)


def elastic_net_tilt(mean: Floats, variance: Floats, scale: Floats, width: Floats) -> Tilt:
    """Moments of N(t; mean, variance) times the density proportional to exp(-|t| / scale - t^2 / 2 width), which is a normal distribution
    times a Laplace prior; all have one shape, or broadcast to it.

    Parameters
    ----------
    mean, variance, scale, width
        Of shapes that broadcast; all but `mean` above 0.
    """
    both = variance + width
    found = laplace_tilt(mean * (width / both), variance * (width / both), scale)
    normal = -0.5 * (LOG_2PI + np.log(both) + mean**2 / both)
    prior = np.log(erfcx(np.sqrt(width) / (ROOT_2 * scale)))
    return Tilt(normal + found.log_normaliser + np.log(2.0 * scale) - prior, found.mean, found.variance)


def _sides(alpha: Floats) -> Sides:
    size = np.abs(alpha)
    tail = 0.5 * np.asarray(erfcx(size / ROOT_2), dtype=np.float64)  # exp(alpha^2 / 2) times the normal distribution's tail beyond |alpha|
    square = 0.5 * size**2
    bell = np.exp(-square)
    log_integral = 0.5 * LOG_2PI + np.where(alpha > 0, np.log1p(-tail * bell), np.log(tail))
    inverse = np.where(alpha > 0, bell, 1.0) * np.exp(-log_integral)
    mean, variance = np.asarray(alpha + inverse), np.asarray(1.0 - (alpha + inverse) * inverse)
    far = np.asarray(alpha < -FAR)
    if far.any():
        x = size[far]
        rest = np.zeros_like(x)
        for term in range(TERMS + 2, 2, -1):
            rest = term / (x + rest)
        denominator = x * (x + rest) + 2.0
        mean[far] = (x + rest) / denominator
        variance[far] = (x**2 - rest**2 + 4.0) / denominator**2
    return Sides(log_integral, mean, variance)
