"""`fedlin`: the command line.

Exit status 0 for a usable result, 2 for misuse (one line on standard error says what was wrong), 3 for a run that ended
without a usable result (`diverged`, `quorum_lost`), 130 when interrupted, 143 when told to end (SIGTERM).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Annotated

import typer
from typer.exceptions import TyperException

from fedcore.errors import FedlinError, Misuse
from flows import garbage
from flows.cli import (
    adapt,
    champion,
    compare,
    data,
    doctor,
    options,
    predict,
    report,
    reproduce,
    retrain,
    runs,
    simulate,
    site,
    status,
    train,
    tune,
)
from flows.logs import as_json, check_asked, log

INTERRUPTED, TERMINATED = 130, 143

app = typer.Typer(
    cls=options.Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated data analytics with linear models.",
    epilog=options.examples(
        "fedlin simulate demo --dataset demo  # a fleet to try it on",
        "fedlin data import pumps.csv --dataset pumps --device pump --target pressure",
        "fedlin train pumps --algorithm hm2  # what the fleet and each device know",
        "fedlin compare pumps  # is it worth it, and which algorithm?",
        "fedlin report RUN_ID  # for those who own the devices",
        "fedlin COMMAND --help  # options and examples of a command",
    ),
)

DATA, LEARN, USE, OPERATE, PAPER = "Data", "Learn", "Use what was learned", "Operate", "The paper"
"""What `--help` groups commands by: the task at hand."""

app.add_typer(data.app, name="data", rich_help_panel=DATA)
app.command("simulate", rich_help_panel=DATA, epilog=simulate.EXAMPLES)(simulate.command)
app.command("train", rich_help_panel=LEARN, epilog=train.EXAMPLES)(train.command)
app.command("tune", rich_help_panel=LEARN, epilog=tune.EXAMPLES)(tune.command)
app.command("compare", rich_help_panel=LEARN, epilog=compare.EXAMPLES)(compare.command)
app.command("predict", rich_help_panel=USE, epilog=predict.EXAMPLES)(predict.command)
app.command("report", rich_help_panel=USE, epilog=report.EXAMPLES)(report.command)
app.command("adapt", rich_help_panel=USE, epilog=adapt.ADAPT_EXAMPLES)(adapt.adapt)
app.command("remove", rich_help_panel=USE, epilog=adapt.REMOVE_EXAMPLES)(adapt.remove)
app.command("retrain", rich_help_panel=OPERATE, epilog=retrain.EXAMPLES)(retrain.command)
app.command("champion", rich_help_panel=OPERATE, epilog=champion.CHAMPION_EXAMPLES)(champion.champion)
app.command("rollback", rich_help_panel=OPERATE, epilog=champion.ROLLBACK_EXAMPLES)(champion.rollback)
app.command("runs", rich_help_panel=USE, epilog=runs.EXAMPLES)(runs.command)
app.command("status", rich_help_panel=OPERATE, epilog=status.EXAMPLES)(status.command)
app.command("doctor", rich_help_panel=OPERATE)(doctor.command)
app.add_typer(site.app, name="site", rich_help_panel=OPERATE)
app.add_typer(reproduce.app, name="reproduce", rich_help_panel=PAPER)


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"fedlin {metadata.version('fedlin')}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", callback=_tell_version, is_eager=True)] = False,
) -> None:
    check_asked()


def main() -> None:
    """Run the command line; every error is one line, and what is unexpected says its kind only: its text may quote data."""
    garbage.in_a_command()
    try:
        with _ended_politely() as told:
            status = app(standalone_mode=False)
    except TyperException as error:
        if not error.format_message():
            sys.exit(2)  # a command without its words: the help has been shown
        _fail(error.format_message() + _where_to_look(error), 2)
    except Misuse as error:
        _fail(str(error), 2)
    except FedlinError as error:
        _fail(str(error), 1)
    except BrokenPipeError:
        # Whoever read our output has left; what is still buffered must not be tried again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("FEDLIN_DEBUG"):
            raise
        _fail(f"unexpected {type(error).__name__}: FEDLIN_DEBUG=1 shows where, with a text that may quote data", 1)
    else:
        # The library below turns Ctrl-C into this status.
        if status == INTERRUPTED:
            command = sys.argv[1] if sys.argv[1] in ("tune", "compare", "retrain") else "train"
            what, status = ("terminated", TERMINATED) if told else ("interrupted", INTERRUPTED)
            on = f": a run that has begun its rounds goes on with fedlin {command} --resume {options.BEGUN[0]}" if options.BEGUN else ""
            _fail(what + on, status)
        sys.exit(status)


def _where_to_look(error: TyperException) -> str:
    """The help of the command that was used wrongly; the message says only what is wrong."""
    context = getattr(error, "ctx", None)
    return f" ({context.command_path} --help says what it takes)" if context else ""


@contextmanager
def _ended_politely() -> Iterator[list[int]]:
    """Let SIGTERM do what Ctrl-C does: what has been started ends, and Prefect is told; yields the signals that came."""
    told: list[int] = []

    def interrupt(number: int, _: object) -> None:
        told.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail(message: str, status: int) -> None:
    if as_json():
        log(logging.ERROR, "failed", message, status=status)
    else:
        print(f"fedlin: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
