"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from fedcore.algorithm import ALGORITHMS
from flows.terminal import quietly

BEGUN: list[str] = []
"""The run that this process has named, for what is said where it is interrupted."""

KNOWN = ", ".join(sorted(ALGORITHMS))


def examples(*lines: str) -> str:
    """What `--help` and the reference show below a command: each line a command of its own."""
    return "\n\n".join(["Examples:", *(f"    {line}" for line in lines)])


Name = Annotated[str | None, typer.Argument(help="Name of a data set.", show_default=False)]
Algorithm = Annotated[str | None, typer.Option(help=f"One of {KNOWN}; hm1 by default.", show_default=False)]
Rounds = Annotated[int | None, typer.Option(help="The most communication rounds, 30 by default.", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="Root of all random numbers, 0 by default.", show_default=False)]
Participation = Annotated[float | None, typer.Option(help="Share of the fleet drawn each round.", show_default=False)]
Quorum = Annotated[float | None, typer.Option(help="Share of the drawn devices that must answer.", show_default=False)]
Deadline = Annotated[
    float | None, typer.Option(help="Seconds that a device's work in a round may take; by default no limit.", show_default=False)
]
Runner = Annotated[str | None, typer.Option(help="thread, process, dask or ray; thread by default.", show_default=False)]
DaskAddress = Annotated[str | None, typer.Option(help="A Dask scheduler, by default a cluster of the run's own.", show_default=False)]
RayAddress = Annotated[str | None, typer.Option(help="A Ray cluster, by default one of the run's own.", show_default=False)]
DevicesPerTask = Annotated[
    int | None, typer.Option(help="How many devices share a Prefect task; 1 in fleets of up to 1,000 by default.", show_default=False)
]
Target = Annotated[str | None, typer.Option(help="A target of the contract, in place of its own.", show_default=False)]
TargetScaling = Annotated[str | None, typer.Option(help="none, train or own, in place of the contract's.", show_default=False)]
Experiment = Annotated[str | None, typer.Option(help="MLflow experiment, by default the data set's name.", show_default=False)]
Resume = Annotated[str | None, typer.Option(help="Go on with this run.", metavar="RUN_ID", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


def _be_quiet(context: typer.Context, asked: bool) -> None:
    if asked:
        context.with_resource(quietly())


_holder = typer.Typer(add_completion=False)


@_holder.command()
def _quiet(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Say nothing but errors, and what --json prints.", callback=_be_quiet, expose_value=False)
    ] = False,
) -> None: ...


class Commands(TyperGroup):
    """Commands that all take `--quiet`."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        for command in self.commands.values():
            if not isinstance(command, TyperGroup):
                command.params += get_command(_holder).params[:1]
