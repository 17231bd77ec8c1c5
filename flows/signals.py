"""Ctrl-C and SIGTERM end a run, whatever code they meet.

Python tells the main thread of a signal by an exception, in the code that it is at just then. In a finalizer that exception is ignored,
and a library may turn it into one of its own; the run would go on, or end as if it had failed. Python also notes signals in a file where
it is given one, and no code in between loses these.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from threading import current_thread, main_thread

ENDING = (signal.SIGINT, signal.SIGTERM)

_notes: int | None = None


@contextmanager
def noted() -> Generator[None]:
    """Note signals meanwhile. Only the main thread meets any, and what is within another one of these has them noted already.

    Raises
    ------
    BaseException
        In place of an error, where a signal has come: what `check` raises.
    """
    global _notes
    if _notes is not None or current_thread() is not main_thread():
        yield
        return
    _notes, noting = os.pipe()
    os.set_blocking(_notes, False)
    os.set_blocking(noting, False)
    before = signal.set_wakeup_fd(noting, warn_on_full_buffer=False)
    signal.siginterrupt(signal.SIGINT, True)  # polars, when it is imported, has waits outlast it: Ctrl-C would come after a device's step
    try:
        yield
    except Exception:
        check()
        raise
    finally:
        signal.set_wakeup_fd(before)
        os.close(noting)
        os.close(_notes)
        _notes = None


def check() -> None:
    """Have a signal that came, and ended nothing, do once more what it does.

    Raises
    ------
    BaseException
        What this process raises then: `KeyboardInterrupt`, or Prefect's `TerminationSignal`.
    """
    if _notes is None:
        return
    try:
        came = os.read(_notes, 4096)
    except BlockingIOError:
        return
    for number in ENDING:
        if number in came:
            signal.raise_signal(number)
