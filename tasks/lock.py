"""One process at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock


@contextlib.contextmanager
def alone(lock: Path, *, timeout: float = 120) -> Iterator[None]:
    """Hold a lock that processes of one machine share; the system ends it with the process that holds it.

    Parameters
    ----------
    lock
        The file; made, with its folder, if missing, and left behind.
    timeout
        Longest wait, in seconds; -1 for as long as it takes.

    Raises
    ------
    OSError
        If the folder or the file cannot be made.
    filelock.Timeout
        If another process holds the lock for longer than `timeout`; it is an OSError too.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock, timeout=timeout):
        yield
