"""The paper's experiments in memory: their runs side by side in processes of one thread each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import numpy as np

from fedcore.data import Contract, Dataset, Disclosure, PolynomialMap, RandomSplit, TimeSplit, load_fleet, open_dataset
from fedcore.data.places import Place
from fedcore.data.store import device_ids_in
from fedcore.errors import Misuse
from fedcore.reproduce import engines, selection, simulations, students, uncertainty
from fedcore.reproduce.engines import ENGINES, SENSORS, EngineRun, engine_run
from fedcore.reproduce.selection import selection_run
from fedcore.reproduce.simulations import REPRODUCED, simulated_run
from fedcore.reproduce.students import Schools, StudentRun, student_run
from fedcore.reproduce.table import Reproduction
from fedcore.reproduce.uncertainty import uncertain_run
from fedcore.rows import Rows

T = TypeVar("T")

DATASET, STUDENTS = "cmapss-fd001", "student-por"

Progress = Callable[[int, int], None]
"""Told how many runs of how many are done."""


def hm1_simulations(runs: int, seed: int, progress: Progress) -> Reproduction:
    """Table 1 and figure 3, each case with this many runs."""
    jobs = [partial(simulated_run, case, run_seed) for case in REPRODUCED for run_seed in _seeds(runs, seed)]
    results = _side_by_side(jobs, progress)
    by_case = {case.label: results[i * runs : (i + 1) * runs] for i, case in enumerate(REPRODUCED)}
    return simulations.tabulated(by_case, seed)


def cmapss(root: Place, runs: int, seed: int, progress: Progress) -> Reproduction:
    """Table 4, each sensor with this many draws of validation rows.

    Parameters
    ----------
    root
        The datasets folder.
    runs, seed, progress
        How many draws, the root of their random numbers, and whom to tell.

    Raises
    ------
    Misuse
        Where the data set is not imported, or its contract is not the paper's set-up.
    """
    if not device_ids_in(root / DATASET):
        raise Misuse(
            f"data set {DATASET!r} is not imported: get train_FD001.txt from the data repository of NASA's Prognostics Center of"
            f" Excellence, then run fedlin data import train_FD001.txt --dataset {DATASET}"
        )
    jobs: list[Callable[[], EngineRun]] = []
    for sensor in SENSORS:
        dataset, own = (open_dataset(root, DATASET, target=f"sensor_{sensor}", target_scaling=scaling) for scaling in engines.SCALINGS)
        _check(dataset)
        tests = {device_id: data.test for device_id, data in load_fleet(own).items()}
        jobs += [partial(_on_sensor, dataset, run_seed, tests) for run_seed in _seeds(runs, seed)]
    results = _side_by_side(jobs, progress)
    return engines.tabulated({sensor: results[i * runs : (i + 1) * runs] for i, sensor in enumerate(SENSORS)}, seed)


def hm2_selection(runs: int, seed: int, progress: Progress) -> Reproduction:
    """The table of section 5.2, each case with this many runs."""
    jobs = [partial(selection_run, case, run_seed) for case in selection.CASES for run_seed in _seeds(runs, seed)]
    results = _side_by_side(jobs, progress)
    return selection.tabulated({case: results[i * runs : (i + 1) * runs] for i, case in enumerate(selection.CASES)}, seed)


def hm2_uq(runs: int, seed: int, progress: Progress) -> Reproduction:
    """Both examples of uncertainty, each in this many runs."""
    return uncertainty.tabulated(_side_by_side([partial(uncertain_run, run_seed) for run_seed in _seeds(runs, seed)], progress), seed)


def student(root: Place, runs: int, seed: int, progress: Progress) -> Reproduction:
    """The table of section 6.1, with this many splits of the rows.

    Parameters
    ----------
    root
        The datasets folder.
    runs, seed, progress
        How many splits, the root of their random numbers, and whom to tell.

    Raises
    ------
    Misuse
        Where the data set is not imported, or its contract is not the paper's set-up.
    """
    if not device_ids_in(root / STUDENTS):
        raise Misuse(
            f"data set {STUDENTS!r} is not imported: get student-por.csv from the UCI Machine Learning Repository, data set 320, then run"
            f" fedlin data import student-por.csv --dataset {STUDENTS}"
        )
    dataset = open_dataset(root, STUDENTS)
    # Nothing leaves this process, so no split is refused for a level that few of its training rows have.
    contract = dataset.contract.model_copy(update={"intercept": False, "disclosure": Disclosure(rows=1, level_rows=1)})
    expected = RandomSplit(kind="random", train=0.6)
    if contract.target != "G3" or contract.scaling.features != "global" or _with_seed(contract, expected.seed).split != expected:
        raise Misuse(
            f"the contract of data set {STUDENTS!r} is not the paper's set-up (target G3, numbers scaled by the fleet, 0.6 of the rows to"
            " train): restore the one that fedlin ships"
        )
    plain = replace(dataset, contract=contract)
    jobs = [
        partial(_on_students, plain, run_seed, dropped=rows == students.DROPPED)
        for rows in students.ROWS
        for run_seed in _seeds(runs, seed)
    ]
    results = _side_by_side(jobs, progress)
    return students.tabulated({rows: results[i * runs : (i + 1) * runs] for i, rows in enumerate(students.ROWS)}, seed)


def _on_students(dataset: Dataset, seed: int, *, dropped: bool) -> StudentRun:
    from sklearn.linear_model import LassoCV, RidgeCV  # pyright: ignore[reportMissingTypeStubs]

    devices = students.standardised(load_fleet(replace(dataset, contract=_with_seed(dataset.contract, seed))), dropped=dropped)
    X, y = (np.concatenate([part[i] for part in (data.train for data in devices.values())]) for i in range(2))
    lasso = LassoCV(cv=10, fit_intercept=False, random_state=seed).fit(X, y)
    ridge = RidgeCV(alphas=np.logspace(-2, 4, 61), fit_intercept=False).fit(X, y)
    central = {students.CENTRAL_LASSO: np.asarray(lasso.coef_), students.CENTRAL_RIDGE: np.asarray(ridge.coef_)}
    return student_run(Schools(devices, central), seed)


def _check(dataset: Dataset) -> None:
    """Refuse what would be another experiment."""
    contract, devices = dataset.contract, len(dataset.device_ids)
    map_ = PolynomialMap(kind="polynomial", feature="cycle", degree=4, origin=1, scale=299)
    split = TimeSplit(kind="time", column="cycle", train=0.6, validation=0.2, seed=0)
    same = (
        contract.intercept and contract.features == ("cycle",) and contract.feature_map == map_ and _with_seed(contract, 0).split == split
    )
    if not same or contract.interactions:
        raise Misuse(
            f"the contract of data set {DATASET!r} is not the paper's set-up (intercept, degree 4 in (cycle - 1)/299, the first 0.6 to"
            " train, 0.2 of them to validate): restore the one that fedlin ships"
        )
    if devices != ENGINES:
        raise Misuse(f"data set {DATASET!r} has {devices} of {ENGINES} engines: import train_FD001.txt again")


def _on_sensor(dataset: Dataset, seed: int, own: dict[str, Rows]) -> EngineRun:
    return engine_run(load_fleet(replace(dataset, contract=_with_seed(dataset.contract, seed))), own)


def _with_seed(contract: Contract, seed: int) -> Contract:
    """The same contract with other validation rows."""
    return contract.model_copy(update={"split": contract.split.model_copy(update={"seed": seed})})


def _seeds(runs: int, seed: int) -> range:
    """A seed for each run, which no other root shares at the same number of runs."""
    return range(seed * runs, (seed + 1) * runs)


def _side_by_side(jobs: Sequence[Callable[[], T]], progress: Progress) -> list[T]:
    """The jobs' results in their order, from as many processes as there are processors."""
    workers = min(len(jobs), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, get_context("spawn"), _leave_interrupts) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                progress(done, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _leave_interrupts() -> None:
    """Ctrl-C goes to every process of the terminal; the parent alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
