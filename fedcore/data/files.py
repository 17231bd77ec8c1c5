"""Files that are either there, whole and on the disk, or not there."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from fedcore.errors import Misuse

_BLOCK = 4 << 20

T = TypeVar("T")


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


def blocks(file: Path) -> Iterator[bytes]:
    """The bytes of a source file, a few megabytes at a time.

    Raises
    ------
    Misuse
        Where the file cannot be read.
    """
    try:
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                yield block
        return
    except OSError as error:
        reason = error.strerror
    raise Misuse(f"{file.name}: cannot be read: {reason}")


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


@contextmanager
def staging_folder(root: Path, name: str) -> Generator[Path]:
    """A hidden folder beside data set `name`, gone at the end. What is renamed out of it appears whole, or not at all.

    A process that is killed leaves it behind; no reader looks at hidden folders.
    """
    folder = root / f".{name}.{secrets.token_hex(4)}.tmp"
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stored(name: str, write: Callable[[], T]) -> T:
    """What `write` returns.

    Raises
    ------
    Misuse
        In place of an error of the operating system, which leaves no exception behind with all that it quotes.
    """
    try:
        return write()
    except OSError as error:
        reason = error.strerror
    raise Misuse(f"cannot write data set {name!r}: {reason}: choose a datasets folder that you may write to")
