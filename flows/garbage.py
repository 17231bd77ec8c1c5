"""Python's search for garbage, made seldom.

Python 3.11 looks for what nobody uses any more after each 700 new objects, which suits small programs. To import Prefect, MLflow and
matplotlib makes some 600,000, and a task of Prefect hundreds.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

OBJECTS = 10_000
"""New objects between two searches. More gain little, and what is found late takes memory meanwhile."""


def in_a_command() -> None:
    """Search seldom for as long as this process lives, and not once more at its end, when it gives its memory back anyhow."""
    _seldom()
    atexit.register(gc.freeze)


@contextmanager
def in_a_run() -> Generator[None]:
    """Search seldom meanwhile, and leave out what is there already, modules for the most part: a large fleet's messages would have them
    all gone through again and again, for as long as the devices' steps take. Of runs within one another, or beside, the first one begins
    this, and the last one ends it."""
    _RUNS.enter()
    try:
        yield
    finally:
        _RUNS.leave()


def _seldom() -> None:
    first, *others = gc.get_threshold()
    if first:  # else somebody wants no search at all
        gc.set_threshold(max(first, OBJECTS), *others)


class _Runs:
    """How many runs go on in this process, and what was set before."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._before = gc.get_threshold()

    def enter(self) -> None:
        with self._lock:
            if self._count == 0:
                self._before = gc.get_threshold()
                gc.freeze()
                _seldom()
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                gc.set_threshold(*self._before)
                gc.unfreeze()


_RUNS = _Runs()
