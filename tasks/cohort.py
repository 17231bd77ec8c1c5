"""One task for several devices, of which each fails alone.

A device on its own is a cohort of one. What leaves a task are the devices' answers, and a `DeviceFailure` for each that has none: it says
where and of what kind, never what the failing code said, since such text quotes data. The full traceback is written beside the device's
state, for whoever may read its rows.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run
from prefect.tasks import exponential_backoff

from fedcore.data.places import make_folder, write_durably
from fedcore.errors import DataError, DeviceAway, DeviceFailure, DeviceLate, DeviceRefusal, FedlinError, PlaceAway
from tasks.ground import Ground, Owner
from tasks.keeping import Keeping

G = TypeVar("G", bound=Ground)
A = TypeVar("A")
B = TypeVar("B")
F = TypeVar("F", bound=Callable[..., Any])

RETRIES = 2
"""How often devices are tried again where what stopped them may pass."""

UNKNOWN = 1
"""The same where nobody knows what it was: most such failures are of the rows or the code, and come again."""

IN_TURN = Lock()
"""Cohorts of one process work in turn, where their files are this machine's: their steps are short calls of Python and of the system, and
threads that go on with them together spend a fifth of the time on passing the interpreter to and fro. A cohort that waits for another try,
or for an object store, holds up nobody."""


class Errand:
    """What a task has to do, and what has come of it so far: one that is tried again finds here whom it still has to ask. (A plain class,
    which Prefect does not look into, and hands to every try as it is.)

    Attributes
    ----------
    owner
        The device that works on its own, or the number of the cohort.
    told
        What each device is told, by id.
    answers, failed
        What devices have answered, and why others have not.
    """

    def __init__(self, owner: Owner, told: Mapping[str, tuple[Any, ...]]) -> None:
        self.owner = owner
        self.told = told
        self.answers: dict[str, Any] = {}
        self.failed: dict[str, DeviceFailure] = {}

    @property
    def name(self) -> str:
        """How Prefect is to call whom it is about."""
        return self.owner if isinstance(self.owner, str) else f"cohort {self.owner:05} ({len(self.told)} devices)"

    @property
    def round_num(self) -> int:
        """The round, where devices are told of one."""
        return next(iter(self.told.values()))[0].round_num


class Answered:
    """What has come of an errand: answers, and why other devices have none, by id. (A plain class, as above.)"""

    def __init__(self, answers: Mapping[str, Any], failed: Mapping[str, DeviceFailure]) -> None:
        self.answers = answers
        self.failed = failed


class CohortFailure(FedlinError):
    """Devices of a cohort have not answered; `failed` says why, by id."""

    def __init__(self, failed: Mapping[str, DeviceFailure], asked: int) -> None:
        super().__init__(failed, asked)
        self.failed = failed
        self.asked = asked

    def __str__(self) -> str:
        return f"{len(self.failed)} of {self.asked} devices: {next(iter(self.failed.values()))}"


class Attempt(Generic[G]):
    """One try at the devices of an errand that have not answered.

    Attributes
    ----------
    ground
        Where it works.
    stage
        What it does, for people.
    owner
        As of its errand.
    told
        What each of these devices is told.
    failed
        Why some have dropped out; the methods below go on without them.
    files
        What they keep.
    """

    def __init__(self, ground: G, stage: str, owner: Owner, told: Mapping[str, tuple[Any, ...]]) -> None:
        self.ground = ground
        self.stage = stage
        self.owner = owner
        self.told = told
        self.failed: dict[str, DeviceFailure] = {}
        self.files = Keeping(ground, owner)

    def each(self, function: Callable[[str, A], B], of: Mapping[str, A]) -> dict[str, B]:
        """What a function gives for one device after the other; those for whom it raises drop out."""
        found: dict[str, B] = {}
        for device_id, item in of.items():
            try:
                found[device_id] = function(device_id, item)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # polars' panics and a library's exit too
                self.failed[device_id] = self._sealed(device_id, error)
        return found

    def _sealed(self, device_id: str, error: BaseException) -> DeviceFailure:
        """What may be told of an exception of a device's own: its kind, and the texts of fedlin's own errors, which hold no values. It is
        never raised from the other, so that nothing that formats or pickles it can reach that, or the rows in its frames."""
        if isinstance(error, DataError):  # it names the device's own file
            return DeviceRefusal(str(error))
        if isinstance(error, FedlinError):
            kind = type(error) if isinstance(error, DeviceFailure) else DeviceAway if isinstance(error, PlaceAway) else DeviceRefusal
            return kind(f"device {device_id}: {error}")
        kept = _keep_traceback(self.ground, device_id)  # whatever it says may quote rows
        kind = DeviceAway if isinstance(error, OSError | MemoryError) else DeviceFailure
        return kind(f"device {device_id}: {type(error).__name__} in its {self.stage}; {kept}")

    def together(
        self, all_at_once: Callable[[Sequence[str], Sequence[A]], Sequence[B]], one: Callable[[str, A], B], of: Mapping[str, A]
    ) -> dict[str, B]:
        """What a function gives for all devices at once. Where it raises, `one` is called for one after the other, so that nobody drops out
        for another's reason."""
        if len(of) > 1:
            try:
                return dict(zip(of, all_at_once(list(of), list(of.values())), strict=True))
            except KeyboardInterrupt:
                raise
            except BaseException:  # it is met again below, and sealed
                pass
        return self.each(one, of)

    def whole(self, function: Callable[[], None], of: Mapping[str, A]) -> dict[str, A]:
        """The same devices after a function that concerns the file of them all; nobody is left where it raises."""
        failure: list[BaseException] = []
        try:
            function()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failure.append(error)

        def again(device_id: str, item: A) -> A:
            if failure:
                raise failure[0]
            return item

        return self.each(again, of) if failure else dict(of)


