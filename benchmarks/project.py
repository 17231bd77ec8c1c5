"""Project folders of their own for the parts that train, and the Prefect server of them all."""

from __future__ import annotations

import tasks as tasks  # settles the environment, which prefect reads on import  # isort: skip

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.orchestrator import Orchestrator, orchestrator


@contextmanager
def server() -> Iterator[None]:
    """One Prefect server for the parts that are measured meanwhile, each in a process of its own: to start one takes longer than some of
    them. A user's own stays what it is."""
    with tempfile.TemporaryDirectory() as folder, orchestrator(Path(folder)) as one, _named("PREFECT_API_URL", one.api_url):
        yield


@contextmanager
def project() -> Iterator[tuple[Path, Orchestrator]]:
    """A project folder, for as long as this lasts: the folder of its data sets, and a server, which is started here only where there is
    none."""
    with tempfile.TemporaryDirectory() as folder, _named("FEDLIN_HOME", folder):
        (datasets := Path(folder) / "datasets").mkdir()
        with orchestrator(Path(folder) / "prefect") as one:
            yield datasets, one


@contextmanager
def _named(variable: str, value: str) -> Iterator[None]:
    """A variable of the environment, for a while."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        os.environ.pop(variable)
        os.environ |= {} if before is None else {variable: before}
