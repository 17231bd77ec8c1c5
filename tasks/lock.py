"""One process at a time."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(lock: Path, *, timeout: float = 120) -> Iterator[None]:
    """Hold a lock that processes of one machine share; the system ends it with the process that holds it.

    It is an exclusive transaction in an empty SQLite file, which every system that has SQLite can do.

    Parameters
    ----------
    lock
        The file; made, with its folder, if missing, and left behind.
    timeout
        Longest wait, in seconds.

    Raises
    ------
    OSError
        If the folder cannot be made.
    sqlite3.OperationalError
        If the file cannot be written, or another process holds the lock for longer than `timeout`.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(lock, timeout=timeout, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
