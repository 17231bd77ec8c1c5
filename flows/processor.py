"""A run's threads on one processor, in rounds where that is quicker.

Of Python's threads one at a time works. With a task a device they are through in a millisecond, and hand the interpreter around each time
one reads or writes a file: mostly to another processor, that has to be woken up, and whose caches know nothing of what is going on. Where
steps are long, and their arithmetic lets go of the interpreter, more processors do more. So rounds of both kinds are timed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress
from threading import Lock
from typing import Self

BUSY = 1.3
"""Processors in use in a free round from which on threads do work beside one another."""

AGAIN = 25
"""Rounds on one processor, after which a free one is timed anew."""

_IN_CHARGE = Lock()
"""Of runs beside one another in a process one at a time decides."""


class OneProcessor:
    """Decides after every round whether the next one is for one processor, drawn at random, or for all that the process may use.

    One it is while the last free round had less than `BUSY` of them at work, and was not quicker: two runs on one processor, or somebody
    else's threads that are kept there with these, make a round slower, and are let go after it. A thread that was given processors of
    its own keeps them. On other systems than Linux, and where there is one processor, nothing is changed; nor where devices' tasks are
    not `threads` of this process, for processes that it starts meanwhile would stay where its threads are.
    """

    def __init__(self, *, threads: bool) -> None:
        self._threads = threads

    def __enter__(self) -> Self:
        self._all = os.sched_getaffinity(0) if self._threads and sys.platform == "linux" else set[int]()
        self._in_charge = len(self._all) > 1 and _IN_CHARGE.acquire(blocking=False)
        self._now, self._free, self._rounds = self._all, 0.0, 0
        self._apart = set[int]()
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_charge:
            self._move(self._all)
            _IN_CHARGE.release()

    def next_round(self) -> None:
        """A round has ended, and the next one begins."""
        if not self._in_charge:
            return
        seconds, at_work = time.perf_counter() - self._begun, time.process_time() - self._worked
        if self._rounds == 0:
            self._free, one = seconds, at_work < BUSY * seconds
        else:
            one = seconds <= self._free and self._rounds < AGAIN
        if one != bool(self._rounds):
            self._move({random.choice(sorted(self._all))} if one else self._all)
        self._rounds = self._rounds + 1 if one else 0
        self._begin()

    def _begin(self) -> None:
        self._begun, self._worked = time.perf_counter(), time.process_time()

    def _move(self, processors: set[int]) -> None:
        """All threads, those that they have started meanwhile too, but none that is elsewhere already."""
        for thread in map(int, os.listdir("/proc/self/task")):
            with suppress(OSError):  # it has ended meanwhile, or the processors are no longer ours
                if os.sched_getaffinity(thread) != self._now:
                    self._apart.add(thread)
                elif thread not in self._apart:
                    os.sched_setaffinity(thread, processors)
        self._now = processors
