"""`fedlin train`: a run from the command line, on a Prefect server of its own or the user's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedcore.algorithm import ALGORITHMS
from fedcore.data import fit_fleet, open_dataset
from fedcore.data.places import Place, is_file, place
from fedcore.errors import DeviceRefusal, FedlinError, Misuse
from flows.config import TrainConfig, parse_options, read_config
from flows.workspace import Workspace

KNOWN = ", ".join(sorted(ALGORITHMS))

REPORTED = (
    "run_id",
    "algorithm",
    "rounds",
    "outcome",
    "message",
    "a_rmse",
    "a_rmse_separate",
    "devices_missing",
    "wall_s",
    "round_s",
    "uplink_bytes",
    "artifacts",
    "mlflow_run_id",
    "flow_run_id",
    "task_runs",
    "task_runs_recorded",
)


def command(
    name: Annotated[str | None, typer.Argument(help="Name of a data set.", show_default=False)] = None,
    algorithm: Annotated[str | None, typer.Option(help=f"One of {KNOWN}; hm1 by default.", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option(help="The most communication rounds, 30 by default.", show_default=False)] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="An option of the algorithm, name=value; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Root of all random numbers, 0 by default.", show_default=False)] = None,
    participation: Annotated[float | None, typer.Option(help="Share of the fleet drawn each round.", show_default=False)] = None,
    quorum: Annotated[float | None, typer.Option(help="Share of the drawn devices that must answer.", show_default=False)] = None,
    target: Annotated[str | None, typer.Option(help="A target of the contract, in place of its own.", show_default=False)] = None,
    target_scaling: Annotated[str | None, typer.Option(help="none, train or own, in place of the contract's.", show_default=False)] = None,
    experiment: Annotated[str | None, typer.Option(help="MLflow experiment, by default the data set's name.", show_default=False)] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of these settings; flags override it.", show_default=False)] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run.", metavar="RUN_ID", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Train a model over the devices of a data set."""
    given = {
        "dataset": name,
        "algorithm": algorithm,
        "rounds": rounds,
        "options": parse_options(set_) if set_ else None,
        "seed": seed,
        "participation": participation,
        "quorum": quorum,
        "target": target,
        "target_scaling": target_scaling,
        "experiment": experiment,
    }
    if resume is not None:
        if config or any(value is not None for value in given.values()):
            raise Misuse("--resume goes on with the run's own configuration: give nothing beside it but --json")
        from tasks.checkpoint import RunFolder

        settings = None
        if not resume or Path(resume).name != resume or len(resume) > 200:
            raise Misuse(f"--resume takes the name of a run's folder, got {resume!r}")
        RunFolder(Workspace.find().runs / resume).config()
    else:
        settings = read_config(given, config)
        _preflight(settings)
    result = (_ended(resume) if resume else None) or _run(settings, resume)
    if as_json:
        print(json.dumps({key: result[key] for key in REPORTED}, allow_nan=False), flush=True)
    else:
        _show(result)
    if not result["ok"]:
        raise typer.Exit(3)


def _run(settings: TrainConfig | None, resume: str | None) -> dict[str, Any]:
    # Prefect and MLflow take seconds to import; other commands, and settings that are refused, do without.
    from flows.orchestrator import finished, orchestrator
    from flows.train import new_run_id
    from tasks.checkpoint import RunFolder

    workspace = Workspace.find()
    run_id = resume or new_run_id()
    typer.echo(f"run {run_id} on data set {settings.dataset}" if settings else f"run {run_id} goes on", err=True)
    with orchestrator(workspace.prefect_home) as server:
        state = _flow_state(settings, run_id)
        folder = RunFolder(workspace.runs / run_id)
        result = folder.read_json("result.json") if is_file(folder.path / "result.json") else {}
        if result.get("flow_run_id") != str(state.state_details.flow_run_id):
            raise _why(state, run_id)
        counts = server.drain(result["flow_run_id"], result["task_runs"])
    result["task_runs_recorded"] = finished(counts)
    folder.write_json("result.json", result)
    if finished(counts) != result["task_runs"]:
        total = result["task_runs"]
        typer.echo(f"fedlin: note: Prefect recorded {counts} of {total} task runs; the run's own ledger is complete", err=True)
    return result


