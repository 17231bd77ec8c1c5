"""Rows that go for having a gap.

In a frame that `checked_frame` has let through, a gap is a null; NaN has become one.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from fedcore.data.contract import Contract
from fedcore.data.splits import Parts, split_rows
from fedcore.errors import DataError


def complete_rows(frame: pl.DataFrame, contract: Contract, where: str) -> tuple[pl.DataFrame, Parts]:
    """The rows that stay, and their parts: all, or those without a gap in a feature or the target where the contract says "drop".

    Rows are split before any goes, so that a further feature moves none from one part to another.

    Raises
    ------
    DataError
        Where none is left to train.
    """
    parts = split_rows(frame, contract.split, where)
    if contract.missing.policy != "drop":
        return frame, parts
    kept = frame.select(pl.all_horizontal(pl.col(*contract.features, contract.target).is_not_null())).to_series().to_numpy()
    parts = Parts(*(part[kept] for part in parts))
    if not parts.train.any():
        gaps = f"{frame.height - np.count_nonzero(kept)} of {frame.height} rows have gaps in features or target"
        raise DataError(f"{where}: {gaps}, and none is left to train: fill them, or leave the device out")
    return frame.filter(kept), parts
