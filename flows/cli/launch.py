"""What the commands that run flows share: checks before a server is started, the run on a Prefect server, and how to go on with one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedcore.data import Dataset, fit_fleet, open_dataset
from fedcore.data.places import is_file
from fedcore.errors import DeviceRefusal, FedlinError, Misuse
from flows.cli.options import BEGUN
from flows.config import DataConfig, RunConfig
from flows.progress import say
from flows.searches import Candidate
from flows.workspace import Workspace

if TYPE_CHECKING:
    from flows.orchestrator import Orchestrator
    from tasks.checkpoint import RunFolder

R = TypeVar("R")

UNFINISHED = ("quorum_lost", "registry_away", "refused")
"""Outcomes after which a run may go on."""

SOON_READ = 1000
"""The largest fleet whose rows are read before a server is started."""


def check_resumed(command: str, resume: str, given: Iterable[Any]) -> None:
    """Whether a command can go on with a run.

    Raises
    ------
    Misuse
        Where there is no such run, another command has begun it, or settings are given beside its name.
    """
    if any(value is not None for value in given):
        raise Misuse("--resume goes on with the run's own configuration: give nothing beside it but --json")
    from tasks.checkpoint import RunFolder

    RunFolder.named(Workspace.find().runs, resume).config(command)


def check_writable(dataset: Dataset) -> None:
    """Whether a run of this data set can leave what it leaves.

    Raises
    ------
    Misuse
        Where a folder cannot be written.
    """
    workspace = Workspace.find()
    left = (workspace.root, workspace.runs, workspace.prefect_home, workspace.mlflow_store, workspace.mlflow_artifacts)
    devices = (dataset.path / f"device={device_id}" for device_id in dataset.device_ids)
    # An object store says so when it is written to.
    for each in (each for each in (*left, *devices) if isinstance(each, Path) and each.exists()):
        if not os.access(each, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise Misuse(f"{each} cannot be written: give it write permission, or name another project folder in FEDLIN_HOME")


def soon_read(dataset: Dataset) -> bool:
    """Whether all rows are read sooner than a server starts, so that it pays to check them first. Those of more devices are checked where
    they enrol, in tasks side by side."""
    return len(dataset.device_ids) <= SOON_READ


def of_all(device_ids: Iterable[str], ask: Callable[[str], R]) -> list[R]:
    """What devices answer to a check, one after the other.

    Raises
    ------
    Misuse
        Where one refuses.
    """
    try:
        return [ask(device_id) for device_id in device_ids]
    except DeviceRefusal as refusal:
        raise Misuse(str(refusal)) from None


def check_trials(settings: RunConfig, candidates: Sequence[Candidate], parts: Sequence[str]) -> None:
    """Refuse in a second what a search would otherwise refuse after a server has started.

    Raises
    ------
    Misuse
        Where a setting is wrong, every trial is refused, no device has the rows to score on or a device's rows break the contract, or a
        folder cannot be written.
    """
    settings.build_schedule()
    workspace = Workspace.find()
    dataset = open_dataset(workspace.datasets, settings.dataset, target=settings.target, target_scaling=settings.target_scaling)
    check_writable(dataset)
    if not soon_read(dataset):
        return

    from fedcore.trials import Trials
    from flows.fleet import Fleet
    from flows.trials import screened
    from tasks.cohort import asked
    from tasks.trials import device_screen

    algorithm = Trials(tuple(candidate.algorithm for candidate in candidates))
    fleet = Fleet("preflight", settings, dataset.with_fitted(fit_fleet(dataset)), algorithm)
    screened(fleet, of_all(fleet.device_ids, lambda device_id: asked(device_screen, fleet.station, device_id)), parts)


def run_flow(command: str, settings: DataConfig | None, resume: str | None) -> dict[str, Any]:
    """Run a command's flow, or go on with a run of it, on the user's Prefect server or one of its own; returns `result.json`.

    Raises
    ------
    FedlinError
        Where the run stops without a result; it says how to go on.
    """
    if resume and (before := _ended(resume)):
        return before
    # Prefect and MLflow take seconds to import; other commands, and settings that are refused, do without.
    from flows.orchestrator import orchestrator
    from flows.runners import task_runner
    from flows.running import new_run_id
    from tasks.checkpoint import RunFolder

    if isinstance(settings, RunConfig):
        task_runner(settings)  # one that is not there is refused before a server is started
    workspace = Workspace.find()
    run_id = resume or new_run_id()
    BEGUN[:] = [run_id]
    say(f"run {run_id} on data set {settings.dataset}" if settings else f"run {run_id} goes on")
    with orchestrator(workspace.prefect_home) as server:
        state = _flow_state(command, settings, run_id)
        folder = RunFolder(workspace.runs / run_id)
        result = folder.read_json("result.json") if is_file(folder.path / "result.json") else {}
        if result.get("flow_run_id") != str(state.state_details.flow_run_id):
            raise _why(state, command, run_id)
        if below := result.get("challenger"):
            trained = RunFolder(workspace.runs / below)
            _drain(server, trained, trained.read_json("result.json"))
        return _drain(server, folder, result)


def _drain(server: Orchestrator, folder: RunFolder, result: dict[str, Any]) -> dict[str, Any]:
    """A run's result with how many of its tasks Prefect has recorded."""
    from flows.orchestrator import finished

    counts, total = server.drain(result["flow_run_id"], result["task_runs"]), result["task_runs"]
    complete = result | {"task_runs_recorded": finished(counts)}
    folder.write_json("result.json", complete)
    if finished(counts) != total:
        say(f"fedlin: note: Prefect recorded {counts} of {total} task runs; the run's own ledger is complete")
    return complete


def _ended(run_id: str) -> dict[str, Any] | None:
    """The result of a run that has nothing left to do, None where it has."""
    from tasks.checkpoint import RunFolder

    folder = RunFolder(Workspace.find().runs / run_id)
    if not is_file(folder.path / "result.json"):
        return None
    result = folder.read_json("result.json")
    return result if result["outcome"] not in UNFINISHED and result["tracked"] and "task_runs_recorded" in result else None


def _flow_state(command: str, settings: DataConfig | None, run_id: str) -> Any:
    """The flow's last state. What Prefect itself raises is about its server: the run has its checkpoint."""
    from flows.adapt import adapt
    from flows.compare import compare
    from flows.retrain import retrain
    from flows.train import train
    from flows.tune import tune

    flows: Mapping[str, Any] = {"train": train, "tune": tune, "compare": compare, "adapt": adapt, "retrain": retrain}
    try:
        return flows[command](settings, run_id=run_id, return_state=True)
    except Exception as error:
        kind = type(error).__name__
    raise FedlinError(f"run {run_id} lost its Prefect server ({kind}): go on with fedlin {command} --resume {run_id}")


def _why(state: Any, command: str, run_id: str) -> FedlinError:
    """Why a flow left no result: its own word where it is fedlin's, else the kind of the failure."""
    from flows.fleet import WorkersLost

    if state.is_cancelled():
        return FedlinError(f"run {run_id} stopped, {state.message}: go on with fedlin {command} --resume {run_id}")
    found = state.result(raise_on_failure=False)
    if isinstance(found, WorkersLost):
        return FedlinError(f"{found}; a run that has begun its rounds then goes on with fedlin {command} --resume {run_id}")
    if isinstance(found, FedlinError):
        return found
    return FedlinError(
        f"run {run_id} stopped ({type(found).__name__}): PREFECT_LOGGING_LEVEL=ERROR shows why; "
        f"go on with fedlin {command} --resume {run_id}"
    )
