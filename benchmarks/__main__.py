"""Run the benchmarks: `python -m benchmarks [--quick] [PART ...]`, or `make bench`.

Each part runs in a process of its own: it starts with nothing in memory, and one that fails takes nobody along. Those that train share one
Prefect server, which a part could break for later ones. What is found is written after every part: an interrupted run keeps what it has.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.results import verdicts
from benchmarks.running import FAILED, PARTS, TRAINING, check_folder, in_own_process, keep_whole, run
from fedcore.errors import FedlinError, Misuse

HERE = Path(__file__).parent
QUICK = HERE.parent / "build" / "benchmarks"
"""Where figures of small sizes go: what is kept beside this file was measured whole."""


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PARTS)}; by default all.", show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few repeats; written to build/benchmarks.")] = False,
) -> None:
    """Measure, and write results.json and RESULTS.md."""
    asked = tuple(parts or PARTS)
    if unknown := [name for name in asked if name not in PARTS]:
        raise typer.BadParameter(f"there is no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    folder = QUICK if quick else HERE
    check_folder(folder)
    signal.signal(signal.SIGTERM, _terminated)
    signal.siginterrupt(signal.SIGINT, True)  # polars, when it is imported, has waits outlast Ctrl-C
    training, others = ([name for name in PARTS if name in asked and (name in TRAINING) is needed] for needed in (True, False))
    with _server() if training else nullcontext():
        entries = [run(name, quick, folder, in_own_process) for name in training]
    entries += [run(name, quick, folder, in_own_process) for name in others]
    if asked == PARTS:
        keep_whole(entries, folder)
    typer.echo(verdicts(entries), err=True)
    if any(entry.left_out.startswith(FAILED) for entry in entries):
        raise typer.Exit(1)


@contextmanager
def _server() -> Iterator[None]:
    """One for all parts that train; where none can be had, that is said in a line."""
    from benchmarks.project import server  # which takes seconds to import, and other parts do without

    try:
        with server():
            yield
    except FedlinError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, Misuse) else 1) from None


def _terminated(number: int, _: object) -> None:
    typer.echo("terminated: parts that were measured are kept", err=True)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    typer.run(main)
