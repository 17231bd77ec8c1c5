"""`fedlin predict` with a run and with a champion, and the model that a run leaves in MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fedcore import Misuse
from fedcore.data import Dataset
from flows.champions import open_registry
from flows.cli.app import app
from flows.config import TrainConfig
from flows.orchestrator import Orchestrator
from flows.train import train
from flows.workspace import Workspace


def test_a_run_predicts_for_its_devices_and_for_others(
    home: Path, fleet: Callable[..., Dataset], server: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = fleet()
    train(TrainConfig(dataset="small", rounds=4, algorithm="eb"), run_id="run", return_state=True)
    rng = np.random.default_rng(0)
    rows = pl.DataFrame({name: rng.standard_normal(3) for name in dataset.contract.features}).with_columns(
        device=pl.Series(["a", "b", "new"])
    )
    rows.write_csv(home / "new.csv")
    told = CliRunner().invoke(app, ["predict", "run", str(home / "new.csv"), "--json"])
    assert told.exit_code == 0, told.exception
    answer = json.loads(told.stdout)
    assert (answer["rows"], answer["strangers"]) == (3, ["new"])
    assert answer["predictions"] == str(home / "new-predicted.csv")
    found = pl.read_csv(home / "new-predicted.csv")
    with np.load(home / "runs/run/results/theta.npz") as stored:
        expected = [dataset.predict(device, stored["Theta"][:, k], rows[k].drop("device"))[0] for k, device in enumerate(("a", "b"))]
    np.testing.assert_allclose(found["mean"].to_numpy()[:2], expected, rtol=1e-9)
    assert (found["lower"] < found["mean"]).all()
    width = (found["upper"] - found["lower"]).to_numpy()
    assert width[2] > width[:2].max()  # of a stranger less is known
    # A version in the registry is loaded from the same model.
    result = json.loads((home / "runs/run/result.json").read_text())
    registry = open_registry(Workspace.find(), "small", None)
    registry.promote(registry.register("run", result["mlflow_run_id"], {}).number)
    told = CliRunner().invoke(app, ["predict", "small@champion", str(home / "new.csv"), "--output", str(home / "out.parquet"), "--json"])
    assert told.exit_code == 0, told.exception
    np.testing.assert_allclose(pl.read_parquet(home / "out.parquet")["mean"], found["mean"], rtol=1e-9)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{home}/mlflow.db")
    try:
        loaded = mlflow.pyfunc.load_model("models:/fedlin-small@champion")
        np.testing.assert_allclose(loaded.predict(rows.to_pandas())["mean"], found["mean"], rtol=1e-9)
    finally:
        mlflow.set_tracking_uri(None)


def test_files_that_cannot_be_read_are_refused(home: Path, fleet: Callable[..., Dataset], server: Orchestrator) -> None:
    dataset = fleet()
    train(TrainConfig(dataset="small", rounds=2, algorithm="eb"), run_id="run", return_state=True)
    bad = home / "bad.csv"
    bad.write_text("device," + ",".join(dataset.contract.features) + "\na,canary-1,2,3\n")
    told = CliRunner().invoke(app, ["predict", "run", str(bad), "--output", str(home / "runs/../bad.csv")])
    assert (type(told.exception), "is the file of the rows themselves: name another one" in str(told.exception)) == (Misuse, True)
    empty = home / "empty.csv"
    empty.touch()
    for file, said in (
        (bad, f"bad.csv: column {dataset.contract.features[0]!r} cannot be read as the contract's types"),
        (empty, "empty.csv is empty: expected a line with the columns' names"),
        (home / "none.csv", "is not there"),
        (home / "rows.txt", "expected a name that ends in"),
    ):
        told = CliRunner().invoke(app, ["predict", "run", str(file)])
        assert said in str(told.exception)
        assert "canary" not in str(told.exception)


@pytest.mark.parametrize(
    ("command", "instead"), [("compare", "name a run of fedlin train"), ("retrain", "its challenger is run run-challenger")]
)
def test_a_run_of_another_command_has_no_model(home: Path, command: str, instead: str) -> None:
    folder = home / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"command": command, "given": {}}))
    (home / "new.csv").write_text("device,x1\na,1.0\n")
    told = CliRunner().invoke(app, ["predict", "run", str(home / "new.csv")])
    assert isinstance(told.exception, Misuse)
    assert str(told.exception) == f"run run was begun by fedlin {command} and is no training itself: {instead}"
