"""How what a run takes grows with devices, columns, rows and rounds: in memory, and with devices also under Prefect in cohorts.

One of them grows at a time. Every run in memory is a process of its own (`benchmarks/alone.py`), and tells the processor's time, the most
memory beyond the rows, and the bytes of a round's messages. Powers are slopes of least squares of logarithms over the upper part of a
range, where what does not grow has ceased to matter. What that makes of a million devices is in the documents, by
`benchmarks/million.py`.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.alone import Took, alone
from benchmarks.project import project
from benchmarks.results import Bar, Cell, Part
from benchmarks.scale import build, watched
from flows.fleet import COHORTS

UPPER = 3
"""Points of a range that an exponent is fitted to."""

LINEAR = 1.2
"""The most that a cost may grow with the number of devices, as an exponent: a fleet that no longer fits a processor's caches takes longer
for each device than one that does."""


COSTS = ("enrolment", "round", "memory")
"""Of these; messages are in proportion by their making."""

FILLED, STEADY = 30, 4
"""Main rounds of a fleet: as many as it takes until the factor of hm1's covariance has all its rows; others' rounds are alike."""


class Size(NamedTuple):
    """Of a fleet: devices, rows of each, columns; and the main rounds of a run."""

    K: int
    n: int
    d: int
    rounds: int


class Axis(NamedTuple):
    """What grows, and the sizes of each algorithm along it."""

    name: str
    sizes: Mapping[str, Sequence[tuple[int, Size]]]


ALGORITHMS, FEW = ("fedavg", "hm1", "eb", "hm2", "pooled"), ("hm1", "eb")
"""All, and those of `make bench-quick`."""


def axes(quick: bool) -> list[Axis]:
    """Devices, columns, rows and rounds; hm2 as far as its cost allows."""
    K = [10, 100] if quick else [10, 100, 1_000, 10_000, 100_000]
    d = [2, 8] if quick else [2, 8, 20, 50, 100, 200]
    N = [100, 1_000] if quick else [10, 100, 1_000, 10_000, 100_000, 1_000_000]
    counts = [10, 100] if quick else [10, 100, 1_000]
    most = {"K": {"hm2": 10_000}, "d": {"hm2": 50}}
    everyone = FEW if quick else ALGORITHMS

    def each(name: str, values: Sequence[int], size: Callable[[int, int], Size], who: Sequence[str] = everyone) -> Axis:
        rounds = {one: FILLED if one == "hm1" else STEADY for one in who}
        return Axis(name, {one: [(v, size(v, rounds[one])) for v in values if v <= most.get(name, {}).get(one, v)] for one in who})

    return [
        each("K", K, lambda v, rounds: Size(v, 20, 8, rounds)),
        each("d", d, lambda v, rounds: Size(20, 250, v, rounds)),
        each("N", N, lambda v, rounds: Size(10, v // 10, 8, rounds)),
        each("rounds", counts, lambda v, _: Size(100, 20, 8, v), FEW if quick else ("fedavg", "hm1", "eb")),
    ]


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """The slope over the upper points."""
    x, y = np.log(values[-UPPER:]), np.log(np.maximum(costs[-UPPER:], 1e-12))
    return round(float(np.polyfit(x, y, 1)[0]), 9) + 0.0  # what is left of nothing, and its sign, tell of arithmetic alone


class Grown(NamedTuple):
    """What was found along one axis: rows of the table, of the axis of devices the bars, and by algorithm and cost what each size took."""

    rows: list[tuple[Cell, ...]]
    bars: list[Bar]
    points: dict[str, list[float]]


def grown(axis: Axis) -> Grown:
    """Every algorithm at every size."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    points: dict[str, list[float]] = {}
    for algorithm, sizes in axis.sizes.items():
        values = [value for value, _ in sizes]
        took: list[Took] = [alone(algorithm, *size) for _, size in sizes]
        last = took[-1]
        points[f"{algorithm}, {axis.name}"] = [float(value) for value in values]
        points |= {f"{algorithm}, {axis.name}: {name}": [getattr(each, name) for each in took] for name in Took.model_fields}
        powers = {name: exponent(values, [getattr(each, name) for each in took]) for name in Took.model_fields}
        figures = (last.enrolment, 1e3 * last.round, last.memory / 2**20, last.up / 1e3, last.down / 1e3)
        pairs = [cell for figure, power in zip(figures, powers.values(), strict=True) for cell in (figure, power)]
        rows.append((algorithm, axis.name, f"{values[-UPPER:][0]:,} to {values[-1]:,}", *pairs))
        if axis.name == "K" and values[-1] > 1_000:
            bars += [Bar(what=f"{algorithm}: {name} grows with K to the power of", value=powers[name], limit=LINEAR) for name in COSTS]
    return Grown(rows, bars, points)


