"""Runs whose partitions, device states and checkpoints are in an object store."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from upath import UPath

from fedcore import fit
from fedcore.data import Dataset, create_simulated
from fedcore.data.places import entries, is_file, read_file
from fedcore.data.slots import write_slots
from fedcore.simulate import Fleet
from fedcore.testing import small_fleet
from flows.config import TrainConfig, read_config
from flows.orchestrator import Orchestrator
from flows.train import train

FEDLIN = [sys.executable, "-m", "flows.cli.app"]
LIMIT = 300
SETTINGS = {"dataset": "small", "algorithm": "separate", "rounds": 12, "options": {"batch": 3}, "participation": 0.8, "seed": 4}


@pytest.fixture
def places(s3: Callable[[], UPath], home: Path, monkeypatch: pytest.MonkeyPatch) -> UPath:
    """A place in a store that holds the data sets and takes the runs."""
    bucket = s3()
    monkeypatch.setenv("FEDLIN_DATASETS", str(bucket / "datasets"))
    monkeypatch.setenv("FEDLIN_RUNS", str(bucket / "runs"))
    (home / "datasets").rmdir()
    return bucket


@pytest.fixture
def dataset(places: UPath) -> Dataset:
    rows = (12, 7, 30, 9, 15)
    fleet = Fleet(small_fleet(rows=rows), np.zeros((3, len(rows))), np.eye(len(rows)))
    return create_simulated(places / "datasets", "small", fleet, "a small fleet")


def expected(dataset: Dataset, config: TrainConfig) -> np.ndarray:
    schedule = config.build_schedule()
    devices = {name: dataset.load(name) for name in dataset.device_ids}
    found = fit(config.build_algorithm(), devices, rounds=schedule.rounds, seed=schedule.seed, participation=schedule.participation)
    return np.array([found.theta[name] for name in dataset.device_ids]).T


def stored_theta(folder: UPath) -> np.ndarray:
    with np.load(io.BytesIO(read_file(folder / "results" / "theta.npz"))) as stored:
        return stored["Theta"]


def test_a_run_in_a_store_equals_one_in_memory_to_the_bit(
    server: Orchestrator, home: Path, places: UPath, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And writes no state again that its rounds have left as it was."""
    config, written = read_config({"dataset": "small", "rounds": 3}), list[str]()

    def noted(path: UPath, *content: Any) -> Any:
        written.append(str(path))
        return write_slots(path, *content)

    monkeypatch.setattr("tasks.keeping.write_slots", noted)
    assert train(config, run_id="run", return_state=True).is_completed()
    assert len(written) == len(set(written)) == 5
    folder = places / "runs" / "run"
    np.testing.assert_array_equal(stored_theta(folder), expected(dataset, config))
    result = json.loads(read_file(folder / "result.json"))
    assert result["artifacts"] == str(folder / "results")
    uuid = json.loads(read_file(folder / "manifest.json"))["run_uuid"]
    assert is_file(dataset.path / "device=a" / ".fedlin" / f"run.{uuid}.state")
    assert not is_file(folder / "run.lock")
    kept = {artifact.path for artifact in MlflowClient(f"sqlite:///{home}/mlflow.db").list_artifacts(result["mlflow_run_id"])}
    assert kept == {entry.name for entry in entries(folder / "results")} >= {"theta.npz", "devices.parquet", "config.json"}
    assert not list(home.rglob("*part-*.parquet")) + list(home.rglob("run.*.state")), "no rows and no states on this machine"


@pytest.mark.slow
def test_killed_in_a_round_and_resumed(places: UPath, dataset: Dataset, environment: Mapping[str, str]) -> None:
    words = ["train", "small", "--algorithm", "separate", "--rounds", "12", "--set", "batch=3", "--participation", "0.8", "--seed", "4"]
    begun = subprocess.Popen([*FEDLIN, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + LIMIT
    reached = 0
    while reached < 3:
        assert begun.poll() is None
        assert time.monotonic() < deadline
        checkpoints = [entry for run in entries(places / "runs") for entry in entries(places / "runs" / run.name)]
        if any(entry.name == "checkpoint.npz" for entry in checkpoints):
            name = entries(places / "runs")[0].name
            with np.load(io.BytesIO(read_file(places / "runs" / name / "checkpoint.npz"))) as stored:
                reached = len(json.loads(str(stored["ledger"]))["history"])
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    folder = places / "runs" / name
    assert is_file(folder / "run.lock"), "the claim of a process that is gone"
    assert not is_file(folder / "result.json")

    resumed = subprocess.run([*FEDLIN, "train", "--resume", name, "--json"], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert resumed.returncode == 0, resumed.stderr
    result = json.loads(resumed.stdout.splitlines()[-1])
    assert (result["run_id"], result["rounds"], result["outcome"]) == (name, 12, "completed")
    np.testing.assert_array_equal(stored_theta(folder), expected(dataset, read_config(SETTINGS)))
