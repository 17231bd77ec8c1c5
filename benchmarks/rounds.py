"""A round of FedAvg through Prefect, beside a bare map of tasks that do nothing, Flower, a NumPy loop, and the same in memory."""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import secrets
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Thread
from uuid import UUID

import numpy as np
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from benchmarks.programs import coefficients_apart, peer, present
from benchmarks.project import project
from benchmarks.results import Bar, Part, medians, ratio
from benchmarks.scale import build, watched
from fedcore import DeviceData, FedAvg, Rows
from fedcore.algorithm import FleetSpec
from fedcore.data import open_dataset
from fedcore.fit import InProcess
from fedcore.rounds import RunState, Schedule, rounds
from flows.orchestrator import Orchestrator, finished
from flows.processor import OneProcessor
from flows.runners import THREADS, device_threads

K, STEPS, ETA = 100, 20, 0.05
FEDAVG = FedAvg(eta=ETA, steps=STEPS, tolerance=0.0)
"""The same number of rounds everywhere: no program stops by itself."""


class Programs:
    """The programs, each of which does a block of rounds at a call and tells its median, in seconds.

    Attributes
    ----------
    rounds
        How many a block has, beyond a first one that is not counted.
    theta
        By program, the coefficients that its last block ended with.
    found, expected
        How many task runs Prefect has recorded the end of, and how many were made, by program.
    """

    def __init__(self, folder: Path, server: Orchestrator, count: int) -> None:
        self.folder, self.server, self.rounds = folder, server, count
        dataset = open_dataset(folder / "datasets", "many")
        self.datas = [DeviceData(dataset.load(device_id).train, Rows.empty(8), Rows.empty(8)) for device_id in dataset.device_ids]
        self.spec = FleetSpec(tuple(dataset.device_ids), 8)
        np.savez(folder / "fleet.npz", X=[each.train.X for each in self.datas], y=[each.train.y for each in self.datas])
        self.theta: dict[str, np.ndarray] = {}
        self.found: Counter[str] = Counter()
        self.expected: Counter[str] = Counter()
        self.start_up: list[float] = []

    def ours(self) -> float:
        """A run with all that belongs to one: checkpoints, metrics in MLflow, progress."""
        run_id = f"bench-{secrets.token_hex(3)}"
        options = {"eta": ETA, "steps": STEPS, "tolerance": 0.0}
        watch, result = watched("fedavg", "many", run_id, rounds=self.rounds + 1, devices_per_task=1, options=options)
        self._count("ours", result["flow_run_id"], result["task_runs"])
        with np.load(self.folder / "runs" / run_id / "results/theta.npz") as stored:
            self.theta["ours"] = stored["Theta"][:, 0]
        return median(np.diff([moment for moment, *_ in watch.rounds]))

    def bare_map(self) -> float:
        """Tasks that do nothing, mapped and waited for, under the same server and on the same runner."""
        return self._bare("bare map", set)

    def bare_map_on_one(self) -> float:
        """The same, on one processor where that is quicker, as our rounds are."""
        return self._bare("bare map, on one processor", device_threads)

    def flower(self) -> float:
        """Flower's simulation, in a process of its own."""
        told = peer("flower.py", self.folder / "fleet.npz", str(self.rounds + 1), str(STEPS), str(ETA))
        if told["answered"] != K * (self.rounds + 1):
            raise RuntimeError(f"{told['answered']} of {K * (self.rounds + 1)} of Flower's clients have answered")
        self.theta["Flower"] = np.array(told["theta"])
        self.start_up.append(told["start_up"] + told["rounds"][0])
        return median(told["rounds"][1:])

    def numpy_loop(self) -> float:
        """A loop over devices and steps."""
        theta, times = np.zeros(8), list[float]()
        rows = [(each.train.X, each.train.y) for each in self.datas]
        for _ in range(self.rounds + 1):
            begun = time.perf_counter()
            reached = []
            for X, y in rows:
                own = theta
                for _ in range(STEPS):
                    own = own + 2 * ETA / len(y) * (X.T @ (y - X @ own))
                reached.append(own)
            theta = np.average(reached, axis=0, weights=[len(y) for _, y in rows])
            times.append(time.perf_counter() - begun)
        self.theta["NumPy loop"] = theta
        return median(times[1:])

    def in_memory(self) -> float:
        """The loop of `fedcore.fit`."""
        backend, state, moments = InProcess(FEDAVG, self.spec, self.datas, 0), RunState.initial(FEDAVG, self.spec), list[float]()
        for report in rounds(FEDAVG, self.spec, backend, Schedule(self.rounds + 1), state):
            state = report.state
            moments.append(time.perf_counter())
        self.theta["in memory"] = state.server.theta
        return median(np.diff(moments))

    def _bare(self, name: str, threads: Callable[[], set[Thread]]) -> float:
        flow_run_id, times = bare_maps(self.rounds + 1, threads)
        self._count(name, flow_run_id, K * (self.rounds + 1))
        return median(times[1:])

    def _count(self, name: str, flow_run_id: UUID | str, made: int) -> None:
        """Wait for the records, so that nobody else's time has their writing, and count them."""
        self.found[name] += finished(self.server.drain(flow_run_id, made))
        self.expected[name] += made


