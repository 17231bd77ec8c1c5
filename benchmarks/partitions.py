"""One device of 10,000: how long `Dataset.load` takes, against reading the same file and no more.

Each figure is a median over devices that are drawn anew for each repetition; the two ways take turns, on the same device and in turn the
first, so that neither has the warmer cache. The bar is 2 ms above the plain read. Run with `make bench`.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedcore.data import Contract, create_dataset, open_dataset

DEVICES, ROWS, FEATURES, REPEATS = 10_000, (30, 300, 3000), 8, 1000
BAR = 2.0

NAMES = [f"x{i}" for i in range(FEATURES)]
COLUMNS = {"hour": {"type": "int64"}} | {name: {"type": "float64"} for name in (*NAMES, "y")}
PLAIN = {"device": "device", "target": "y", "features": ["hour", *NAMES], "columns": COLUMNS}
SPLIT = {"intercept": True, "scaling": {"features": "train"}, "split": {"kind": "time", "column": "hour", "train": 0.8, "validation": 0.2}}
CONTRACTS = {"no split": PLAIN, "split by time, a fifth drawn": PLAIN | SPLIT}


def build(root: Path, contract: Contract, rows: int) -> None:
    """Data set `many`: one device through the front door, and its file again as 9,999 others."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"hour": range(rows)} | {name: rng.normal(size=rows) for name in (*NAMES, "y")})
    first = create_dataset(root, "many", contract, [("00000", frame)]).path / "device=00000/part-0.parquet"
    content = first.read_bytes()
    for k in range(1, DEVICES):
        folder = root / f"many/device={k:05}"
        folder.mkdir()
        (folder / first.name).write_bytes(content)


def read_alone(path: Path) -> pa.Table:
    """The file's rows, neither checked nor prepared."""
    return pq.ParquetFile(pa.BufferReader(path.read_bytes())).read(use_threads=False)


def timed(run: Callable[[], object]) -> float:
    """Wall time of `run`, in milliseconds."""
    begun = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begun)


def main() -> None:
    """Print the table."""
    print(f"{DEVICES} devices, {FEATURES + 2} columns; medians of {REPEATS}, ms")
    print(f"{'contract':30}{'rows':>6}{'read':>9}{'load':>9}{'above':>9}{'ids':>9}")
    draw = random.Random(0)
    for name, fields in CONTRACTS.items():
        for rows in ROWS:
            with tempfile.TemporaryDirectory() as folder:
                build(Path(folder), Contract.model_validate(fields), rows)
                dataset = open_dataset(Path(folder), "many")
                loads: list[float] = []
                reads: list[float] = []
                for turn in range(REPEATS):
                    device = f"{draw.randrange(DEVICES):05}"
                    path = dataset.path / f"device={device}/part-0.parquet"
                    steps = [
                        (reads, lambda path=path: read_alone(path)),
                        (loads, lambda device=device, dataset=dataset: dataset.load(device)),
                    ]
                    for taken, step in steps if turn % 2 else reversed(steps):
                        taken.append(timed(step))
                listing = statistics.median(timed(lambda dataset=dataset: dataset.device_ids) for _ in range(20))
            read, load = statistics.median(reads), statistics.median(loads)
            above = f"{load - read:9.2f}{'' if load - read <= BAR else ' over the bar'}"
            print(f"{name:30}{rows:6}{read:9.2f}{load:9.2f}{above}{listing:9.1f}", flush=True)


if __name__ == "__main__":
    main()
