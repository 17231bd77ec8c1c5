"""A comparison of algorithms: each tuned on validation rows with the same budget, all in the same rounds, and scored on test rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from prefect import flow
from prefect.client.schemas.objects import State

from fedcore.algorithm import Outcome
from fedcore.comparison import Standing, standing
from fedcore.data import Dataset, RandomSplit, TimeSplit
from fedcore.rows import Floats
from fedcore.selection import select
from flows.cancelling import cancellable
from flows.fleet import Fleet
from flows.runners import THREADS, on_runner
from flows.running import Run, at_end, flow_run_name, open_data, run_rounds, scalars, seconds, sent
from flows.searches import REFERENCE, Candidate, CompareConfig
from flows.trials import Course, Refusals, courses, places, trial_fleet, validation
from flows.turns import in_turn
from tasks.checkpoint import Checkpoint, Record, RunFolder
from tasks.results import finite
from tasks.tables import write_csv, write_parquet
from tasks.tracking.runs import Nested
from tasks.trials import Tested, device_test, device_validate

CONSTANT = "constant"
"""The baseline that every device has without any algorithm, the mean of its training rows."""


class Repeat(NamedTuple):
    """One repeat of the comparison, as it has ended.

    Attributes
    ----------
    checkpoint
        Its rounds.
    went
        How each candidate's trial went.
    chosen
        By algorithm, the candidate that was chosen, None where none can be used.
    tested
        By device, what it says of the constant and of those that were chosen, in the algorithms' order.
    validated
        How many devices' validation rows the choice is by.
    missing
        The devices that did not answer at the end.
    """

    checkpoint: Checkpoint
    went: list[Course]
    chosen: dict[str, int | None]
    tested: dict[str, Tested]
    validated: int
    missing: list[str]

    @property
    def lost(self) -> Outcome | None:
        """Why it cannot be used until it is resumed."""
        outcome = self.checkpoint.outcome
        return outcome if outcome and outcome.name == "quorum_lost" else None


@flow(name="fedlin-compare", flow_run_name=flow_run_name, task_runner=THREADS, persist_result=False)
@cancellable
@in_turn
@on_runner
def compare(config: CompareConfig | None = None, run_id: str | None = None) -> State[None]:
    """Compare algorithms on a data set, or go on with a comparison that was interrupted.

    Parameters
    ----------
    config
        What to compare; None for a run that has begun, which keeps the configuration that it began with.
    run_id
        Name of the run; by default a new one.

    Returns
    -------
    State
        Completed, or Failed where the reference or all others cannot be used; the figures are in `runs/<run_id>/result.json`.

    Raises
    ------
    Misuse
        Where the comparison cannot be carried out as it is asked for.
    """
    run = Run.open(CompareConfig, config, run_id)
    asked, candidates, dataset = run.config, run.config.candidates(), open_data(run.config, run.workspace)
    folders = [_folder(run, r) for r in range(asked.repeats)]
    begun = _begin(run, 0, dataset, candidates)
    with run.held():
        earlier = sum(seconds(folder.load()) for folder in folders if folder.exists)
        run.start_tracking({**asked.model_dump(exclude_defaults=True), "algorithms": ", ".join(asked.methods)})
        history: list[Record] = []
        repeats: list[Repeat] = []
        task_runs = 0
        for r, folder in enumerate(folders):
            fleet, refusals = begun if r == 0 else _begin(run, r, dataset, candidates)
            fleet.task_runs += task_runs
            repeat = _carried_out(run, fleet, folder, refusals, candidates, history)
            history += repeat.checkpoint.history
            task_runs = fleet.task_runs
            repeats.append(repeat)
            if repeat.lost:
                break
        rows, devices = _judged(asked.methods, candidates, repeats)
        outcome = _outcome(rows, repeats)
        if rows:
            write_csv(run.folder.results / "compare.csv", [{name: _cell(value) for name, value in row.items()} for row in rows])
            write_parquet(run.folder.results / "devices.parquet", devices)
        result = {
            "repeats": len(repeats),
            **sent(history, folders[: len(repeats)]),
            "devices_scored": len(devices.get("device", ())),
            "devices_validated": min(repeat.validated for repeat in repeats),
            "devices_missing": sorted({device for repeat in repeats for device in repeat.missing}),
            "methods": rows,
        }
        run.tracker.log_rounds(scalars(history))  # a run that had ended before may be known there in part only
        return run.end(outcome, result, uploads=bool(rows), task_runs=task_runs, earlier=earlier, nested=[_nested(row) for row in rows])


def _folder(run: Run[CompareConfig], r: int) -> RunFolder:
    return RunFolder(run.folder.path / "repeats" / f"{run.folder.run_id}-{r + 1}")


def _begin(run: Run[CompareConfig], r: int, dataset: Dataset, candidates: Sequence[Candidate]) -> tuple[Fleet, Refusals]:
    """The fleet of a repeat: the next seeds, and the folder of the whole run with the first one's."""
    asked = run.config.model_copy(update={"seed": run.config.seed + r})
    folder = _folder(run, r)

    def create(manifest: Mapping[str, Any]) -> None:
        if not run.folder.exists:
            run.create(run.config.resolved(), manifest)
        folder.create({"given": asked.model_dump(mode="json"), "repeat": r + 1}, manifest)

    return trial_fleet(folder, asked, reseeded(dataset, r), candidates, asked.parts, create)


