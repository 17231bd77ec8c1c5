"""Files that are either there, whole and on the disk, or not there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether `path` is a file as far as we may look; a closed folder on the way is a no, not an exception."""
    with suppress(OSError):
        return path.is_file()
    return False


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder as far as we may look."""
    with suppress(OSError):
        return path.is_dir()
    return False


def write_durably(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to the disk, rename.

    The temporary name starts with a dot and ends in `.tmp`, so that no reader takes it for a partition.

    Raises
    ------
    OSError
        As the operating system says; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
