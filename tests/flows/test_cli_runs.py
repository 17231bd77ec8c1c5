"""Runs of a store, listed and chosen from: no flow is needed, only what the tracker leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flows.cli.app import main
from flows.workspace import Workspace
from tasks.tracking.runs import Nested, Tracker, Trained


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs on two data sets, one of them with runs below it, and one that failed."""
    home = tmp_path_factory.mktemp("project")
    workspace = Workspace(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for run_id, dataset, algorithm, a_rmse in (
            ("first", "pumps", "hm1", 0.5),
            ("second", "pumps", "hm2", 0.4),
            ("third", "wards", "hm2", None),
        ):
            tracker = Tracker.open(None, default_store=workspace.mlflow_store, artifacts=workspace.mlflow_artifacts, experiment=dataset)
            params = {"dataset": dataset, "algorithm": algorithm, "option.prior": "lasso", "seed": "0", "K": "30"}
            tracker.start(run_id, params=params, tags={}, trained=Trained(dataset, "0f" * 32, {"devices": 30, "train": 400}))
            tracker.nest([Nested("trial", params, {"a_rmse": 0.1}, ok=True)] if run_id == "first" else [])
            known = {} if a_rmse is None else {"a_rmse": a_rmse, "rounds": 7}
            tracker.finish("FAILED" if a_rmse is None else "FINISHED", metrics=known, artifacts=None)
    return home


@pytest.fixture
def home(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLIN_HOME", str(project))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return project


def fedlin(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedlin", "runs", *words])
        with pytest.raises(SystemExit) as left:
            main()
    assert isinstance(left.value.code, int | None)
    return left.value.code or 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["third", "second", "first"]),
        (("--sort", "a_rmse"), ["second", "first"]),
        (("--dataset", "pumps", "--algorithm", "hm2"), ["second"]),
        (("--where", "metrics.a_rmse > 0.45"), ["first"]),
        (("--dataset", "wards", "--where", "attributes.status = 'FAILED'"), ["third"]),
        (("--last", "1"), ["third"]),
        (("--dataset", "nowhere"), []),
    ],
)
def test_runs_are_chosen_and_sorted(words: tuple[str, ...], expected: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedlin(*words, "--json") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["run_id"] for run in runs] == expected, "and none that is below another one"


def test_the_table_fits_eighty_columns(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedlin() == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "hm2 lasso" in shown
    assert "0.4000" in shown
    assert "(failed)" in shown


@pytest.mark.parametrize(
    "words", [("--where", "a_rmse is small"), ("--dataset", "it's"), ("--sort", "a`b"), ("--sort", "bogus"), ("--last", "0")]
)
def test_misuse_is_one_line(words: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedlin(*words) == 2
    told = capsys.readouterr()
    assert not told.out
    assert len(told.err.splitlines()) == 1


def test_looking_makes_no_store(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FEDLIN_HOME", str(tmp_path))
    assert fedlin() == 0
    assert capsys.readouterr().out.startswith("no run: fedlin train leaves one")
    assert not list(tmp_path.iterdir())


def test_a_run_tells_its_data_set(home: Path) -> None:
    from mlflow import MlflowClient

    from tasks.tracking.found import find_runs
    from tasks.tracking.store import own_uri

    (found,) = find_runs(Workspace(home).mlflow_store, "params.algorithm = 'hm1'", None, 5)
    (told,) = MlflowClient(own_uri(Workspace(home).mlflow_store)).get_run(found.mlflow_run_id).inputs.dataset_inputs
    assert (told.dataset.name, told.dataset.digest) == ("pumps", "0f" * 18)
    assert json.loads(told.dataset.profile) == {"devices": 30, "train": 400}
