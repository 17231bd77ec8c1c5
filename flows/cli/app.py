"""`fedlin`: the command line.

Exit status 0 for a usable result, 2 for misuse (one line on standard error says what was wrong), 3 for a run that ended
without a usable result (`diverged`, `quorum_lost`), 130 when interrupted.
"""

from __future__ import annotations

import sys

import typer
from typer.exceptions import TyperException

from fedcore.errors import FedlinError, Misuse
from flows.cli import data, simulate, train

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Federated data analytics with linear models."
)
app.add_typer(data.app, name="data")
app.command("simulate")(simulate.command)
app.command("train")(train.command)


def main() -> None:
    """Run the command line; every error that is the user's to mend is one line."""
    try:
        sys.exit(app(standalone_mode=False))
    except TyperException as error:
        _fail(" ".join(error.format_message().split()) if "\n" not in error.format_message().strip() else error.format_message(), 2)
    except Misuse as error:
        _fail(str(error), 2)
    except FedlinError as error:
        _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; a run that has begun goes on with fedlin train --resume RUN_ID", 130)


def _fail(message: str, status: int) -> None:
    print(f"fedlin: error: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
