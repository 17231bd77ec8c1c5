"""Devices that come, grow and go: each change is one rename, so that it is there whole, or not at all."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import polars as pl

from fedcore.data.checks import checked_frame
from fedcore.data.contract import Contract, SourceFile
from fedcore.data.conversion import pieces
from fedcore.data.design import prepare
from fedcore.data.evolution import mark_for
from fedcore.data.names import checked_device_id, checked_distinct
from fedcore.data.parquet import encode
from fedcore.data.places import Place, is_file, publish, stored, sync_folder, write_durably
from fedcore.data.preprocess import summarise
from fedcore.data.removal import finish_removals, take_away
from fedcore.data.sources import open_device
from fedcore.data.splits import with_draws, without_draws
from fedcore.data.staging import staging_folder
from fedcore.data.store import IMPORTING, PREFIX, Dataset, open_for_change
from fedcore.errors import DataError, Misuse


class Added(NamedTuple):
    """What `add_partition` did.

    Attributes
    ----------
    device
        Device id.
    file
        Name of the part file that holds the rows.
    rows
        Number of rows in it.
    changed
        False where the device held these rows already, and nothing was written.
    """

    device: str
    file: str
    rows: int
    changed: bool


def add_partition(
    root: Place, file: Place, name: str, device_id: str, *, append: bool = False, units: Mapping[str, str] = MappingProxyType({})
) -> Added:
    """Add a device, or with `append` further rows of one, from a source file.

    The rows are held against the contract, and prepared together with those that the device has, before anything is visible. A part
    file is named by the hash of its content. Rows that are one of the device's part files already, in the same order, are not added
    again.

    Parameters
    ----------
    root
        The datasets folder.
    file
        `.csv`, `.txt` or `.parquet`, read as the contract's [file] says; or a folder of such files, whose rows follow each other in the
        order of the names. It needs no device column; one that is there has to say `device_id` in every row.
    name
        The data set. It needs a contract, and may have no device yet.
    device_id
        The device.
    append
        Whether the device is there already.
    units
        By column, the unit in which this file brings it, in place of what [file] says.

    Raises
    ------
    Misuse
        Where the data set is unknown, the file cannot be read, the folder cannot be written, a column of `units` has no unit to convert to,
        or the device is there and `append` is not said, or the other way round.
    DataError
        Where the rows break the contract, or the device's own rows do already.
    """
    dataset = open_for_change(root, name)
    if is_file(dataset.path / IMPORTING):
        raise Misuse(f"data set {name!r} is being imported, or an import was killed: wait for it, or run it again first")
    known = dataset.device_ids
    if device_id not in known:
        checked_distinct([*known, device_id])
    contract = dataset.contract
    rows = _rows(file, contract, contract.source_file(units), device_id)
    parts = dataset.parts(device_id) if device_id in known else {}
    for part, frame in parts.items():
        if without_draws(frame).equals(rows):
            return Added(device_id, part, rows.height, changed=False)
    if parts and not append:
        raise Misuse(f"data set {name!r} has device {device_id!r} with other rows already: add --append, or remove the device first")
    if append and not parts:
        raise Misuse(f"data set {name!r} has no device {device_id!r} to append to: leave --append out")
    content = encode(rows, mark_for(contract))
    part = f"part-{hashlib.sha256(content).hexdigest()[:16]}.parquet"
    grown = parts | {part: with_draws(rows, rows, contract.split)}
    _prepared([grown[key] for key in sorted(grown)], contract, device_id, file)
    stored(name, lambda: _put_in_place(dataset, device_id, part, content, append=append))
    return Added(device_id, part, rows.height, changed=True)


def remove_device(root: Place, name: str, device_id: str) -> None:
    """Take a device out of a data set: its rows, and the state that it keeps of runs. Its partition may be damaged.

    Raises
    ------
    Misuse
        Where the data set or the device is unknown, or the folder cannot be written.
    """
    dataset = open_for_change(root, name)
    if checked_device_id(device_id) in stored(name, lambda: finish_removals(dataset.path)):
        return
    if device_id not in dataset.device_ids:
        raise Misuse(f"data set {name!r} has no device {device_id!r}: choose one of its device= folders")
    stored(name, lambda: take_away(dataset.path, device_id))


def _rows(file: Place, contract: Contract, form: SourceFile, device_id: str) -> pl.DataFrame:
    sources = open_device(file, form, contract.device, device_id)
    found = [rows for source in sources for _, rows in pieces(source, contract)]
    if not found:
        raise DataError(f"{file.name}: no rows: nothing to add")
    return checked_frame(pl.concat(found), contract, f"{file.name}: {PREFIX}{device_id}")


def _prepared(frames: list[pl.DataFrame], contract: Contract, device_id: str, file: Place) -> None:
    where = f"{file.name}: {PREFIX}{device_id}"
    if contract.needs_fit:
        # The rest needs the whole fleet, which is asked before a run.
        summarise(pl.concat(frames), contract, where, gated=False)
    else:
        prepare(pl.concat(frames), contract, where)


def _put_in_place(dataset: Dataset, device_id: str, part: str, content: bytes, *, append: bool) -> None:
    folder = dataset.path / f"{PREFIX}{device_id}"
    if not isinstance(folder, Path):
        finish_removals(dataset.path)
        write_durably(folder / part, content)
        return
    with staging_folder(dataset.path.parent) as staging:
        partition = staging / folder.name
        partition.mkdir()
        write_durably(partition / part, content)
        if append:
            publish(partition / part, folder / part)
            sync_folder(folder)
        else:
            sync_folder(partition)
            try:
                publish(partition, folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                raise Misuse(f"device {device_id!r} has just been added by another process: add --append, or leave it") from None
            sync_folder(dataset.path)