def _preflight(settings: TrainConfig) -> None:
    """Refuse in a second what would otherwise be refused after a server has started.

    Raises
    ------
    Misuse
        Where a setting is wrong, a device's rows break the contract or do not suit an option, or a folder cannot be
        written.
    """
    workspace = Workspace.find()
    settings.build_schedule()
    settings.build_algorithm()
    dataset = open_dataset(workspace.datasets, settings.dataset, target=settings.target, target_scaling=settings.target_scaling)
    left = (workspace.runs, workspace.prefect_home, workspace.mlflow_store, workspace.mlflow_artifacts)
    devices = (dataset.path / f"device={device_id}" for device_id in dataset.device_ids)
    _writable(workspace.root, *left, *devices)

    from flows.fleet import Fleet
    from tasks.device import device_check

    fleet = Fleet("preflight", settings, workspace, fitted=fit_fleet(dataset))
    for device_id in fleet.device_ids:
        try:
            device_check(fleet.station, device_id)
        except DeviceRefusal as refusal:
            raise Misuse(str(refusal)) from None


def _writable(*places: Place) -> None:
    # An object store says so when it is written to.
    for each in (each for each in places if isinstance(each, Path) and each.exists()):
        if not os.access(each, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise Misuse(f"{each} cannot be written: give it write permission, or name another project folder in FEDLIN_HOME")


def _ended(run_id: str) -> dict[str, Any] | None:
    """The result of a run that has nothing left to do, None where it has."""
    from tasks.checkpoint import RunFolder

    folder = RunFolder(Workspace.find().runs / run_id)
    if not is_file(folder.path / "result.json"):
        return None
    result = folder.read_json("result.json")
    return result if result["outcome"] != "quorum_lost" and result["tracked"] and "task_runs_recorded" in result else None


def _flow_state(settings: TrainConfig | None, run_id: str) -> Any:
    """The flow's last state. What Prefect itself raises is about its server: the run has its checkpoint."""
    from flows.train import train

    try:
        return train(settings, run_id=run_id, return_state=True)  # pyright: ignore[reportCallIssue]
    except Exception as error:
        kind = type(error).__name__
    raise FedlinError(f"run {run_id} lost its Prefect server ({kind}): go on with fedlin train --resume {run_id}")


def _why(state: Any, run_id: str) -> FedlinError:
    """Why a flow left no result: its own word where it is fedlin's, else the kind of the failure."""
    found = state.result(raise_on_failure=False)
    if isinstance(found, FedlinError):
        return found
    return FedlinError(
        f"run {run_id} stopped ({type(found).__name__}): PREFECT_LOGGING_LEVEL=ERROR shows why; go on with fedlin train --resume {run_id}"
    )


def _show(result: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False)
    if result["devices_scored"]:
        rivals = ["separate"] if result["algorithm"] != "separate" else []
        table = Table("RMSE on the devices' test rows", result["algorithm"], *rivals, *(["change"] if rivals else []))
        for label, key in (("mean over devices (A-RMSE)", "a_rmse"), ("median device", "median_rmse"), ("worst device", "worst_rmse")):
            ours, alone = result[key], result[f"{key}_separate"]
            change = f"{100 * (ours / alone - 1):+.1f} %" if ours is not None and alone else "-"
            table.add_row(label, _figure(ours), *([_figure(alone), change] if rivals else []))
        console.print(table)
        if rivals:
            console.print(f"better than on its own: {result['devices_better']} of {result['devices_scored']} devices")
    elif result["outcome"] != "quorum_lost":
        console.print("no device has test rows, so there is no A-RMSE: see the contract's split")
    if missing := result["devices_missing"]:
        console.print(f"no result of {len(missing)} devices: {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}")
    console.print(f"{result['outcome']} after {result['rounds']} rounds: {result['message']}")
    console.print(f"run {result['run_id']}, {result['wall_s']:.1f} s, {decimal(result['uplink_bytes'])} sent by the devices")
    console.print(f"Prefect recorded {result['task_runs_recorded']} of {result['task_runs']} task runs")
    console.print(f"results in {_near(place(result['artifacts']))}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _near(path: Place) -> Place:
    return path.relative_to(Path.cwd()) if isinstance(path, Path) and path.is_relative_to(Path.cwd()) else path
