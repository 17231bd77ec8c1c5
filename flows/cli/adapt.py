"""`fedlin adapt` and `fedlin remove`: devices that come to a run, or leave it, after it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedcore.errors import Misuse
from flows.cli import options, train
from flows.cli.launch import of_all, run_flow
from flows.cli.shown import conclude, figure
from flows.config import TrainConfig
from flows.workspace import Workspace

REPORTED = ("run_id", "parent", "device", "algorithm", "outcome", "message", "n_train", "a_rmse", "a_rmse_separate")

RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="A run that has ended.", show_default=False)]
Device = Annotated[str, typer.Option(help="Id of the device.", show_default=False)]
Rounds = Annotated[int | None, typer.Option(help="The most rounds that the fleet goes on for, by default the run's.", show_default=False)]

ADAPT_EXAMPLES = options.examples("fedlin adapt RUN_ID --device new-one", "fedlin adapt RUN_ID --device new-one --join")


def adapt(
    run: RunId,
    device: Device,
    dataset: Annotated[str | None, typer.Option(help="Its data set, by default the run's.", show_default=False)] = None,
    join: Annotated[bool, typer.Option("--join", help="Take it into the fleet, which goes on for some rounds as a new run.")] = False,
    rounds: Rounds = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a device that was not in a run a result from its own rows and what the fleet has learned."""
    from flows.adapt import AdaptConfig, newcomer_station
    from flows.parent import Parent
    from tasks.device import device_check

    parent = Parent.open(Workspace.find(), run)
    if join:
        if device in parent.device_ids:
            raise Misuse(f"device {device} was in run {run} already: name one that was not")
        if dataset not in (None, parent.config.dataset):
            raise Misuse(f"a device that joins run {run} is one of its data set, {parent.config.dataset}: leave --dataset out, or --join")
        train.carry_out(_next(parent.config, run, (*parent.device_ids, device), rounds), as_json=as_json)
        return
    if rounds is not None:
        raise Misuse("--rounds is of a fleet that goes on, and it does with --join only: leave it out")
    names = ("target", "target_scaling", "experiment")
    shared = {name: getattr(parent.config, name) for name in names}
    settings = AdaptConfig(dataset=dataset or parent.config.dataset, parent=run, device=device, **shared)
    station, _ = newcomer_station("preflight", settings, Workspace.find(), parent)
    of_all([device], lambda device_id: device_check(station, device_id))
    result = run_flow("adapt", settings, None)
    conclude(result, REPORTED, _show, as_json=as_json)


REMOVE_EXAMPLES = options.examples("fedlin remove RUN_ID --device old-one")


def remove(run: RunId, device: Device, rounds: Rounds = None, as_json: options.AsJson = False) -> None:
    """Take out of a run what it learned from a device; the others go on for some rounds as a new run."""
    from flows.parent import Parent

    parent = Parent.open(Workspace.find(), run)
    left = tuple(each for each in parent.device_ids if each != device)
    if len(left) == len(parent.device_ids):
        raise Misuse(f"device {device} was not in run {run}, so nothing of it is to be taken out")
    if not left:
        raise Misuse(f"device {device} is the whole fleet of run {run}: without it nothing is left")
    train.carry_out(_next(parent.config, run, left, rounds), as_json=as_json)


def _next(config: TrainConfig, parent: str, devices: tuple[str, ...], rounds: int | None) -> TrainConfig:
    update = {
        "parent": parent,
        "devices": tuple(sorted(devices)),
        "rounds": config.rounds if rounds is None else rounds,
        "participation": 1.0,
    }
    return config.model_copy(update=update)


def _show(out: Console, result: Mapping[str, Any]) -> None:
    if result["devices_scored"]:
        table = Table("RMSE on the device's test rows", "adapted", "on its own")
        table.add_row(result["device"], figure(result["a_rmse"]), figure(result["a_rmse_separate"]))
        out.print(table)
