"""From a source's cells to a contract's columns, and from rows to devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from fedcore.data.checks import exact_floats, listed
from fedcore.data.contract import ColumnType, Contract
from fedcore.data.evolution import present_names, read_mark
from fedcore.data.names import unsafe_id
from fedcore.data.sources import Source
from fedcore.data.units import in_unit
from fedcore.errors import DataError

# In the order in which types are tried on a column that no contract describes.
NUMERIC: dict[ColumnType, pl.DataType] = {"int64": pl.Int64(), "float64": pl.Float64()}


def pieces(source: Source, contract: Contract) -> Iterator[tuple[str, pl.DataFrame]]:
    """Device ids with some of their rows, columns as the contract has them, in the source's order; a device may come often.

    Raises
    ------
    DataError
        On a column that is missing, undeclared, there under two names or in a unit that does not convert, on cells that are not of their
        column's type (at the end, with the count in the whole source), or on ids that are empty, or not the source's own device.
    """
    names = present_names([name for name in source.names if name != contract.device], contract, source.where)
    held = {present: name for name, present in names.items()}
    _need_columns(source, contract, held)
    units = _units(source, contract, held)
    bad: Counter[str] = Counter()
    first: dict[str, str] = {}  # of the columns with bad cells: the first one's device
    empty = others = unsafe = 0
    reason, commas = "", False
    for batch in source.batches():
        columns = [typed(batch[held[name]].alias(name), column.type, source.form.decimal) for name, column in contract.columns.items()]
        frame = pl.DataFrame([in_unit(column, units[column.name], contract.columns[column.name], source.where) for column in columns])
        ids = _ids(batch, contract.device, source)
        empty += ids.null_count()
        if reasons := {name: why for name in ids.drop_nulls().unique(maintain_order=True) if (why := unsafe_id(name))}:
            unsafe += int(ids.is_in(list(reasons)).sum())
            reason = reason or next(iter(reasons.values()))
        for column in columns:
            cells = batch[held[column.name]]
            if count := column.null_count() - cells.null_count():
                misfits = (column.is_null() & cells.is_not_null()).fill_null(False)
                bad[column.name] += count
                first.setdefault(column.name, ids.filter(misfits)[0] or "")
                commas |= bool(cells.dtype == pl.String and cells.filter(misfits).str.contains(",", literal=True).any())
        if source.device is not None:
            others += np.count_nonzero((ids != source.device).to_numpy())
        if bad.total() == empty == others == unsafe == 0:
            yield from _by_device(frame, ids)
    where = source.where
    for name in contract.columns:
        if bad[name]:
            kind = contract.columns[name].type
            whose = f", the first of device {first[name]}" if first[name] and not unsafe_id(first[name]) else ""
            remedy = (
                "state [file] decimal, or correct them"
                if commas and kind == "float64" and source.form.decimal == "."
                else "correct them or its type"
            )
            raise DataError(f"{where}: column {name!r} has {bad[name]} values that are not {kind}{whose}: {remedy}")
    if empty:
        raise DataError(f"{where}: device column {contract.device!r} has {empty} empty values: fill them first")
    if unsafe:
        # Not the ids themselves: where the wrong column was named, they are values.
        remedy = "rename these devices, or name another column"
        raise DataError(
            f"{where}: device column {contract.device!r} has no device's id in {unsafe} of the rows, the first {reason}: {remedy}"
        )
    if others:
        raise DataError(
            f"{where}: device column {contract.device!r} names other devices than {source.device!r} in {others} rows: split the file"
        )


def typed(column: pl.Series, kind: ColumnType, decimal: str) -> pl.Series:
    """The column as a number where its cells are text or other numbers, null where a cell does not fit; else as it is.

    Text and decimals become the nearest float64. Integers are taken for float64 where it holds them exactly, decimals for int64 where
    they are whole.
    """
    if kind == "string":
        return column
    if column.dtype.is_decimal():
        return column.cast(pl.String).str.replace(r"\.0+$", "").cast(NUMERIC[kind], strict=False)
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        if decimal == "," and kind == "float64":
            # A point in such a file marks thousands, or is a mistake: what it means is not ours to guess.
            text = text.set(text.str.contains(".", literal=True), None).str.replace(",", ".", literal=True)
        return text.cast(NUMERIC[kind], strict=False)
    if column.dtype.is_integer():
        return exact_floats(column) if kind == "float64" else column.cast(NUMERIC[kind], strict=False)
    return column


def _need_columns(source: Source, contract: Contract, held: Mapping[str, str]) -> None:
    missing = [contract.device] if source.device is None and contract.device not in source.names else []
    if missing := [*missing, *(name for name in contract.columns if name not in held)]:
        raise DataError(f"{source.where}: {listed(missing)} missing: correct the file, its [file] section, or [columns]")
    if extra := [name for present, name in held.items() if present not in contract.columns]:
        raise DataError(f"{source.where}: {listed(extra)} not in the contract: declare under [columns], or drop from the file")


def _units(source: Source, contract: Contract, held: Mapping[str, str]) -> dict[str, str]:
    """The unit of each column in the source, by its present name: as is said of the source, or as it says itself; else the contract's."""
    mark = read_mark(source.mark, source.where)
    units: dict[str, str] = {}
    for name, column in contract.columns.items():
        said = source.form.units.get(name)
        own = mark.units.get(held[name]) if mark else None
        if said and own and said != own:
            differ = f"is in {own!r} as the file says itself, and in {said!r} as [file] or the option unit has it"
            raise DataError(f"{source.where}: column {name!r} {differ}: correct the option, or use it")
        units[name] = said or own or (column.unstated_unit if mark else column.unit)
    return units


def _ids(batch: pl.DataFrame, device: str, source: Source) -> pl.Series:
    if device not in source.names:
        return pl.Series([source.device]).new_from_index(0, batch.height)
    column = batch[device]
    if column.dtype != pl.String and not column.dtype.is_integer():
        raise DataError(f"{source.where}: device column {device!r} is neither text nor whole numbers: convert it first")
    return column.cast(pl.String)


def _by_device(frame: pl.DataFrame, ids: pl.Series) -> Iterator[tuple[str, pl.DataFrame]]:
    # A name that no column has: the longest one and a letter more.
    key = max(frame.columns, key=len) + "+"
    groups = frame.with_columns(ids.alias(key)).partition_by(key, as_dict=True, include_key=False, maintain_order=True)
    for (device_id,), rows in groups.items():
        yield str(device_id), rows
