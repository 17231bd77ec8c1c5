"""Measuring parts, one after the other, each in a process of its own, and keeping what is found."""

from __future__ import annotations

import importlib
import re
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import typer

from benchmarks.machine import commit, machine
from benchmarks.page import figure, render
from benchmarks.results import Entry, LeftOut, Part, Results

PARTS = ("rounds", "warm", "scale", "centralised", "mixed", "hm1", "hm2", "partitions", "ingest", "where", "to_error", "growth")
"""Modules here with `measure(quick) -> Part`, in the order of the page."""

FAILED = "failed: "


def run(name: str, quick: bool, folder: Path, measured: Callable[[str, bool], Part]) -> Entry:
    """Measure a part, and write what is known then to a folder; the other parts stay as they are there."""
    typer.echo(f"{name} ...", err=True)
    begun, part, why = time.perf_counter(), None, ""
    try:
        part = measured(name, quick)
    except LeftOut as reason:
        why = str(reason)
    except Exception as error:
        traceback.print_exception(error)
        why = f"{FAILED}{type(error).__name__}: {_without_folders(str(error))}"
    seconds = time.perf_counter() - begun
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    entry = Entry(name=name, date=now, commit=commit(), quick=quick, seconds=round(seconds, 1), machine=machine(), part=part, left_out=why)
    results = Results.read(folder / "results.json").updated(entry, PARTS)
    (folder / "results.json").write_text(results.model_dump_json(indent=1) + "\n")
    (folder / "RESULTS.md").write_text(render(results))
    for bar in part.bars if part else ():
        typer.echo(f"  {bar.what}: {figure(bar.value)}, at most {figure(bar.limit)}: {bar.verdict}", err=True)
    if why:
        typer.echo(f"  {why}", err=True)
    return entry


def in_own_process(name: str, quick: bool) -> Part:
    """A part, measured in a process that begins with it and ends after it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, name, quick).result()


def _measure(name: str, quick: bool) -> Part:
    return importlib.import_module(f"benchmarks.{name}").measure(quick)


def _without_folders(text: str) -> str:
    """A text in which files have no folders, as those tell of a machine, and which is one line."""
    return re.sub(r"(?:/[^/\s'\":]+)+/", "", " ".join(text.split()))[:300]
