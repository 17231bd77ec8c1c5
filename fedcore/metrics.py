"""How good an estimate is, computed on the device; only these figures travel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedcore.algorithm import DeviceResult
from fedcore.posterior import AnyPosterior, prediction_ranks
from fedcore.rows import DeviceData, Floats, Rows


class Score(NamedTuple):
    """Squared error of a device's predictions on n rows, in squared target units.

    Attributes
    ----------
    n
        Number of rows, 0 where the device has none of that part.
    sse
        Sum of squared errors.
    """

    n: int
    sse: float

    @property
    def rmse(self) -> float:
        """Root mean squared error, NaN without rows."""
        return float(np.sqrt(self.sse / self.n)) if self.n else float("nan")


def score(result: DeviceResult, rows: Rows) -> Score:
    """Score a device's coefficients on some of its rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        residual = rows.y - rows.X @ result.theta
        return Score(rows.n, float(residual @ residual))


def squared_errors(result: DeviceResult, rows: Rows) -> Floats:
    """A device's squared errors row by row, shape (n,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (rows.y - rows.X @ result.theta) ** 2


def constant_errors(data: DeviceData, rows: Rows) -> Floats:
    """The same, shape (m,), of the best constant that a device knows, the mean target of its training rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (rows.y - data.train.y.mean()) ** 2


LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Of the prediction intervals whose coverage is counted. They are few on purpose: many would tell where each row lies."""


def covered(posterior: AnyPosterior, rows: Rows) -> tuple[int, ...]:
    """How many targets lie in their equal-tailed prediction interval, one count for each of `LEVELS`."""
    if not rows.n:
        return (0,) * len(LEVELS)
    inside = np.abs(2.0 * prediction_ranks(posterior, rows.X, rows.y) - 1.0)
    return tuple(int((inside <= level).sum()) for level in LEVELS)


def a_rmse(scores: Iterable[Score]) -> float:
    """A-RMSE, the mean over devices of their root mean squared errors (paper, section 5); devices without rows are left
    out.

    Returns
    -------
    float
        In target units; NaN where no device has rows.
    """
    values = [each.rmse for each in scores if each.n]
    return float(np.mean(values)) if values else float("nan")
