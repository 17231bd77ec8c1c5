"""Work in progress, and one process at a time: what is built out of sight, and what a killed process leaves of it."""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import platform
import secrets
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from upath import UPath

from fedcore.data.places import Place, create_file, discard, is_file, read_file
from fedcore.errors import Misuse


@contextmanager
def staging_folder(root: Place) -> Generator[Path]:
    """A hidden folder of this machine to build in, gone at the end.

    It lies in the datasets folder `root`, so that a rename puts what was built in place; for an object store, in the system's folder
    for temporary files, closed to others. What killed processes have left there goes first: each holds a lock as long as it lives.
    """
    base = root if isinstance(root, Path) else Path(tempfile.gettempdir())
    base.mkdir(parents=True, exist_ok=True)
    _clear(base)
    folder = base / f".fedlin-{secrets.token_hex(8)}.tmp"
    lock = folder.with_suffix(".lock")
    with FileLock(lock):
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _clear(base: Path) -> None:
    for lock in base.glob(".fedlin-*.lock"):
        with suppress(OSError), FileLock(lock, timeout=0):
            shutil.rmtree(lock.with_suffix(".tmp"), ignore_errors=True)
            lock.unlink(missing_ok=True)


@contextmanager
def claimed(claim: Place, what: str) -> Generator[None]:
    """Hold a file that says that somebody is at work, one process at a time; gone at the end.

    A process that is killed leaves it behind. The next one of the same machine takes it over; another machine cannot know, and is
    refused.

    Parameters
    ----------
    claim
        The file, in a folder that is there.
    what
        What is being done, such as "run 7".

    Raises
    ------
    Misuse
        Where another process holds it, or one of another machine did.
    OSError
        Where the file cannot be written.
    """
    lock = FileLock(_lock(claim))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Misuse(f"{what} goes on in another process: wait for it, or end that one") from None
    except OSError as error:
        raise Misuse(f"{what} cannot begin: {claim.name} cannot be written ({error.strerror}): give permission") from None
    try:
        if not isinstance(claim, Path):
            _claim(claim, what)
        try:
            yield
        finally:
            with suppress(OSError):  # what was done is done; the claim that stays is this machine's own
                discard(claim)
    finally:
        lock.release()


def holder(claim: Place) -> str | None:
    """The machine where a process holds a claim, see `claimed`; None where nobody does.

    Of a claim of another machine nobody here can know whether its process lives; its holder is that machine.
    """
    if not is_file(claim):
        return None
    here = platform.node()
    if not isinstance(claim, Path) and (there := _holder(read_file(claim))) != here:
        return there
    try:
        with _lock(claim).open("rb") as file:
            # Shared, and let go at once: those who look do not keep each other from seeing.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return here
    except OSError:  # gone meanwhile
        return None
    return None


def _lock(claim: Place) -> Path:
    if isinstance(claim, Path):
        return claim
    key = hashlib.sha256(f"{getpass.getuser()} {claim}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fedlin-{key}.lock"


def _claim(claim: UPath, what: str) -> None:
    """With this machine's own lock held, a claim in its name is one that a killed process has left."""
    here = platform.node()
    try:
        create_file(claim, json.dumps({"host": here}).encode())
    except FileExistsError:
        holder = _holder(read_file(claim))
    else:
        return
    if holder != here:
        raise Misuse(f"{what} goes on at machine {holder}: wait for it, or, where that process is gone, delete {claim}")


def _holder(claim: bytes) -> str:
    try:
        return str(json.loads(claim)["host"])
    except (ValueError, TypeError, KeyError):
        return "unknown"
