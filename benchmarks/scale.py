"""Large fleets through Prefect: 10,000 and 100,000 devices in cohorts, five rounds each; and that cohorts change nothing.

The devices are like those of the demo, with d = 8 coefficients that share two factors, 30 rows that train and 6 that test. Start-up (the
server) and the first read (enrolment: every partition is read, checked and compressed) are apart from the rounds; memory is what the
process has in use after each round, and its largest so far. Seconds of CPU are those of the run's process, which tell more where others
use the machine too. Run with `make bench`, or with the number of devices and algorithms:
`python -m benchmarks.scale 100000 hm1 eb`.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedcore.data import Contract, create_dataset
from fedcore.data.evolution import mark_for
from fedcore.data.parquet import encode
from flows.config import read_config
from flows.fleet import Fleet
from flows.orchestrator import orchestrator
from flows.train import train
from tasks.checkpoint import RunFolder

D, ROWS, TEST, ROUNDS, SAMPLE = 8, 30, 6, 5, 300
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
    """A data set of K devices: the first through the front door, the others as files beside it, which are not flushed to the disk."""
    each = frames(K)
    create_dataset(datasets, name, CONTRACT, [next(each)])
    for device_id, frame in each:
        folder = datasets / name / f"device={device_id}"
        folder.mkdir()
        (folder / "part-0.parquet").write_bytes(encode(frame, mark_for(CONTRACT)))


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


def large(algorithm: str, K: int) -> None:
    """Print a run's table."""
    watch, result = watched(algorithm, "many", f"{algorithm}-{K}")
    ended, cpu = time.perf_counter(), time.process_time() - watch.cpu
    print(f"\n{algorithm}, K = {K:,}: {result['outcome']} after {result['rounds']} rounds")
    print(f"A-RMSE {result['a_rmse']:.4f}, alone {result['a_rmse_separate']:.4f}")
    after = f"after it {ended - watch.enrolled:.1f} s, of CPU {cpu:.1f} s"
    print(f"first read {watch.enrolled - watch.begun:.1f} s, {after}, {result['task_runs']} tasks")
    print(f"{'round':>6}{'s':>8}{'MiB':>8}{'peak':>8}")
    before = watch.enrolled
    for c, (moment, resident, peak) in enumerate(watch.rounds, 1):
        print(f"{c:6}{moment - before:8.2f}{resident:8.0f}{peak:8.0f}")
        before = moment
    print(f"{'end':>6}{ended - before:8.2f}", flush=True)


def compared(algorithm: str, home: Path) -> None:
    """Whether a task a device and cohorts lead to the same coefficients on a part of the fleet."""
    found = []
    for shared in (1, 7, 100):
        run_id = f"{algorithm}-{shared}-a-task"
        watched(algorithm, "few", run_id, devices_per_task=shared)
        with np.load(home / "runs" / run_id / "results/theta.npz") as stored:
            found.append(stored["Theta"])
    largest = max(float(np.abs(other - found[0]).max()) for other in found[1:])
    print(f"{algorithm}, {SAMPLE} devices, 1, 7 and 100 a task: Theta differs by at most {largest:g}", flush=True)


def main(devices: int, algorithms: list[str]) -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["FEDLIN_HOME"] = folder
        (home / "datasets").mkdir()
        begun = time.perf_counter()
        build(home / "datasets", "many", devices)
        build(home / "datasets", "few", SAMPLE)
        made = time.perf_counter()
        with orchestrator(home / "prefect"):
            print(f"{devices:,} partitions made in {made - begun:.1f} s, Prefect's server started in {time.perf_counter() - made:.1f} s")
            for algorithm in algorithms:
                large(algorithm, devices)
                compared(algorithm, home)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 10_000, sys.argv[2:] or ["hm1", "eb"])
