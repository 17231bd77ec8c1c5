"""A search over an algorithm's settings: all of them trained side by side, the best chosen by what the devices score on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from prefect import flow
from prefect.client.schemas.objects import State

from fedcore.algorithm import Outcome
from fedcore.rows import Floats
from fedcore.selection import Rule, paired, select
from flows.cancelling import cancellable
from flows.runners import THREADS, on_runner
from flows.running import Run, at_end, flow_run_name, open_data, run_rounds, scalars, seconds, sent
from flows.searches import Candidate, TuneConfig
from flows.trials import Course, courses, trial_fleet, validation
from tasks.checkpoint import Checkpoint
from tasks.results import finite
from tasks.tables import write_csv, write_toml
from tasks.tracking.runs import Nested
from tasks.trials import device_validate


@flow(name="fedlin-tune", flow_run_name=flow_run_name, task_runner=THREADS, persist_result=False)
@cancellable
@on_runner
def tune(config: TuneConfig | None = None, run_id: str | None = None) -> State[None]:
    """Search an algorithm's settings, or go on with a search that was interrupted.

    Parameters
    ----------
    config
        What to try; None for a run that has begun, which keeps the configuration that it began with.
    run_id
        Name of the run; by default a new one.

    Returns
    -------
    State
        Completed, or Failed where no setting can be used; the figures are in `runs/<run_id>/result.json`.

    Raises
    ------
    Misuse
        Where the search cannot be carried out as it is asked for.
    """
    run = Run.open(TuneConfig, config, run_id)
    asked, folder, candidates = run.config, run.folder, run.config.candidates()
    dataset = open_data(asked, run.workspace)
    fleet, refusals = trial_fleet(folder, asked, dataset, candidates, asked.parts, lambda manifest: run.create(asked.resolved(), manifest))
    with run.held():
        earlier = seconds(folder.load())
        run.start_tracking(asked.model_dump(exclude_defaults=True))
        checkpoint = run_rounds(run, fleet, folder)
        checkpoint, scores = at_end(fleet, checkpoint, lambda state: fleet.at_end(device_validate, state))
        went = courses(fleet, checkpoint.state, refusals)
        rmse = validation(scores, refusals, went)
        outcome, chosen, rows = _judged(checkpoint, candidates, went, rmse, asked.rule)
        best = None if chosen is None else candidates[chosen]
        if rows:
            write_csv(folder.results / "trials.csv", [_cells(row) for row in rows])
        if best:
            comment = f"Run {folder.run_id}: {outcome.message}"
            write_toml(folder.results / "best.toml", asked.winner(best).model_dump(), comment)
        result = {
            "algorithm": asked.algorithm,
            **sent(checkpoint.history, [folder]),
            "rule": asked.rule,
            "best": best.options if best else None,
            "validation_a_rmse": None if chosen is None else rows[chosen]["validation_a_rmse"],
            "devices_validated": rmse.shape[1],
            "devices_missing": sorted(set(fleet.device_ids) - set(scores)),
            "trials": rows,
        }
        run.tracker.log_rounds(scalars(checkpoint.history))  # a run that had ended before may be known there in part only
        return run.end(
            outcome,
            result,
            uploads=bool(rows),
            task_runs=fleet.task_runs,
            earlier=earlier,
            nested=[_nested(*each) for each in zip(rows, candidates, went, strict=False)],
            params={f"best.{name}": str(value) for name, value in best.tried.items()} if best else {},
        )


def _judged(
    checkpoint: Checkpoint, candidates: Sequence[Candidate], went: Sequence[Course], rmse: Floats, rule: Rule
) -> tuple[Outcome, int | None, list[dict[str, Any]]]:
    """How the search has ended, which trial is chosen, and one row a trial; no rows where devices did not answer."""
    ended = checkpoint.outcome
    assert ended is not None
    if ended.name == "quorum_lost":
        return ended, None, []
    if not rmse.shape[1]:
        silent = "no device with validation rows has answered: see why devices fail, then resume the run"
        return Outcome("quorum_lost", silent, ok=False), None, []
    chosen = select(rmse, rule)
    rows = _table(candidates, went, rmse, chosen)
    if chosen is None:
        why = next((course.message for course in went if not course.ok), "no validation error is finite")
        return Outcome("diverged", f"none of {len(rows)} trials can be used: {why}", ok=False), None, rows
    reason = "has the smallest validation error" if rule == "best" else "is the first within one standard error of the smallest error"
    words = ", ".join(f"{name}={value}" for name, value in candidates[chosen].tried.items())
    return Outcome("completed", f"trial {chosen + 1} of {len(rows)} ({words}) {reason}", ok=True), chosen, rows


def _table(candidates: Sequence[Candidate], went: Sequence[Course], rmse: Floats, chosen: int | None) -> list[dict[str, Any]]:
    """One row a trial; differences are to the smallest error, paired by device."""
    best = select(rmse, "best")
    rows: list[dict[str, Any]] = []
    for i, (candidate, course) in enumerate(zip(candidates, went, strict=True)):
        difference = paired(rmse[i], rmse[best]) if best is not None else None
        with np.errstate(over="ignore"):
            error = finite(float(rmse[i].mean()))
        rows.append(
            {
                "trial": i + 1,
                "tried": candidate.tried,
                "status": course.status,
                "selected": i == chosen,
                "validation_a_rmse": error,
                "difference": finite(difference.mean) if difference else None,
                "difference_se": finite(difference.se) if difference else None,
                "rounds": course.rounds,
                "uplink_bytes": course.uplink_bytes,
                "message": course.message,
            }
        )
    return rows


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """A row with a column for each option that is tried."""
    first, *others = row.items()
    return dict([first, *row["tried"].items(), *((name, value) for name, value in others if name != "tried")])


def _nested(row: dict[str, Any], candidate: Candidate, course: Course) -> Nested:
    figures = ("validation_a_rmse", "difference", "difference_se", "rounds", "uplink_bytes")
    metrics = {name: row[name] for name in figures if row[name] is not None}
    params = {"algorithm": candidate.method, "outcome": course.status}
    return Nested(
        str(row["trial"]), params | {f"option.{name}": str(value) for name, value in candidate.options.items()}, metrics, course.ok
    )
