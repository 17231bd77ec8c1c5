"""A half-Cauchy prior of lambda as a factor of q that the server refreshes: x = log lambda - log scale has the density sech(x) / pi.

It is no normal distribution, so q holds a normal site for it, as it does for each device. The server knows the factor, and its tilted
moments are integrals over one number.

Source: Gelman (2006), "Prior distributions for variance parameters in hierarchical models", for the prior.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from fedcore.rows import Floats

VARIANCE = 0.25 * np.pi**2
"""Of x under the prior itself."""

STEPS: Floats = np.linspace(-1.0, 1.0, 4001)
SDS, FURTHEST = 12.0, 45.0
"""The trapezoidal rule reaches so far to both sides of the mode, in standard deviations of the cavity and at most: both factors are
log-concave, and sech falls like exp(-|x|)."""


class Matched(NamedTuple):
    """log of the integral of the prior times a normal distribution, and the product's mean and variance."""

    log_normaliser: float
    mean: float
    variance: float


def log_density(x: Floats) -> Floats:
    """log of sech(x) / pi, of any shape."""
    return -np.logaddexp(x, -x) + np.log(2.0 / np.pi)


def matched(mean: float, variance: float) -> Matched:
    """Moments of N(x; mean, variance) sech(x) / pi."""

    def slope(x: float) -> float:
        return float(-(x - mean) / variance - np.tanh(x))

    mode = float(brentq(slope, min(mean, 0.0) - 1e-9, max(mean, 0.0) + 1e-9))
    reach = min(SDS * float(np.sqrt(variance)), FURTHEST)
    x = mode + reach * STEPS
    value = log_density(x) - 0.5 * ((x - mean) ** 2 / variance + np.log(2.0 * np.pi * variance))
    top = float(value.max())
    weight = np.exp(value - top)
    total = float(weight.sum())
    centre = float(weight @ x / total)
    return Matched(float(top + np.log(total * (x[1] - x[0]))), centre, float(weight @ (x - centre) ** 2 / total))
