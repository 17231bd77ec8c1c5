"""Where commands say what they say: standard output for answers, standard error for what happens meanwhile, neither under `--quiet`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console

PIPED = 1000
"""Characters of a line that no screen shows."""

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def quietly(asked: bool = True) -> Iterator[None]:
    """Let consoles that are made inside say nothing, where that is asked for."""
    token = _quiet.set(asked)
    try:
        yield
    finally:
        _quiet.reset(token)


def quiet() -> bool:
    """Whether nothing is to be said but errors and what `--json` asks for."""
    return _quiet.get()


def console(*, stderr: bool = False) -> Console:
    """Standard output, or error, on which names are the user's text and not markup. Colours follow `NO_COLOR`. What is piped is not broken
    into lines of a screen's width."""
    piped = not (sys.stderr if stderr else sys.stdout).isatty() and "COLUMNS" not in os.environ
    return Console(stderr=stderr, quiet=quiet(), highlight=False, markup=False, width=PIPED if piped else None)


def counted(number: int, what: str) -> str:
    """So many of something."""
    return f"{number} {what}{'' if number == 1 else 's'}"
