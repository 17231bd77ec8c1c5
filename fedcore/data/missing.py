"""Gaps in rows: how many there are, and rows that go for having one.

In a frame that `checked_frame` has let through, a gap is a null; NaN has become one.
"""

from __future__ import annotations

import polars as pl

from fedcore.data.contract import Contract
from fedcore.errors import DataError


def count_gaps(frame: pl.DataFrame, contract: Contract) -> dict[str, int]:
    """The number of gaps by column, for the columns that have any and may be summarised."""
    allowed = contract.columns if contract.disclosure.columns is None else contract.disclosure.columns
    return {name: count for name in allowed if (count := frame[name].null_count())}


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
