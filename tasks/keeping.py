"""What devices keep between tasks, in files: their state, and their rows as they were read.

A device on its own keeps both in `.fedlin` below its own folder. Devices of a cohort, which one task opens together, keep them in one file
each below the data set's folder, `.fedlin/<run>/cohort-00012.state` and `.rows`: thousands of small files would cost more than the
steps. Their names have the run's uuid, so that runs of one name are out of each other's way.
A file has its old content or its new one, and a receipt says which of two states counts, so one that is written twice, or not at all, does
no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedcore.data import Stamp
from fedcore.data.places import Place, discard, entries, is_folder, make_folder, read_file, stored, sync_folder, write_durably
from fedcore.data.slots import Turn, read_slots, write_slots
from fedcore.data.store import open_for_change
from fedcore.errors import DeviceRefusal, Misuse, PlaceAway
from fedcore.receipts import Memory
from fedcore.rows import DeviceData
from fedcore.trees import dump_all, load_all
from tasks.ground import Earlier, Ground, Owner, kept_as

K = TypeVar("K")
T = TypeVar("T")

STATE, ROWS = ".state", ".rows"

OF_RUNS, COHORT = ".fedlin", "cohort-"
"""The folder of a data set with a folder for each run, and what the names of files of cohorts in it begin with."""

HALF_WRITTEN = ".tmp"
"""What the name of a file ends with that a killed process has left (`write_durably`); it begins with a dot."""


class Kept(NamedTuple):
    """A device's state: whose it is, the fingerprint of the rows that it was made from, their files' stamp when they last had that
    (`Dataset.stamp`), and its memory, whose states are each a `fedcore.alike.Member` where several devices share a file."""

    device: str
    fingerprint: str
    stamp: Stamp | None
    memory: Memory


class Held(NamedTuple):
    """A device's partition as it was read: whose it is, `Stamp.files` of then, and the rows."""

    device: str
    files: str
    data: DeviceData


