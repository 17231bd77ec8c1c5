"""The partition store: `datasets/<name>/dataset.toml` and `datasets/<name>/device=<id>/part-*.parquet`.

A device is its folder. Whoever reads a device opens that folder and no other, so a damaged partition concerns its own device only. Errors
name the file below the data set's folder, the device, the column and a count, and never a value: they travel where rows may not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import NamedTuple, get_args

import numpy as np
import polars as pl

from fedcore.data.checks import checked_features
from fedcore.data.contract import CONTRACT_FILE, Contract, TargetScaling, read_contract
from fedcore.data.design import device_ranges, predict, prepare
from fedcore.data.disclosure import told_gaps
from fedcore.data.evolution import present_rows, version_of
from fedcore.data.fitted import Fitted
from fedcore.data.names import checked_dataset_name, checked_device_id, checked_distinct
from fedcore.data.parquet import decode, from_table, mark_in
from fedcore.data.places import Entry, Place, entries, is_file, is_folder, read_file, stamp_of, stamps
from fedcore.data.preprocess import DeviceSummary, summarise
from fedcore.data.trajectory import Trajectory, trajectory
from fedcore.errors import DataError, Misuse, PlaceAway
from fedcore.rows import DeviceData, Floats

PREFIX = "device="

# A data set with this file in it is being imported, or its import was killed: it has no devices yet.
IMPORTING = ".importing"

# An object store deletes one file at a time: a note in here says first that the device is gone.
REMOVED = ".removed"


class DeviceCard(NamedTuple):
    """What may be told of a device's data: counts, and a fingerprint of the files.

    Attributes
    ----------
    device
        Device id.
    n_train, n_validation, n_test
        Rows in each part.
    sha256
        Hex digest of the partition files' bytes, one after the other by name (`cat part-*.parquet | sha256sum`).
    gaps
        Missing values by column, over all rows, for the columns that have any and may be summarised; None for a count that may not be
        told.
    """

    device: str
    n_train: int
    n_validation: int
    n_test: int
    sha256: str
    gaps: Mapping[str, int | None] = MappingProxyType({})


class Stamp(NamedTuple):
    """What tells that a device's files are as they were.

    Attributes
    ----------
    files
        Hex digest of what the file system says of each part, which changes with any of them.
    names
        The parts' names, sorted, with a slash between them.
    folder
        What the file system of this machine says of the folder, which changes when a part comes or goes; empty elsewhere.
    """

    files: str
    names: str
    folder: str


@dataclass(frozen=True)
class Dataset:
    """A data set that was opened: its contract, with target and scaling chosen, and the way to its devices.

    Attributes
    ----------
    name
        Folder name below the datasets root.
    path
        The folder.
    contract
        The contract, with the chosen target.
    fitted
        What the fleet has learned of its columns, once it has; contracts that do not need it are read without.
    """

    name: str
    path: Place
    contract: Contract
    fitted: Fitted | None = None

    @property
    def device_ids(self) -> tuple[str, ...]:
        """All device ids, sorted as text. Only folder names are looked at; nothing is opened.

        Raises
        ------
        DataError
            On an unsafe id, or ids that differ only by case.
        """
        return device_ids_in(self.path)

    @property
    def design_names(self) -> tuple[str, ...]:
        """Names of the d design columns, such as ("intercept", "cycle^1", "cycle^2").

        Raises
        ------
        Misuse
            Where they depend on the whole fleet, and its preprocessing is not fitted yet.
        """
        if self.fitted:
            return self.fitted.design
        if self.contract.needs_fit:
            raise Misuse(f"the design of data set {self.name!r} depends on the whole fleet: fit its preprocessing first")
        return self.contract.design_names

    def with_fitted(self, fitted: Fitted | None) -> Dataset:
        """The same data set, prepared with what the fleet has learned of its columns."""
        return replace(self, fitted=fitted)

    def load(self, device_id: str) -> DeviceData:
        """One device's rows, ready for an algorithm; see `loaded`."""
        return self.loaded(device_id)[0]

    def card(self, device_id: str) -> DeviceCard:
        """One device's counts and fingerprint, no rows; see `loaded`."""
        return self.loaded(device_id)[1]

    def loaded(self, device_id: str) -> tuple[DeviceData, DeviceCard]:
        """One device's rows and card, from one reading of its own folder.

        Raises
        ------
        Misuse
            Where there is no such device, or the contract needs preprocessing that is not fitted yet.
        DataError
            Where its partition breaks the contract, cannot be read, or leads out of the device's own folder.
        """
        frame, sha256 = self._read(device_id)
        data = prepare(frame, self.contract, f"{PREFIX}{device_id}", self.fitted)
        return data, DeviceCard(device_id, data.train.n, data.validation.n, data.test.n, sha256, told_gaps(frame, self.contract))

    def stamp(self, device_id: str, before: Stamp | None = None) -> Stamp | None:
        """What changes whenever one device's files do, without reading them; None where they cannot be looked at, which `loaded` says why.

        Parameters
        ----------
        device_id
            The device.
        before
            Its stamp some time ago: where that still holds it is what is returned, and on this machine's disk found out in half the time.

        Raises
        ------
        Misuse
            On an unsafe id.
        PlaceAway
            Where an object store does not answer.
        """
        name = f"{PREFIX}{checked_device_id(device_id)}"
        try:
            if not isinstance(self.path, Path):
                found = _stamp("", stamps(self.path / name, _is_part))
                return before if found == before else found
            local = f"{self.path}/{name}"
            if before and before == _stamp(stamp_of(local), [(part, stamp_of(f"{local}/{part}")) for part in before.names.split("/")]):
                return before
            return _stamp(stamp_of(local), stamps(Path(local), _is_part))
        except PlaceAway:
            raise
        except OSError:
            return None

    def summary(self, device_id: str, *, gated: bool = True) -> DeviceSummary:
        """What one device tells for the fleet's preprocessing, from its own folder alone; see `summarise`. It raises what `loaded` does."""
        return summarise(self._read(device_id)[0], self.contract, f"{PREFIX}{device_id}", gated=gated)

    def predict(self, device_id: str, theta: Floats, frame: object) -> Floats:
        """Predictions for new rows of one device, prepared as its training rows were.

        Where the contract scales by the device's own range ("train"), the range is that of the rows which the device has now: it is two
        rows' values, so no run stores it. The run's manifest has the digest of the rows that it was trained on.

        Parameters
        ----------
        theta
            The device's coefficients, shape (d,), as in `theta.npz` of a run.
        frame
            A table of Polars or Arrow: n rows with every feature of the contract, with or without the target; they are not split.

        Returns
        -------
        Floats
            Shape (n,), in the target's own unit. Rows with a gap in a feature get NaN where the contract drops such rows.

        Raises
        ------
        Misuse
            As `loaded` does, or where `theta` has another shape or is not finite, or `frame` is no table.
        DataError
            As `loaded` does, or where the new rows break the contract.
        """
        theta = np.asarray(theta)
        if theta.dtype.kind not in "fiu" or not np.isfinite(theta).all():
            raise Misuse(f"expected theta as finite numbers, got an array of {theta.dtype}: take a column of Theta from theta.npz")
        where = f"{PREFIX}{device_id}"
        ranges = device_ranges(self._read(device_id)[0], self.contract, where, self.fitted)
        new = f"{where}: new rows"
        return predict(checked_features(from_table(frame, new)[0], self.contract, new), theta, self.contract, ranges, new, self.fitted)

    def trajectory(self, device_id: str, theta: Floats) -> Trajectory | None:
        """What one device may tell of its target over time, by coefficients `theta` of shape (d,); None where that is nothing. See
        `fedcore.data.trajectory`; it raises what `loaded` does."""
        if not self.contract.disclosure.trajectories:
            return None
        return trajectory(self._read(device_id)[0], theta, self.contract, f"{PREFIX}{device_id}", self.fitted)

    def _read(self, device_id: str) -> tuple[pl.DataFrame, str]:
        """One device's checked rows, and the digest of its files."""
        contents = self._contents(device_id)
        return pl.concat(self._frames(contents).values()), hashlib.sha256(b"".join(contents.values())).hexdigest()

    def parts(self, device_id: str) -> dict[str, pl.DataFrame]:
        """The rows of each of a device's files, by the files' names in order; errors as for `loaded`.

        They are as the present contract has them, with the draws that the split needs, and not prepared.
        """
        frames = self._frames(self._contents(device_id))
        return {where.removeprefix(f"{PREFIX}{device_id}/"): frame for where, frame in frames.items()}

    def versions(self, device_id: str) -> tuple[int, ...]:
        """The contract's version under which each of a device's files was written, by name; errors as for `loaded`."""
        return tuple(version_of(mark_in(raw), self.contract, where) for where, raw in self._contents(device_id).items())

    def _contents(self, device_id: str) -> dict[str, bytes]:
        return {where: _read(self.path, where) for where in _partition_files(self.path, device_id)}

    def _frames(self, contents: dict[str, bytes]) -> dict[str, pl.DataFrame]:
        return {where: present_rows(decode(raw, where), mark_in(raw), self.contract, where) for where, raw in contents.items()}


