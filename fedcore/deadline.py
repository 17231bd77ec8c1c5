"""A deadline for what a device does in a round. Work on a thread cannot be stopped from outside, so loops that may take long ask for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from fedcore.errors import DeviceLate


class _Deadline(NamedTuple):
    seconds: float
    end: float
    clock: Callable[[], float]


_deadline: ContextVar[_Deadline | None] = ContextVar("deadline", default=None)


class deadline:
    """Let `check_deadline` raise from so many seconds on, in this thread, while the context is open.

    Parameters
    ----------
    seconds
        From now; None for no deadline.
    clock
        Seconds since any moment.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._found = None if seconds is None else _Deadline(seconds, clock() + seconds, clock)

    def __enter__(self) -> None:
        self._token = _deadline.set(self._found)

    def __exit__(self, *_: object) -> None:
        _deadline.reset(self._token)


def seconds_left() -> float | None:
    """Until the deadline, 0 where it has passed; None for no deadline."""
    found = _deadline.get()
    return max(found.end - found.clock(), 0.0) if found else None


def check_deadline() -> None:
    """Stop here if the deadline has passed; for loops of which a pass may take a while, and never half-way through a change.

    Raises
    ------
    DeviceLate
        Where it has.
    """
    found = _deadline.get()
    if found and found.clock() > found.end:
        raise DeviceLate(f"its work in this round took longer than its deadline of {found.seconds:g} s, and was stopped")
