"""Large fleets through Prefect, in cohorts, six rounds each. 10,000 devices are a part of `make bench`; with others, and any algorithms:
`python -m benchmarks.scale 100000 hm1 eb`.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from benchmarks.page import figure
from benchmarks.project import project
from benchmarks.results import Bar, Cell, LeftOut, Part
from fedcore.data import Contract, create_dataset
from fedcore.data.evolution import mark_for
from fedcore.data.parquet import encode
from flows.config import read_config
from flows.fleet import Fleet
from flows.train import train
from tasks.checkpoint import RunFolder

D, ROWS, TEST, ROUNDS = 8, 30, 6, 6
DIFFERENT = 1000
"""How many devices of a fleet have rows of their own."""
FEATURES = [f"x{i + 1}" for i in range(D)]
CONTRACT = Contract.model_validate(
    {
        "device": "device",
        "target": "y",
        "features": FEATURES,
        "columns": {name: {"type": "float64"} for name in (*FEATURES, "y")} | {"part": {"type": "string"}},
        "split": {"kind": "column", "column": "part"},
        "disclosure": {"rows": TEST, "parameters": 1.0},
    }
)


def frames(K: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """Devices with their rows."""
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((2, D))
    part = pl.Series("part", ["train"] * ROWS + ["test"] * TEST)
    for k in range(K):
        theta = rng.standard_normal(2) @ factors + 0.14 * rng.standard_normal(D)
        X = rng.standard_normal((ROWS + TEST, D))
        y = X @ theta + 0.5 * rng.standard_normal(len(X))
        yield f"{k:06}", pl.DataFrame(X, schema=FEATURES).with_columns(pl.Series("y", y), part)


def build(datasets: Path, name: str, K: int) -> None:
    """A data set of K devices: the first through the front door, the others as files beside it, which are not flushed to the disk. From
    `DIFFERENT` devices on their rows come again, since encoding them takes longer than most of what is measured."""
    drawn = list(frames(min(K, DIFFERENT)))
    create_dataset(datasets, name, CONTRACT, drawn[:1])
    contents = [encode(frame, mark_for(CONTRACT)) for _, frame in drawn]
    for k in range(1, K):
        folder = datasets / name / f"device={k:06}"
        folder.mkdir()
        (folder / "part-0.parquet").write_bytes(contents[k % DIFFERENT])


@dataclass
class Watch:
    """When steps of a run ended, and what memory the process had in use then."""

    begun: float = field(default_factory=time.perf_counter)
    enrolled: float = 0.0
    cpu: float = 0.0
    rounds: list[tuple[float, float, float]] = field(default_factory=list)

    def see(self) -> None:
        """Note the end of a round."""
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.rounds.append((time.perf_counter(), resident / 2**20, peak / 2**20))


def watched(algorithm: str, name: str, run_id: str, **settings: Any) -> tuple[Watch, dict[str, Any]]:
    """A run, with what was seen of it, and its result."""
    watch = Watch()
    enrol, save = Fleet.enrol, RunFolder.save

    def enrolled(fleet: Fleet) -> Any:
        cards = enrol(fleet)
        watch.enrolled, watch.cpu = time.perf_counter(), time.process_time()
        return cards

    def saved(folder: RunFolder, checkpoint: Any) -> None:
        save(folder, checkpoint)
        watch.see()

    Fleet.enrol, RunFolder.save = enrolled, saved
    try:
        train(read_config({"dataset": name, "algorithm": algorithm, "rounds": ROUNDS, **settings}), run_id=run_id, return_state=True)
    finally:
        Fleet.enrol, RunFolder.save = enrol, save
    return watch, RunFolder(Path(os.environ["FEDLIN_HOME"]) / "runs" / run_id).read_json("result.json")


@dataclass(frozen=True)
class Large:
    """What was seen of a run: seconds of its first read, of each round, and of its end; CPU seconds of the process after the first read."""

    first_read: float
    rounds: list[float]
    end: float
    cpu: float
    peak: float
    task_runs: int


def large(algorithm: str, K: int) -> Large:
    """A run on the large fleet."""
    watch, result = watched(algorithm, "many", f"{algorithm}-{K}")
    ended, cpu = time.perf_counter(), time.process_time() - watch.cpu
    moments = [moment for moment, *_ in watch.rounds]
    rounds = np.diff([watch.enrolled, *moments]).tolist()
    return Large(watch.enrolled - watch.begun, rounds, ended - moments[-1], cpu, watch.rounds[-1][2], result["task_runs"])


def measure(quick: bool) -> Part:
    """Seconds a round of a large fleet.

    Raises
    ------
    LeftOut
        Where small sizes are asked for.
    """
    if quick:
        raise LeftOut("a small fleet says nothing of a large one: run make bench")
    return measured(10_000, ["hm1", "eb"])


def measured(K: int, algorithms: list[str]) -> Part:
    """The same of so many devices, and any algorithms."""
    with project() as (datasets, _):
        build(datasets, "many", K)
        runs = {algorithm: large(algorithm, K) for algorithm in algorithms}
    rows: list[tuple[Cell, ...]] = []
    for name, run in runs.items():
        later = run.rounds[1:]
        told = (median(later), max(later), run.rounds[0], run.first_read, run.end, run.cpu, run.peak, run.task_runs)
        rows.append((name, median(later) / run.first_read, *told))
    return Part(
        name="scale",
        title="Large fleets in cohorts",
        about=(
            f"`train` on K = {K:,} devices with d = 8 coefficients that share two factors, {ROWS} rows that train and {TEST} that test, "
            f"in cohorts; {DIFFERENT:,} have rows of their own, which then come again. One run of each algorithm, of {ROUNDS} rounds, the "
            "first of which is apart. The first read (every partition is read, checked and compressed) comes before them. CPU is the run's "
            "own process after that, peak its largest memory by the last round, in this order of algorithms."
        ),
        columns=("algorithm", "a round / first read", "s a round", "longest", "first", "first read", "end", "CPU", "peak MiB", "tasks"),
        rows=tuple(rows),
        bars=tuple(Bar(what=f"{name}, s a round after the first", value=median(run.rounds[1:]), limit=1.0) for name, run in runs.items()),
    )


def main(devices: int, algorithms: list[str]) -> None:
    """Print the table."""
    part = measured(devices, algorithms)
    for row in (part.columns, *part.rows):
        print("  ".join(f"{figure(cell):>10}" for cell in row))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 10_000, sys.argv[2:] or ["hm1", "eb"])