def list_datasets(root: Place) -> tuple[str, ...]:
    """Names of the folders below `root` that hold a contract, sorted, whether their partitions have arrived or not.

    Raises
    ------
    DataError
        Where `root` cannot be listed.
    """
    if isinstance(root, Path) and not is_folder(root):
        return ()
    names = [entry.name for entry in _entries(root, str(root.name if isinstance(root, Path) else root)) if not entry.name.startswith(".")]
    return tuple(sorted(name for name in names if is_file(root / name / CONTRACT_FILE)))


def open_dataset(root: Place, name: str, *, target: str | None = None, target_scaling: str | None = None) -> Dataset:
    """Open a data set to read it.

    Parameters
    ----------
    root
        The datasets folder.
    name
        The data set.
    target
        One of the contract's targets; by default the contract's own.
    target_scaling
        "none", "train" or "own", in place of the contract's.

    Raises
    ------
    Misuse
        On an unknown data set, target or scaling (with the known ones), or a data set without partitions.
    DataError
        On a contract that is wrong, or device folders with unsafe or ambiguous ids.
    """
    dataset = open_contract(root, name, target=target, target_scaling=target_scaling)
    if not dataset.device_ids:
        raise Misuse(
            f"data set {name!r} has a contract but no partitions: bring its source file with fedlin data import{_source(dataset.contract)}"
        )
    return dataset


