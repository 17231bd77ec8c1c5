"""Gauss-Hermite rules for the standard normal distribution."""

from __future__ import annotations

from functools import cache

import numpy as np

from fedcore.rows import Floats


@cache
def gauss_hermite(count: int) -> tuple[Floats, Floats]:
    """Nodes and weights, which sum to 1, shape (count,) each."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()
