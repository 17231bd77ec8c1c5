"""`fedlin reproduce`: the paper's tables beside ours."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import Progress
from rich.table import Table

from fedcore.errors import Misuse
from fedcore.reproduce.table import Reproduction
from fedcore.reproduce.verdict import RULE, Word
from flows.cli import options
from flows.terminal import console, quiet
from flows.workspace import Workspace

app = typer.Typer(cls=options.Commands, no_args_is_help=True, help="The paper's tables beside ours, with a verdict on each figure.")

Runs = Annotated[int, typer.Option(help="Runs of each cell.", min=2, max=10_000)]
Seed = Annotated[int, typer.Option(help="Root of all random numbers.", min=0, max=1_000_000_000)]


@app.command("hm1-simulations")
def hm1_simulations(runs: Runs = 30, seed: Seed = 0, as_json: options.AsJson = False) -> None:
    """HM1 on the simulated fleets of Cases I to IV, and its parameter error by round."""
    from flows.reproduce import hm1_simulations
    from tasks.report.figures import error_by_round

    _reproduce("hm1-simulations", lambda progress: hm1_simulations(runs, seed, progress), error_by_round, as_json=as_json)


@app.command("cmapss")
def cmapss(runs: Runs = 30, seed: Seed = 0, as_json: options.AsJson = False) -> None:
    """HM1 and its rivals on the engines of C-MAPSS FD001; needs the data set cmapss-fd001."""
    from flows.reproduce import cmapss
    from tasks.report.figures import a_rmse_by_part

    datasets = Workspace.find().datasets
    _reproduce("cmapss", lambda progress: cmapss(datasets, runs, seed, progress), a_rmse_by_part, as_json=as_json)


@app.command("hm2-selection")
def hm2_selection(runs: Runs = 30, seed: Seed = 0, as_json: options.AsJson = False) -> None:
    """Predictors that HM2's lasso selects on the simulated fleets of Cases I to III."""
    from flows.reproduce import hm2_selection
    from tasks.report.figures import values_by_part

    _reproduce("hm2-selection", lambda progress: hm2_selection(runs, seed, progress), values_by_part, as_json=as_json)


@app.command("hm2-uq")
def hm2_uq(runs: Runs = 30, seed: Seed = 0, as_json: options.AsJson = False) -> None:
    """HM2's intervals of a device's coefficients and of the fleet's hyper-parameters."""
    from flows.reproduce import hm2_uq
    from tasks.report.figures import intervals_with_truth

    _reproduce("hm2-uq", lambda progress: hm2_uq(runs, seed, progress), intervals_with_truth, as_json=as_json)


@app.command("student")
def student(runs: Runs = 30, seed: Seed = 0, as_json: options.AsJson = False) -> None:
    """HM2's lasso and ridge on the grades of two schools; needs the data set student-por."""
    from flows.reproduce import student
    from tasks.report.figures import values_by_part

    datasets = Workspace.find().datasets
    _reproduce("student", lambda progress: student(datasets, runs, seed, progress), values_by_part, as_json=as_json)


def _reproduce(
    name: str, run: Callable[[Callable[[int, int], None]], Reproduction], draw: Callable[[Reproduction], bytes], *, as_json: bool
) -> None:
    from tasks.report.folder import write_report
    from tasks.report.tables import records

    begun = time.monotonic()
    folder = Workspace.find().root / "reproductions" / name
    _make_writable(folder)
    with _progress(name) as progress:
        found = run(progress)
    write_report(folder, found, draw(found))
    if not as_json:
        _show(found, folder)
        return
    told = {"name": name, "runs": found.runs, "seed": found.seed, "judged": len(found.judged), "reproduced": found.count(Word.REPRODUCED)}
    told |= {"wall_s": time.monotonic() - begun, "folder": str(folder), "cells": records(found)}
    print(json.dumps(told, allow_nan=False), flush=True)


def _make_writable(folder: Path) -> None:
    """Before the work, and not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            return
        reason = "no permission"
    except OSError as error:
        reason = error.strerror
    raise Misuse(f"{folder} cannot be written ({reason}): give it write permission, or name another project folder in FEDLIN_HOME")


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A live bar on a terminal, a line a tenth elsewhere, on standard error."""
    out = console(stderr=True)
    with Progress(console=out, disable=quiet() or not out.is_terminal) as bar:
        row = bar.add_task(name, total=None)

        def show(done: int, total: int) -> None:
            bar.update(row, completed=done, total=total)
            if not out.is_terminal and 10 * done // total > 10 * (done - 1) // total:
                out.print(f"{name}: {done} of {total} runs")

        yield show


def _show(found: Reproduction, folder: Path) -> None:
    from tasks.report.tables import judgement, our_figure, paper_figure, summary

    out = console()
    out.print(found.title)
    for table in found.tables:
        shown = Table(
            "",
            "method",
            "paper",
            "ours, mean (sd)",
            "verdict",
            title=table.title,
            title_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1),
            pad_edge=False,
        )
        previous = None
        for cell in table.cells:
            if previous not in (None, cell.part):
                shown.add_section()
            part = cell.part if cell.part != previous else ""
            previous = cell.part
            shown.add_row(part, cell.method, paper_figure(cell), our_figure(cell), judgement(cell))
        out.print(shown)
    out.print("\n".join(f"- {sentence}" for sentence in (*found.findings, RULE)))
    out.print(f"{summary(found)} Conventions, data and figure are in {folder}")
