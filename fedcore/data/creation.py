"""How a whole data set comes into being: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import polars as pl

from fedcore.data.checks import checked_frame
from fedcore.data.contract import CONTRACT_FILE, Contract, read_contract, write_contract
from fedcore.data.design import prepare
from fedcore.data.evolution import mark_for
from fedcore.data.names import checked_dataset_name, checked_device_id, checked_distinct
from fedcore.data.parquet import encode
from fedcore.data.places import Place, discard, entries, is_file, make_folder, publish, stored, sync_folder, write_durably
from fedcore.data.preprocess import DeviceSummary, fit_preprocessing, summarise
from fedcore.data.removal import finish_removals
from fedcore.data.staging import claimed, staging_folder
from fedcore.data.store import IMPORTING, PREFIX, Dataset, device_ids_in
from fedcore.errors import DataError, Misuse

# Held by the one process that moves devices in.
CLAIM = ".import.lock"


def check_vacant(root: Place, name: str) -> None:
    """Nothing, where no device is there yet.

    Raises
    ------
    Misuse
        Where the data set has partitions already.
    """
    if device_ids_in(root / checked_dataset_name(name)):
        raise Misuse(f"data set {name!r} has partitions already: choose another name, or remove its device folders first")


def create_dataset(root: Place, name: str, contract: Contract, frames: Iterable[tuple[str, pl.DataFrame]]) -> Dataset:
    """Write a whole data set, or nothing.

    It is built in a hidden folder, every device is prepared as a reader would (with the default target), and then the devices are
    moved into place. From before the first of them until after the last, a file `.importing` says that nobody is to see them; what a
    killed process leaves behind it, the next import clears. A failure takes everything out again.

    Parameters
    ----------
    frames
        Device ids with their rows, one pair a device; columns as the contract declares them.

    Raises
    ------
    Misuse
        Where the data set has partitions or another contract already, or the folder cannot be written.
    DataError
        Where a device breaks the contract, its id is unsafe or comes twice, or there is no device at all.
    """
    check_vacant(root, name)
    path = root / name
    if is_file(path / CONTRACT_FILE) and read_contract(path) != contract:
        raise Misuse(f"data set {name!r} has another contract already: use that one, or choose another name")
    stored(name, lambda: _create(root, name, contract, frames))
    return Dataset(name, path, contract)


def _create(root: Place, name: str, contract: Contract, frames: Iterable[tuple[str, pl.DataFrame]]) -> None:
    with staging_folder(root) as staging:
        _build(staging, contract, frames)
        make_folder(root / name)
        with claimed(root / name / CLAIM, f"an import into data set {name!r}"):
            _clear(root, name)
            _put_in_place(staging, root / name)


def _build(folder: Place, contract: Contract, frames: Iterable[tuple[str, pl.DataFrame]]) -> None:
    ids: list[str] = []
    summaries: list[DeviceSummary] = []
    for device_id, frame in frames:
        ids.append(checked_device_id(device_id))
        where = f"{PREFIX}{device_id}"
        checked = checked_frame(frame, contract, where)
        if contract.needs_fit:
            summaries.append(summarise(checked, contract, where, gated=False))
        else:
            prepare(checked, contract, where)
        partition = folder / where
        partition.mkdir(exist_ok=True)
        write_durably(partition / "part-0.parquet", encode(checked, mark_for(contract)))
        sync_folder(partition)
    if not checked_distinct(ids):
        raise DataError("no device: expected at least one device with rows")
    if contract.needs_fit:
        staged = Dataset(folder.name, folder, contract, fit_preprocessing(contract, summaries))
        for device_id in ids:
            staged.load(device_id)
    write_contract(folder, contract)
    sync_folder(folder)


def _clear(root: Place, name: str) -> None:
    """Delete what an import that was killed has left; its file says that nobody has seen it."""
    path = root / name
    finish_removals(path)
    if not is_file(path / IMPORTING):
        check_vacant(root, name)  # others may have been faster
        return
    for left in entries(path):
        if left.name.startswith(PREFIX):
            discard(path / left.name)


def _put_in_place(staging: Path, path: Place) -> None:
    """Move what was built into place, out of sight until the last of it is there."""
    write_durably(path / IMPORTING, b"")
    sync_folder(path)
    begun: list[Place] = []
    try:
        for source in sorted(staging.glob(f"{PREFIX}*")):
            begun.append(path / source.name)
            publish(source, begun[-1])
        if not is_file(path / CONTRACT_FILE):
            begun.append(path / CONTRACT_FILE)
            publish(staging / CONTRACT_FILE, begun[-1])
        sync_folder(path)
        discard(path / IMPORTING)
    except BaseException:
        with suppress(OSError):
            for moved in (*begun, path / IMPORTING):
                discard(moved)
        raise
    sync_folder(path)
