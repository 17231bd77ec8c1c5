"""Measuring parts, one after the other, each in a process of its own, and keeping what is found."""

from __future__ import annotations

import importlib
import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import cast

import typer

from benchmarks.machine import commit, machine, pace
from benchmarks.page import figure, render
from benchmarks.results import Entry, LeftOut, Part, Results, Whole
from fedcore.data.places import write_durably

TRAINING = ("rounds", "warm", "scale", "where", "growth")
"""Parts that need a Prefect server. They come first, so that it has ended when others are measured."""

PARTS = (*TRAINING, "centralised", "mixed", "hm1", "hm2", "partitions", "ingest", "to_error")
"""Modules here with `measure(quick) -> Part`, in the order of the page."""

FAILED = "failed: "

TIDYING = 10.0
"""Seconds that a part has for ending what it has started."""


def check_folder(folder: Path) -> None:
    """Refuse in a second what would lose a part after minutes.

    Raises
    ------
    typer.BadParameter
        Where the folder cannot be written, or what it keeps cannot be read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        Results.read(folder / "results.json")
        NamedTemporaryFile(dir=folder).close()
    except OSError as error:
        raise typer.BadParameter(f"{folder} cannot be written ({error.strerror}): choose a checkout that can") from None
    except ValueError:
        raise typer.BadParameter(f"{folder / 'results.json'} is damaged: restore it, or delete it and measure all parts") from None


def run(name: str, quick: bool, folder: Path, measured: Callable[[str, bool], Part]) -> Entry:
    """Measure a part, and write what is known then to a folder; the other parts stay as they are there."""
    typer.echo(f"{name} ...", err=True)
    before, begun, part, why = pace(), time.perf_counter(), None, ""
    try:
        part = measured(name, quick)
    except LeftOut as reason:
        why = str(reason)
    except Exception as error:
        traceback.print_exception(error)
        why = f"{FAILED}{type(error).__name__}: {_without_folders(str(error))}"
    seconds = time.perf_counter() - begun
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    entry = Entry(
        name=name,
        date=now,
        commit=commit(),
        quick=quick,
        seconds=round(seconds, 1),
        pace=round(median(before + pace()), 1),
        machine=machine(),
        part=part,
        left_out=why,
    )
    _write(folder, Results.read(folder / "results.json").updated(entry, PARTS))
    for bar in part.bars if part else ():
        typer.echo(f"  {bar.what}: {figure(bar.value)}, at most {figure(bar.limit)}: {bar.verdict}", err=True)
    if why:
        typer.echo(f"  {why}", err=True)
    return entry


def keep_whole(entries: Sequence[Entry], folder: Path) -> None:
    """Note beside the parts what a run of all of them found."""
    _write(folder, Results.read(folder / "results.json").after(Whole.of(entries)))


def _write(folder: Path, results: Results) -> None:
    write_durably(folder / "results.json", f"{results.model_dump_json(indent=1)}\n".encode())
    write_durably(folder / "RESULTS.md", render(results).encode())


def in_own_process(name: str, quick: bool) -> Part:
    """A part, measured in a process that begins with it and ends after it; where we are told to end, it is told so too, and tidies up."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_apart) as pool:
        try:
            return pool.submit(_measure, name, quick).result()
        except (KeyboardInterrupt, SystemExit):
            for process in active_children():
                os.kill(cast(int, process.pid), signal.SIGINT)
            raise


def _apart() -> None:
    """Hear of Ctrl-C from the process that has started this one, and not from the terminal too: once is enough."""
    os.setpgrp()
    signal.signal(signal.SIGINT, _end)  # which a shell may have had ignored
    Thread(target=_outlive_nobody, daemon=True).start()


def _outlive_nobody() -> None:
    """End with the process that has started this one, also where it was killed: first what is under way, so that that tidies up."""
    cast(BaseProcess, parent_process()).join()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(TIDYING)
    os._exit(1)


def _end(*_: object) -> None:
    raise SystemExit  # of which multiprocessing prints nothing


def _measure(name: str, quick: bool) -> Part:
    return importlib.import_module(f"benchmarks.{name}").measure(quick)


def _without_folders(text: str) -> str:
    """A text in which files have no folders, as those tell of a machine, and which is one line."""
    return re.sub(r"(?:/[^/\s'\":]+)+/", "", " ".join(text.split()))[:300]