def orchestrated(sizes: Sequence[int]) -> tuple[Cell, ...]:
    """The row of hm1 under Prefect in as many cohorts as a large fleet has, in wall time."""
    enrolments, times, memory, up, down = [], [], [], [], []
    with project() as (datasets, _):
        for K in sizes:
            build(datasets, f"fleet{K}", K)
            begun = time.perf_counter()
            watch, result = watched("hm1", f"fleet{K}", f"grown-{K}", devices_per_task=K // COHORTS)
            moments = [watch.enrolled, *(moment for moment, _, _ in watch.rounds)]
            enrolments.append(watch.enrolled - begun)
            times.append(median(np.diff(moments)[1:]))
            memory.append(watch.rounds[-1][2])  # of all fleets so far, of which this is the largest
            up.append(result["uplink_bytes"] / result["rounds"])
            down.append(result["downlink_bytes"] / result["rounds"])
    figures = (enrolments, [1e3 * each for each in times], memory, [each / 1e3 for each in up], [each / 1e3 for each in down])
    pairs = [cell for each in figures for cell in (each[-1], exponent(sizes, each))]
    return ("hm1 under Prefect", "K", f"{sizes[0]:,} to {sizes[-1]:,}", *pairs)


def measure(quick: bool) -> Part:
    """The table."""
    found = [grown(axis) for axis in axes(quick)]
    rows = [row for each in found for row in each.rows]
    if not quick:
        rows.append(orchestrated((500, 1_500, 4_000)))
    costs = ("enrolment s", "round ms", "memory MiB", "up kB a round", "down kB a round")
    return Part(
        name="growth",
        title="How a run grows with devices, columns, rows and rounds",
        about="One of them grows at a time: K devices of 20 rows and 8 columns; d columns on 20 devices of 250 rows; N rows of 10 devices "
        "with 8 columns; rounds on 100 devices of 20 rows and 8 columns. Costs are those at the largest, each followed by the power of "
        "what grows that it is over the range.",
        columns=("algorithm", "grows", "range of the powers", *(cell for cost in costs for cell in (cost, "power"))),
        rows=tuple(rows),
        bars=tuple(bar for each in found for bar in each.bars),
        runs={name: costs for each in found for name, costs in each.points.items()},
        notes=(
            "In memory each run is a process of its own with one thread: the processor's time, medians over the second half of its main "
            f"rounds ({FILLED} of hm1, until the factor of its covariance has all its rows, else {STEADY}), and the most memory beyond "
            "what the rows take, of which some 2 MiB are code that the process has not used before. `results.json` has every size.",
            "hm2 ends at 10,000 devices, since ten times as many would take ten times its memory, and at 50 columns, since a round has "
            "work of their third power.",
            "Powers are fitted to the three largest points. Where a cost hardly grows, such as rounds with rows, a power tells noise.",
            f"Under Prefect it is wall time, in {COHORTS} cohorts: enrolment reads, checks and compresses each device's file; memory is "
            "the most that the whole process had, server apart.",
        ),
    )
