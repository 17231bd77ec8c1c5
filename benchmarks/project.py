"""A project folder of its own with a Prefect server, for the parts that train."""

from __future__ import annotations

import tasks as tasks  # settles the environment, which prefect reads on import  # isort: skip

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.orchestrator import Orchestrator, orchestrator


@contextmanager
def project() -> Iterator[tuple[Path, Orchestrator]]:
    """A project folder, for as long as this lasts: the folder of its data sets, and the server."""
    before = os.environ.get("FEDLIN_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDLIN_HOME"] = folder
        (datasets := Path(folder) / "datasets").mkdir()
        try:
            with orchestrator(Path(folder) / "prefect") as server:
                yield datasets, server
        finally:
            os.environ.pop("FEDLIN_HOME")
            os.environ |= {"FEDLIN_HOME": before} if before else {}
