"""What a run asks a Prefect server, or tells it, beside its rounds: one that is busy with tasks is as slow to answer as a round is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread

import httpx
from prefect.context import SettingsContext, get_settings_context
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

SHARE = 1 / 20
"""The part of a run's time in which a call is under way, and for which the run waits for it, at most."""


class BackgroundCall:
    """A call of the server that is made anew from time to time, in a thread of its own. A server that is away is asked once, and missed."""

    def __init__(self, call: Callable[[], None], name: str) -> None:
        """`call` is made in the context that this is made in; its thread has this name."""
        self._call = call
        self._name = name
        self._context = copy_context()
        self._once = _asked_once()
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._next = 0.0
        self._polled = time.perf_counter()

    def poll(self) -> None:
        """Begin a call, unless one is under way or was a short while ago; then wait for it for a share of the time since the last poll. So
        a run of long rounds has its answer at once, and one of short rounds at a later poll.

        Raises
        ------
        Exception
            What the call that has ended meanwhile raised, but for the server's being away.
        """
        now = time.perf_counter()
        if self._thread is None and now >= self._next:
            self._begin()
        self._wait(SHARE * (now - self._polled))
        self._polled = now

    def join(self) -> None:
        """Wait for the call that is under way.

        Raises
        ------
        Exception
            What it raised, but for the server's being away.
        """
        self._wait(None)

    def flush(self) -> None:
        """Wait for the call that is under way, then for another one.

        Raises
        ------
        Exception
            What either raised, but for the server's being away.
        """
        self.join()
        self._begin()
        self.join()

    def _begin(self) -> None:
        self._thread = Thread(target=self._context.run, args=(self._timed,), name=self._name, daemon=True)
        self._thread.start()

    def _wait(self, limit: float | None) -> None:
        if self._thread is None:
            return
        self._thread.join(limit)
        if self._thread.is_alive():
            return
        self._thread, error, self._error = None, self._error, None
        if error:
            raise error

    def _timed(self) -> None:
        begun = time.perf_counter()
        try:
            with suppress(PrefectException, httpx.HTTPError), self._once:
                self._call()
        except Exception as error:  # for the thread that waits
            self._error = error
        ended = time.perf_counter()
        self._next = ended + (ended - begun) / SHARE


def _asked_once() -> SettingsContext:
    """A context in which a server is asked once: one that is away is else asked again and again for a minute. One takes 50 ms to make, and
    can be entered anew after each use."""
    context = get_settings_context()
    return SettingsContext(profile=context.profile, settings=context.settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: 0}))
