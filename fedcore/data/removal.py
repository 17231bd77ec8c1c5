"""How a device goes: in one step, in a folder and in an object store alike."""

from __future__ import annotations

from pathlib import Path

from fedcore.data.places import Place, discard, entries, sync_folder, write_durably
from fedcore.data.staging import staging_folder
from fedcore.data.store import PREFIX, REMOVED


def take_away(dataset: Place, device_id: str) -> None:
    """Delete a device's folder, with all that is in it.

    Raises
    ------
    OSError
        As the operating system says; the device is there as before, or gone.
    """
    folder = dataset / f"{PREFIX}{device_id}"
    if isinstance(folder, Path):
        with staging_folder(folder.parent.parent) as staging:
            gone = folder.rename(staging / folder.name)
            sync_folder(folder.parent)
            discard(gone)
    else:
        write_durably(dataset / REMOVED / folder.name, b"")
        _finish(dataset, folder.name)


def finish_removals(dataset: Place) -> frozenset[str]:
    """Delete what is left of devices whose removal was begun in an object store and not finished, for whoever writes there next.

    Returns
    -------
    frozenset of str
        Ids of those devices.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(dataset, Path):
        return frozenset()
    begun = [entry.name for entry in entries(dataset / REMOVED)]
    for name in begun:
        _finish(dataset, name)
    return frozenset(name.removeprefix(PREFIX) for name in begun)


def _finish(dataset: Place, name: str) -> None:
    discard(dataset / name)
    discard(dataset / REMOVED / name)
