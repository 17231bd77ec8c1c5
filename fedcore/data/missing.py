"""Rows that go for having a gap.

In a frame that `checked_frame` has let through, a gap is a null; NaN has become one.
"""

from __future__ import annotations

import polars as pl

from fedcore.data.contract import Contract
from fedcore.errors import DataError


def complete_rows(frame: pl.DataFrame, contract: Contract, where: str) -> pl.DataFrame:
    """The rows that stay: all, or those without a gap in a feature or the target where the contract says "drop".

    Raises
    ------
    DataError
        Where no row stays.
    """
    if contract.missing.policy != "drop":
        return frame
    kept = frame.drop_nulls([*contract.features, contract.target])
    if kept.is_empty():
        raise DataError(f"{where}: all {frame.height} rows have gaps in features or target: fill them, or leave the device out")
    return kept
