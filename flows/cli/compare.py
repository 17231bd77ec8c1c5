"""`fedlin compare`: whether federation is worth it for a fleet, and with which algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from flows.cli import options
from flows.cli.launch import check_resumed, check_trials, run_flow
from flows.cli.shown import conclude, difference, figure
from flows.config import checked_config, parse_options
from flows.searches import CompareConfig, parse_grids

REPORTED = (
    "run_id",
    "repeats",
    "rounds",
    "outcome",
    "message",
    "methods",
    "devices_scored",
    "devices_validated",
)

EXAMPLES = options.examples("fedlin compare demo", "fedlin compare demo --algorithms separate,hm1,eb --budget 5 --repeats 3")


def command(
    name: options.Name = None,
    algorithms: Annotated[
        str | None, typer.Option(help=f"Some of {options.KNOWN}, with commas; all by default.", show_default=False)
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="How often, each time with the next seeds; once by default.", show_default=False)
    ] = None,
    budget: Annotated[int | None, typer.Option(help="The most configurations of an algorithm, 10 by default.", show_default=False)] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of an option, algorithm.name=value,value; by default the algorithms' own. Repeatable.", show_default=False
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An option of all algorithms that have it, name=value; repeatable.")
    ] = None,
    rounds: options.Rounds = None,
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
    """Tune algorithms with the same budget and compare them on test rows."""
    given = {
        "dataset": name,
        "algorithms": tuple(each.strip() for each in algorithms.split(",")) if algorithms is not None else None,
        "repeats": repeats,
        "budget": budget,
        "grid": parse_grids(grid) if grid else None,
        "options": parse_options(set_) if set_ else None,
        "rounds": rounds,
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
    asked = None
    if resume is not None:
        check_resumed("compare", resume, given.values())
    else:
        asked = checked_config(CompareConfig, given)
        check_trials(asked, asked.candidates(), asked.parts)
    result = run_flow("compare", asked, resume)
    conclude(result, REPORTED, _show, as_json=as_json)


def _show(out: Console, result: Mapping[str, Any]) -> None:
    if result["methods"]:
        repeated = result["repeats"] > 1
        spread = ["sd"] if repeated else []
        table = Table("method", "A-RMSE", *spread, "to separate (SE)", "worst", "hurt", "sent", "rounds", padding=(0, 1, 0, 0))
        for row in result["methods"]:
            if not row["usable"]:
                table.add_row(row["method"], "-", *([""] if repeated else []), "no usable trial")
                continue
            spread = [figure(row["a_rmse_sd_over_repeats"])] if repeated else []
            settled = "-" if row["rounds_to_settle"] is None else f"{row['rounds_to_settle']:g}"
            worst, told = figure(row["worst_rmse"]), difference(row["difference"], row["difference_se"])
            hurt, sent = str(row["devices_hurt"]), decimal(row["uplink_bytes"])
            table.add_row(row["method"], figure(row["a_rmse"]), *spread, told, worst, hurt, sent, settled)
        out.print(table)
        validated = result["devices_validated"]
        by = f"with its best settings on validation rows of {validated}" if validated else "with its only setting"
        out.print(f"RMSE on the test rows of {result['devices_scored']} devices, each algorithm {by}.")
        out.print("to separate: paired by device, with its standard error over devices.")
        if repeated:
            out.print(f"sd: over {result['repeats']} repeats of the same data, no sampling error; other figures are means over repeats.")
        out.print("hurt: devices worse than with separate by more than 2 standard errors over their own test rows.")
        out.print("rounds: from which on the training error stayed within 1 % of its last value.")
