"""What a person sees of a run while it goes on: a live bar on a terminal, a line a round elsewhere, always on standard
error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedcore.rounds import RoundReport

SHOWN = 3
"""How many devices are named that did not answer; a fleet may have thousands."""


def say(text: str) -> None:
    """A line on standard error."""
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


class RunProgress:
    """Rounds, devices that answered, and loss."""

    def __init__(self, console: Console, bar: Progress, total: int, done: int) -> None:
        self._console = console
        self._bar = bar
        self._total = total
        self._row = bar.add_task("starting", total=total, completed=done)

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