def reseeded(dataset: Dataset, r: int) -> Dataset:
    """The data set with other draws of its rows; a split without a seed draws nothing, and stays."""
    contract = dataset.contract
    if not isinstance(contract.split, RandomSplit | TimeSplit):
        return dataset
    split = contract.split.model_copy(update={"seed": contract.split.seed + r})
    return replace(dataset, contract=contract.model_copy(update={"split": split}))


def _carried_out(
    run: Run[CompareConfig], fleet: Fleet, folder: RunFolder, refusals: Refusals, candidates: Sequence[Candidate], before: list[Record]
) -> Repeat:
    checkpoint = run_rounds(run, fleet, folder, before)
    checkpoint, scores = at_end(fleet, checkpoint, lambda state: fleet.at_end(device_validate, state))
    went = courses(fleet, checkpoint.state, refusals)
    rmse = validation(scores, refusals, went)
    if scores and "validation" in run.config.parts and not rmse.shape[1]:
        checkpoint = _silent(checkpoint, "validation")
    chosen = {method: _choice(method, candidates, went, rmse) for method in run.config.methods}
    place = places(refusals)
    kept = [place[i] for i in chosen.values() if i is not None]
    if (own := chosen[REFERENCE]) is None or not scores:
        return Repeat(checkpoint, went, chosen, {}, rmse.shape[1], _missing(fleet, scores))
    reference = place[own]
    K = len(fleet.device_ids)
    checkpoint, tested = at_end(fleet, checkpoint, lambda state: fleet.at_end(device_test, state, [kept] * K, [reference] * K))
    if tested and not any(each.scores[0].n for each in tested.values()):
        checkpoint = _silent(checkpoint, "test")
    return Repeat(checkpoint, went, chosen, tested, rmse.shape[1], _missing(fleet, tested))


def _missing(fleet: Fleet, answers: Mapping[str, Any]) -> list[str]:
    return sorted(set(fleet.device_ids) - set(answers))


def _silent(checkpoint: Checkpoint, part: str) -> Checkpoint:
    silent = f"no device with {part} rows has answered: see why devices fail, then resume the run"
    return checkpoint._replace(outcome=Outcome("quorum_lost", silent, ok=False))


def _choice(method: str, candidates: Sequence[Candidate], went: Sequence[Course], rmse: Floats) -> int | None:
    """The method's candidate with the smallest validation error; where nobody validates, the only one that it has."""
    own = [i for i, candidate in enumerate(candidates) if candidate.method == method]
    if not rmse.shape[1]:
        return own[0] if went[own[0]].ok else None
    best = select(rmse[own], "best")
    return None if best is None else own[best]


def _judged(
    methods: Sequence[str], candidates: Sequence[Candidate], repeats: Sequence[Repeat]
) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """One row a method, the constant first, and a table of devices; both empty where nothing can be compared."""
    told = [device for device in repeats[0].tested if all(each.tested[device].scores[0].n for each in repeats if device in each.tested)]
    ids = [device for device in told if all(device in repeat.tested for repeat in repeats)]
    if repeats[-1].lost or not ids:
        return [], {}
    usable = [method for method in methods if all(repeat.chosen[method] is not None for repeat in repeats)]
    figures = {method: _figures(method, repeats, ids) for method in (CONSTANT, *usable)}
    reference = figures[REFERENCE][0]
    standings = {method: standing(rmse, reference, excess, excess_se) for method, (rmse, excess, excess_se) in figures.items()}
    rows = [_row(CONSTANT, standings[CONSTANT], ids, candidates, repeats)]
    rows += [_row(method, standings.get(method), ids, candidates, repeats) for method in methods]
    devices: dict[str, list[Any]] = {"device": ids, "n_test": [repeats[0].tested[device].scores[0].n for device in ids]}
    devices |= {f"rmse.{method}": [finite(value) for value in found.rmse] for method, found in standings.items()}
    devices |= {f"hurt.{method}": found.hurt.tolist() for method, found in standings.items() if method != REFERENCE}
    return rows, devices


