"""`python -m flows.stack up` and `down`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedcore.errors import FedlinError, Misuse
from flows.stack.local import ENVIRONMENT, Stack
from flows.workspace import Workspace

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="A production-like stack on the loopback."
)

Port = Annotated[int | None, typer.Option(min=1, max=65535, help="A port of the loopback; by default that of the last start.")]


@app.command()
def up(prefect_port: Port = None, mlflow_port: Port = None, postgres_port: Port = None) -> None:
    """Start what does not run yet, and wait until all of it answers."""
    stack = Stack(Workspace.find(), prefect=prefect_port, mlflow=mlflow_port, postgres=postgres_port)
    stack.up(typer.echo)
    typer.echo(f"to use it: . {stack.folder / ENVIRONMENT}")


@app.command()
def down() -> None:
    """End what `up` has started, and nothing else; databases and logs stay."""
    Stack(Workspace.find()).down(typer.echo)


if __name__ == "__main__":
    try:
        app()
    except FedlinError as error:
        typer.echo(f"stack: error: {' '.join(str(error).split())}", err=True)
        sys.exit(2 if isinstance(error, Misuse) else 1)
