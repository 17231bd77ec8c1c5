"""`fedlin retrain`: a challenger for a data set's champion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedcore.data import open_dataset
from flows.cli import options
from flows.cli.launch import check_resumed, check_writable, run_flow
from flows.cli.shown import conclude, figure
from flows.config import RetrainConfig, build_algorithm, checked_config, parse_options
from flows.workspace import Workspace

REPORTED = (
    "run_id",
    "challenger",
    "algorithm",
    "start",
    "start_why",
    "rounds",
    "outcome",
    "message",
    "champion",
    "version",
    "a_rmse_champion",
    "a_rmse",
    "improvement",
    "p",
    "devices_paired",
    "devices_better",
    "devices_worse",
    "devices_unscored",
    "devices_new",
    "devices_gone",
    "devices_drifted",
    "fleet_drifted",
    "drift_devices",
    "drift_rms_median",
    "drift_rms_largest",
    "drift_rms_device",
    "drift_mean_largest",
    "drift_move_largest",
)

EXAMPLES = options.examples(
    "fedlin retrain demo --algorithm hm2",
    "fedlin retrain demo --if-drifted",
    "fedlin retrain demo --margin 0.05 --p-value 0.01",
)


def command(
    name: options.Name = None,
    algorithm: Annotated[
        str | None, typer.Option(help=f"One of {options.KNOWN}; by default the champion's, or hm1.", show_default=False)
    ] = None,
    rounds: options.Rounds = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the algorithm in place of the champion's, name=value; repeatable.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="By which share the challenger's A-RMSE has to be smaller, 0.01 by default.", show_default=False)
    ] = None,
    p_value: Annotated[
        float | None, typer.Option(help="The largest p of the test paired over devices, 0.05 by default.", show_default=False)
    ] = None,
    if_drifted: Annotated[bool, typer.Option("--if-drifted", help="Train no challenger where no device has drifted.")] = False,
    drift: Annotated[
        float | None,
        typer.Option(help="Rms of standardised residuals above which a device has drifted, 2 by default.", show_default=False),
    ] = None,
    drift_move: Annotated[
        float | None, typer.Option(help="Nats by which a device that has drifted moves phi (hm2), 1 by default.", show_default=False)
    ] = None,
    seed: options.Seed = None,
    participation: options.Participation = None,
    quorum: options.Quorum = None,
    deadline: options.Deadline = None,
    runner: options.Runner = None,
    dask_address: options.DaskAddress = None,
    ray_address: options.RayAddress = None,
    devices_per_task: options.DevicesPerTask = None,
    target: options.Target = None,
    target_scaling: options.TargetScaling = None,
    experiment: options.Experiment = None,
    resume: options.Resume = None,
    as_json: options.AsJson = False,
) -> None:
    """Train a challenger, and promote it where it is better than the champion on the devices' test rows."""
    given = {
        "dataset": name,
        "algorithm": algorithm,
        "rounds": rounds,
        "options": parse_options(set_) if set_ else None,
        "margin": margin,
        "p_value": p_value,
        "only_if_drifted": if_drifted or None,
        "drift": drift,
        "drift_move": drift_move,
        "seed": seed,
        "participation": participation,
        "quorum": quorum,
        "deadline": deadline,
        "runner": runner,
        "dask_address": dask_address,
        "ray_address": ray_address,
        "devices_per_task": devices_per_task,
        "target": target,
        "target_scaling": target_scaling,
        "experiment": experiment,
    }
    if resume is not None:
        check_resumed("retrain", resume, given.values())
        settings = None
    else:
        settings = checked_config(RetrainConfig, given)
        settings.build_schedule()
        if settings.algorithm:
            build_algorithm(settings.algorithm, settings.options)
        datasets = Workspace.find().datasets
        check_writable(open_dataset(datasets, settings.dataset, target=settings.target, target_scaling=settings.target_scaling))
    conclude(run_flow("retrain", settings, resume), REPORTED, _show, as_json=as_json)


def _show(out: Console, result: Mapping[str, Any]) -> None:
    if result.get("drift_devices"):
        rms, move = result["drift_rms_largest"], result["drift_move_largest"]
        largest = "" if rms is None else f", largest rms {figure(rms)} (device {result['drift_rms_device']})"
        largest += "" if move is None else f", largest move {figure(move)} nats"
        fleet = ", and the fleet as a whole" if result["fleet_drifted"] else ""
        out.print(f"drifted: {result['devices_drifted']} of {result['drift_devices']} devices{fleet}{largest}")
    if result.get("devices_paired"):
        table = Table("RMSE on the devices' test rows", "champion", "challenger", "change", "p")
        before, after = result["a_rmse_champion"], result["a_rmse"]
        change = "-" if result["improvement"] is None else f"{-100 * result['improvement']:+.1f} %"
        table.add_row("mean over devices (A-RMSE)", figure(before), figure(after), change, f"{result['p']:.2g}")
        out.print(table)
        out.print(f"better than the champion: {result['devices_better']} of {result['devices_paired']} devices")
    if new := result.get("devices_new"):
        out.print(f"new to the fleet, and not compared: {new} device{'' if new == 1 else 's'}")
    if why := result.get("start_why"):
        out.print(f"the challenger started anew: {why}")
