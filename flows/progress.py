"""What a person sees of a run while it goes on: a live bar on a terminal, a line a round elsewhere, always on standard
error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedcore.rounds import RoundReport

SHOWN = 3
"""How many devices are named that did not answer; a fleet may have thousands."""


def say(text: str) -> None:
    """A line on standard error."""
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


class RunProgress:
    """Rounds, devices that answered, and loss, for a terminal and as a Prefect progress artifact."""

    def __init__(self, console: Console, bar: Progress, total: int, done: int) -> None:
        self._console = console
        self._bar = bar
        self._total = total
        self._try_at = 0.0
        self._row = bar.add_task("starting", total=total, completed=done)
        artifact = create_progress_artifact(100.0 * done / total, key="rounds", description=f"{total} communication rounds")
        self._artifact = cast("UUID", artifact)  # a coroutine only where the caller is one

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, report: RoundReport, silent: dict[str, str]) -> None:
        """A finished round; `silent` says of each device that did not answer why."""
        status = f"{len(report.answered)} of {len(report.cohort)} devices answered, loss {report.loss:.4g}"
        if not self._console.is_terminal:
            main = report.state.main_rounds + (report.phase == "main" and not report.counted)
            phase = "" if report.phase == "main" else f" ({report.phase})"
            self.say(f"round {report.round_num} of {self._total + report.round_num - main}{phase}: {status}")
        for reason in list(silent.values())[:SHOWN]:
            self.say(f"round {report.round_num}: no answer, {reason}")
        if len(silent) > SHOWN:
            self.say(f"round {report.round_num}: and {len(silent) - SHOWN} more without an answer")
        self._bar.update(self._row, completed=report.state.main_rounds, description=status)
        self._picture(100.0 * report.state.main_rounds / self._total)

    def _picture(self, percent: float) -> None:
        """The bar in Prefect: a picture of the run, not the run. A server that is away is asked once and not for a minute, and then left
        alone for ten times as long as that took."""
        begun = time.monotonic()
        if begun < self._try_at:
            return
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
                update_progress_artifact(self._artifact, percent)
        except (PrefectException, httpx.HTTPError):
            now = time.monotonic()
            self._try_at = now + 10 * (now - begun)


@contextmanager
def run_progress(run_id: str, total: int, done: int) -> Iterator[RunProgress]:
    """Show the progress of a run.

    Parameters
    ----------
    run_id
        The run.
    total, done
        Rounds of the schedule, and how many of them are behind us.
    """
    console = Console(stderr=True)
    columns = (TextColumn(run_id), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield RunProgress(console, bar, total, done)
