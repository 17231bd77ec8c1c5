"""Where files are: on this machine, or in an object store. The one seam between fedlin and either.

A place is a `pathlib.Path`, or a `UPath` for whatever fsspec reaches (`s3://bucket/prefix`, `gs://`, `abfs://`, ...). Both name files in
the same way; what differs is how a change becomes whole, and how it fails. A file appears by a rename here and by a single upload
there; errors of a store's client come out as `OSError` with a reason, as those of the operating system do.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from upath import UPath

from fedcore.errors import Misuse, PlaceAway

Place = Path | UPath
"""A file or folder, on this machine or in an object store."""

_BLOCK = 4 << 20

T = TypeVar("T")


class Entry(NamedTuple):
    """What a folder holds: a name, and whether it is a folder itself."""

    name: str
    folder: bool


def place(text: str) -> Place:
    """The place that a person or the environment names: a path, or a URL of an object store.

    Raises
    ------
    Misuse
        Where no installed package knows the kind of URL.
    """
    protocol, mark, _ = text.partition("://")
    if not mark:
        return Path(text)
    with suppress(ImportError, ValueError):
        # Others write there too, so a listing is never to be an old one.
        found = UPath(text.rstrip("/"), use_listings_cache=False)
        return Path(found.path) if "file" in _fs(found).protocol else found
    raise Misuse(f"no way to {protocol}:// places: install fsspec's package for them (for s3://, fedlin with its extra s3)")


def is_file(path: Place) -> bool:
    """Whether `path` is a file. On this machine as far as we may look: a closed folder on the way is a no, not an exception.

    Raises
    ------
    PlaceAway
        Where an object store does not say.
    """
    if isinstance(path, Path):
        with suppress(OSError):
            return path.is_file()
        return False
    return _kind(path) == "file"


def is_folder(path: Place) -> bool:
    """Whether `path` is a folder, as `is_file`; in an object store, one with something in it."""
    if isinstance(path, Path):
        with suppress(OSError):
            return path.is_dir()
        return False
    return _kind(path) == "directory"


def _kind(path: UPath) -> str:
    # Not its own `is_file`, which takes every failure for a no.
    with suppress(FileNotFoundError), _reached():
        return cast("str", _fs(path).info(path.path)["type"])
    return ""


def entries(folder: Place) -> list[Entry]:
    """What a folder holds, in no order; nothing where an object store has no such folder.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(folder, Path):
        with os.scandir(folder) as found:
            return [Entry(each.name, _is_folder(each)) for each in found]
    with _reached():
        try:
            listed = cast("list[dict[str, Any]]", _fs(folder).ls(folder.path, detail=True))
        except FileNotFoundError:
            return []
    found = [Entry(each["name"].rstrip("/").rpartition("/")[2], each["type"] == "directory") for each in listed]
    # Some stores list the folder itself, as an object without a name.
    return [entry for entry in found if entry.name != folder.name or entry.folder]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False


def read_file(path: Place) -> bytes:
    """All bytes of a regular file, as they are at one moment.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(path, Path):
        return _read(path)
    with _reached():
        return _fs(path).cat_file(path.path)


def _read(path: Path) -> bytes:
    """With half as many calls of the system as a file object makes: at each of them another thread may take the interpreter, and a task
    that reads a device's state waits until it gets it back."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in the file's place would keep the task waiting
    try:
        left, parts = os.fstat(handle).st_size, list[bytes]()
        while left and (part := os.read(handle, left)):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(handle)
    return b"".join(parts)


def open_file(path: Place) -> BinaryIO:
    """A file to read from and seek in, for the caller to close.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(path, Path):
        return path.open("rb")
    with _reached():
        return path.open("rb")


def size(path: Place) -> int:
    """Bytes of a file.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(path, Path):
        return path.stat().st_size
    with _reached():
        return cast("int", _fs(path).info(path.path)["size"])


def modified(path: Place) -> datetime:
    """When a file was last written.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(path, Path):
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    with _reached():
        return cast("datetime", _fs(path).modified(path.path))


def blocks(file: Place) -> Iterator[bytes]:
    """The bytes of a source file, a few megabytes at a time.

    Raises
    ------
    Misuse
        Where the file cannot be read.
    """
    try:
        with open_file(file) as stream:
            while block := _next(stream):
                yield block
        return
    except OSError as error:
        reason = error.strerror
    raise Misuse(f"{file.name}: cannot be read: {reason}")


def _next(stream: BinaryIO) -> bytes:
    try:
        return stream.read(_BLOCK)
    except OSError:
        raise
    except Exception as error:  # a store that goes away in the middle
        failure = PlaceAway(_line(error))
    raise failure


def stamps(folder: Place, wanted: Callable[[str], bool]) -> list[tuple[str, str]]:
    """What changes of each thing of a wanted name in a folder when it is written anew, beside its name, sorted, without reading it: size,
    times and number of a file of this machine; all that an object store says of one.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(folder, Path):
        with os.scandir(folder) as found:
            return sorted((each.name, _stamp(each.stat())) for each in found if wanted(each.name))
    with _reached():
        listed = cast("list[dict[str, Any]]", _fs(folder).ls(folder.path, detail=True))
    named = ((each["name"].rstrip("/").rpartition("/")[2], each) for each in listed)
    return sorted((name, repr(sorted((key, str(told)) for key, told in each.items()))) for name, each in named if wanted(name))


