"""What device tasks run on: threads or processes of this machine, or the workers of a Dask or Ray cluster."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from importlib import import_module, metadata
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar, cast

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.futures import PrefectConcurrentFuture
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from fedcore.errors import Misuse
from flows.config import RunConfig, TrainConfig
from flows.workspace import Workspace
from flows.wrapping import with_parameters_of
from tasks.checkpoint import RunFolder
from tasks.sites.asking import LEAVING
from tasks.sites.enrolled import read_sites

F = TypeVar("F", bound=Callable[..., Any])

THREADS: Any = ThreadPoolTaskRunner(max_workers=4)
"""Device tasks at a time. Their arithmetic is short, and more threads only queue for the interpreter."""

PATIENCE = 60
"""Seconds for which a run waits for a Dask cluster's first worker, or for another one where all have left."""

EXTRAS = {"dask": ("prefect_dask", "DaskTaskRunner"), "ray": ("prefect_ray", "RayTaskRunner")}


def device_threads() -> set[Thread]:
    """The threads of this process that the flow's device tasks are on; none where they are elsewhere."""
    context = FlowRunContext.get()
    runner = context.task_runner if context else None
    pool = runner._executor if isinstance(runner, ThreadPoolTaskRunner) else None  # pyright: ignore[reportPrivateUsage]
    return set(pool._threads) if pool else set()  # pyright: ignore[reportPrivateUsage]


class Processes(ProcessPoolTaskRunner):
    """Processes of this machine. A pool that has lost one takes no further tasks, and is replaced by a new one; and the thread that passes
    on what the processes tell Prefect tells the run's own server, where a thread by itself would start another one."""

    def __enter__(self) -> Self:
        """As every task runner does, in the settings of whoever starts it."""
        self._settings = copy_context()
        return super().__enter__()

    def _forward_subprocess_messages(self) -> None:
        self._settings.run(super()._forward_subprocess_messages)

    def submit(self, *args: Any, **kwargs: Any) -> PrefectConcurrentFuture[Any]:
        """As every task runner does, with a new pool where this one is broken."""
        if self._executor is not None and self._executor._broken:  # pyright: ignore[reportAttributeAccessIssue]
            self.__exit__(None, None, None)
            self.__enter__()
        return super().submit(*args, **kwargs)


def end_with_parent() -> None:
    """Let a worker end when the process that has started it does: else one whose run is killed would wait for its next task for good."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait, name="end-with-parent", daemon=True).start()


def task_runner(config: RunConfig) -> TaskRunner[Any]:
    """What a run's device tasks are to run on; it is not started.

    Raises
    ------
    Misuse
        Where its package is not installed, or an address is given for another one.
    """
    if isinstance(config, TrainConfig) and config.sites:
        if config.runner != "thread" or config.devices_per_task is not None:
            raise Misuse("sites carry out the work of their devices themselves: leave runner and devices_per_task out")
        return ThreadPoolTaskRunner(max_workers=len(read_sites(Path(config.sites))))  # each only waits
    addresses = {"dask": config.dask_address, "ray": config.ray_address}
    for kind, address in addresses.items():
        if address is not None and kind != config.runner:
            raise Misuse(f"{kind}_address is of no use to runner {config.runner}: give runner {kind} too, or leave it out")
    if config.runner == "thread":
        return THREADS.duplicate()
    if config.runner == "process":
        return Processes(initializer=end_with_parent)
    module, name = EXTRAS[config.runner]
    try:
        kind = getattr(import_module(module), name)
    except ImportError:
        raise Misuse(f"runner {config.runner} needs {module.replace('_', '-')}: install fedlin with its extra {config.runner}") from None
    address = addresses[config.runner]
    if config.runner == "dask" and address is None:
        return kind(cluster_kwargs={"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"})
    return kind(address=address)


@contextmanager
def started(config: RunConfig) -> Generator[TaskRunner[Any]]:
    """What a run's device tasks are to run on, with workers that can carry them out.

    Raises
    ------
    Misuse
        As `task_runner` does, where no cluster or no worker answers, or a worker has another fedlin.
    """
    runner, address = task_runner(config), config.dask_address or config.ray_address
    with ExitStack() as stack:
        try:
            if config.runner == "dask":  # whose tasks would wait for ever once all workers have left
                quiet = {"distributed.scheduler.no-workers-timeout": f"{PATIENCE}s", "logging": {"distributed": "warning"}}
                stack.enter_context(import_module("dask").config.set(quiet))
                logging.getLogger("distributed").setLevel(logging.WARNING)
            stack.enter_context(runner)
            if config.runner == "dask":
                _check_workers(cast(Any, runner).client)
        except (OSError, ValueError) as error:
            if address is None or isinstance(error, Misuse):
                raise
            what = f"no {config.runner.capitalize()} cluster with workers answers at {address!r} ({type(error).__name__})"
            raise Misuse(f"{what}: start it, or name another one") from None
        LEAVING.clear()
        try:
            yield runner
        except BaseException:  # Prefect has signals of its own
            LEAVING.set()  # else the runner's threads would wait for sites as long as these have patience
            raise


def _check_workers(client: Any) -> None:
    """Raises Misuse where a Dask worker lacks this fedlin, which ends it at its first task, and an OSError where there is no worker."""
    client.wait_for_workers(1, timeout=PATIENCE)
    expected, remedy = metadata.version("fedlin"), "install the same one where its workers run"
    try:
        others = set(client.run(metadata.version, "fedlin").values()) - {expected}
    except metadata.PackageNotFoundError:
        raise Misuse(f"a worker of the Dask cluster has no fedlin, expected {expected}: {remedy}") from None
    if others:
        raise Misuse(f"a worker of the Dask cluster has fedlin {min(others)}, expected {expected}: {remedy}")


def on_runner(function: F) -> F:
    """Make a flow's function start the runner that its configuration asks for, and its tasks use it; put it below `@flow`.

    The function takes `config` and `run_id`; a run that goes on has the configuration that it began with.
    """

    @functools.wraps(function)
    def running(config: RunConfig | None = None, run_id: str | None = None) -> State[None]:
        context = FlowRunContext.get()
        asked = config or _given(run_id)
        local = asked is None or (asked.runner == "thread" and not getattr(asked, "sites", None))
        if asked is None or local or context is None:
            return function(config, run_id)
        with started(asked) as runner, context.model_copy(update={"task_runner": runner}):
            return function(config, run_id)

    return with_parameters_of(function, running)


def _given(run_id: str | None) -> RunConfig | None:
    """What a run that has begun was asked for; None where there is none, which the flow says itself."""
    try:
        given = RunFolder.named(Workspace.find().runs, run_id).read_json("config.json")["given"]
        kind = TrainConfig if given.get("sites") else RunConfig
        return kind.model_validate({name: value for name, value in given.items() if name in kind.model_fields})
    except (Misuse, KeyError, TypeError, ValueError):
        return None
