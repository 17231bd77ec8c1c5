"""One device of 10,000: how long `Dataset.load` takes, against reading the same file and no more.

Each figure is a median over devices that are drawn anew for each repetition; the two ways take turns, on the same device and in turn the
first, so that neither has the warmer cache. All devices have one file, by as many names, so its bytes are in memory in any case.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import random
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.results import Bar, Cell, Part
from benchmarks.timing import once
from fedcore.data import Contract, create_dataset, open_dataset

ROWS, FEATURES = (30, 3000), 8
BAR = 2.0

NAMES = [f"x{i}" for i in range(FEATURES)]
COLUMNS = {"hour": {"type": "int64"}} | {name: {"type": "float64"} for name in (*NAMES, "y")}
PLAIN = {"device": "device", "target": "y", "features": ["hour", *NAMES], "columns": COLUMNS}
SPLIT = {"intercept": True, "scaling": {"features": "train"}, "split": {"kind": "time", "column": "hour", "train": 0.8, "validation": 0.2}}
NO_SPLIT = "no split"
CONTRACTS = {NO_SPLIT: PLAIN, "split by time, a fifth drawn": PLAIN | SPLIT}


def build(root: Path, contract: Contract, devices: int, rows: int) -> None:
    """Data set `many`: one device through the front door, and its file, under other names, as all others."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"hour": range(rows)} | {name: rng.normal(size=rows) for name in (*NAMES, "y")})
    first = create_dataset(root, "many", contract, [("00000", frame)]).path / "device=00000/part-0.parquet"
    for k in range(1, devices):
        folder = root / f"many/device={k:05}"
        folder.mkdir()
        (folder / first.name).hardlink_to(first)


def read_alone(path: Path) -> pa.Table:
    """The file's rows, neither checked nor prepared."""
    return pq.ParquetFile(pa.BufferReader(path.read_bytes())).read(use_threads=False)


def measure(quick: bool) -> Part:
    """Milliseconds of both, by contract and number of rows."""
    devices, repeats = (1_000, 100) if quick else (10_000, 1000)
    draw, table, bars = random.Random(0), list[tuple[Cell, ...]](), list[Bar]()
    for name, fields in CONTRACTS.items():
        for rows in ROWS:
            with tempfile.TemporaryDirectory() as folder:
                build(Path(folder), Contract.model_validate(fields), devices, rows)
                dataset = open_dataset(Path(folder), "many")
                loads: list[float] = []
                reads: list[float] = []
                for turn in range(repeats):
                    device = f"{draw.randrange(devices):05}"
                    path = dataset.path / f"device={device}/part-0.parquet"
                    steps = [
                        (reads, lambda path=path: read_alone(path)),
                        (loads, lambda device=device, dataset=dataset: dataset.load(device)),
                    ]
                    for taken, step in steps if turn % 2 else reversed(steps):
                        taken.append(1e3 * once(step))
                listing = 1e3 * median(once(lambda dataset=dataset: dataset.device_ids) for _ in range(20))
            read, load = median(reads), median(loads)
            table.append((f"{name}, {rows} rows", load / read, load - read, load, read, listing))
            if name == NO_SPLIT:
                bars.append(Bar(what=f"ms above the plain read, {rows} rows", value=load - read, limit=BAR))
    return Part(
        name="partitions",
        title="Reading one device of many",
        about=(
            f"`Dataset.load`, which checks and prepares, of one of {devices:,} devices, beside reading the same file and no more; "
            f"{FEATURES + 2} columns. Medians over {repeats} devices drawn by chance, the two in turns."
        ),
        columns=("contract", "load / read", "ms above", "load ms", "read ms", "list of ids ms"),
        rows=tuple(table),
        bars=tuple(bars),
        notes=(
            "A split that draws comes on top of the bar: a hash a row.",
            "All devices have one file, by as many names: the system has its bytes in memory.",
        ),
    )
