"""`fedlin train`: a run from the command line, on a Prefect server of its own or the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedcore.data import fit_fleet, open_contract, open_dataset
from fedcore.errors import Misuse
from flows.cli import options
from flows.cli.launch import check_resumed, check_writable, of_all, run_flow, soon_read
from flows.cli.shown import conclude, figure
from flows.config import TrainConfig, parse_options, read_config
from flows.workspace import Workspace

REPORTED = (
    "run_id",
    "algorithm",
    "rounds",
    "outcome",
    "message",
    "a_rmse",
    "a_rmse_separate",
    "phi",
    "log_evidence",
    "pareto_k",
)

EXAMPLES = options.examples(
    "fedlin train demo",
    "fedlin train demo --algorithm hm2 --set prior=lasso --rounds 50",
    "fedlin train --config deployments/demo.toml",
    "fedlin train --resume RUN_ID",
)


def command(
    name: options.Name = None,
    algorithm: options.Algorithm = None,
    rounds: options.Rounds = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="An option of the algorithm, name=value; repeatable.")] = None,
    seed: options.Seed = None,
    participation: options.Participation = None,
    quorum: options.Quorum = None,
    deadline: options.Deadline = None,
    runner: options.Runner = None,
    dask_address: options.DaskAddress = None,
    ray_address: options.RayAddress = None,
    devices_per_task: options.DevicesPerTask = None,
    sites: Annotated[Path | None, typer.Option(help="TOML file of the sites that have the devices.", show_default=False)] = None,
    target: options.Target = None,
    target_scaling: options.TargetScaling = None,
    experiment: options.Experiment = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of these settings; flags override it.", show_default=False)] = None,
    resume: options.Resume = None,
    as_json: options.AsJson = False,
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
        "deadline": deadline,
        "runner": runner,
        "dask_address": dask_address,
        "ray_address": ray_address,
        "devices_per_task": devices_per_task,
        "sites": str(sites.resolve()) if sites else None,
        "target": target,
        "target_scaling": target_scaling,
        "experiment": experiment,
    }
    if resume is not None:
        check_resumed("train", resume, (config, *given.values()))
        conclude(run_flow("train", None, resume), REPORTED, _show, as_json=as_json)
    else:
        carry_out(read_config(given, config), as_json=as_json)


def carry_out(settings: TrainConfig, *, as_json: bool) -> None:
    """Train, and tell how it ended."""
    _preflight(settings)
    conclude(run_flow("train", settings, None), REPORTED, _show, as_json=as_json)


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
    algorithm = settings.build_algorithm()
    if settings.sites:
        _check_sites(settings, workspace)
        return
    dataset = open_dataset(workspace.datasets, settings.dataset, target=settings.target, target_scaling=settings.target_scaling)
    check_writable(dataset)
    if not soon_read(dataset):
        return

    from flows.fleet import Fleet
    from flows.parent import Parent
    from tasks.device import device_check

    parent = Parent.open(workspace, settings.parent) if settings.parent else None
    prepared = parent.prepared(dataset) if parent else dataset.with_fitted(fit_fleet(dataset))
    fleet = Fleet("preflight", settings, prepared, algorithm, settings.devices, parent)
    _ = fleet.initial_state
    of_all(fleet.device_ids, lambda device_id: device_check(fleet.station, device_id))


def _check_sites(settings: TrainConfig, workspace: Workspace) -> None:
    """The same as far as it can be seen from here: the sites look at their devices themselves."""
    check_writable(open_contract(workspace.datasets, settings.dataset, target=settings.target, target_scaling=settings.target_scaling))

    from tasks.sites.enrolled import read_sites

    read_sites(Path(str(settings.sites)))
    if not os.environ.get("PREFECT_API_URL"):
        raise Misuse("PREFECT_API_URL is not set: name the Prefect server that the sites' workers serve too")


def _show(out: Console, result: Mapping[str, Any]) -> None:
    if result["devices_scored"]:
        rivals = ["separate"] if result["algorithm"] != "separate" else []
        table = Table("RMSE on the devices' test rows", result["algorithm"], *rivals, *(["change"] if rivals else []))
        for label, key in (("mean over devices (A-RMSE)", "a_rmse"), ("median device", "median_rmse"), ("worst device", "worst_rmse")):
            ours, alone = result[key], result[f"{key}_separate"]
            change = f"{100 * (ours / alone - 1):+.1f} %" if ours is not None and alone else "-"
            table.add_row(label, figure(ours), *([figure(alone), change] if rivals else []))
        out.print(table)
        if rivals:
            out.print(f"better than on its own: {result['devices_better']} of {result['devices_scored']} devices")
    elif result["outcome"] != "quorum_lost":
        out.print("no device has test rows, so there is no A-RMSE: see the contract's split")