def open_contract(root: Place, name: str, *, target: str | None = None, target_scaling: str | None = None) -> Dataset:
    """Open a data set whose partitions may be elsewhere; parameters as for `open_dataset`.

    Raises
    ------
    Misuse
        As `open_dataset` does.
    """
    dataset = open_for_change(root, name)
    contract = dataset.contract
    if target is not None:
        if target not in contract.targets:
            raise Misuse(f"data set {name!r} has no target {target!r}: choose one of {', '.join(contract.targets)}")
        contract = contract.model_copy(update={"target": target})
    if target_scaling is not None:
        if target_scaling not in get_args(TargetScaling):
            raise Misuse(f"no target scaling {target_scaling!r}: choose one of {', '.join(get_args(TargetScaling))}")
        contract = contract.model_copy(update={"scaling": contract.scaling.model_copy(update={"target": target_scaling})})
    return replace(dataset, contract=contract)


def open_for_change(root: Place, name: str) -> Dataset:
    """Open a data set to which devices may come: it need not have any yet.

    Raises
    ------
    Misuse
        On an unknown data set (with the known ones).
    DataError
        On a contract that is wrong.
    """
    path = root / checked_dataset_name(name)
    if not is_file(path / CONTRACT_FILE):
        known = ", ".join(list_datasets(root)) or "none yet"
        raise Misuse(
            f"no data set {name!r} with a {CONTRACT_FILE}: choose one of those there ({known}), or bring it with fedlin data import"
        )
    return Dataset(name, path, read_contract(path))


def device_ids_in(folder: Place) -> tuple[str, ...]:
    """Ids of the devices in a data set's folder, sorted as text; none where there is no such folder.

    Raises
    ------
    DataError
        On an unsafe id, or ids that differ only by case.
    """
    if not is_folder(folder) or is_file(folder / IMPORTING):
        return ()
    gone = {entry.name for entry in _entries(folder / REMOVED, REMOVED)} if not isinstance(folder, Path) else ()
    names = [entry.name for entry in _entries(folder, folder.name) if entry.folder and entry.name.startswith(PREFIX)]
    return checked_distinct(name.removeprefix(PREFIX) for name in names if name not in gone)


def _partition_files(folder: Place, device_id: str) -> list[str]:
    """The device's files, by name, as paths below the data set's folder."""
    partition = f"{PREFIX}{checked_device_id(device_id)}"
    if not is_folder(folder / partition):
        raise Misuse(f"data set {folder.name!r} has no device {device_id!r}: choose one of its device= folders")
    _stay_inside(folder, partition, partition)
    names = sorted(entry.name for entry in _entries(folder / partition, partition))
    parts = [name for name in names if _is_part(name)]
    if not parts:
        raise DataError(f"{partition}: no part-*.parquet: import the device again, or remove its folder")
    return [f"{partition}/{name}" for name in parts]


def _stamp(folder: str, parts: Sequence[tuple[str, str]]) -> Stamp:
    return Stamp(hashlib.sha256(repr(parts).encode()).hexdigest(), "/".join(name for name, _ in parts), folder)


def _is_part(name: str) -> bool:
    return name.startswith("part-") and name.endswith(".parquet") and name.isprintable()


def _entries(folder: Place, where: str) -> list[Entry]:
    try:
        return entries(folder)
    except PlaceAway:
        raise
    except OSError as error:
        reason = error.strerror
    raise DataError(f"{where}: cannot be listed: {reason}")


def _read(folder: Place, where: str) -> bytes:
    _stay_inside(folder, where, where.split("/")[0])
    try:
        # Not `is_file`, which takes a file that has vanished for one of another kind.
        if isinstance(folder, Path) and not S_ISREG((folder / where).stat().st_mode):
            raise DataError(f"{where}: not a regular file: remove it")
        return read_file(folder / where)
    except PlaceAway:
        raise
    except OSError as error:
        reason = error.strerror
    raise DataError(f"{where}: cannot be read: {reason}")


def _stay_inside(folder: Place, where: str, partition: str) -> None:
    """Refuse a link by which a device would read another one's rows, or rows from elsewhere. Object stores have none."""
    if not isinstance(folder, Path):
        return
    # Not `Path.resolve`, which raises on a link to itself; such a file cannot be read, and is told so where it is read.
    if not Path(os.path.realpath(folder / where)).is_relative_to(os.path.join(os.path.realpath(folder), partition)):
        raise DataError(f"{where}: leads out of the device's own folder: replace the link by the file itself")


def _source(contract: Contract) -> str:
    return f" ({contract.source})" if contract.source else ""
