"""Does a frame keep its contract?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from fedcore.data.contract import ColumnType, Contract
from fedcore.data.names import shown
from fedcore.errors import DataError

TYPES: dict[ColumnType, pl.DataType] = {"float64": pl.Float64(), "int64": pl.Int64(), "string": pl.String()}


def checked_frame(frame: pl.DataFrame, contract: Contract, where: str) -> pl.DataFrame:
    """The frame in the contract's column order and types.

    Integers are taken where the contract says float64 and holds each of them exactly, and NaN is null where the contract lets a column
    have gaps; nothing else is converted.

    Parameters
    ----------
    where
        How errors call the frame, such as "device=7/part-0.parquet".

    Raises
    ------
    DataError
        On a missing or undeclared column, a wrong type, integers that float64 rounds, no rows, or null or non-finite values that the
        contract does not allow; with the column and the count, never a value.
    """
    columns = {column.name: column for column in frame.iter_columns()}
    if missing := [name for name in contract.columns if name not in columns]:
        raise DataError(f"{where}: {listed(missing)} missing: correct the file or the contract")
    if extra := [name for name in columns if name not in contract.columns]:
        raise DataError(f"{where}: {listed(extra)} not in the contract: declare under [columns], or drop from the file")
    if frame.is_empty():
        raise DataError(f"{where}: no rows: leave the file out")
    gaps_in = contract.gaps_in
    return pl.DataFrame([_checked(columns[name], kind.type, name in gaps_in, where) for name, kind in contract.columns.items()])


def checked_features(frame: pl.DataFrame, contract: Contract, where: str) -> pl.DataFrame:
    """The features of rows to predict for, in the contract's order and types, checked as `checked_frame` checks them; other columns go.

    Raises
    ------
    DataError
        On a missing feature, a wrong type, or null or non-finite values that the contract does not allow.
    """
    columns = {column.name: column for column in frame.iter_columns()}
    if missing := [name for name in contract.features if name not in columns]:
        raise DataError(f"{where}: {listed(missing)} missing: give every feature of the contract")
    gaps_in = contract.gaps_in
    return pl.DataFrame([_checked(columns[name], contract.columns[name].type, name in gaps_in, where) for name in contract.features])


def listed(names: Sequence[str]) -> str:
    """Column names for a message: how many, and the first five."""
    some = ", ".join(map(shown, names[:5])) + (", ..." if len(names) > 5 else "")
    return f"column {some} is" if len(names) == 1 else f"{len(names)} columns ({some}) are"


def exact_floats(column: pl.Series) -> pl.Series:
    """Integers as float64, and null where that would be another number, as for some beyond 2**53 in size."""
    floats = column.cast(pl.Float64)
    return floats.set(floats.cast(column.dtype, strict=False).ne_missing(column), None)


def _checked(column: pl.Series, declared: ColumnType, gaps: bool, where: str) -> pl.Series:
    dtype = TYPES[declared]
    if declared == "float64" and column.dtype == pl.Int64:
        column, given = exact_floats(column), column
        if rounded := column.null_count() - given.null_count():
            counted = f"column {column.name!r} has {rounded} whole numbers that float64 does not hold exactly"
            raise DataError(f"{where}: {counted}: store float64, or smaller numbers")
    if column.dtype != dtype:
        found = column.dtype.base_type().__name__.lower()
        says = f"column {column.name!r} is {found}: the contract says {declared}"
        raise DataError(f"{where}: {says}: convert the column, or correct its type in the contract")
    if gaps:
        column = column.fill_nan(None) if declared == "float64" else column
        if infinite := column.is_infinite().sum() if declared == "float64" else 0:
            raise DataError(f"{where}: column {column.name!r} has {infinite} infinite values: correct them, or leave them empty")
        return column
    bad = np.count_nonzero(~np.isfinite(column.to_numpy())) if declared == "float64" else column.null_count()
    if bad:
        raise DataError(f"{where}: column {column.name!r} has {bad} null or non-finite values: fill them, or see [missing]")
    return column
