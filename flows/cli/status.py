"""`fedlin status`: the runs of a project, or one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flows.cli import options
from flows.cli.shown import age, figure
from flows.terminal import console
from flows.workspace import Workspace

if TYPE_CHECKING:
    from flows.runs import RunView

ROUNDS = 5
"""How many of a run's last rounds are shown."""

RunId = Annotated[str | None, typer.Argument(metavar="RUN_ID", help="One run in detail; by default all of them.", show_default=False)]
Last = Annotated[int, typer.Option(help="The most runs that are shown, the newest first.", min=1)]

EXAMPLES = options.examples("fedlin status", "fedlin status RUN_ID", "fedlin status --last 3 --json")


def command(run_id: RunId = None, last: Last = 20, as_json: options.AsJson = False) -> None:
    """Show which runs go on, which have ended and which were interrupted."""
    from flows.runs import find_run, last_rounds, runs, view

    workspace, now = Workspace.find(), datetime.now(UTC)
    if run_id is None:
        views = runs(workspace)
        if as_json:
            print(json.dumps({"runs": [_told(each) for each in views[:last]]}), flush=True)
        else:
            _show_runs(console(), views[:last], len(views), now)
        return
    folder = find_run(workspace, run_id)
    found = view(folder)
    history = [] if found.status == "damaged" else list(last_rounds(folder, ROUNDS))
    if as_json:
        print(json.dumps({**_told(found), "last_rounds": history}), flush=True)
    else:
        _show_run(console(), found, history, now)


def _show_runs(out: Console, views: Sequence[RunView], total: int, now: datetime) -> None:
    if not views:
        out.print("no runs yet: fedlin train begins one")
        return
    table = Table("run", "status", "data set", "what", "rounds", "age", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = column.header in ("run", "status", "age")  # the first is what one copies
        column.overflow = "fold"
    for each in views:
        status = each.outcome if each.status == "ended" else each.status
        what = each.command if not each.algorithm else each.algorithm if each.command == "train" else f"{each.command} {each.algorithm}"
        table.add_row(each.run_id, status, each.dataset, what, _rounds(each), age((now - each.began).total_seconds()))
    out.print(table)
    if total > len(views):
        out.print(f"and {total - len(views)} older: --last shows more")


def _show_run(out: Console, run: RunView, history: Sequence[dict[str, Any]], now: datetime) -> None:
    what = " ".join(part for part in (run.command, run.dataset, run.algorithm) if part)
    out.print(f"run {run.run_id}: {what}" if what else f"run {run.run_id}")
    began, changed = (age((now - when).total_seconds()) for when in (run.began, run.changed))
    where = f" on {run.machine}" if run.machine else ""
    out.print(f"{run.status}{where}, began {began} ago, last wrote {changed} ago")
    out.print(f"rounds: {_rounds(run)}")
    if run.message:
        out.print(f"{run.outcome}: {run.message}" if run.outcome else run.message)
    if run.status == "interrupted" and run.command in ("train", "tune", "compare", "retrain"):
        out.print(f"go on with fedlin {run.command} --resume {run.run_id}")
    if history:
        table = Table("round", "phase", "answered", "silent", "loss", "seconds", box=None, pad_edge=False)
        for each in history:
            answered, silent = f"{each['answered']} of {each['cohort']}", str(len(each["silent"]))
            table.add_row(str(each["round_num"]), each["phase"], answered, silent, figure(each["loss"]), f"{each['seconds']:.2f}")
        out.print(table)


def _rounds(run: RunView) -> str:
    return str(run.rounds) if run.most is None else f"{run.rounds}/{run.most}"


def _told(run: RunView) -> dict[str, Any]:
    return run._asdict() | {name: getattr(run, name).isoformat(timespec="seconds") for name in ("began", "changed")}
