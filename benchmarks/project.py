"""A project folder of its own with a Prefect server, for the parts that train."""

from __future__ import annotations

import tasks as tasks  # settles the environment, which prefect reads on import  # isort: skip

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import prefect

from flows.orchestrator import Orchestrator, orchestrator

UNUSED = Path(__file__).parent.parent / "build" / f"prefect-{prefect.__version__}"
"""A server's folder before any run, which each part gets a copy of: making its tables takes longer than all else of a start."""


@contextmanager
def project() -> Iterator[tuple[Path, Orchestrator]]:
    """A project folder, for as long as this lasts: the folder of its data sets, and the server."""
    before = os.environ.get("FEDLIN_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDLIN_HOME"] = folder
        (datasets := Path(folder) / "datasets").mkdir()
        shutil.copytree(_unused(), home := Path(folder) / "prefect")
        try:
            with orchestrator(home) as server:
                yield datasets, server
        finally:
            os.environ.pop("FEDLIN_HOME")
            os.environ |= {"FEDLIN_HOME": before} if before else {}


def _unused() -> Path:
    if not UNUSED.exists():
        UNUSED.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=UNUSED.parent) as folder:
            with orchestrator(home := Path(folder) / "prefect"):
                pass
            home.rename(UNUSED)
    return UNUSED