def stamp_of(path: str) -> str:
    """The same of one thing of this machine.

    Raises
    ------
    OSError
        As the operating system says.
    """
    return _stamp(os.stat(path))


def _stamp(file: os.stat_result) -> str:
    return f"{file.st_size} {file.st_mtime_ns} {file.st_ctime_ns} {file.st_dev} {file.st_ino}"


def make_folder(path: Place, within: Place | None = None) -> None:
    """Make a folder and those above it, where they are missing; `within` is one of these that has to be there. An object store has folders
    by their files alone.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(path, Path) and isinstance(within, Path):
        for depth in range(len(path.parents) - len(within.parents) - 1, -1, -1):
            (path, *path.parents)[depth].mkdir(exist_ok=True)
    elif isinstance(path, Path):
        path.mkdir(parents=True, exist_ok=True)


def write_durably(path: Place, content: bytes) -> None:
    """Write a file that is there whole or not at all, in a folder that is there.

    On this machine: under a temporary name, flushed to the disk, and renamed. The temporary name starts with a dot and ends in `.tmp`,
    so that no reader takes it for a partition.

    Raises
    ------
    OSError
        As the operating system says; nothing is left behind.
    """
    if not isinstance(path, Path):
        with _reached():
            _fs(path).pipe_file(path.path, content)
        return
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # of a killed process; or a link, which would be followed
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_over(path: Path, content: bytes, at: int, size: int) -> bool:
    """Write over bytes of a file of this machine, from a place in it on; they are on the disk afterwards.

    Returns
    -------
    bool
        False, with nothing written, where it is not the file that it is taken for, of this `size`, or others would see the change: a
        file with several names, such as one of a backup by hard links; a link; one that is gone, or not ours to open.

    Raises
    ------
    OSError
        As the operating system says; the bytes may then be some of the old ones and some of the new.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_DSYNC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP):
            return False
        raise
    try:
        now = os.fstat(handle)
        if now.st_size != size or now.st_nlink > 1:
            return False
        while content:
            written = os.pwrite(handle, content, at)
            content, at = content[written:], at + written
    finally:
        os.close(handle)
    return True


def create_file(path: UPath, content: bytes) -> None:
    """Write a file of an object store only where it is not there yet, which of several writers one does.

    Raises
    ------
    FileExistsError
        Where it is there.
    OSError
        As for `write_durably`.
    """
    with _reached():
        _fs(path).pipe_file(path.path, content, mode="create")


def sync_folder(folder: Place) -> None:
    """Flush a folder's list of names to the disk; object stores have done so when they answer."""
    if not isinstance(folder, Path):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(source: Path, target: Place) -> None:
    """Move a file or folder of this machine to its place: by one rename, or file by file into an object store.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(target, Path):
        source.rename(target)
        return
    for file in [source] if source.is_file() else sorted(each for each in source.rglob("*") if each.is_file()):
        write_durably(target / file.relative_to(source).as_posix() if file != source else target, file.read_bytes())


@contextmanager
def local_copy(folder: Place) -> Generator[Path]:
    """A folder for those who read this machine's files only: itself, or a copy that is gone at the end.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fedlin-") as temporary:
        _copy(folder, Path(temporary))
        yield Path(temporary)


def _copy(source: Place, target: Path) -> None:
    for entry in entries(source):
        if entry.folder:
            (target / entry.name).mkdir()
            _copy(source / entry.name, target / entry.name)
        else:
            (target / entry.name).write_bytes(read_file(source / entry.name))


def discard(path: Place) -> None:
    """Delete a file or a whole folder, where it is there. A link goes, and not what it leads to.

    Raises
    ------
    OSError
        As the operating system says.
    """
    if not isinstance(path, Path):
        with _reached(), suppress(FileNotFoundError):
            _fs(path).rm(path.path, recursive=True)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def stored(name: str, write: Callable[[], T]) -> T:
    """What `write` returns.

    Raises
    ------
    Misuse
        In place of an error of the operating system, which leaves no exception behind with all that it quotes.
    PlaceAway
        As it comes.
    """
    try:
        return write()
    except PlaceAway:
        raise
    except OSError as error:
        reason = error.strerror
    raise Misuse(f"cannot write data set {name!r}: {reason}: choose a datasets folder that you may write to")


@contextmanager
def _reached() -> Generator[None]:
    """A store's client says in the operating system's words that a file is or is not there, and with `PlaceAway` all else."""
    try:
        yield
        return
    except (FileNotFoundError, FileExistsError) as error:
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
        failure = OSError(code, os.strerror(code))
    except Exception as error:  # every client has kinds of its own
        failure = PlaceAway(_line(error))
    raise failure


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:200]


def _fs(path: UPath) -> Any:
    return path.fs
