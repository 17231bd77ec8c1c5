"""Figures of runs as text files for Prometheus: read back with its own parser, replaced whole, and never a reason for a run to stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_fd_to_metric_families

import flows.metrics
from fedcore.algorithm import Outcome
from fedcore.data import Dataset
from fedcore.errors import Misuse
from flows.champions import rollback, show_metrics
from flows.config import read_config
from flows.metrics import RunMetrics, show_champion
from flows.orchestrator import Orchestrator
from flows.train import train
from flows.workspace import Workspace
from tasks.decision import PROMOTED, Decision
from tasks.tracking.registry import Registry
from tasks.tracking.runs import Tracker

ENDED = Outcome("completed", "done", ok=True)


def rounds(number: int) -> list[dict[str, Any]]:
    shared = {"answered": 4, "silent": ["b"], "uplink_bytes": 40, "downlink_bytes": 80}
    return [{"round_num": i, "seconds": 0.5 * i, **shared} for i in range(1, number + 1)]


def read(file: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and by the values of their labels beside data set and command."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    with file.open() as text:
        for family in text_fd_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(value for name, value in sample.labels.items() if name not in ("dataset", "command"))
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_a_run_that_goes_on_and_ends(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "new", "r", "small", "train")
    metrics.show([])
    found = read(metrics.file)
    assert metrics.file.name == "fedlin-run-small-train.prom"
    assert found["fedlin_run_info"] == {("r",): 1}
    assert found["fedlin_run_outcome"] == {("running",): 1}
    assert found["fedlin_run_rounds_total"] == {(): 0}
    assert "fedlin_round_seconds" not in found
    metrics.show(rounds(3))
    metrics.ended(ENDED)
    found = read(metrics.file)
    assert found.pop("fedlin_run_updated_timestamp_seconds")[()] > 1.7e9
    assert found == {
        "fedlin_run_info": {("r",): 1},
        "fedlin_run_outcome": {("completed",): 1},
        "fedlin_run_ok": {(): 1},
        "fedlin_run_rounds_total": {(): 3},
        "fedlin_run_uplink_bytes_total": {(): 120},
        "fedlin_run_downlink_bytes_total": {(): 240},
        "fedlin_round_devices": {("answered",): 4, ("silent",): 1},
        "fedlin_round_seconds": {(): 1.5},
    }


def test_no_device_is_named(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path, "r", "small", "train")
    metrics.show([rounds(1)[0] | {"silent": ["pump-in-hall-7"]}])
    assert "pump" not in metrics.file.read_text()


def test_what_cannot_be_used_is_told(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path, "r", "small", "train")
    metrics.ended(Outcome("diverged", "too large", ok=False))
    assert read(metrics.file)["fedlin_run_ok"] == {(): 0}


def test_other_runs_have_files_of_their_own(tmp_path: Path) -> None:
    files = {RunMetrics(tmp_path, "r", *which).file for which in (("a", "train"), ("a", "tune"), ("b", "train"))}
    assert len(files) == 3


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = RunMetrics(tmp_path, "r", "small", "train")
    metrics.show(rounds(1))
    before = metrics.file.read_text()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prometheus_client.exposition.os.rename", full)
    metrics.show(rounds(2))
    assert metrics.file.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == [metrics.file.name]


def test_a_folder_that_takes_no_file_is_told_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    RunMetrics(tmp_path / "file", "r", "small", "train").show(rounds(1))
    told = capsys.readouterr().err
    assert told.startswith("fedlin: note: the metrics ")
    assert told.endswith("cannot be written (File exists): name another folder in FEDLIN_METRICS\n")
    assert told.count("\n") == 1


def test_a_champion_and_since_when(tmp_path: Path) -> None:
    show_champion(tmp_path, "fedlin-small~sensor 2", 7, 1.8e9)
    found = read(tmp_path / "fedlin-champion-fedlin-small~sensor%202.prom")
    assert found["fedlin_champion_version"] == {("fedlin-small~sensor 2",): 7}
    assert found["fedlin_champion_since_timestamp_seconds"] == {("fedlin-small~sensor 2",): 1.8e9}


def test_the_champion_is_since_the_decision_that_made_it(home: Path, fleet: Callable[..., Dataset]) -> None:
    fleet()
    workspace = Workspace(home)
    tracker = Tracker.open(None, default_store=workspace.mlflow_store, artifacts=workspace.mlflow_artifacts, experiment="small")
    tracker.start("r", params={}, tags={})
    registry = Registry.open("fedlin-small", default_store=workspace.mlflow_store)
    show_metrics(workspace, registry)
    assert not workspace.metrics.exists()
    for i, run_id in enumerate(("one", "two")):
        number = registry.register(run_id, tracker.mlflow_run_id, {}).number
        when = f"2026-01-0{i + 1}T00:00:00+00:00"
        registry.note(number, Decision(run_id, PROMOTED, "me", when, "better", "small", registry.name, i or None, number, {}))
        registry.promote(number)
    show_metrics(workspace, registry)
    file = workspace.metrics / "fedlin-champion-fedlin-small.prom"
    model = (registry.name,)
    assert read(file)["fedlin_champion_version"] == {model: 2}
    assert read(file)["fedlin_champion_since_timestamp_seconds"] == {model: 1767312000}
    rollback(workspace, "small")
    assert read(file)["fedlin_champion_version"] == {model: 1}
    assert read(file)["fedlin_champion_since_timestamp_seconds"][model] > 1767312000


def test_a_store_that_is_away_leaves_what_was_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry.open("fedlin-small", default_store=home / "mlflow.db")
    show_champion(Workspace(home).metrics, registry.name, 3, 1.8e9)

    def away(_: Registry) -> None:
        raise Misuse("the store is away")

    monkeypatch.setattr(Registry, "champion", away)
    show_metrics(Workspace(home), registry)
    assert read(Workspace(home).metrics / "fedlin-champion-fedlin-small.prom")["fedlin_champion_version"] == {(registry.name,): 3}


def test_a_run_leaves_its_figures_where_it_is_told(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet()
    monkeypatch.setenv("FEDLIN_METRICS", str(home / "collected"))
    seen: list[float] = []
    original = flows.metrics.RunMetrics.show

    def show(metrics: RunMetrics, history: Any) -> None:
        original(metrics, history)
        seen.append(read(metrics.file)["fedlin_run_rounds_total"][()])

    monkeypatch.setattr(flows.metrics.RunMetrics, "show", show)
    train(read_config({"dataset": "small", "rounds": 3, "options": {"alpha": 0.2}}), run_id="r", return_state=True)
    assert seen == [0, 1, 2, 3]
    found = read(home / "collected/fedlin-run-small-train.prom")
    result = json.loads((home / "runs/r/result.json").read_text())
    assert found["fedlin_run_uplink_bytes_total"] == {(): result["uplink_bytes"]}
    assert found["fedlin_run_outcome"] == {("completed",): 1}
    # A run that has ended is told of as it ended where it is resumed.
    (home / "collected/fedlin-run-small-train.prom").unlink()
    train(None, run_id="r", return_state=True)
    assert read(home / "collected/fedlin-run-small-train.prom")["fedlin_run_rounds_total"] == {(): 3}
