"""The first contract of a data set, from its source: a start that a person edits."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from fedcore.data.contract import CONTRACT_FILE, Column, ColumnType, Contract, SourceFile, parse_contract, write_contract
from fedcore.data.conversion import NUMERIC, typed
from fedcore.data.names import checked_dataset_name
from fedcore.data.places import Place, discard, is_file, is_folder, make_folder, stored, sync_folder
from fedcore.data.sources import Source, open_sources
from fedcore.errors import DataError, Misuse

# What a contract calls the device where file names say it and no column does.
DEVICE = "device"

_KINDS: tuple[ColumnType, ...] = (*NUMERIC, "string")


def infer_contract(root: Place, path: Place, name: str, *, device: str | None, target: str, form: SourceFile | None = None) -> Contract:
    """Write the first contract of a new data set, and nothing else.

    Every numeric column but the device and the target is a feature; columns of text are declared and left out of the features; no
    intercept, no scaling, all rows train.

    Parameters
    ----------
    root
        The datasets folder.
    path
        A source file, or a folder of one file a device.
    name
        The data set.
    device, target
        Columns of the source. A folder's files need no device column.
    form
        How text is read; by default with a header line, decimal points, and the most frequent separator of that line.

    Raises
    ------
    Misuse
        Where the data set has a contract, `device` is missing, the source cannot be read, or the folder cannot be written.
    DataError
        Where the source is not what it seems, or leaves no feature.
    """
    folder = root / checked_dataset_name(name)
    if is_file(folder / CONTRACT_FILE):
        raise Misuse(f"data set {name!r} has a {CONTRACT_FILE} already: edit that one, or choose another name")
    sources = open_sources(path, form, device)
    contract = first_contract(sources, path.name, name, device, target)
    stored(name, lambda: _write(folder, contract))
    return contract


def first_contract(sources: Sequence[Source], where: str, name: str, device: str | None, target: str) -> Contract:
    """The contract that `infer_contract` writes, from sources that were opened without one.

    Raises
    ------
    Misuse
        Where `device` is missing and no file name says it.
    DataError
        Where the sources disagree, lack a column, or leave no feature.
    """
    first = sources[0]
    if device is None and first.device is None:
        raise Misuse(f"data set {name!r} has no contract yet: name the device column and the target (--device, --target)")
    asked = [("target", target)] if first.device is not None else [("device", device), ("target", target)]
    for option, column in asked:
        if column not in first.names:
            # Not the names that are there: in a file without a header they are its first row.
            counted = f"{option} {column!r} is not among its {len(first.names)} columns"
            raise DataError(f"{first.where}: {counted}: check the name, the header line and the separator")
    device = device or DEVICE
    types = _types(sources, device)
    if types.get(target) == "string":
        raise DataError(f"{first.where}: target {target!r} has cells that are no numbers: correct them, or state the decimal mark")
    document = {
        "description": f"Imported from {where}",
        "device": device,
        "target": target,
        "features": [column for column, kind in types.items() if column != target and kind != "string"],
        "file": first.form,
        "columns": {column: Column(type=kind) for column, kind in types.items()},
    }
    if not document["features"]:
        count = f"{len(types)} columns beside the device, and no numeric one beside the target"
        raise DataError(f"{first.where}: {count}: check the header line, the separator and the decimal mark")
    return parse_contract(document, f"{name}/{CONTRACT_FILE}")


def _types(sources: Sequence[Source], device: str) -> dict[str, ColumnType]:
    ranks = {name: 0 for name in sources[0].names if name != device}
    for source in sources:
        if set(source.names) - {device} != set(ranks):
            raise DataError(f"{source.where}: its columns are not those of {sources[0].where}: give both the same header line")
        for batch in source.batches():
            for name, rank in ranks.items():
                ranks[name] = _rank(batch[name], rank, source.form.decimal)
    return {name: _KINDS[rank] for name, rank in ranks.items()}


def _rank(column: pl.Series, rank: int, decimal: str) -> int:
    """Place in `_KINDS` of the first type, from `rank` on, that every cell fits; numbers are never text."""
    last = len(NUMERIC) if column.dtype == pl.String else len(NUMERIC) - 1
    while rank < last:
        kind = _KINDS[rank]
        fitted = typed(column, kind, decimal)
        if fitted.dtype == NUMERIC[kind] and fitted.null_count() == column.null_count():
            break
        rank += 1
    return rank


def _write(folder: Place, contract: Contract) -> None:
    new = not is_folder(folder)
    make_folder(folder)
    try:
        write_contract(folder, contract)
    except OSError:
        if new:
            discard(folder)
        raise
    sync_folder(folder)