@task(cache_policy=NO_CACHE, persist_result=False)
def nothing(_: int) -> None:
    """What the tasks of a bare map do."""


@flow(name="bench-bare-maps", task_runner=THREADS, persist_result=False)
def bare_maps(count: int, threads: Callable[[], set[Thread]]) -> tuple[str, list[float]]:
    """So many maps of K tasks one after the other: the flow run, and seconds of each. `threads` is as of `OneProcessor`."""
    times: list[float] = []
    with OneProcessor(threads) as processor:
        for _ in range(count):
            begun = time.perf_counter()
            for future in nothing.map(range(K)):
                future.wait()
            times.append(time.perf_counter() - begun)
            processor.next_round()
    return str(flow_run.id), times


def measure(quick: bool) -> Part:
    """Seconds a round of each."""
    repeats, count = (1, 3) if quick else (5, 5)
    with project() as (datasets, server):
        build(datasets, "many", K)
        programs = Programs(datasets.parent, server, count)
        runs = {
            "ours": programs.ours,
            "bare map": programs.bare_map,
            "bare map, on one processor": programs.bare_map_on_one,
            "Flower": programs.flower,
            "NumPy loop": programs.numpy_loop,
            "in memory": programs.in_memory,
        }
        runs, notes = present(runs, {"Flower": "flower.py"})
        seconds = medians(runs, repeats)
    ours = seconds["ours"]
    apart = coefficients_apart(programs.theta.values())
    counted = {name: f"{found} of {programs.expected[name]}" for name, found in programs.found.items()}
    missing = sum(programs.expected.values()) - sum(programs.found.values())
    notes.append(f"After {count + 1} rounds the programs' coefficients differ by at most {apart:.1e}.")
    if "Flower" in seconds:
        share = min(taken for name, taken in seconds.items() if name.startswith("bare map")) / seconds["Flower"]
        notes.append(f"The quicker bare map alone takes {share:.2f} of Flower's round: no program with a task a device gets below that.")
    if programs.start_up:
        notes.append(f"Flower's start-up with its first round took {median(programs.start_up):.1f} s, which its rounds do not have.")
    return Part(
        name="rounds",
        title="A round through Prefect",
        about=(
            f"FedAvg of linear regression, K = {K} devices of 30 rows, d = 8, T = {STEPS} full-batch steps of rate {ETA:g}, every device "
            f"in every round. Ours is `train` with a task a device, its checkpoints, tracking and progress; the bare map is {K} tasks "
            "that do nothing, on the same runner under the same server. Ours keeps its threads on one processor where that is quicker, and "
            f"the bare map is told so too. Medians of {repeats} runs in turns, each the median of {count} "
            "rounds after its first."
        ),
        columns=("program", "ours / it", "ms a round", "task runs recorded"),
        rows=tuple(
            (name, ratio(ours, taken) if name != "ours" else None, 1e3 * taken, counted.get(name)) for name, taken in seconds.items()
        ),
        runs=seconds.runs,
        bars=(
            Bar(what="ours / bare map, on all processors", value=ratio(ours, seconds["bare map"]), limit=1.3),
            Bar(what="ours / bare map, on one processor", value=ratio(ours, seconds["bare map, on one processor"]), limit=1.3),
            Bar(what="ours / Flower", value=ratio(ours, seconds.get("Flower")), limit=0.5),
            Bar(what="task runs without a recorded end", value=missing, limit=0),
        ),
        notes=tuple(notes),
    )
