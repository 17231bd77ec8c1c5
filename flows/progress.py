"""What is told of a run while it goes on, always on standard error: to people a live bar on a terminal, a line a round elsewhere; or JSON
lines, see `flows.logs`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedcore.rounds import RoundReport
from flows.logs import about, as_json, log
from flows.terminal import console, counted, quiet
from tasks.checkpoint import Record

SHOWN = 3
"""How many reasons are told why devices did not answer; a fleet may have thousands."""


def say(text: str) -> None:
    """A line on standard error."""
    if as_json():
        log(logging.INFO, "said", text)
        return
    console(stderr=True).print(text, soft_wrap=True)


def say_unanswered(what: str, silent: Mapping[str, str]) -> None:
    """Which devices have not told what they were asked for outside of rounds.

    Parameters
    ----------
    what
        Such as ``"result"``.
    silent
        Why not, by device.
    """
    _log_silent(f"no {what}", silent)
    if not as_json():
        for line in _lines(silent):
            say(f"no {what}, {line}")


def log_round(report: RoundReport, silent: Mapping[str, str], record: Record | None) -> None:
    """Log a finished round, with its record where it counted, and each device that did not answer."""
    figures = {name: record[name] for name in ("loss", "seconds", "uplink_bytes", "downlink_bytes")} if record else {}
    with about(round=report.round_num):
        _log_silent("no answer", silent)
        answered, cohort = len(report.answered), len(report.cohort)
        status = f"{answered} of {cohort} devices answered"
        log(logging.INFO, "round", status, phase=report.phase, counted=report.counted, cohort=cohort, answered=answered, **figures)


def _lines(silent: Mapping[str, str]) -> list[str]:
    """Why devices are silent: a reason that several have, as a site's, is said once, and of many reasons the first ones."""
    reasons = Counter(silent.values())
    lines = [reason if number == 1 else f"{reason} ({counted(number, 'device')})" for reason, number in list(reasons.items())[:SHOWN]]
    more = len(silent) - sum(list(reasons.values())[:SHOWN])
    return [*lines, f"and {more} more"] if more else lines


def _log_silent(what: str, silent: Mapping[str, str]) -> None:
    for device, reason in silent.items():
        log(logging.WARNING, "silent", f"{what}, {reason}", device=device)


class RunProgress:
    """Rounds, devices that answered, and loss."""

    def __init__(self, console: Console, bar: Progress, total: int, done: int) -> None:
        self._console = console
        self._bar = bar
        self._total = total
        self._row = bar.add_task("starting", total=total, completed=done)

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        if as_json():
            return  # `log_round` says the same
        self._console.print(text, soft_wrap=True)

    def show(self, report: RoundReport, silent: dict[str, str]) -> None:
        """A finished round; `silent` says of each device that did not answer why."""
        answered = f"{len(report.answered)} of {len(report.cohort)}"
        if not self._console.is_terminal:
            main = report.state.main_rounds + (report.phase == "main" and not report.counted)
            phase = "" if report.phase == "main" else f" ({report.phase})"
            of = f"{report.round_num} of {self._total + report.round_num - main}{phase}"
            self.say(f"round {of}: {answered} devices answered, loss {report.loss:.4g}")
        for line in _lines(silent):
            self.say(f"round {report.round_num}: no answer, {line}")
        self._bar.update(self._row, completed=report.state.main_rounds, description=f"{answered} answered, loss {report.loss:.4g}")


@contextmanager
def run_progress(total: int, done: int) -> Iterator[RunProgress]:
    """Show the progress of a run: rounds, devices that answered the last one, its objective, and about how long the rest takes.

    Parameters
    ----------
    total, done
        Rounds of the schedule, and how many of them are behind us.
    """
    out = console(stderr=True)
    shown = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(16),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*shown, console=out, disable=as_json() or quiet() or not out.is_terminal, speed_estimate_period=300) as bar:
        yield RunProgress(out, bar, total, done)
