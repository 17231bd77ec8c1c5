"""Part files of earlier contracts, brought to the present one by rule, or refused.

A part file says in its mark under which version of the contract it was written, and in which units. A column may have been renamed (the
contract lists its aliases), be in another unit (it is converted) or be younger than the file (it is a gap in every row, which the
contract has to allow). All else is for `checked_frame` to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from fedcore.data.checks import TYPES, checked_frame
from fedcore.data.contract import ColumnName, Contract, Unit, Version
from fedcore.data.splits import with_draws
from fedcore.data.units import in_unit
from fedcore.errors import DataError


class Mark(BaseModel):
    """What a part file says of itself.

    Attributes
    ----------
    version
        The contract's version under which it was written.
    units
        By name in the file, the units of the columns that have one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Version
    units: dict[ColumnName, Unit]


def mark_for(contract: Contract) -> bytes:
    """The mark of part files that are written now, as it is stored."""
    units = {name: column.unit for name, column in contract.columns.items() if column.unit}
    return Mark(version=contract.version, units=units).model_dump_json().encode()


def read_mark(stored: bytes | None, where: str) -> Mark | None:
    """The mark, None where there is none.

    Raises
    ------
    DataError
        Where it is damaged.
    """
    if stored is None:
        return None
    try:
        return Mark.model_validate_json(stored)
    except ValidationError:
        pass
    raise DataError(f"{where}: its mark, which says contract version and units, is damaged: write the file again")


def version_of(stored: bytes | None, contract: Contract, where: str) -> int:
    """The version under which a part file was written; without a mark it is of version 1, where there is no other.

    Raises
    ------
    DataError
        Where the mark is damaged, missing though the contract has had other versions, or of a later version than the contract.
    """
    return _version(read_mark(stored, where), contract, where)


def present_names(found: Iterable[str], contract: Contract, where: str) -> dict[str, str]:
    """By name in a file, a column's present name; undeclared ones keep theirs.

    Raises
    ------
    DataError
        Where a column is there under two names.
    """
    known = contract.present_names
    names = {name: known.get(name, name) for name in found}
    first: dict[str, str] = {}
    for name, present in names.items():
        if first.setdefault(present, name) != name:
            raise DataError(f"{where}: columns {first[present]!r} and {name!r} are one column under two names: keep one")
    return names


def present_rows(frame: pl.DataFrame, stored: bytes | None, contract: Contract, where: str) -> pl.DataFrame:
    """The rows of a part file as the present contract has them, checked, with the draws that the split needs.

    A row draws as it was written: names, types and units of its file. In a file without a mark, types are the contract's.

    Parameters
    ----------
    frame
        The file's columns.
    stored
        Its mark, as it is stored.
    where
        How errors call it.

    Raises
    ------
    DataError
        As `version_of`, `present_names`, `in_unit` and `checked_frame` do, or where a column is there that is younger than the file.
    """
    mark = read_mark(stored, where)
    version = _version(mark, contract, where)
    names = present_names(frame.columns, contract, where)
    columns = [_present(column.alias(names[column.name]), column.name, mark, version, contract, where) for column in frame.iter_columns()]
    younger = [name for name, column in contract.columns.items() if version < column.since]
    columns += [pl.Series(name, [None], TYPES[contract.columns[name].type]).new_from_index(0, frame.height) for name in younger]
    checked = checked_frame(pl.DataFrame(columns), contract, where)
    return with_draws(checked, frame if mark else _as_declared(frame, names, contract), contract.split)


def _version(mark: Mark | None, contract: Contract, where: str) -> int:
    if mark is None and contract.version > 1:
        present = f"and the present one is {contract.version}: remove the device and add its rows again"
        raise DataError(f"{where}: does not say its contract's version, {present}")
    if mark and mark.version > contract.version:
        remedy = "bring dataset.toml up to date"
        raise DataError(f"{where}: written under version {mark.version} of the contract, and this is {contract.version}: {remedy}")
    return mark.version if mark else 1


def _present(column: pl.Series, written: str, mark: Mark | None, version: int, contract: Contract, where: str) -> pl.Series:
    declared = contract.columns.get(column.name)
    if declared is None:
        return column
    if version < declared.since:
        since = f"is in this file of version {version}, and in the contract since version {declared.since}"
        raise DataError(f"{where}: column {column.name!r} {since}: correct since in [columns]")
    unstated = declared.unstated_unit or ("" if mark else declared.unit)
    return in_unit(column, mark.units.get(written, unstated) if mark else unstated, declared, where)


def _as_declared(frame: pl.DataFrame, names: dict[str, str], contract: Contract) -> pl.DataFrame:
    """The columns in the contract's types, with nulls for NaN, as a file without a mark has always drawn."""
    floats = {name for name, present in names.items() if contract.columns[present].type == "float64"}
    return pl.DataFrame([_as_float(column) if column.name in floats else column for column in frame.iter_columns()])


def _as_float(column: pl.Series) -> pl.Series:
    column = column.cast(pl.Float64)
    # Filling is slow even where there is nothing to fill.
    return column.fill_nan(None) if np.isnan(column.to_numpy()).any() else column
