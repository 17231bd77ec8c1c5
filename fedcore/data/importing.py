"""Import: one source file with a device column becomes one partition a device."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from fedcore.data.checks import listed
from fedcore.data.contract import CONTRACT_FILE, Column, ColumnType, Contract, SourceFile, parse_contract, read_contract
from fedcore.data.files import is_file
from fedcore.data.names import checked_dataset_name
from fedcore.data.sources import read_source
from fedcore.data.store import Dataset, create_dataset
from fedcore.errors import DataError, Misuse

# In the order in which types are tried on a column that no contract describes.
_NUMERIC: dict[ColumnType, pl.DataType] = {"int64": pl.Int64(), "float64": pl.Float64()}


def import_file(root: Path, file: Path, name: str, *, device: str | None = None, target: str | None = None) -> Dataset:
    """Split a source file by its device column into the partitions of a new data set.

    Parameters
    ----------
    root
        The datasets folder.
    file
        `.csv`, `.txt` or `.parquet`.
    name
        The data set. Where `root/name/dataset.toml` is there already, it says how to read the file; otherwise a first contract is
        written: every other column is a feature (a category where it is text), no intercept, no scaling, all rows train.
    device, target
        The columns of that first contract. Leave them out where there is a contract.

    Raises
    ------
    Misuse
        Where the options do not go with the contract, the file cannot be read, or the data set has partitions already.
    DataError
        Where file and contract disagree, or a device breaks the contract; nothing is written then.
    """
    folder = root / checked_dataset_name(name)
    if is_file(folder / CONTRACT_FILE):
        contract = read_contract(folder)
        for option, asked, declared in (("device", device, contract.device), ("target", target, contract.target)):
            if asked not in (None, declared):
                raise Misuse(f"data set {name!r} has a contract with {option} {declared!r}: leave {option} out, or change the contract")
        source, _ = read_source(file, contract.file)
        _same_columns(source, contract, file.name)
    else:
        if device is None or target is None:
            raise Misuse(f"data set {name!r} has no contract yet: name the device column and the target")
        source, form = read_source(file, None)
        contract = _first_contract(source, form, device, target, f"{name}/{CONTRACT_FILE}", file.name)
    partitions = _partitions(source, contract, file.name)
    try:
        return create_dataset(root, name, contract, partitions)
    except DataError as error:
        failure = str(error)
    raise DataError(f"{file.name}: {failure}")


def _same_columns(source: pl.DataFrame, contract: Contract, where: str) -> None:
    declared = [contract.device, *contract.columns]
    if missing := [name for name in declared if name not in source.columns]:
        raise DataError(f"{where}: {listed(missing)} missing: correct the file, its [file] section, or [columns]")
    if extra := [name for name in source.columns if name not in declared]:
        raise DataError(f"{where}: {listed(extra)} not in the contract: declare under [columns], or drop from the file")


def _first_contract(source: pl.DataFrame, form: SourceFile, device: str, target: str, contract_file: str, where: str) -> Contract:
    for option, column in (("device", device), ("target", target)):
        if column not in source.columns:
            # Not the names that are there: in a file without a header they are its first row.
            raise DataError(f"{where}: {option} {column!r} is not among its {source.width} columns: check the name and the header line")
    types: dict[str, ColumnType] = {name: _inferred(source[name]) for name in source.columns if name != device}
    document = {
        "description": f"Imported from {where}",
        "device": device,
        "target": target,
        "features": [name for name in types if name != target],
        "file": form,
        "columns": {name: Column(type=kind) for name, kind in types.items()},
    }
    return parse_contract(document, contract_file)


def _inferred(column: pl.Series) -> ColumnType:
    for kind, dtype in _NUMERIC.items():
        typed = _typed(column, kind)
        if typed.dtype == dtype and typed.null_count() == column.null_count():
            return kind
    return "string"


def _partitions(source: pl.DataFrame, contract: Contract, where: str) -> list[tuple[str, pl.DataFrame]]:
    columns = [_converted(source[name], column.type, where) for name, column in contract.columns.items()]
    frame = pl.DataFrame([_device_ids(source[contract.device], where), *columns])
    groups = frame.partition_by(contract.device, as_dict=True, include_key=False)
    return [(str(device_id), groups[(device_id,)]) for (device_id,) in sorted(groups)]


def _device_ids(column: pl.Series, where: str) -> pl.Series:
    if column.dtype != pl.String and not column.dtype.is_integer():
        raise DataError(f"{where}: device column {column.name!r} is neither text nor whole numbers: convert it first")
    if column.null_count():
        raise DataError(f"{where}: device column {column.name!r} has {column.null_count()} empty values: fill them first")
    return column.cast(pl.String)


def _converted(column: pl.Series, kind: ColumnType, where: str) -> pl.Series:
    typed = _typed(column, kind)
    if bad := typed.null_count() - column.null_count():
        raise DataError(f"{where}: column {column.name!r} has {bad} values that are not {kind}: correct them or its type")
    return typed


def _typed(column: pl.Series, kind: ColumnType) -> pl.Series:
    """The column as a number where its cells are text or other numbers, null where a cell does not fit; else as it is."""
    if kind == "string":
        return column
    if column.dtype == pl.String:
        return column.str.strip_chars().cast(_NUMERIC[kind], strict=False)
    if column.dtype.is_integer() or (column.dtype.is_float() and kind == "float64"):
        return column.cast(_NUMERIC[kind], strict=False)
    return column
