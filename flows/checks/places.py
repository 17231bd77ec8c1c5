"""Folders that runs write to, the room that is left there, and who may read the devices' rows."""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from fedcore.data import list_datasets
from fedcore.data.places import Place, discard, write_durably
from fedcore.data.store import open_for_change
from fedcore.errors import FedlinError
from flows.checks.finding import Finding
from flows.workspace import Workspace

LITTLE, TOO_LITTLE = 2 * 10**9, 2 * 10**8
"""Bytes on a disk: below the first one warns; below the second one a longer run's records may not find room."""

SHOWN = 3
"""How many devices or data sets are named."""


def folders(workspace: Workspace) -> Iterator[Finding]:
    """Whether runs can write what they leave: each folder gets a file, which is deleted again."""
    places = {"project": workspace.root, "datasets": workspace.datasets, "runs": workspace.runs}
    places |= {
        "MLflow artifacts": workspace.mlflow_artifacts,
        "Prefect records": workspace.prefect_home,
        "turns": workspace.turns,
        "metrics": workspace.metrics,
    }
    for name, folder in places.items():
        if reason := _closed(folder):
            yield Finding("error", "folders", f"{name}: {folder} cannot be written ({reason}): give permission, or name another place")
        else:
            yield Finding("ok", "folders", f"{name}: {folder} can be written")


def _closed(folder: Place) -> str | None:
    """Why a folder, or where it is missing the one that it would be made in, takes no file."""
    try:
        if not isinstance(folder, Path):
            write_durably(probe := folder / ".fedlin-doctor", b"")
            discard(probe)
            return None
        with tempfile.TemporaryFile(dir=_existing(folder)) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def disk(workspace: Workspace) -> Iterator[Finding]:
    """The room on the disks of the project, its data sets and its runs."""
    seen: set[int] = set()
    for folder in (workspace.root, workspace.datasets, workspace.runs):
        if not isinstance(folder, Path):
            continue
        there = _existing(folder)
        if (device := there.stat().st_dev) not in seen:
            seen.add(device)
            yield room(there, shutil.disk_usage(there).free)


def room(folder: Path, free: int) -> Finding:
    """Whether so many bytes are enough."""
    level = "error" if free < TOO_LITTLE else "warning" if free < LITTLE else "ok"
    advice = "" if level == "ok" else ": make room, runs stop where a checkpoint cannot be written"
    return Finding(level, "disk", f"{decimal(free)} free at {folder}{advice}")


def datasets(workspace: Workspace) -> Iterator[Finding]:
    """Whether contracts can be read, and devices can keep their state beside their rows."""
    names = list_datasets(workspace.datasets)
    for name in names:
        try:
            dataset = open_for_change(workspace.datasets, name)
            ids = dataset.device_ids
        except FedlinError as error:
            yield Finding("error", "datasets", str(error))
            continue
        if not ids:
            yield Finding("warning", "datasets", f"{name}: a contract without devices: fedlin data import brings them in")
            continue
        if not isinstance(dataset.path, Path):
            continue
        closed = [device for device in ids if _closed(dataset.path / f"device={device}")]
        if closed:
            shown = f"{', '.join(closed[:SHOWN])}{' and others' if len(closed) > SHOWN else ''}"
            what = f"{name}: {len(closed)} of {len(ids)} devices' folders cannot be written ({shown})"
            yield Finding("error", "datasets", f"{what}: give permission, devices keep their state there")
        else:
            yield Finding("ok", "datasets", f"{name}: {len(ids)} devices")
    if not names:
        yield Finding("ok", "datasets", "none yet: fedlin data import or fedlin simulate makes one")


def permissions(workspace: Workspace) -> Iterator[Finding]:
    """Whether other users of this machine can get at the devices' rows."""
    folder = workspace.datasets
    if not isinstance(folder, Path) or not folder.exists():
        return
    others = _others(folder)
    if others & stat.S_IWOTH:
        yield Finding("error", "permissions", f"every user of this machine may change {folder}: chmod o-w {folder}")
    elif others & stat.S_IROTH:
        yield Finding("warning", "permissions", f"every user of this machine may read the rows in {folder}: chmod o-rwx {folder}")
    else:
        yield Finding("ok", "permissions", f"other users cannot read {folder}")


def _others(folder: Path) -> int:
    """What users that own nothing on the way may do with a folder; nothing where they cannot get there."""
    if any(not each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents)):
        return 0
    return folder.stat().st_mode & stat.S_IRWXO