def _keep_traceback(ground: Ground, device_id: str) -> str:
    name = f"{ground.run_id}.error.txt"
    try:
        folder = ground.state_folder(device_id)
        make_folder(folder, within=folder.parent)  # but not that of a device that has been removed
        write_durably(folder / name, traceback.format_exc().encode(errors="replace"))
    except Exception:  # of writing, which must not leave in place of what may be told
        return "its folder cannot be written, so the details are lost"
    return f"the details are in its own folder, .fedlin/{name}"


def _may_pass(failure: object, tries: int) -> bool:
    """Whether another try may end otherwise, after so many."""
    if isinstance(failure, CohortFailure):
        return any(_may_pass(each, tries) for each in failure.failed.values())
    return not isinstance(failure, DeviceRefusal | DeviceLate) and (isinstance(failure, DeviceAway) or tries <= UNKNOWN)


def _worth_retrying(task: Any, task_run: Any, state: Any) -> bool:
    """Prefect asks after each try, and stops at `RETRIES` anyhow."""
    return _may_pass(state.result(raise_on_failure=False), task_run.run_count)


def device_task(
    name: str, run_name: str, stage: str
) -> Callable[[Callable[[Attempt[Any]], Mapping[str, Any]]], Task[[Ground, Errand], Answered]]:
    """Make a Prefect task of what is done at the devices of an `Attempt`, which returns their answers.

    The task takes the ground and an errand. It is tried again, for the devices whose
    failure may pass, and fails where none of its devices has answered.

    Parameters
    ----------
    name, run_name
        As Prefect is to call it, and each run of it.
    stage
        What it does, for people.
    """

    def decorate(work: Callable[[Attempt[Any]], Mapping[str, Any]]) -> Task[[Ground, Errand], Answered]:
        @task(
            name=name,
            task_run_name=run_name,
            description=work.__doc__,
            retries=RETRIES,
            retry_delay_seconds=exponential_backoff(backoff_factor=1),
            retry_jitter_factor=0.5,
            retry_condition_fn=_worth_retrying,
            # Inputs hold messages and results hold estimates: hashing or storing them would cost more than the step itself.
            cache_policy=NO_CACHE,
            persist_result=False,
        )
        @_signed
        def run(ground: Ground, errand: Errand) -> Answered:
            tries = task_run.run_count or RETRIES + 1
            _carry_out(work, stage, ground, errand, tries - 1)
            again = any(_may_pass(each, tries) for each in errand.failed.values()) and tries <= RETRIES
            if not errand.failed or (errand.answers and not again):
                return Answered(errand.answers, errand.failed)
            # From here, with nothing in reach that a device has read or raised.
            raise next(iter(errand.failed.values())) if len(errand.told) == 1 else CohortFailure(errand.failed, len(errand.told))

        return run

    return decorate


def _signed(function: F) -> F:
    """The function with its signature at hand: Prefect asks for it four times a task run, and Python would work it out each time."""
    cast(Any, function).__signature__ = inspect.signature(function)
    return function


def _carry_out(work: Callable[[Attempt[Any]], Mapping[str, Any]], stage: str, ground: Ground, errand: Errand, before: int) -> None:
    """One try, after some others, at the devices whose answer is not there and may come."""
    lost = {device_id for device_id, why in errand.failed.items() if not _may_pass(why, before)}
    tried = {device_id for device_id in errand.told if device_id not in errand.answers and device_id not in lost}
    attempt = Attempt(ground, stage, errand.owner, {device_id: told for device_id, told in errand.told.items() if device_id in tried})
    with nullcontext() if isinstance(errand.owner, str) or not isinstance(ground.dataset.path, Path) else IN_TURN:
        errand.answers |= work(attempt)
    errand.failed = {device_id: why for device_id, why in errand.failed.items() if device_id not in tried} | attempt.failed


def asked(device: Task[[Ground, Errand], Answered], ground: Ground, device_id: str, *told: Any) -> Any:
    """What one device answers to a task outside of a run.

    Raises
    ------
    DeviceFailure
        Where it cannot.
    """
    return device.fn(ground, Errand(device_id, {device_id: told})).answers[device_id]
