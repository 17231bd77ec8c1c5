"""`fedlin champion` and `fedlin rollback`: which version of a data set's model is the one to use, and back to an earlier one."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from flows.cli import options
from flows.cli.shown import figure
from flows.terminal import console
from flows.workspace import Workspace

Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="Name of a data set.", show_default=False)]

CHAMPION_EXAMPLES = options.examples("fedlin champion demo", "fedlin champion demo --json")


def champion(dataset: Dataset, target: options.Target = None, as_json: options.AsJson = False) -> None:
    """Show the champion of a data set, and the decisions that were made about it."""
    from flows.champions import open_registry

    registry = open_registry(Workspace.find(), dataset, target)
    current, decisions = registry.champion(), registry.decisions()
    if as_json:
        known = {"version": current.number, "run_id": current.run_id} if current else {"version": None, "run_id": None}
        print(json.dumps({"model": registry.name, **known, "decisions": [each._asdict() for each in decisions]}), flush=True)
        return
    out = console()
    for each in decisions:
        about = f" version {each.version}" if each.version else ""
        before = f", champion was version {each.champion}" if each.champion else ""
        scores = tuple(figure(each.figures.get(name)) for name in ("a_rmse_champion", "a_rmse"))
        told = f" (A-RMSE {scores[0]} to {scores[1]})" if each.figures.get("devices_paired") else ""
        out.print(f"{each.when} {each.decision}{about} by {each.who}{before}: {each.why}{told}", soft_wrap=True)
    if current:
        out.print(f"the champion of {registry.name} is version {current.number}, trained by run {current.run_id}")
    else:
        out.print(f"{registry.name} has no champion: fedlin retrain {dataset} makes one")


ROLLBACK_EXAMPLES = options.examples("fedlin rollback demo", "fedlin rollback demo --to 3")


def rollback(
    dataset: Dataset,
    to: Annotated[int | None, typer.Option(help="The version, by default the one before the champion.", min=1, show_default=False)] = None,
    target: options.Target = None,
    as_json: options.AsJson = False,
) -> None:
    """Make an earlier version the champion again."""
    from flows.champions import rollback as go_back

    done: dict[str, Any] = go_back(Workspace.find(), dataset, target, to)._asdict()
    if as_json:
        print(json.dumps(done), flush=True)
        return
    console().print(f"version {done['version']} is the champion of {done['model']} (run {done['figures']['run_id']}): {done['why']}")