def _figures(method: str, repeats: Sequence[Repeat], ids: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """A method's RMSE, and the mean and standard error of its squared errors' excess, each of shape (R, K)."""
    found = np.empty((3, len(repeats), len(ids)))
    for r, repeat in enumerate(repeats):
        position = [CONSTANT, *(name for name, i in repeat.chosen.items() if i is not None)].index(method)
        for k, device in enumerate(ids):
            tested = repeat.tested[device]
            found[:, r, k] = (tested.scores[position].rmse, *tested.excess[position])
    return found[0], found[1], found[2]


def _row(
    method: str, found: Standing | None, ids: Sequence[str], candidates: Sequence[Candidate], repeats: Sequence[Repeat]
) -> dict[str, Any]:
    own = [i for i, candidate in enumerate(candidates) if candidate.method == method]
    chosen = [repeat.chosen[method] for repeat in repeats] if own else []
    used = [repeat.went[i] for repeat, i in zip(repeats, chosen, strict=bool(own)) if i is not None]
    hurt = [] if found is None else [device for device, worse in zip(ids, found.hurt, strict=True) if worse]
    bad = [repeat.went[i] for repeat in repeats for i in own if not repeat.went[i].ok]
    return {
        "method": method,
        "usable": found is not None,
        "a_rmse": finite(found.a_rmse) if found else None,
        "a_rmse_sd_over_repeats": finite(found.sd_over_repeats) if found else None,
        "difference": finite(found.difference.mean) if found else None,
        "difference_se": finite(found.difference.se) if found else None,
        "worst_rmse": finite(found.worst) if found else None,
        "devices_hurt": len(hurt) if found else None,
        "uplink_bytes": round(fmean(course.uplink_bytes for course in used)) if used else 0 if found else None,
        "rounds_to_settle": float(median(course.settled for course in used)) if used else None,
        "trials": len(own) * len(repeats),
        "trials_refused": sum(course.status == "refused" for course in bad),
        "trials_diverged": sum(course.status != "refused" for course in bad),
        "message": bad[0].message if bad and found is None else "",
        "chosen": [None if i is None else candidates[i].tried for i in chosen],
        "hurt": hurt,
    }


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def _outcome(rows: Sequence[dict[str, Any]], repeats: Sequence[Repeat]) -> Outcome:
    if lost := repeats[-1].lost:
        return lost
    usable = [row for row in rows if row["a_rmse"] is not None]
    others = [row for row in rows if row["method"] not in (CONSTANT, REFERENCE)]
    if not usable or (others and not any(row["usable"] for row in others)):
        bad = next((course.message for repeat in repeats for course in repeat.went if not course.ok), "no error is finite")
        what = "no other method" if usable else f"{REFERENCE}, with which the others are compared, is not one that"
        return Outcome("diverged", f"{what} can be used: {bad}", ok=False)
    best = min(usable, key=lambda row: row["a_rmse"])
    message = f"{best['method']} has the smallest A-RMSE, {best['a_rmse']:.4g}"
    below, se = -best["difference"], best["difference_se"]
    if best["method"] != REFERENCE and below > 0:
        message += f", {below:.3g} below that of {REFERENCE}"
        if se is not None:
            message += f" (standard error {se:.2g} over devices)"
            message += "; that is within two standard errors, and may be chance" if below < 2 * se else ""
    elif best["method"] != REFERENCE:
        message += f", which is that of {REFERENCE}"
    return Outcome("completed", message, ok=True)


def _nested(row: Mapping[str, Any]) -> Nested:
    metrics = {name: float(value) for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    params = {"algorithm": row["method"], "chosen": json.dumps(row["chosen"])}
    return Nested(row["method"], params, metrics, row["usable"])
