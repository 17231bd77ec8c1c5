"""The log of runs: one logger, `fedlin`, whose records are JSON lines where `FEDLIN_LOG=json` asks for them.

They go to standard error, in place of the lines for people, and those of a run to `log.jsonl` in its folder too, where that is on this
machine: object stores do not append. A record has the fields `run`, `round` and `device` where it is about one, and says why in words
that hold no data value.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedcore.errors import FedlinError, Misuse

LOGGER = logging.getLogger("fedlin")
VARIABLE = "FEDLIN_LOG"
FILE = "log.jsonl"

_about: ContextVar[Mapping[str, Any]] = ContextVar("about", default=MappingProxyType({}))


class Lines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, message, what the record is about, and its own fields."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": " ".join(record.getMessage().split()),
            **_about.get(),
            **fields,
        }
        return json.dumps(line, allow_nan=False)


def as_json() -> bool:
    """Whether JSON lines are asked for."""
    return os.environ.get(VARIABLE) == "json"


def check_asked() -> None:
    """Raises Misuse where `FEDLIN_LOG` asks for something else."""
    if (asked := os.environ.get(VARIABLE, "")) not in ("", "json"):
        raise Misuse(f"{VARIABLE} is json or not set, got {asked!r}: unset it for lines that people read")


def log(level: int, event: str, message: str, **fields: Any) -> None:
    """Log what people are told in another way, so only where JSON lines are asked for.

    Parameters
    ----------
    level
        As `logging` has them.
    event
        What kind of record it is, by which it can be found.
    message
        A line.
    fields
        What is known of it: finite numbers, names and None.
    """
    if as_json():
        with ExitStack() as stack:
            if not LOGGER.handlers:  # outside of a run
                stack.enter_context(_handled(logging.StreamHandler(sys.stderr)))
            LOGGER.log(level, "%s", message, extra={"event": event, "fields": fields})


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Say of every record inside what it is about, such as a run or a round."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


@contextmanager
def logged(run_id: str, folder: object, **fields: Any) -> Iterator[None]:
    """Log a run: its begin, what is logged inside, and why it stopped where it did.

    Parameters
    ----------
    run_id, folder
        The run and its folder.
    fields
        What is known of it at its begin.

    Raises
    ------
    Misuse
        As `check_asked` does.
    """
    check_asked()
    with ExitStack() as stack:
        stack.enter_context(about(run=run_id))
        if as_json():
            if not LOGGER.handlers:  # a run within a run has its lines there already
                stack.enter_context(_handled(logging.StreamHandler(sys.stderr)))
            if isinstance(folder, Path):
                stack.enter_context(_handled(logging.FileHandler(folder / FILE), run_id))
        log(logging.INFO, "begun", "the run begins or goes on", **fields)
        try:
            yield
        except BaseException as error:
            # What other errors say may quote data.
            why = str(error) if isinstance(error, FedlinError) else f"unexpected {type(error).__name__}"
            log(logging.ERROR, "stopped", why, kind=type(error).__name__)
            raise


@contextmanager
def _handled(handler: logging.Handler, run_id: str | None = None) -> Iterator[None]:
    """Let a handler have the records, or those of one run; others, such as the engines' own, do not see them meanwhile."""
    handler.setFormatter(Lines())
    if run_id is not None:
        handler.addFilter(lambda _: _about.get().get("run") == run_id)
    before = LOGGER.level, LOGGER.propagate
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before[0])
        LOGGER.propagate = before[1]
        handler.close()
