"""`fedlin tune`: the best settings of an algorithm for a data set, by what its devices score on validation rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flows.cli import options
from flows.cli.launch import check_resumed, check_trials, run_flow
from flows.cli.shown import conclude, difference, figure, settings
from flows.config import checked_config, parse_options
from flows.searches import TuneConfig, parse_grid

SHOWN = 15
"""How many trials the table has; all are in trials.csv."""

REPORTED = (
    "run_id",
    "algorithm",
    "rule",
    "rounds",
    "outcome",
    "message",
    "best",
    "validation_a_rmse",
    "trials",
    "devices_validated",
)

EXAMPLES = options.examples(
    "fedlin tune demo --algorithm hm1",
    "fedlin tune demo --algorithm hm1 --grid alpha=0.1,0.3 --rule one-se",
    "fedlin tune demo --algorithm hm1 --random 20 --grid prior_rate=0.001..1",
)


def command(
    name: options.Name = None,
    algorithm: options.Algorithm = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of an option from the simplest one on, name=value,value; with --random also name=FIRST..LAST. Repeatable; "
            "by default the algorithm's own.",
            show_default=False,
        ),
    ] = None,
    random: Annotated[int | None, typer.Option(help="Draw so many configurations from the grid.", show_default=False)] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="best (the default), or one-se: the simplest within one standard error of the best.", show_default=False),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="An option that stays as it is, name=value; repeatable.")] = None,
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
    """Search the settings of an algorithm, all in the rounds of one run."""
    given = {
        "dataset": name,
        "algorithm": algorithm,
        "grid": parse_grid(grid) if grid else None,
        "draws": random,
        "rule": rule,
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
        check_resumed("tune", resume, given.values())
    else:
        asked = checked_config(TuneConfig, given)
        check_trials(asked, asked.candidates(), asked.parts)
    result = run_flow("tune", asked, resume)
    conclude(result, REPORTED, _show, as_json=as_json)


def _show(out: Console, result: Mapping[str, Any]) -> None:
    if trials := result["trials"]:
        table = Table("trial", "settings", "A-RMSE", "above least (SE)", "rounds")
        errors = [float("inf") if row["validation_a_rmse"] is None else row["validation_a_rmse"] for row in trials]
        ranked = sorted(range(len(trials)), key=errors.__getitem__)
        for i in ranked[:SHOWN]:
            row = trials[i]
            told = difference(row["difference"], row["difference_se"]) if row["validation_a_rmse"] is not None else row["status"]
            trial = f"{row['trial']}{' *' if row['selected'] else ''}"
            table.add_row(trial, settings(row["tried"]), figure(row["validation_a_rmse"]), told, str(row["rounds"]))
        out.print(table)
        if len(trials) > SHOWN:
            out.print(f"and {len(trials) - SHOWN} more in trials.csv")
        out.print(f"A-RMSE on the validation rows of {result['devices_validated']} devices; * is chosen, by the rule {result['rule']}.")
        out.print("above least: than the smallest A-RMSE, paired by device, with its standard error over devices.")
    if result["best"]:
        out.print("train with it: fedlin train --config best.toml, which is among the results")