class Keeping:
    """The files of one owner, as one task sees them: each is read once, when it is first asked for."""

    def __init__(self, ground: Ground, owner: Owner) -> None:
        self._ground = ground
        self._owner = owner
        self._states: dict[tuple[str, Owner], tuple[dict[str, Kept], Turn | None]] = {}
        self._rows: dict[str, Held] | None = None

    def recall(self, device_id: str, earlier: Earlier | None = None) -> Kept:
        """What a device keeps of this run, or of an earlier one.

        Raises
        ------
        DeviceRefusal
            Where that is missing, damaged, or another device's.
        """
        run, owner = earlier or self._ground, earlier.owner if earlier else self._owner
        try:
            found, _ = self._stored(kept_as(run.run_id, run.run_uuid), owner)
        except PlaceAway:
            raise
        except (Misuse, OSError):
            found = {}
        if device_id in found:
            return found[device_id]
        if isinstance(owner, str) and found:
            raise DeviceRefusal(f"its folder holds the state of device {next(iter(found))}: give the folders their names back")
        instead = "start a run that does not go on from it" if earlier else "start a new run"
        what = f"its state of run {run.run_id} is missing or damaged"
        raise DeviceRefusal(f"{what}: restore the {_whose(owner)}'s .fedlin folder, or {instead}")

    def held(self, device_id: str) -> Held | None:
        """The rows of a device as they were last read, None where they are not kept."""
        try:
            return self._stored_rows().get(device_id)
        except (Misuse, OSError):  # they can always be read again
            return None

    def keep(self, kept: Iterable[Kept]) -> None:
        """Replace the states of some of the owner's devices, where they are others than those that were recalled.

        Raises
        ------
        DeviceRefusal
            Where their folder is gone.
        OSError
            As the operating system says; all are then as they were.
        """
        new = {each.device: each for each in kept}
        if not new:
            return
        run, found, turn = self._ground.kept_as, dict[str, Kept](), None
        with suppress(FileNotFoundError, Misuse):  # before the first, or damaged: those in it are told so when they are asked for
            found, turn = self._stored(run, self._owner)
        if all(found.get(device_id) is each for device_id, each in new.items()):
            return
        content, file = self._with_others(found, new), self._file(run, self._owner, STATE)
        raw = dump_all(list(content.values()))
        try:
            self._states[run, self._owner] = content, self._in_its_folder(file, lambda: write_slots(file, raw, turn))
        except FileNotFoundError:
            raise DeviceRefusal(f"the {_whose(self._owner)}'s folder is gone: bring it back") from None

    def hold(self, held: Iterable[Held]) -> None:
        """Keep rows that were read, where there is room for them, and those of no other run: each would read its own again."""
        file, new = self._file(self._ground.kept_as, self._owner, ROWS), {each.device: each for each in held}
        with suppress(OSError):
            for old in self._of_other_runs(file.parent):
                discard(old)
            if not new:
                return
            found: dict[str, Held] = {}
            with suppress(FileNotFoundError, Misuse):  # before the first, or damaged: they are read again
                found = self._stored_rows()
            self._rows = self._with_others(found, new)
            raw = dump_all(list(self._rows.values()))
            self._in_its_folder(file, lambda: write_durably(file, raw))

    def let_go(self) -> None:
        """Delete the rows: the run is over for these devices. What cannot be deleted goes with the next run."""
        with suppress(OSError):
            discard(self._file(self._ground.kept_as, self._owner, ROWS))

    def forget(self) -> None:
        """Delete all that is kept of the run."""
        files = [self._file(self._ground.kept_as, self._owner, suffix) for suffix in (STATE, ROWS)]
        for file in files:
            discard(file)
        if isinstance(self._owner, int) and isinstance(folder := files[0].parent, Path):
            with suppress(OSError):  # other cohorts' files are still there
                folder.rmdir()

    def _of_other_runs(self, folder: Place) -> list[Place]:
        if isinstance(self._owner, str):
            own, kinds = f"{self._ground.kept_as}{ROWS}", (ROWS, f"{ROWS}{HALF_WRITTEN}")
            return [folder / each.name for each in entries(folder) if each.name.endswith(kinds) and each.name != own]
        name = self._file(self._ground.kept_as, self._owner, ROWS).name
        others = [folder.parent / each.name for each in entries(folder.parent) if each.name != self._ground.kept_as]
        return [other / each for other in others for each in (name, f".{name}{HALF_WRITTEN}")]

    def _with_others(self, found: Mapping[str, K], new: Mapping[str, K]) -> dict[str, K]:
        """What a file is to hold: a cohort's other devices stay in it."""
        return {**found, **new} if isinstance(self._owner, int) else dict(new)

    def _stored(self, run: str, owner: Owner) -> tuple[dict[str, Kept], Turn | None]:
        if (run, owner) not in self._states:
            raw, turn = read_slots(self._file(run, owner, STATE))
            self._states[run, owner] = {each.device: each for each in load_all(raw, (Kept, Stamp, Memory))}, turn
        return self._states[run, owner]

    def _stored_rows(self) -> dict[str, Held]:
        if self._rows is None:
            self._rows = {each.device: each for each in load_all(read_file(self._file(self._ground.kept_as, self._owner, ROWS)))}
        return self._rows

    def _file(self, run: str, owner: Owner, suffix: str) -> Place:
        if isinstance(owner, str):
            return self._ground.state_folder(owner) / f"{run}{suffix}"
        folder = self._ground.dataset.path / OF_RUNS / run
        if isinstance(folder, Path) and (folder.is_symlink() or folder.parent.is_symlink()):
            raise DeviceRefusal("the data set's .fedlin, or the run's folder in it, is a link: replace it by a folder")
        return folder / f"{COHORT}{owner:05}{suffix}"

    def _in_its_folder(self, file: Place, write: Callable[[], T]) -> T:
        """What a write returns. The folder is made where it turns out to be missing, but not the one of a device that has been removed."""
        try:
            return write()
        except FileNotFoundError:
            there = self._ground.state_folder(self._owner).parent if isinstance(self._owner, str) else self._ground.dataset.path
            make_folder(file.parent, within=there)
            sync_folder(file.parent.parent)
            return write()


def _whose(owner: Owner) -> str:
    return "device" if isinstance(owner, str) else "data set"


def erase(root: Place, name: str, device_id: str) -> None:
    """Delete what cohorts of all runs keep for a device of a data set. What it keeps on its own is in its folder, and goes with that.

    Raises
    ------
    Misuse
        Where the data set is unknown, or the folder cannot be written; some files may then be without the device, and others not.
    """
    runs = open_for_change(root, name).path / OF_RUNS
    stored(name, lambda: _erase(runs, device_id))


def _erase(runs: Place, device_id: str) -> None:
    for run in entries(runs) if is_folder(runs) else ():
        if isinstance(runs, Path) and (runs.is_symlink() or (runs / run.name).is_symlink()):
            raise Misuse("the data set's .fedlin, or a folder in it, is a link: replace it by a folder")
        for file in (runs / run.name / each.name for each in entries(runs / run.name)):
            if file.name.startswith(f".{COHORT}") and file.name.endswith(HALF_WRITTEN):
                discard(file)
            if not file.name.startswith(COHORT):
                continue
            try:
                found = load_all(read_slots(file)[0], known=False)  # whatever ran there may not be imported here
            except Misuse:  # damaged: nobody can use it, and nobody can tell whose it is
                discard(file)
                continue
            left = [each for each in found if each.device != device_id]
            if left and len(left) < len(found) and file.name.endswith(STATE):
                write_slots(file, dump_all(left), None)
            elif len(left) < len(found):  # rows can always be read again
                discard(file)
