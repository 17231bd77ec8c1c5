"""Runs that somebody cancels in Prefect. A worker ends the process of a deployed run; every other run asks, beside its rounds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled

from flows import signals
from flows.background import BackgroundCall
from flows.wrapping import with_parameters_of

F = TypeVar("F", bound=Callable[..., Any])


class RunCancelled(Exception):
    """A run that was cancelled, and has its checkpoint."""


class Cancellation:
    """Whether the flow run that this is made in, or the one around it, has been cancelled. A server that is away has cancelled nothing."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._found: list[Any] = []
        self._asking = BackgroundCall(self._ask, "cancellation")

    def check(self) -> None:
        """Ask, where the last question is long enough ago. Where rounds are short, the answer is there at a later call.

        Raises
        ------
        RunCancelled
            Where the last answer is that it has been.
        """
        self._asking.poll()
        if self._found:
            raise RunCancelled("it was cancelled in Prefect")

    def _ask(self) -> None:
        self._ids = self._ids or [str(each) for each in {flow_run.id, flow_run.root_flow_run_id} if each]
        asked = {"id": {"any_": self._ids}, "state": {"type": {"any_": ["CANCELLING", "CANCELLED"]}}}
        with get_client(sync_client=True) as client:
            self._found = client.request("POST", "/flow_runs/filter", json={"flow_runs": asked}).json()


def cancellable(function: F) -> F:
    """Make a flow's function end where its run was cancelled, as Cancelled, or told to end by a signal; put it right below `@flow`."""

    @functools.wraps(function)
    def ending(*args: Any, **kwargs: Any) -> State[None]:
        try:
            with signals.noted():
                return function(*args, **kwargs)
        except RunCancelled as reason:
            return Cancelled(message=str(reason))

    return with_parameters_of(function, ending)
