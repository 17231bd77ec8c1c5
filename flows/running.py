"""What every kind of run shares: how it begins or goes on, its one loop of rounds, its last questions to the devices, and its end."""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar
from uuid import uuid4

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed

from fedcore.algorithm import AnyAlgorithm, Outcome
from fedcore.data import Dataset, Fitted, open_contract, open_dataset
from fedcore.data.places import read_file, write_durably
from fedcore.errors import Misuse
from fedcore.rounds import RunState, rounds
from flows import garbage, signals
from flows.artifacts import run_artifacts
from flows.cancelling import Cancellation
from flows.config import DataConfig, RunConfig
from flows.fleet import Fleet
from flows.logs import about, log, logged
from flows.metrics import RunMetrics
from flows.orchestrator import Orchestrator
from flows.parent import Parent
from flows.processor import OneProcessor
from flows.progress import log_round, run_progress, say_unanswered
from flows.runners import device_threads
from flows.workspace import Workspace
from tasks.checkpoint import Checkpoint, Record, RunFolder, record
from tasks.tracking.runs import Nested, Tracker, Trained

C = TypeVar("C", bound=DataConfig)
R = TypeVar("R")


def new_run_id() -> str:
    """An id that sorts by the time of its making."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def flow_run_name() -> str:
    """How Prefect is to name a run: as its folder, where the caller has named that; else the name stays that Prefect gave it."""
    return flow_run.parameters.get("run_id") or flow_run.name


def open_data(config: DataConfig, workspace: Workspace, *, elsewhere: bool = False) -> Dataset:
    """The data set of a run, with the configuration's target; of one whose devices are elsewhere the contract is enough.

    Raises
    ------
    Misuse
        Where there is none, or it is not as the configuration says.
    """
    opened = open_contract if elsewhere else open_dataset
    return opened(workspace.datasets, config.dataset, target=config.target, target_scaling=config.target_scaling)


OWN = {"task_runs", "round_s"}
"""Figures of a result that MLflow is not told: Prefect has the first, and the second follows from the metric `seconds` of each round."""


@dataclass(frozen=True)
class Run(Generic[C]):
    """A run that begins, or one that goes on.

    Attributes
    ----------
    config
        What is asked for.
    workspace, folder, tracker, metrics
        Where it lives, and where it is told of.
    begun
        When this process began with it, as `time.perf_counter` says.
    """

    config: C
    workspace: Workspace
    folder: RunFolder
    tracker: Tracker
    metrics: RunMetrics
    begun: float

    @staticmethod
    def open(kind: type[C], config: C | None, run_id: str | None) -> Run[C]:
        """A new run of a configuration, or without one the run that has begun under this name.

        Raises
        ------
        Misuse
            Where no run can have that name, a new one has an old name, an old one is missing, damaged or another command's, neither a
            configuration nor a name is given, or the tracking store cannot be used.
        """
        begun, workspace = time.perf_counter(), Workspace.find()
        folder = RunFolder.named(workspace.runs, run_id or (new_run_id() if config else None))
        if config is None:
            config = kind.model_validate(folder.config(kind.COMMAND)["given"])
        else:
            folder.refuse_existing()
        experiment = config.experiment or config.dataset
        tracker = Tracker.open(None, default_store=workspace.mlflow_store, artifacts=workspace.mlflow_artifacts, experiment=experiment)
        metrics = RunMetrics(workspace.metrics, folder.run_id, config.dataset, config.COMMAND)
        return Run(config, workspace, folder, tracker, metrics, begun)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from going on with the run meanwhile, and log what becomes of it.

        Raises
        ------
        Misuse
            Where another process goes on with it already.
        """
        told = {"command": self.config.COMMAND, "dataset": self.config.dataset, "algorithm": getattr(self.config, "algorithm", None)}
        with self.folder.held(), logged(self.folder.run_id, self.folder.path, **told), garbage.in_a_run():
            yield

    def create(self, resolved: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        """Write the folder of a new run, with its configuration as given and with every default written out."""
        config = {"command": self.config.COMMAND, "given": self.config.model_dump(mode="json"), "resolved": resolved}
        self.folder.create(config, {"run_uuid": uuid4().hex, **manifest})

    def start_tracking(self, params: Mapping[str, Any]) -> None:
        """Give the run its place in MLflow; params that are None are left out. K and d are told beside them, and the data set."""
        manifest = self.folder.manifest()
        cards = manifest["devices"]
        sizes = {"K": len(cards), "d": len(manifest["design"])} if cards else {}
        told = {name: str(value) for name, value in {**params, **sizes}.items() if value is not None}
        trained = _trained(manifest["dataset"], cards) if cards else None
        tags, run_uuid = _tags(self.folder, self.config.COMMAND), manifest.get("run_uuid", "")
        self.tracker.start(self.folder.run_id, params=told, tags=tags, trained=trained, run_uuid=run_uuid)

    def end(
        self,
        outcome: Outcome,
        result: Mapping[str, Any],
        *,
        uploads: bool,
        task_runs: int,
        earlier: float,
        nested: Sequence[Nested] = (),
        params: Mapping[str, str] | None = None,
    ) -> State[None]:
        """Tell MLflow the end, write `result.json`, and say how the flow ended.

        Parameters
        ----------
        outcome
            How the run ended.
        result
            Its figures.
        uploads
            Whether there are results, to be kept in MLflow too.
        task_runs
            How many tasks were started.
        earlier
            Seconds that the run had taken before this process.
        nested, params
            Runs below it in MLflow, and settings that it found.
        """
        if uploads:
            for name in ("config.json", "manifest.json"):
                write_durably(self.folder.results / name, read_file(self.folder.path / name))
        complete: dict[str, Any] = {
            "run_id": self.folder.run_id,
            "dataset": self.config.dataset,
            "outcome": outcome.name,
            "ok": outcome.ok,
            "message": outcome.message,
            **result,
            "artifacts": str(self.folder.results),
            "wall_s": time.perf_counter() - self.begun + earlier,
            "mlflow_run_id": self.tracker.mlflow_run_id,
            "flow_run_id": _flow_run_id(),
            "task_runs": task_runs,
        }
        known = self.tracker.nest(nested)
        ended = self.tracker.finish(
            "FINISHED" if outcome.ok else "FAILED",
            metrics=_totals(complete),
            artifacts=self.folder.results if uploads else None,
            params=params,
        )
        self.folder.write_json("result.json", complete | {"tracked": known and ended})
        self.metrics.ended(outcome)
        told = {"outcome": outcome.name, "rounds": complete["rounds"], "wall_s": complete["wall_s"], "tracked": known and ended}
        log(logging.INFO if outcome.ok else logging.ERROR, "ended", outcome.message, **told)
        return Completed(message=outcome.message) if outcome.ok else Failed(message=f"{outcome.name}: {outcome.message}")


def reopened(
    folder: RunFolder,
    config: RunConfig,
    dataset: Dataset,
    algorithm: AnyAlgorithm,
    parent: Parent | None = None,
    make: Callable[..., Fleet] = Fleet,
) -> Fleet:
    """The devices, in the cohorts or at the sites and with the preprocessing that a run began with.

    Raises
    ------
    Misuse
        Where the contract has changed since.
    """
    manifest = folder.manifest()
    if dataset.contract.model_dump(mode="json") != manifest["contract"]:
        raise Misuse(
            f"the contract of data set {config.dataset!r} has changed since run {folder.run_id} began: restore it, or start a new run"
        )
    fitted = Fitted.model_validate(manifest["preprocessing"]) if manifest["preprocessing"] else None
    config = config.model_copy(update={"devices_per_task": manifest.get("devices_per_task", 1)})
    ids = [card["device"] for card in manifest["devices"]]
    more = {"members": manifest["sites"]} if "sites" in manifest else {}
    return make(folder.run_id, config, dataset.with_fitted(fitted), algorithm, ids, parent, manifest.get("run_uuid", ""), **more)


def run_rounds(run: Run[Any], fleet: Fleet, folder: RunFolder, before: Sequence[Record] = ()) -> Checkpoint:
    """The loop: after every round, checkpoint, then track, then show.

    Parameters
    ----------
    run
        Who is told.
    fleet, folder
        What is run, and where its checkpoint is.
    before
        Rounds of other folders that are counted first.

    Raises
    ------
    RunCancelled
        Where somebody has cancelled the run in Prefect.
    """
    checkpoint = folder.load() or Checkpoint(fleet.initial_state, (), None)
    run.metrics.show([*before, *checkpoint.history])
    if checkpoint.outcome:
        return checkpoint
    schedule, cancellation = fleet.schedule, Cancellation()
    with (
        run.tracker.through_rounds(),
        run_progress(schedule.rounds, checkpoint.state.main_rounds) as progress,
        run_artifacts(schedule.rounds, checkpoint.history) as artifacts,
        OneProcessor(device_threads if fleet.HERE else set) as processor,
    ):
        started, recorded = time.perf_counter(), 0
        for report in rounds(fleet.algorithm, fleet.spec, fleet, schedule, checkpoint.state):
            entry = record(report, fleet.device_ids, time.perf_counter() - started) if report.counted else None
            if entry:
                checkpoint = Checkpoint(report.state, (*checkpoint.history, entry), report.outcome)
                folder.save(checkpoint)
                with about(round=report.round_num):
                    run.tracker.log_rounds(scalars([*before, *checkpoint.history]))
            else:
                checkpoint = checkpoint._replace(outcome=report.outcome)
            quarantined = {name: f"device {name}: quarantined, {why}" for name, why in report.reasons(fleet.device_ids).items()}
            silent = fleet.silent | quarantined
            log_round(report, silent, entry)
            progress.show(report, silent)
            artifacts.show(checkpoint.history)
            run.metrics.show([*before, *checkpoint.history])
            recorded = _await_recorder(fleet, recorded)
            if not report.outcome:
                signals.check()
                cancellation.check()
            processor.next_round()
            started = time.perf_counter()
    return checkpoint


def at_end(fleet: Fleet, checkpoint: Checkpoint, ask: Callable[[RunState], dict[str, R]]) -> tuple[Checkpoint, dict[str, R]]:
    """What devices answer after the rounds, by id; a quorum of them has to, as in a round, and those that do not are named."""
    outcome = checkpoint.outcome
    if outcome is None or outcome.name == "quorum_lost":
        return checkpoint, {}
    answers = ask(checkpoint.state)
    say_unanswered("result", fleet.silent)
    K = len(fleet.device_ids)
    why = fleet.schedule.lost(len(answers), K)
    if not why:
        return checkpoint, answers
    message = f"only {len(answers)} of {K} devices could give their result, {why}"
    lost = Outcome("quorum_lost", f"{message}: see why devices fail, then resume the run", ok=False)
    return checkpoint._replace(outcome=lost), {}


def seconds(checkpoint: Checkpoint | None) -> float:
    """How long the rounds of a checkpoint took."""
    return sum(entry["seconds"] for entry in checkpoint.history) if checkpoint else 0.0


def sent(history: Sequence[Record], folders: Sequence[RunFolder]) -> dict[str, Any]:
    """What rounds took, and the exchanges before them of the runs in these folders, for `result.json`."""
    before = [folder.manifest()["preprocessing_bytes"] for folder in folders]
    uplink, downlink = (sum(each[way] for each in before) for way in ("uplink", "downlink"))
    return {
        "rounds": len(history),
        "round_s": median(each["seconds"] for each in history) if history else None,
        "uplink_bytes": uplink + sum(each["uplink_bytes"] for each in history),
        "downlink_bytes": downlink + sum(each["downlink_bytes"] for each in history),
        "preprocessing_uplink_bytes": uplink,
        "preprocessing_downlink_bytes": downlink,
    }


def scalars(history: Sequence[Record]) -> list[dict[str, float]]:
    """A history's numbers, with the rounds numbered on."""

    def numbers(entry: Record) -> dict[str, float]:
        return {name: value for name, value in entry.items() if isinstance(value, int | float)}

    return [numbers(entry) | {"round_num": i} for i, entry in enumerate(history, 1)]


def _await_recorder(fleet: Fleet, recorded: int) -> int:
    """Tasks are made faster than a server records them; one that is too far behind would lose their ends. How many it has recorded, as far
    as is known."""
    url = PREFECT_API_URL.value()
    return Orchestrator(url).pace(_flow_run_id(), fleet.task_runs, recorded) if url else recorded


def _totals(result: Mapping[str, Any]) -> dict[str, float]:
    """The result's figures as final metrics, but for what says nothing of the method: pages that compare runs show each of them.

    Bytes are under a name of their own, beside the metric of each round.
    """
    figures = {name: value for name, value in result.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    told = {name: value for name, value in figures.items() if name not in OWN and (value or "preprocessing" not in name)}
    return {f"total_{name}" if name.endswith("_bytes") else name: value for name, value in told.items()}


def _trained(name: str, cards: Sequence[Mapping[str, Any]]) -> Trained:
    """The data set as it is now: another fingerprint of any device's rows is another digest."""
    digest = hashlib.sha256("".join(f"{card['device']} {card['sha256']}\n" for card in cards).encode()).hexdigest()
    parts = {part: sum(card[f"n_{part}"] for card in cards) for part in ("train", "validation", "test")}
    return Trained(name, digest, {"devices": len(cards), **parts})


def _tags(folder: RunFolder, command: str) -> dict[str, str]:
    tags = {"fedlin.command": command, "fedlin.run_folder": str(folder.path)}
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
