"""Federated training: communication rounds of mapped device tasks and one aggregation, checkpointed and tracked."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from fedcore.algorithm import Outcome
from fedcore.data import Fitted
from fedcore.data.places import read_file, write_durably
from fedcore.errors import Misuse
from fedcore.rounds import RunState, rounds
from flows.config import TrainConfig
from flows.fleet import Fleet
from flows.orchestrator import Orchestrator
from flows.progress import SHOWN, run_progress, say
from flows.workspace import Workspace
from tasks.checkpoint import Checkpoint, Record, RunFolder, record
from tasks.device import DeviceReport
from tasks.results import figures, write_results
from tasks.tracking.runs import Tracker

TASK_RUNNER: Any = ThreadPoolTaskRunner(max_workers=4)
"""Device tasks at a time. Their arithmetic is short, and more threads only queue for the interpreter."""


def new_run_id() -> str:
    """An id that sorts by the time of its making."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


@flow(name="fedlin-train", flow_run_name="{run_id}", task_runner=TASK_RUNNER, persist_result=False)
def train(config: TrainConfig | None = None, run_id: str | None = None) -> State[None]:
    """Train on a data set, or go on with a run that was interrupted.

    Parameters
    ----------
    config
        What to train; None for a run that has begun, which keeps the configuration that it began with.
    run_id
        Name of the run; by default a new one.

    Returns
    -------
    State
        Completed or Failed, as the run's outcome is; the figures are in `runs/<run_id>/result.json`.

    Raises
    ------
    Misuse
        Where the run cannot be carried out as it is asked for.
    """
    begun, earlier = time.perf_counter(), 0.0
    workspace = Workspace.find()
    run_id = run_id or new_run_id()
    folder = RunFolder(workspace.runs / run_id)
    if config is None:
        config, fleet = _reopened(folder, workspace)
        before = folder.load()
        earlier = sum(entry["seconds"] for entry in before.history) if before else 0.0
    else:
        folder.refuse_existing()
        fleet = Fleet(run_id, config, workspace)
    experiment = config.experiment or config.dataset
    tracker = Tracker.open(None, default_store=workspace.mlflow_store, artifacts=workspace.mlflow_artifacts, experiment=experiment)
    if not folder.exists:
        fleet.preprocess()
        manifest = fleet.manifest(fleet.enrol())
        folder.create({"given": config.model_dump(), "resolved": config.resolved()}, manifest)
    with folder.held():
        tracker.start(run_id, params=_flat(config.resolved()), tags=_tags(folder))
        checkpoint = _run_rounds(fleet, folder, tracker)
        checkpoint, reports = _finish_devices(fleet, checkpoint)
        outcome = checkpoint.outcome
        assert outcome is not None
        if reports:
            write_results(
                folder.results,
                reports,
                fleet.dataset.design_names,
                checkpoint.state.server,
                device_ids=fleet.spec.device_ids,
                fitted=fleet.dataset.fitted,
                gaps=folder.manifest()["gaps"],
            )
            for name in ("config.json", "manifest.json"):
                write_durably(folder.results / name, read_file(folder.path / name))
        found = figures(reports)
        result = _result(config, folder, checkpoint) | {
            **found,
            "devices_missing": sorted(set(fleet.spec.device_ids) - {report.device for report in reports}),
            "wall_s": time.perf_counter() - begun + earlier,
            "mlflow_run_id": tracker.mlflow_run_id,
            "flow_run_id": _flow_run_id(),
            "task_runs": fleet.task_runs,
        }
        tracker.log_rounds(_scalars(checkpoint))  # a run that had ended before may be known there in part only
        result["tracked"] = tracker.finish(
            "FINISHED" if outcome.ok else "FAILED", metrics=_totals(result), artifacts=folder.results if reports else None
        )
        folder.write_json("result.json", result)
    return Completed(message=outcome.message) if outcome.ok else Failed(message=f"{outcome.name}: {outcome.message}")


def _finish_devices(fleet: Fleet, checkpoint: Checkpoint) -> tuple[Checkpoint, list[DeviceReport]]:
    """Results of all devices; a quorum of them has to answer, as in a round, and those that do not are named."""
    outcome = checkpoint.outcome
    if outcome is None or outcome.name == "quorum_lost":
        return checkpoint, []
    reports = fleet.finalize(checkpoint.state)
    for reason in list(fleet.silent.values())[:SHOWN]:
        say(f"no result, {reason}")
    K = len(fleet.spec.device_ids)
    why = fleet.schedule.lost(len(reports), K)
    if not why:
        return checkpoint, reports
    message = f"only {len(reports)} of {K} devices could give their result, {why}"
    lost = Outcome("quorum_lost", f"{message}: see why devices fail, then resume the run", ok=False)
    return checkpoint._replace(outcome=lost), []


