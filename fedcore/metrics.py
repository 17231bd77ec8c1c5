"""How good an estimate is, computed on the device; only these figures travel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedcore.algorithm import DeviceResult
from fedcore.rows import DeviceData, Rows
from fedcore.selection import Paired, paired


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


def score_constant(data: DeviceData, rows: Rows) -> Score:
    """Score the best constant that a device knows, the mean target of its training rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        residual = rows.y - data.train.y.mean()
        return Score(rows.n, float(residual @ residual))


def contrast(ours: DeviceResult, theirs: DeviceResult, rows: Rows) -> Paired:
    """How much larger one estimate's squared errors are than another's on the same rows, in squared target units; the standard error is
    over rows, taken to be independent of one another."""
    with np.errstate(over="ignore", invalid="ignore"):
        one, other = ((rows.y - rows.X @ result.theta) ** 2 for result in (ours, theirs))
    return paired(one, other)


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
