"""Where the time of a round under Prefect goes: with a task a device, and in cohorts.

Functions of the product are wrapped from outside while a run goes on; nothing in it takes times for this. What devices do is measured in
the processor's seconds of their threads, since up to four share the interpreter, and what the flow does in wall time; orchestration is
what is left of the wall time in which tasks are under way. It is to be held against a bare map of as many tasks that do nothing, with the
same options and runner, and a task that stands for aggregation, under the same server.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from prefect import flow, task, unmapped
from prefect.cache_policies import NO_CACHE

import flows.running
from benchmarks.project import project
from benchmarks.results import Cell, Part
from benchmarks.scale import build
from fedcore import Hm1
from flows.artifacts import RunArtifacts
from flows.config import read_config
from flows.fleet import Fleet, ended
from flows.metrics import RunMetrics
from flows.progress import RunProgress
from flows.runners import THREADS
from flows.train import train
from tasks.checkpoint import RunFolder
from tasks.cohort import RETRIES
from tasks.keeping import Keeping
from tasks.tracking.runs import Tracker

REPEATS = 5
"""Of a run, whose first round is left out, and of the bare map."""

Seconds = dict[str, float]


class Clock:
    """Seconds by stage, round by round: a round begins where devices are asked for their local steps."""

    def __init__(self) -> None:
        self.rounds: list[Seconds] = []
        self.begun: list[float] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin a round."""
        self.begun.append(time.perf_counter())
        self.rounds.append(defaultdict(float))

    def add(self, stage: str, seconds: float) -> None:
        """Note what a stage took, where rounds have begun."""
        with self._lock:
            if len(self.begun) == len(self.rounds) > 0:
                self.rounds[-1][stage] += seconds

    def end(self) -> None:
        """After the last round: what follows it is no round's."""
        self.begun.append(time.perf_counter())

    def totals(self) -> list[float]:
        """Wall seconds of each round."""
        return [after - before for before, after in zip(self.begun, self.begun[1:], strict=False)]


@contextmanager
def wrapped(owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """An attribute of a class or a module with something around it, for a while."""
    plain = getattr(owner, name)
    setattr(owner, name, around(plain))
    try:
        yield
    finally:
        setattr(owner, name, plain)


@contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """The product, told to the clock."""

    def timed(stage: str, now: Callable[[], float]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                begun = now()
                try:
                    return plain(*args, **kwargs)
                finally:
                    clock.add(stage, now() - begun)

            return run

        return around

    def first(plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            clock.start()
            return timed("devices asked", time.perf_counter)(plain)(*args)

        return run

    def last(plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            clock.end()
            return plain(*args)

        return run

    stages = [
        *((Keeping, name, timed("reading", time.thread_time)) for name in ("held", "recall")),
        (Keeping, "keep", timed("keeping", time.thread_time)),
        (Hm1, "local_steps", timed("maths", time.thread_time)),
        (Hm1, "aggregate", timed("aggregation", time.perf_counter)),
        (Fleet, "local_steps", first),
        (Fleet, "aggregate", timed("server asked", time.perf_counter)),
        (Fleet, "finalize", last),
        (RunFolder, "save", timed("checkpoint", time.perf_counter)),
        (Tracker, "log_rounds", timed("tracking", time.perf_counter)),
        *((each, "show", timed("showing", time.perf_counter)) for each in (RunProgress, RunArtifacts, RunMetrics)),
        (flows.running, "_await_recorder", timed("pacing", time.perf_counter)),
    ]
    with ExitStack() as stack:
        for each in stages:
            stack.enter_context(wrapped(*each))
        yield


@task(cache_policy=NO_CACHE, persist_result=False, retries=RETRIES)
def nothing(ground: None, errand: int) -> int:
    """A task that does nothing."""
    return errand


@flow(task_runner=THREADS, persist_result=False)
def bare(count: int, repeats: int) -> list[float]:
    """Wall seconds of maps of so many such tasks, and one more."""
    times = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        for future in nothing.map(unmapped(None), range(count)):
            ended(future)
        nothing(None, 0)
        times.append(time.perf_counter() - begun)
    return times[1:]


STAGES = ("orchestration", "reading", "maths", "keeping", "aggregation", "checkpoint", "tracking", "showing", "pacing", "other")


def split(clock: Clock) -> tuple[float, Seconds]:
    """Median seconds of the rounds after the first, and the shares of their stages in all their time."""
    found: list[Seconds] = []
    totals = clock.totals()[1:]
    for seen, total in zip(clock.rounds[1:], totals, strict=True):
        devices = sum(seen[stage] for stage in ("reading", "maths", "keeping"))
        tasks_under_way = seen["devices asked"] + seen["server asked"]
        stages = {stage: seen[stage] for stage in STAGES} | {"orchestration": tasks_under_way - devices - seen["aggregation"]}
        beside = sum(seen[stage] for stage in ("checkpoint", "tracking", "showing", "pacing"))
        found.append(stages | {"other": total - tasks_under_way - beside})
    return median(totals), {stage: sum(each[stage] for each in found) / sum(totals) for stage in STAGES}


def one(name: str, devices_per_task: int, count: int) -> Clock:
    """The clock of a run of so many rounds."""
    clock, config = Clock(), {"dataset": name, "algorithm": "hm1", "rounds": count, "options": {"tolerance": 0.0}}
    with watched(clock):
        train(read_config({**config, "devices_per_task": devices_per_task}), run_id=f"{name}-{devices_per_task}")
    return clock


def measure(quick: bool) -> Part:
    """The table."""
    count = 7 if quick else 19
    fleets = {"a task a device": (100, 1)} | ({} if quick else {"cohorts": (4_000, 100)})
    rows: list[tuple[Cell, ...]] = []
    with project() as (datasets, _):
        for kind, (K, shared) in fleets.items():
            build(datasets, f"fleet{K}", K)
            total, shares = split(one(f"fleet{K}", shared, count))
            floor = median(bare(K // shared, REPEATS))
            rows.append((kind, K, K // shared, total / floor, *shares.values(), 1e3 * total, 1e3 * floor))
    return Part(
        name="where",
        title="Where the time of a round under Prefect goes",
        about=f"hm1 on devices of 30 training rows and 8 columns, {count} rounds of which the first is left out. Times are medians "
        "over rounds; stages are shares of the wall time of them all, and add up to one.",
        columns=("fleet", "K", "tasks", "round / bare map", *STAGES, "round ms", "bare map ms"),
        rows=tuple(rows),
        notes=(
            "Reading, maths and keeping (states to the devices' folders) are the processor's seconds of device threads; orchestration is "
            "the rest of the time in which tasks are under way, with what waits for the disk.",
            "The bare map is of as many tasks that do nothing and one more, with the same runner and options (retries among them) and "
            "under the same server, on all processors. That of the part `rounds` has Prefect's own options, and takes turns with ours over "
            "minutes; here it comes once, after ours.",
            "Showing is the progress, Prefect's artifacts and the figures for Prometheus. Pacing waits where Prefect's records lag; other "
            "is broadcasts, receipts, logs, and the question whether somebody has cancelled the run. Artifacts and that question are in "
            "threads beside the rounds, which wait for either for a twentieth of a round at most.",
        ),
    )
