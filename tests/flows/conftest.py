"""One Prefect server for all flow tests, and small data sets to run on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedcore.data import Dataset, create_simulated
from fedcore.rows import DeviceData, Rows
from fedcore.simulate import Fleet
from fedcore.testing import small_fleet
from flows.orchestrator import Orchestrator, orchestrator


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    """A private Prefect server for the whole session; the first start makes its database, so it gets time."""
    with orchestrator(tmp_path_factory.mktemp("prefect"), start_timeout=300) as started:
        yield started


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder of its own, with its own tracking store."""
    monkeypatch.setenv("FEDLIN_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "datasets").mkdir()
    return tmp_path


@pytest.fixture
def fleet(home: Path) -> Callable[..., Dataset]:
    """Stores a small fleet as data set `small`; the last `validation` rows of each device validate, beside those that train."""

    def create(rows: tuple[int, ...] = (12, 7, 30, 9, 15), validation: int = 0) -> Dataset:
        devices = {name: _parted(data, validation) for name, data in small_fleet(rows=tuple(n + validation for n in rows)).items()}
        simulated = Fleet(devices, np.zeros((3, len(rows))), np.eye(len(rows)))
        return create_simulated(home / "datasets", "small", simulated, "a small fleet")

    return create


def _parted(data: DeviceData, validation: int) -> DeviceData:
    n = data.train.n - validation
    train, validates = (Rows(data.train.X[part], data.train.y[part]) for part in (slice(n), slice(n, None)))
    return DeviceData(train, validates, data.test)


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """The environment of a command in the test's project folder, with a home of its own and no server or store set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    user = home / "user"
    user.mkdir()
    return kept | {"HOME": str(user), "FEDLIN_HOME": str(home)}
