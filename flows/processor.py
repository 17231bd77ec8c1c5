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
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock, Thread, get_native_id
from typing import Self

BUSY = 1.1
"""Processors at work in a free round from which on threads do something beside one another."""

COLD, SLOW, AGAIN = 2, 2, 25
"""How many free rounds come first, of which the last one counts; how many rounds on one processor in a row, each slower than the last free
round, show that it is no gain; and for how many rounds either is kept to before it is looked at again."""

_IN_CHARGE = Lock()
"""Of runs beside one another in a process one at a time decides."""


class OneProcessor:
    """Decides after every round whether the next one is for one processor, drawn at random, or for all that the process may use.

    One it is where the last free round had less than `BUSY` of them at work, until rounds there turn out to be slower: another run may have
    drawn the same one. The calling thread is moved and those that device tasks are on, and no other of the process that is
    there already. On other systems than Linux, and where there is one processor or no such thread, nothing is.
    """

    def __init__(self, threads: Callable[[], Iterable[Thread]]) -> None:
        """`threads` are those that device tasks are on at the moment."""
        self._threads = threads

    def __enter__(self) -> Self:
        self._all = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()
        self._in_charge = False
        self._now, self._rounds, self._least, self._slow, self._free = self._all, 0, COLD, 0, 0.0
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_charge:
            try:
                self._move(self._all)
            finally:
                _IN_CHARGE.release()

    def next_round(self) -> None:
        """A round has ended, and the next one begins."""
        if len(self._all) > 1 and any(self._threads()):
            self._in_charge = self._in_charge or _IN_CHARGE.acquire(blocking=False)
        if self._in_charge:
            self._weigh()
        self._begin()

    def _weigh(self) -> None:
        seconds, at_work = time.perf_counter() - self._begun, time.process_time() - self._worked
        self._rounds += 1
        if self._now != self._all:
            self._slow = self._slow + 1 if seconds > self._free else 0
            if self._slow == SLOW or self._rounds == AGAIN:
                self._change(self._all, least=AGAIN if self._slow == SLOW else 1)
        elif self._rounds >= self._least:
            self._free = seconds
            if at_work < BUSY * seconds:
                self._change({random.choice(sorted(self._all))}, least=0)

    def _change(self, processors: set[int], *, least: int) -> None:
        self._move(processors)
        self._rounds, self._least, self._slow = 0, least, 0

    def _begin(self) -> None:
        self._begun, self._worked = time.perf_counter(), time.process_time()

    def _move(self, processors: set[int]) -> None:
        for thread in (get_native_id(), *(each.native_id for each in self._threads())):
            with suppress(OSError):  # it has ended meanwhile, or the processors are no longer ours
                if thread and os.sched_getaffinity(thread) == self._now:  # else somebody has given it others
                    os.sched_setaffinity(thread, processors)
        self._now = processors
