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
"""Of its time so much at most is a run in such a conversation, and waits for one."""


class Aside:
    """A conversation with the server that is had anew from time to time, in a thread of its own. A server that is away is asked once, and
    missed."""

    def __init__(self, talk: Callable[[], None]) -> None:
        """`talk` is had in the context that this is made in."""
        self._talk = talk
        self._context = copy_context()
        self._once = _asked_once()
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._next = 0.0
        self._offered = time.perf_counter()

    def again(self) -> None:
        """Begin anew, unless it is under way or was had a short while ago; then wait for a share of the time since the last call of this.
        So a run of long rounds has its answer at once, and one of short rounds at a later one.

        Raises
        ------
        Exception
            What was raised in the conversation, but for the server's being away.
        """
        now = time.perf_counter()
        if self._thread is None and now >= self._next:
            self._begin()
        self._wait(SHARE * (now - self._offered))
        self._offered = now

    def finish(self) -> None:
        """Have what is under way to its end.

        Raises
        ------
        Exception
            What was raised in the conversation, but for the server's being away.
        """
        self._wait(None)

    def once_more(self) -> None:
        """Have what is under way to its end, and then all of it anew.

        Raises
        ------
        Exception
            What was raised in the conversation, but for the server's being away.
        """
        self.finish()
        self._begin()
        self.finish()

    def _begin(self) -> None:
        self._thread = Thread(target=self._context.run, args=(self._timed,), name="aside", daemon=True)
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
                self._talk()
        except Exception as error:  # it is raised where somebody waits
            self._error = error
        ended = time.perf_counter()
        self._next = ended + (ended - begun) / SHARE


def _asked_once() -> SettingsContext:
    """A context in which a server is asked once: one that is away is else asked again and again for a minute."""
    context = get_settings_context()
    return SettingsContext(profile=context.profile, settings=context.settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: 0}))
