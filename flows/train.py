"""Federated training: communication rounds of mapped device tasks and one aggregation, checkpointed and tracked."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from prefect import flow, unmapped
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from fedcore.algorithm import Aggregated, AnyAlgorithm, FleetSpec
from fedcore.data import DeviceCard, open_dataset
from fedcore.errors import DeviceFailure, Misuse
from fedcore.rounds import Answers, Call, RunState, Schedule, draw_cohort, rounds
from flows.config import TrainConfig
from flows.orchestrator import Orchestrator
from flows.progress import run_progress
from flows.workspace import Workspace
from tasks.checkpoint import Checkpoint, Record, RunFolder, record
from tasks.device import DeviceReport, Station, device_enrol, device_finalize, device_update
from tasks.results import figures, write_results
from tasks.server import aggregate
from tasks.tracking.runs import Tracker

THREADS: Any = ThreadPoolTaskRunner(max_workers=4)
"""Device tasks at a time. Their arithmetic is short, and more threads only queue for the interpreter."""


def new_run_id() -> str:
    """An id that sorts by the time of its making."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


@flow(name="fedlin-train", flow_run_name="{run_id}", task_runner=THREADS, persist_result=False)
def train(config: TrainConfig | None = None, run_id: str | None = None) -> State[None]:
    """Train on a data set, or go on with a run that was interrupted.

    Parameters
    ----------
    config
        What to train. A run that has begun keeps the configuration that it began with.
    run_id
        Name of the run; where a run of this name has begun, it is resumed. By default a new one.

    Returns
    -------
    State
        Completed or Failed, as the run's outcome is; the figures are in `runs/<run_id>/result.json`.

    Raises
    ------
    Misuse
        Where the run cannot be carried out as it is asked for; nothing of it is left then.
    """
    begun = time.perf_counter()
    workspace = Workspace.find()
    run_id = run_id or new_run_id()
    if config is None:
        folder = RunFolder.open(workspace.runs, run_id)
        config = TrainConfig.model_validate(folder.read_json("config.json")["given"])
    else:
        folder = None
    fleet = Fleet(run_id, config, workspace)
    tracker = Tracker.open(
        None, default_store=workspace.mlflow_store, artifacts=workspace.mlflow_artifacts, experiment=config.experiment or config.dataset
    )
    if folder is None:
        manifest = fleet.manifest(fleet.enrol())
        folder = RunFolder.create(workspace.runs, run_id, {"given": config.model_dump(), "resolved": config.resolved()}, manifest)
    tracker.start(run_id, params=_flat(config.resolved()), tags=_tags(workspace, folder))
    checkpoint = _run_rounds(fleet, folder, tracker, config.build_schedule())
    outcome = checkpoint.outcome
    assert outcome is not None
    reports = [] if outcome.name == "quorum_lost" else fleet.finalize(checkpoint.state, config.build_schedule())
    found = figures(reports)
    if reports:
        write_results(folder.results, reports, fleet.dataset.design_names, checkpoint.state.server)
        for name in ("config.json", "manifest.json"):
            shutil.copyfile(folder.path / name, folder.results / name)
    result = {
        "run_id": run_id,
        "dataset": config.dataset,
        "algorithm": config.algorithm,
        "rounds": checkpoint.state.round_num,
        "outcome": outcome.name,
        "ok": outcome.ok,
        "message": outcome.message,
        **found,
        "wall_s": time.perf_counter() - begun,
        "round_s": median(each["seconds"] for each in checkpoint.history) if checkpoint.history else None,
        "uplink_bytes": sum(each["uplink_bytes"] for each in checkpoint.history),
        "downlink_bytes": sum(each["downlink_bytes"] for each in checkpoint.history),
        "artifacts": str(folder.results),
        "mlflow_run_id": tracker.mlflow_run_id,
        "flow_run_id": _flow_run_id(),
        "task_runs": fleet.task_runs,
    }
    tracker.log_rounds([_scalars(each) for each in checkpoint.history])  # a run that had ended may be known there in part only
    metrics = {name: value for name, value in result.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    tracker.finish("FINISHED" if outcome.ok else "FAILED", metrics=metrics, artifacts=folder.results if reports else None)
    folder.write_json("result.json", result)
    return Completed(message=outcome.message) if outcome.ok else Failed(message=f"{outcome.name}: {outcome.message}")


def _run_rounds(fleet: Fleet, folder: RunFolder, tracker: Tracker, schedule: Schedule) -> Checkpoint:
    """The loop: after every round, checkpoint, then track, then show."""
    checkpoint = folder.load() or Checkpoint(RunState.initial(fleet.algorithm, fleet.spec), (), None)
    if checkpoint.outcome:
        return checkpoint
    with run_progress(folder.run_id, schedule.rounds, checkpoint.state.main_rounds) as progress:
        started = time.perf_counter()
        for report in rounds(fleet.algorithm, fleet.spec, fleet, schedule, checkpoint.state):
            if report.counted:
                entry = record(report, fleet.spec.device_ids, time.perf_counter() - started)
                checkpoint = Checkpoint(report.state, (*checkpoint.history, entry), report.outcome)
                folder.save(checkpoint)
                tracker.log_rounds([_scalars(each) for each in checkpoint.history])
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


class Fleet:
    """The devices of a data set behind Prefect tasks: the backend of a run, one mapped task a device."""

    def __init__(self, run_id: str, config: TrainConfig, workspace: Workspace) -> None:
        self.dataset = open_dataset(workspace.datasets, config.dataset, target=config.target, target_scaling=config.target_scaling)
        self.algorithm: AnyAlgorithm = config.build_algorithm()
        self.spec = FleetSpec(self.dataset.device_ids, len(self.dataset.design_names))
        self.station = Station(run_id, self.dataset, self.algorithm, self.spec, config.seed)
        self.silent: dict[str, str] = {}
        self.task_runs = 0

    def enrol(self) -> list[DeviceCard]:
        """Every device checks and compresses its rows.

        Raises
        ------
        Misuse
            Where a device cannot; the first one is named.
        """
        cards = self._gather(device_enrol.map(unmapped(self.station), list(self.spec.device_ids)), self.spec.device_ids)
        if self.silent:
            raise Misuse(f"{len(self.silent)} of {len(self.spec.device_ids)} devices cannot take part: {next(iter(self.silent.values()))}")
        return [card for card in cards if card is not None]

    def manifest(self, cards: Sequence[DeviceCard]) -> dict[str, Any]:
        """What the run was trained on: names, counts and fingerprints, no rows."""
        return {
            "dataset": self.dataset.name,
            "target": self.dataset.contract.target,
            "design": list(self.dataset.design_names),
            "contract": self.dataset.contract.model_dump(mode="json"),
            "devices": [card._asdict() for card in cards],
        }

    def local_steps(self, call: Call) -> Answers:
        """The cohort's local steps, one task a device; those that fail after their retries are silent."""
        ids = [self.spec.device_ids[k] for k in call.cohort]
        broadcasts = [call.broadcast(i) for i in range(len(ids))]
        replies = self._gather(device_update.map(unmapped(self.station), ids, broadcasts), ids)
        answers = [(k, reply) for k, reply in zip(call.cohort, replies, strict=True) if reply is not None]
        return Answers([k for k, _ in answers], [reply.up for _, reply in answers], [reply.info for _, reply in answers])

    def aggregate(self, server: Any, answers: Answers) -> Aggregated:
        """The server's task."""
        self.task_runs += 1
        return aggregate(self.algorithm, server, answers)

    def finalize(self, state: RunState, schedule: Schedule) -> list[DeviceReport]:
        """Every device's result and scores, sorted by id; devices that fail are left out."""
        ids = self.spec.device_ids
        everyone = range(len(ids))
        call = Call(state.round_num, everyone, self.algorithm.broadcasts(state.server, everyone), state)
        drawn: list[list[int]] = [[] for _ in ids]
        for round_num in range(1, state.round_num + 1):
            for k in draw_cohort(ids, schedule, round_num):
                drawn[k].append(round_num)
        broadcasts = [call.broadcast(k) for k in everyone]
        futures = device_finalize.map(unmapped(self.station), list(ids), broadcasts, drawn)
        return [report for report in self._gather(futures, ids) if report is not None]

    def _gather(self, futures: Sequence[PrefectFuture[Any]], ids: Sequence[str]) -> list[Any]:
        """The tasks' results, None where one failed, whose reason is then in `silent`."""
        self.task_runs += len(ids)
        self.silent = {}
        results: list[Any] = []
        for device_id, future in zip(ids, futures, strict=True):
            future.wait()
            found = future.state.result(raise_on_failure=False)
            if not future.state.is_completed():
                self.silent[device_id] = str(found) if isinstance(found, DeviceFailure) else f"device {device_id}: {type(found).__name__}"
                found = None
            results.append(found)
        return results


def _scalars(entry: Record) -> dict[str, float]:
    return {name: value for name, value in entry.items() if isinstance(value, int | float)}


def _flat(config: dict[str, Any]) -> dict[str, str]:
    options = {f"option.{name}": str(value) for name, value in config["options"].items()}
    return options | {name: str(value) for name, value in config.items() if name != "options" and value is not None}


def _tags(workspace: Workspace, folder: RunFolder) -> dict[str, str]:
    tags = {"fedlin.run_folder": str(folder.path)}
    git = shutil.which("git")
    if git:
        asked = subprocess.run([git, "-C", workspace.root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            tags["mlflow.source.git.commit"] = asked.stdout.strip()
    return tags


def _flow_run_id() -> str:
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return str(context.flow_run.id)
