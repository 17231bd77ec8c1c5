"""What a device may tell of its target over time: means over blocks of rows, beside what its model predicts for them.

Blocks are counted from the first row in time, each of the smallest size times a power of two. So what is told at several times, between
which later rows came, is never more than the means of the smallest blocks; a last block that is not full waits until it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from fedcore.data.contract import Contract, TimeSplit
from fedcore.data.design import prepare
from fedcore.data.disclosure import may_tell
from fedcore.data.fitted import Fitted
from fedcore.data.missing import complete_rows
from fedcore.rows import Booleans, Floats

MOST = 24
"""The most blocks of a device: enough to see a course by."""

FEWEST = 3
"""The fewest rows of a block, whatever `[disclosure] rows` says: of fewer a mean gives rows away."""


class Trajectory(NamedTuple):
    """Means over B blocks of rows in order of time.

    Attributes
    ----------
    rows
        Rows in each block.
    time
        Mean of the column that orders the rows, in its unit, shape (B,).
    observed, predicted
        Means of the target and of its prediction, in (possibly scaled) target units, shape (B,).
    tested
        Whether all rows of a block are test rows, shape (B,).
    """

    rows: int
    time: Floats
    observed: Floats
    predicted: Floats
    tested: Booleans


def trajectory(frame: pl.DataFrame, theta: Floats, contract: Contract, where: str, fitted: Fitted | None = None) -> Trajectory | None:
    """A device's trajectory, None where it may not be told, or its numbers overflow.

    It may be told where `[disclosure] trajectories` says so, rows are split by time, and the columns that it is of may be summarised. With
    the coefficients it is never more numbers than `[disclosure] parameters` allows for the rows that train.

    Parameters
    ----------
    frame, contract, where, fitted
        As for `fedcore.data.design.prepare`, which also says what is raised.
    theta
        The device's coefficients, shape (d,).
    """
    split = contract.split
    if not (contract.disclosure.trajectories and isinstance(split, TimeSplit)):
        return None
    if not all(may_tell(name, contract) for name in (split.column, contract.target, *contract.features)):
        return None
    data = prepare(frame, contract, where, fitted)
    frame, parts = complete_rows(frame, contract, where)
    size = block_rows(frame.height, data.train.n, data.train.d, contract)
    if not size:
        return None
    observed, predicted = np.empty(frame.height), np.empty(frame.height)
    with np.errstate(over="ignore", invalid="ignore"):
        for part, rows in zip(parts, data, strict=True):
            observed[part], predicted[part] = rows.y, rows.X @ theta
    times = frame[split.column].to_numpy().astype(np.float64)
    order = np.argsort(times, kind="stable")[: frame.height // size * size].reshape(-1, size)
    time, seen, said = (values[order].mean(axis=1) for values in (times, observed, predicted))
    return Trajectory(size, time, seen, said, parts.test[order[:, 0]]) if np.isfinite([time, seen, said]).all() else None


def block_rows(n: int, n_train: int, d: int, contract: Contract) -> int:
    """How many rows a block has on a device of n rows, of which `n_train` train d coefficients; 0 where no block may be told."""
    most = min(MOST, int(contract.disclosure.parameters * n_train) - d)
    size = max(contract.disclosure.rows, FEWEST)
    if most < 1 or n < size:
        return 0
    while n // size > most:
        size *= 2
    return size
