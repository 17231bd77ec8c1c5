"""`fedlin report` on real runs, and the figures that they leave."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from fedcore.data import Contract, Dataset, create_dataset
from fedcore.errors import Misuse
from flows.champions import open_registry
from flows.cli.app import app
from flows.config import TrainConfig
from flows.orchestrator import Orchestrator
from flows.train import train
from flows.workspace import Workspace
from tasks.checkpoint import RunFolder
from tasks.report import charts, folder, words
from tasks.report.found import read_found


def test_a_run_leaves_its_figures_and_gets_a_report(home: Path, fleet: Callable[..., Dataset], server: Orchestrator) -> None:
    fleet()
    for name, algorithm in (("one", "hm2"), ("two", "hm1")):
        train(TrainConfig(dataset="small", rounds=4, algorithm=algorithm), run_id=name, return_state=True)
    result = json.loads((home / "runs/one/result.json").read_text())
    stored = MlflowClient(f"sqlite:///{home}/mlflow.db").list_artifacts(result["mlflow_run_id"], "figures")
    drawn = ["benefit", "calibration", "coefficients", "hyperparameters", "progress", "selection"]
    assert sorted(Path(each.path).stem for each in stored) == drawn
    told = CliRunner().invoke(app, ["report", "one", "--compare", "two", "--json"])
    answer = json.loads(told.stdout)
    text = Path(answer["report"]).read_text()
    assert Path(answer["report"]) == home / "runs/one/report.html"
    assert all(sentence.replace("'", "&#39;").replace(" %", "\xa0%") in text for sentence in (answer["caution"], *answer["sentences"]))
    for part in ("runs", "devices", "coefficients", "calibration", "training", "settings"):
        assert f'<section id="{part}"' in text
    # What the figures are made from is what the run knows.
    found = read_found(RunFolder(home / "runs/one"))
    assert found.settled is not None
    assert found.scores.rmse.mean() == pytest.approx(result["a_rmse"], rel=1e-12)
    assert found.scores.alone.mean() == pytest.approx(result["a_rmse_separate"], rel=1e-12)
    assert (found.scores.change < 0).sum() == result["devices_better"]
    assert [each.mean for each in found.phi if each.block == "mu"] == result["phi"]["mu"]["mean"]
    other = read_found(RunFolder(home / "runs/two"))
    assert other.Omega is not None
    assert other.known is None
    # Runs of the same rows are told apart by what the contract made of them.
    assert found.differing(other) == []
    train(TrainConfig(dataset="small", rounds=1, algorithm="hm1", target_scaling="train"), run_id="scaled", return_state=True)
    assert found.differing(read_found(RunFolder(home / "runs/scaled"))) == ["scaling.target"]
    told = CliRunner().invoke(app, ["report", "one", "--compare", "one"])
    assert "--compare one is the run of the report itself: name another one" in str(told.exception)
    assert isinstance(told.exception, Misuse)


def test_the_champion_has_a_report(home: Path, fleet: Callable[..., Dataset], server: Orchestrator) -> None:
    fleet()
    train(TrainConfig(dataset="small", rounds=2, algorithm="eb"), run_id="run", return_state=True)
    told = CliRunner().invoke(app, ["report", "small@champion"])
    assert str(told.exception) == "data set 'small' has no champion: fedlin retrain small makes one"
    registry = open_registry(Workspace.find(), "small", None)
    result = json.loads((home / "runs/run/result.json").read_text())
    registry.promote(registry.register("run", result["mlflow_run_id"], {}).number)
    answer = json.loads(CliRunner().invoke(app, ["report", "small@champion", "--json"]).stdout)
    assert (answer["run_id"], answer["report"]) == ("run", str(home / "runs/run/report.html"))
    assert (home / "runs/run/report.html").exists()


@pytest.mark.parametrize("caution", ["", "Most devices are worse off."])
def test_the_terminal_tells_the_caution(
    caution: str, home: Path, fleet: Callable[..., Dataset], server: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet()
    train(TrainConfig(dataset="small", rounds=1, algorithm="pooled"), run_id="run", return_state=True)
    monkeypatch.delenv("COLUMNS", raising=False)  # else the file's name may take two lines
    monkeypatch.setattr(words, "verdict", lambda found: words.Verdict("yes", "Yes", ("By much.",), caution))
    lines = CliRunner().invoke(app, ["report", "run"]).stdout.splitlines()
    assert lines[:-1] == ["Yes: By much.", *([f"caution: {caution}"] if caution else [])]
    assert json.loads(CliRunner().invoke(app, ["report", "run", "--json"]).stdout)["caution"] == caution


def test_what_is_no_html_is_refused_before_anything_is_read(home: Path) -> None:
    told = CliRunner().invoke(app, ["report", "run", "--output", "report.pdf"])
    expected = "--output report.pdf: a report is HTML, so name a file that ends in .html or .htm; a browser prints it to PDF"
    assert (type(told.exception), str(told.exception)) == (Misuse, expected)


def test_a_figure_that_cannot_be_drawn_is_left_out(
    home: Path, fleet: Callable[..., Dataset], server: Orchestrator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet()

    def progress(found: object) -> None:
        raise ValueError("1.25")  # it may quote what it drew

    monkeypatch.setattr(folder, "CHARTS", (progress, charts.benefit))
    with caplog.at_level(logging.WARNING, "fedlin.report"):
        train(TrainConfig(dataset="small", rounds=2), run_id="run", return_state=True)
    assert json.loads((home / "runs/run/result.json").read_text())["ok"]
    assert [file.name for file in (home / "runs/run/results/figures").iterdir()] == ["benefit.png"]
    assert [each.getMessage() for each in caplog.records if each.name == "fedlin.report"] == [
        "run run has no figure of its progress: ValueError"
    ]


def test_what_has_no_report_says_what_has(home: Path, fleet: Callable[..., Dataset]) -> None:
    with pytest.raises(Misuse, match=r"no run 'run' in .*: fedlin status lists them"):
        read_found(RunFolder(home / "runs/run"))
    begun = RunFolder(home / "runs/run")
    begun.create({"command": "compare", "given": {}}, {})
    with pytest.raises(Misuse, match="run run was begun by fedlin compare and is no training itself: name a run of fedlin train"):
        read_found(begun)
    begun.write_json("config.json", {"command": "retrain", "given": {}})
    with pytest.raises(Misuse, match="its challenger is run run-challenger"):
        read_found(begun)
    begun.write_json("config.json", {"command": "train", "given": {}, "resolved": {}})
    with pytest.raises(Misuse, match="run run has left no results yet: fedlin status run says how far it is"):
        read_found(begun)


def test_courses_over_time_are_drawn_where_the_contract_lets_devices_tell_them(home: Path, server: Orchestrator) -> None:
    hours = np.arange(40)
    columns = {"hour": {"type": "int64"}, "y": {"type": "float64"}}
    split = {"kind": "time", "column": "hour", "train": 0.6}
    fields = {"device": "pump", "target": "y", "features": ["hour"], "intercept": True, "columns": columns, "split": split}
    contract = Contract.model_validate(fields | {"disclosure": {"trajectories": True}})
    frames = [(name, pl.DataFrame({"hour": hours, "y": scale * hours + np.sin(hours)})) for name, scale in (("a", 0.1), ("b", 0.2))]
    create_dataset(home / "datasets", "pumps", contract, frames)
    train(TrainConfig(dataset="pumps", rounds=1, algorithm="pooled"), run_id="run", return_state=True)
    assert (home / "runs/run/results/figures/trajectories.png").exists()
    found = read_found(RunFolder(home / "runs/run"))
    assert found.time == "hour"
    assert list(found.trajectories) == ["a", "b"]
    for (name, frame), theta in zip(frames, found.Theta.T, strict=True):
        told = found.trajectories[name]
        assert told.rows == 12
        np.testing.assert_allclose(told.observed, frame["y"].to_numpy()[:36].reshape(-1, 12).mean(axis=1))
        np.testing.assert_allclose(told.predicted, theta[0] + theta[1] * told.time)
        assert told.tested.tolist() == [False, False, True]
