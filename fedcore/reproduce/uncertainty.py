"""The two examples of uncertainty of section 5.2 of the paper, in memory: intervals in one run as figures, and their coverage over runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedcore.algorithm import Outcome
from fedcore.fit import fit
from fedcore.hm2.hm2 import Hm2
from fedcore.hm2.state import phi
from fedcore.posterior import coefficient_intervals
from fedcore.reproduce.methods import why
from fedcore.reproduce.table import Cell, Intervals, Reproduction, Table
from fedcore.reproduce.verdict import Reached
from fedcore.rows import DeviceData, Floats
from fedcore.simulate import simulate

TITLE = "Uncertainty (section 5.2): intervals of one device's coefficients, and of the fleet's hyper-parameters"

THETA, PHI = "theta_1 in Case I", "phi"
ROUNDS, LEVEL = 30, 0.9

MEAN, TAU = np.array([1.0, 3.0, 0.5, 2.0]), np.array([1.17, 2.35, 2.52, 0.67])
DEVICES, ROWS, NOISE = 100, 100, 0.05

ALL = "all at once"

CONVENTIONS = (
    f"{THETA}: the first device of section 5.2's Case I; see the reproduction hm2-selection. Its lasso prior shrinks towards zero.",
    f"{PHI}: {DEVICES} devices of {ROWS} standard normal rows, theta_k ~ N((1, 3, .5, 2), diag(1.17, 2.35, 2.52, .67)), noise of known"
    f" standard deviation {NOISE} (the paper does not state it), priors mu ~ N(0, I) and log tau ~ N(0, I) as the paper has them.",
    f"Intervals hold {LEVEL:.0%} of the posterior, with equal tails. Figures are of the first run, as the paper's are of one.",
)


class UncertainRun(NamedTuple):
    """One run of both examples: their intervals; of one that diverged why."""

    intervals: Mapping[str, Intervals]
    failures: Mapping[str, str]


def uncertain_run(seed: int) -> UncertainRun:
    """Draw a fleet of each example and take its intervals; `seed` is the root of all random numbers."""
    intervals: dict[str, Intervals] = {}
    failures: dict[str, str] = {}
    fleet = simulate("hm2-1", seed)
    first = min(fleet.devices)
    result = fit(Hm2(prior="lasso"), fleet.devices, rounds=ROUNDS, seed=seed)
    if result.outcome.ok:
        ends = coefficient_intervals(result.posterior[first], LEVEL)
        labels = tuple(f"theta_1,{i + 1}" for i in range(len(ends)))
        intervals[THETA] = Intervals(labels, fleet.Theta[:, 0], result.theta[first], ends[:, 0], ends[:, 1])
    else:
        failures[THETA] = why(result.outcome)
    found = phi_intervals(seed)
    if isinstance(found, Outcome):
        failures[PHI] = why(found)
    else:
        intervals[PHI] = found
    return UncertainRun(intervals, failures)


def phi_intervals(seed: int, mean: Floats = MEAN, tau: Floats = TAU) -> Intervals | Outcome:
    """The intervals of phi in a fleet of the second example, with this phi, shape (d,) each; or how the run ended."""
    algorithm = Hm2(sigma=NOISE)
    result = fit(algorithm, hierarchical_fleet(seed, mean, tau), rounds=ROUNDS, seed=seed)
    if not result.outcome.ok:
        return result.outcome
    model, d = algorithm.hierarchy, len(mean)
    found = phi(result.server, model.blocks(d), model.prior(d), LEVEL)
    parts = [np.concatenate([found[block][name] for block in ("mu", "log_tau")]) for name in ("mean", "lower", "upper")]
    labels = tuple(f"{name}_{i + 1}" for name in ("mu", "log tau") for i in range(len(mean)))
    return Intervals(labels, np.concatenate([mean, np.log(tau)]), *parts)


def hierarchical_fleet(seed: int, mean: Floats = MEAN, tau: Floats = TAU) -> dict[str, DeviceData]:
    """A fleet of the second example, with coefficients around `mean` of variance `tau`, shape (d,) each."""
    rng = np.random.default_rng(seed)
    devices: dict[str, DeviceData] = {}
    for k in range(DEVICES):
        theta, X = mean + np.sqrt(tau) * rng.standard_normal(len(mean)), rng.standard_normal((ROWS, len(mean)))
        devices[f"{k + 1:03d}"] = DeviceData.of(X, X @ theta + NOISE * rng.standard_normal(ROWS))
    return devices


def tabulated(runs: Sequence[UncertainRun], seed: int) -> Reproduction:
    """The coverage of each interval, and the intervals of the first run."""
    tables = tuple(_table(part, runs) for part in (THETA, PHI))
    intervals = {part: runs[0].intervals[part] for part in (THETA, PHI) if part in runs[0].intervals}
    return Reproduction("hm2-uq", TITLE, len(runs), seed, CONVENTIONS, tables, tuple(_findings(runs)), intervals=intervals)


def _table(part: str, runs: Sequence[UncertainRun]) -> Table:
    labels = next(run.intervals[part].labels for run in runs if part in run.intervals)
    cells = [_cell(label, part, runs, lambda covered, i=i: float(covered[i])) for i, label in enumerate(labels)]
    return Table(f"{part}: coverage of {LEVEL:.0%} intervals", (*cells, _cell(ALL, part, runs, lambda covered: float(covered.all()))))


def _cell(label: str, part: str, runs: Sequence[UncertainRun], told: Callable[[Floats], float]) -> Cell:
    reached = [
        Reached(told(run.intervals[part].covered)) if part in run.intervals else Reached(np.nan, failure=run.failures[part]) for run in runs
    ]
    return Cell.of(label, "share of runs", None, reached)


def _findings(runs: Sequence[UncertainRun]) -> Iterator[str]:
    for part in (THETA, PHI):
        covered: Floats = np.array([run.intervals[part].covered for run in runs if part in run.intervals])
        whole = int(covered.all(axis=1).sum())
        verdict = "one may see such a run, and it tests nothing" if 0 < whole < len(covered) else "that tests nothing"
        yield (
            f"{part}: the paper sees the truth in all {covered.shape[1]} intervals of its one run. Here that is so in {whole} of"
            f" {len(covered)} runs, with {covered.mean():.3f} of all intervals covering: {verdict}."
        )
