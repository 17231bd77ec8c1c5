"""New rows as a flow: once in place, one event."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

import flows.ingest
from fedcore.data import Dataset, infer_contract, list_datasets, open_dataset
from fedcore.errors import DataError, Misuse
from flows.config import IngestConfig
from flows.events import untold
from flows.ingest import ingest
from flows.orchestrator import Orchestrator
from flows.workspace import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, server: Orchestrator) -> list[tuple[str, dict[str, int]]]:
    """The events that were emitted, as data sets with rows by device."""
    events: list[tuple[str, dict[str, int]]] = []

    def tell(workspace: Workspace, url: str | None) -> str:
        for each in untold(workspace):
            events.append((each.dataset, each.rows))
            each.note.unlink()
        return ""

    monkeypatch.setenv("PREFECT_API_URL", server.api_url)
    monkeypatch.setattr(flows.ingest, "tell", tell)
    return events


def run(**given: Any) -> State[None]:
    state = ingest(IngestConfig(**given), return_state=True)
    assert isinstance(state, State)
    return state


def test_a_device_is_added_once_with_one_event(fleet: Callable[..., Dataset], home: Path, told: list[Any]) -> None:
    dataset = fleet()
    (file,) = (home / "datasets/small" / f"device={dataset.device_ids[0]}").glob("*.parquet")
    assert run(dataset="small", file=str(file), device="new").message == "data set small has 17 further rows of 1 devices"
    again = run(dataset="small", file=str(file), device="new")
    assert again.is_completed()
    assert again.message == "device new of data set small holds these 17 rows already"
    assert told == [("small", {"new": 17})]
    assert "new" in open_dataset(home / "datasets", "small").device_ids


def test_a_source_of_all_devices_is_one_event(home: Path, told: list[Any]) -> None:
    (home / "pumps.csv").write_text("pump,hour,flow\n" + "".join(f"{pump},{hour},{7000 + hour}\n" for pump in "ab" for hour in range(3)))
    infer_contract(home / "datasets", home / "pumps.csv", "pumps", device="pump", target="flow")
    assert run(dataset="pumps", file=str(home / "pumps.csv")).is_completed()
    assert told == [("pumps", {"a": 3, "b": 3})]


def test_rows_that_break_the_contract_are_not_added_and_nobody_is_told(fleet: Callable[..., Dataset], home: Path, told: list[Any]) -> None:
    fleet()
    (home / "rows.csv").write_text("x1,y\n7007,oops\n")
    state = run(dataset="small", file=str(home / "rows.csv"), device="new")
    assert state.is_failed()
    assert isinstance(state.result(raise_on_failure=False), DataError | Misuse)
    assert "7007" not in str(state.message)
    assert "oops" not in str(state.message)
    assert told == []
    assert list_datasets(home / "datasets") == ("small",)


def test_an_event_that_is_not_taken_fails_the_flow_and_keeps_the_rows(
    fleet: Callable[..., Dataset], home: Path, server: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = fleet()
    (file,) = (home / "datasets/small" / f"device={dataset.device_ids[0]}").glob("*.parquet")
    monkeypatch.setenv("PREFECT_API_URL", server.api_url)
    with monkeypatch.context() as away:
        away.setattr(flows.ingest, "tell", lambda workspace, url: "the server did not take the event")
        for counted in ("data set small has 17 further rows of 1 devices", "device new of data set small holds these 17 rows already"):
            state = run(dataset="small", file=str(file), device="new")
            assert state.is_failed()
            assert state.message == f"{counted}, but the server did not take the event"
    assert [each.rows for each in untold(Workspace(home))] == [{"new": 17}]
    assert "new" in open_dataset(home / "datasets", "small").device_ids
    assert run(dataset="small", file=str(file), device="new").is_completed()
    assert untold(Workspace(home)) == []
