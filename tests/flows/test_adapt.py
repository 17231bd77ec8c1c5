"""Devices that come to a run after it has ended."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from fedcore import Eb, fit
from fedcore.algorithm import FleetSpec
from fedcore.data import Dataset, load_fleet
from fedcore.hm2.hm2 import Hm2
from flows.cli.app import main
from flows.config import TrainConfig
from flows.orchestrator import Orchestrator
from flows.train import train


def trained(home: Path, algorithm: str, devices: tuple[str, ...], **options: object) -> Path:
    config = TrainConfig(dataset="small", algorithm=algorithm, devices=devices, rounds=40, options=options)
    train(config, run_id="first", return_state=True)
    return home / "runs/first"


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit status and the last line."""
    monkeypatch.setattr(sys, "argv", ["fedlin", *words])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr()
    return int(str(end.value.code or 0)), (told.out if not end.value.code else told.err).strip().splitlines()[-1]


def test_a_newcomer_gets_its_posterior_from_what_the_fleet_has_learned(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = fleet()
    first = trained(home, "eb", ("a", "b", "c", "d"), covariance="diagonal")
    before = {file: file.read_bytes() for file in first.rglob("*") if file.is_file()}
    status, line = said(monkeypatch, capsys, "adapt", "first", "--device", "e", "--json")
    assert status == 0
    told = json.loads(line)
    assert (told["parent"], told["device"], told["algorithm"], told["outcome"]) == ("first", "e", "eb", "completed")
    # The fleet's run is as it was, and no device keeps anything of this one.
    assert {file: file.read_bytes() for file in first.rglob("*") if file.is_file()} == before
    assert not list((home / "datasets").glob(f"**/{told['run_id']}*"))
    # What is known in memory: e's posterior under the mean and covariance that the four others have found.
    datas, algorithm = load_fleet(dataset), Eb(covariance="diagonal")
    learned = fit(algorithm, {name: datas[name] for name in "abcd"}, rounds=40)
    spec = FleetSpec(tuple("abcde"), 3)
    expected = algorithm.finalize(algorithm.newcomer(learned.server), algorithm.init_device(spec, datas["e"]), datas["e"])
    results = home / "runs" / told["run_id"] / "results"
    with np.load(results / "theta.npz") as found:
        assert found["devices"].tolist() == ["e"]
        np.testing.assert_array_equal(found["Theta"][:, 0], expected.theta)
    table = pq.read_table(io.BytesIO((results / "devices.parquet").read_bytes())).to_pydict()
    assert table["rmse_test"] == [told["a_rmse"]]
    assert table["rmse_separate"] == [told["a_rmse_separate"]]
    # A device that is not there is refused before a server starts, in a single line.
    for device in ("nobody", "../small"):
        monkeypatch.setattr(sys, "argv", ["fedlin", "adapt", "first", "--device", device])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_who_cannot_come(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet()
    trained(home, "hm1", ("a", "b", "c", "d"))
    refused = {
        ("adapt", "first", "--device", "d"): "device d was in run first, whose results hold its own: name one that was not",
        ("adapt", "first", "--device", "e"): "hm1 learns nothing that other devices can use: adapt a run of hm2, eb, fedavg or pooled",
        (
            "adapt",
            "first",
            "--device",
            "e",
            "--rounds",
            "2",
        ): "--rounds is of a fleet that goes on, and it does with --join only: leave it out",
        ("adapt", "first", "--device", "d", "--join"): "device d was in run first already: name one that was not",
        ("adapt", "none", "--device", "e"): f"no run 'none' in {home / 'runs'}: fedlin status lists them",
        ("remove", "first", "--device", "e"): "device e was not in run first, so nothing of it is to be taken out",
        (
            "remove",
            "first",
            "--device",
            "d",
        ): "a run of hm1 cannot take back what was learned from 1 devices that have left: train anew, or use hm2",
    }
    for words, reason in refused.items():
        assert said(monkeypatch, capsys, *words) == (2, f"fedlin: error: {reason}")
    assert [folder.name for folder in (home / "runs").iterdir()] == ["first"]


def test_a_device_joins_and_another_one_is_unlearned(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each time the fleet goes on as a run of its own, and ends where a fit of the new fleet does."""
    datas = load_fleet(fleet())
    trained(home, "hm2", ("a", "b", "c", "d"), sigma=0.3, tolerance=1e-6, certificate="off")
    status, line = said(monkeypatch, capsys, "adapt", "first", "--device", "e", "--join", "--rounds", "20", "--json")
    assert status == 0
    joined = json.loads(line)
    # In a process of its own, which knows nothing of the run but what it reads.
    words = [sys.executable, "-m", "flows.cli.app", "remove", joined["run_id"], "--device", "b", "--rounds", "20", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    removed = json.loads(done.stdout.splitlines()[-1])
    algorithm = Hm2(sigma=0.3, tolerance=1e-6, certificate="off")
    for told, names in ((joined, "abcde"), (removed, "acde")):
        folder = home / "runs" / told["run_id"]
        assert (told["outcome"], told["algorithm"]) == ("converged", "hm2")
        assert json.loads((folder / "config.json").read_text())["given"]["devices"] == list(names)
        expected = fit(algorithm, {name: datas[name] for name in names}, rounds=60)
        phi = algorithm.findings(expected.server, FleetSpec(tuple(names), 3))["phi"]
        for block in ("mu", "log_tau"):
            np.testing.assert_allclose(told["phi"][block]["mean"], phi[block]["mean"], atol=1e-4)
        with np.load(folder / "results/theta.npz") as found:
            assert found["devices"].tolist() == list(names)
            np.testing.assert_allclose(found["Theta"].T, [expected.theta[name] for name in names], atol=1e-4)
    # Which run it came from is known to MLflow.
    run = MlflowClient(f"sqlite:///{home}/mlflow.db").get_run(removed["mlflow_run_id"])
    assert run.data.params["parent"] == joined["run_id"]
    assert {artifact.path for artifact in MlflowClient(f"sqlite:///{home}/mlflow.db").list_artifacts(removed["mlflow_run_id"])} >= {
        "phi.parquet",
        "posteriors.parquet",
        "server.npz",
    }


def test_a_device_that_lost_its_state_cannot_go_on(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet()
    trained(home, "hm2", ("a", "b", "c", "d"), sigma=0.3)
    (state,) = (home / "datasets/small/device=c/.fedlin").glob("first.*.state")
    state.unlink()
    status, line = said(monkeypatch, capsys, "remove", "first", "--device", "b")
    assert status == 2
    lost = "device c: its state of run first is missing or damaged: restore the device's .fedlin folder, or start a run that does not go on"
    assert lost in line
    # It may itself be taken out: the server knows what it took of it.
    status, line = said(monkeypatch, capsys, "remove", "first", "--device", "c", "--json")
    assert status == 0
    assert json.loads(line)["phi"]["mu"]["mean"]