def _reopened(folder: RunFolder, workspace: Workspace) -> tuple[TrainConfig, Fleet]:
    """The configuration, the devices and the preprocessing that a run began with."""
    config = TrainConfig.model_validate(folder.config()["given"])
    manifest = folder.manifest()
    fitted = Fitted.model_validate(manifest["preprocessing"]) if manifest["preprocessing"] else None
    fleet = Fleet(folder.run_id, config, workspace, [card["device"] for card in manifest["devices"]], fitted)
    if fleet.dataset.contract.model_dump(mode="json") != manifest["contract"]:
        raise Misuse(
            f"the contract of data set {config.dataset!r} has changed since run {folder.run_id} began: restore it, or start a new run"
        )
    return config, fleet


def _run_rounds(fleet: Fleet, folder: RunFolder, tracker: Tracker) -> Checkpoint:
    """The loop: after every round, checkpoint, then track, then show."""
    checkpoint = folder.load() or Checkpoint(RunState.initial(fleet.algorithm, fleet.spec), (), None)
    if checkpoint.outcome:
        return checkpoint
    schedule = fleet.schedule
    with run_progress(folder.run_id, schedule.rounds, checkpoint.state.main_rounds) as progress:
        started = time.perf_counter()
        for report in rounds(fleet.algorithm, fleet.spec, fleet, schedule, checkpoint.state):
            if report.counted:
                entry = record(report, fleet.device_ids, time.perf_counter() - started)
                checkpoint = Checkpoint(report.state, (*checkpoint.history, entry), report.outcome)
                folder.save(checkpoint)
                tracker.log_rounds(_scalars(checkpoint))
            else:
                checkpoint = checkpoint._replace(outcome=report.outcome)
            progress.show(report, fleet.silent)
            _await_recorder(fleet)
            started = time.perf_counter()
    return checkpoint


def _await_recorder(fleet: Fleet) -> None:
    """Tasks are made faster than a server records them; one that is too far behind would lose their ends."""
    if url := PREFECT_API_URL.value():
        Orchestrator(url).pace(_flow_run_id(), fleet.task_runs)


def _result(config: TrainConfig, folder: RunFolder, checkpoint: Checkpoint) -> dict[str, Any]:
    """What the rounds came to, for `result.json`."""
    outcome, history = checkpoint.outcome, checkpoint.history
    assert outcome is not None
    before = folder.manifest()["preprocessing_bytes"]
    return {
        "run_id": folder.run_id,
        "dataset": config.dataset,
        "algorithm": config.algorithm,
        "rounds": checkpoint.state.round_num,
        "outcome": outcome.name,
        "ok": outcome.ok,
        "message": outcome.message,
        "round_s": median(each["seconds"] for each in history) if history else None,
        "uplink_bytes": before["uplink"] + sum(each["uplink_bytes"] for each in history),
        "downlink_bytes": before["downlink"] + sum(each["downlink_bytes"] for each in history),
        "preprocessing_uplink_bytes": before["uplink"],
        "preprocessing_downlink_bytes": before["downlink"],
        "artifacts": str(folder.results),
    }


def _totals(result: Mapping[str, Any]) -> dict[str, float]:
    """The result's figures as final metrics; bytes under a name of their own, beside the metric of each round."""
    figures = {name: value for name, value in result.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    return {f"total_{name}" if name.endswith("_bytes") else name: value for name, value in figures.items()}


def _scalars(checkpoint: Checkpoint) -> list[dict[str, float]]:
    def numbers(entry: Record) -> dict[str, float]:
        return {name: value for name, value in entry.items() if isinstance(value, int | float)}

    return [numbers(entry) for entry in checkpoint.history]


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    options = {f"option.{name}": str(value) for name, value in config["options"].items()}
    return options | {name: str(value) for name, value in config.items() if name != "options" and value is not None}


def _tags(folder: RunFolder) -> dict[str, str]:
    tags = {"fedlin.run_folder": str(folder.path)}
    git, code = shutil.which("git"), Path(__file__).parent
    if git:
        asked = subprocess.run([git, "-C", code, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            tags["mlflow.source.git.commit"] = asked.stdout.strip()
    return tags


def _flow_run_id() -> str:
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return str(context.flow_run.id)
