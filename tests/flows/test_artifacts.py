"""Artifacts of a run: a table of aggregates, written seldom enough, and missed where a server does not take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Event
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterId

import flows.artifacts
from flows.artifacts import MOST, RunArtifacts, run_artifacts, table
from flows.orchestrator import Orchestrator


def history(rounds: int, warm_up: int = 0) -> list[dict[str, Any]]:
    shared = {"cohort": 5, "answered": 4, "loss": 0.25, "change": 0.1, "uplink_bytes": 40, "downlink_bytes": 80, "silent": ["b"]}
    return [
        {"round_num": i, "phase": "main" if i > warm_up else "pooled", "seconds": 1.23456, **shared} for i in range(1, rounds + warm_up + 1)
    ]


def test_a_row_has_counts_and_means_and_no_device() -> None:
    (row,) = table(history(1))
    assert row == {
        "round": 1,
        "phase": "main",
        "cohort": 5,
        "answered": 4,
        "loss": 0.25,
        "uplink_bytes": 40,
        "downlink_bytes": 80,
        "silent": 1,
        "seconds": 1.235,
    }
    assert [each["round"] for each in table(history(MOST + 7))] == list(range(8, MOST + 8))


def test_what_was_not_written_is_written_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    written, begun, shown = list[int](), Event(), Event()

    def write(artifacts: RunArtifacts) -> None:
        written.append(len(artifacts._history))
        artifacts._written = written[-1]
        begun.set()
        shown.wait()

    monkeypatch.setattr(RunArtifacts, "_write", write)
    with run_artifacts(3, []) as artifacts:
        begun.wait()
        for i in range(1, 4):
            artifacts.show(history(i))
        shown.set()
    assert written == [0, 3]
    with run_artifacts(3, history(3)):
        pass
    assert written == [0, 3, 3]


def test_a_server_that_takes_no_artifact_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object, **kwargs: object) -> None:
        raise httpx.ConnectError("away")

    monkeypatch.setattr(flows.artifacts, "create_progress_artifact", away)
    with run_artifacts(3, []) as artifacts:
        artifacts.show(history(1))


def test_artifacts_in_prefect_are_brought_up_to_date(server: Orchestrator) -> None:
    @flow
    def rounds(before: Sequence[Any]) -> list[str]:
        with run_artifacts(4, before) as artifacts:
            artifacts.show(history(2, warm_up=1))
        assert artifacts._ids
        return [str(each) for each in artifacts._ids]

    ids = rounds(())
    with get_client(sync_client=True) as client:
        ours = ArtifactFilter(id=ArtifactFilterId(any_=[UUID(each) for each in ids]))
        found = {str(each.id): each for each in client.read_artifacts(artifact_filter=ours)}
    progress, rows = (found[each] for each in ids)
    assert (progress.type, progress.data) == ("progress", 50.0)  # rounds of other phases do not count
    assert rows.type == "table"
    assert all(each.flow_run_id for each in (progress, rows))
    assert [each["round"] for each in json.loads(str(rows.data))] == [1, 2, 3]
