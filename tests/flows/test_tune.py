"""Searches through a real Prefect server, and their configurations."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient

from fedcore import Misuse, fit
from fedcore.algorithm import DeviceResult
from fedcore.data import Dataset
from fedcore.hm1 import Hm1
from fedcore.metrics import score
from fedcore.search import Range
from fedcore.selection import paired
from flows.cli.app import main
from flows.config import read_config
from flows.orchestrator import Orchestrator
from flows.searches import TuneConfig, parse_grid
from flows.train import train
from flows.tune import tune
from tasks.checkpoint import RunFolder

FEDLIN = [sys.executable, "-m", "flows.cli.app"]
LIMIT = 300


def search(home: Path, config: TuneConfig | None, run_id: str = "run") -> dict[str, Any]:
    """Run the flow and read its result."""
    tune(config, run_id=run_id, return_state=True)
    return json.loads((home / "runs" / run_id / "result.json").read_text())


def alone(dataset: Dataset, config: TuneConfig, i: int) -> Any:
    """The i-th candidate's own run in memory."""
    devices = {device_id: dataset.load(device_id) for device_id in dataset.device_ids}
    algorithm = config.candidates()[i].algorithm
    return fit(algorithm, devices, rounds=config.rounds, seed=config.seed, participation=config.participation)


def table(home: Path, run_id: str = "run") -> list[dict[str, str]]:
    with (home / "runs" / run_id / "results/trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_search_is_its_trials_and_the_best_one_can_be_trained(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet(validation=4)
    config = TuneConfig(
        dataset="small",
        algorithm="hm1",
        options={"batch": 3},
        grid={"prior_rate": ["default", 0.1], "eta": ["safe", "0.01", 50]},
        rounds=4,
        participation=0.8,
        seed=3,
    )
    result = search(home, config)
    candidates = config.candidates()

    # Refused where a device says so, and left out of the rounds; the others go as they would alone.
    kept = [0, 1, 3, 4]
    assert [row["status"] for row in result["trials"]] == ["completed", "completed", "refused", "completed", "completed", "refused"]
    assert re.match(r"device a: eta=50 is not stable on this device's rows", result["trials"][2]["message"])
    checkpoint = RunFolder(home / "runs/run").load()
    assert checkpoint is not None
    errors = {}
    for trial, i in zip(checkpoint.state.server.trials, kept, strict=True):
        expected = alone(dataset, config, i)
        np.testing.assert_array_equal(trial.server.Theta, expected.server.Theta)
        scores = [score(DeviceResult(expected.theta[name]), dataset.load(name).validation).rmse for name in dataset.device_ids]
        errors[i] = np.array(scores)
        row = result["trials"][i]
        assert row["validation_a_rmse"] == pytest.approx(np.mean(scores), rel=1e-14)
        assert (row["rounds"], row["uplink_bytes"]) == (4, sum(each["uplink_bytes"] for each in expected.history))
    best = min(kept, key=lambda i: errors[i].mean())
    assert [row["selected"] for row in result["trials"]] == [i == best for i in range(6)]
    for i in kept:
        row, difference = result["trials"][i], paired(errors[i], errors[best])
        assert (row["difference"], row["difference_se"]) == (pytest.approx(difference.mean), pytest.approx(difference.se))

    # The table, and the winner's file, which trains the very same coefficients.
    rows = table(home)
    assert [row["eta"] for row in rows] == ["safe", "0.01", "50.0"] * 2
    assert [row["prior_rate"] for row in rows] == ["default"] * 3 + ["0.1"] * 3
    assert rows[2]["validation_a_rmse"] == ""
    written = read_config({}, home / "runs/run/results/best.toml")
    assert written.build_algorithm() == candidates[best].algorithm
    train(written, run_id="again", return_state=True)
    with np.load(home / "runs/again/results/server.npz") as stored:
        np.testing.assert_array_equal(stored["Theta"], checkpoint.state.server.trials[kept.index(best)].server.Theta)

    # MLflow: one run a trial below the search's own.
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    parent = client.get_run(result["mlflow_run_id"])
    assert parent.info.status == "FINISHED"
    assert parent.data.params["best.eta"] == str(candidates[best].tried["eta"])
    children = client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'", order_by=["attribute.start_time ASC"]
    )
    assert [child.data.params["outcome"] for child in children] == [row["status"] for row in result["trials"]]
    assert [child.info.status for child in children] == ["FINISHED", "FINISHED", "FAILED"] * 2
    assert children[1].data.params["option.eta"] == "0.01"
    assert children[1].data.metrics["validation_a_rmse"] == result["trials"][1]["validation_a_rmse"]
    assert "validation_a_rmse" not in children[2].data.metrics

    # Finished once more, everything is as it was.
    again = search(home, None)
    assert again["trials"] == result["trials"]
    assert len(client.search_runs([parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")) == 6
    assert server.drain(result["flow_run_id"], result["task_runs"]) == {"COMPLETED": result["task_runs"]}


def test_one_that_diverges_cannot_win_and_the_simplest_of_the_good_ones_does(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset]
) -> None:
    fleet(validation=4)
    grid = {"alpha": [1.0, 0.1, 0.2, 0.3]}
    options = {"shrinkage": "explicit", "eta": 0.05}
    config = TuneConfig(dataset="small", options=options, grid=grid, rounds=5, rule="one-se")
    result = search(home, config)
    assert result["trials"][0]["status"] == "diverged"
    assert "shrinkage step is unstable" in result["trials"][0]["message"]
    assert result["trials"][0]["rounds"] < 5
    assert result["trials"][0]["validation_a_rmse"] is None
    usable = [row for row in result["trials"] if row["validation_a_rmse"] is not None]
    expected = next(row for row in usable if row["difference"] <= (row["difference_se"] or 0.0))
    assert [row["trial"] for row in result["trials"] if row["selected"]] == [expected["trial"]]
    assert result["outcome"] == "completed"

    none = search(home, config.model_copy(update={"grid": {"alpha": [1.0]}}), run_id="none")
    assert (none["outcome"], none["ok"], none["best"]) == ("diverged", False, None)
    assert "none of 1 trials can be used: the explicit shrinkage step is unstable" in none["message"]
    assert not (home / "runs/none/results/best.toml").exists()
    assert MlflowClient(f"sqlite:///{home}/mlflow.db").get_run(none["mlflow_run_id"]).info.status == "FAILED"


def test_devices_that_do_not_validate(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One is named and left out; where too many are silent the search is not judged, and can be resumed."""
    dataset = fleet(validation=4)
    failing = {"b"}
    original = Hm1.finalize

    def finalize(self: Hm1, down: Any, device: Any, data: Any) -> DeviceResult:
        if any(data.train.n == dataset.load(name).train.n for name in failing):
            raise RuntimeError("row 987654.321")
        return original(self, down, device, data)

    monkeypatch.setattr(Hm1, "finalize", finalize)
    config = TuneConfig(dataset="small", grid={"alpha": [0.1, 0.2]}, rounds=2)
    result = search(home, config)
    assert (result["outcome"], result["devices_missing"], result["devices_validated"]) == ("completed", ["b"], 4)
    assert "no result, device b: RuntimeError in its validation; the details are in its own folder" in capfd.readouterr().err

    failing |= {"a", "c"}
    lost = search(home, config, run_id="lost")
    assert (lost["outcome"], lost["trials"], lost["best"]) == ("quorum_lost", [], None)
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiment = client.get_run(lost["mlflow_run_id"]).info.experiment_id
    assert client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{lost['mlflow_run_id']}'") == []
    failing.clear()
    found = search(home, None, run_id="lost")
    assert (found["outcome"], found["devices_validated"]) == ("completed", 5)


def test_a_device_with_fewer_rows_than_it_may_tell_of_does_not_validate(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset]
) -> None:
    dataset = fleet(validation=4)
    contract = dataset.path / "dataset.toml"
    contract.write_text(re.sub(r"^rows = 1$", "rows = 4", contract.read_text(), flags=re.MULTILINE))
    part = dataset.path / "device=b/part-0.parquet"
    frame = pl.read_parquet(part, hive_partitioning=False)
    of_part = (pl.col("part") == "validation").cum_sum() == 1
    frame.with_columns(pl.when(of_part).then(pl.lit("train")).otherwise(pl.col("part")).alias("part")).write_parquet(part)
    config = TuneConfig(dataset="small", grid={"alpha": [0.1, 0.2]}, rounds=2)
    result = search(home, config)
    assert (result["outcome"], result["devices_missing"], result["devices_validated"]) == ("completed", [], 4)

    contract.write_text(re.sub(r"^rows = 4$", "rows = 5", contract.read_text(), flags=re.MULTILINE))
    refusal = tune(config, run_id="other", return_state=True).result(raise_on_failure=False)
    assert isinstance(refusal, Misuse)
    assert str(refusal).startswith("no device of data set 'small' has 5 validation rows or more ([disclosure] rows) to score on")
    assert not (home / "runs/other").exists()


@pytest.mark.slow
def test_killed_and_resumed(environment: dict[str, str], home: Path, fleet: Callable[..., Dataset]) -> None:
    """SIGKILL in the middle of the rounds; then --resume, which keeps to what was refused."""
    dataset = fleet(validation=4)
    words = ["tune", "small", "--grid", "alpha=0.1,0.3", "--grid", "eta=safe,50", "--set", "batch=3", "--rounds", "12", "--seed", "4"]
    begun = subprocess.Popen([*FEDLIN, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + LIMIT
    while not list(home.glob("runs/*/checkpoint.npz")):
        assert begun.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    (folder,) = (home / "runs").iterdir()

    other = subprocess.run([*FEDLIN, "train", "--resume", folder.name], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert other.returncode == 2
    assert f"run {folder.name} was begun by fedlin tune: go on with fedlin tune --resume {folder.name}\n" in other.stderr

    resumed = subprocess.run(
        [*FEDLIN, "tune", "--resume", folder.name, "--json"], env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert resumed.returncode == 0, resumed.stderr
    result = json.loads(resumed.stdout.splitlines()[-1])
    assert resumed.stdout.count("\n") == 1
    assert [row["status"] for row in result["trials"]] == ["completed", "refused"] * 2
    config = TuneConfig(dataset="small", options={"batch": 3}, grid={"alpha": [0.1, 0.3], "eta": ["safe", 50]}, rounds=12, seed=4)
    checkpoint = RunFolder(folder).load()
    assert checkpoint is not None
    for trial, i in zip(checkpoint.state.server.trials, (0, 2), strict=True):
        np.testing.assert_array_equal(trial.server.Theta, alone(dataset, config, i).server.Theta)


MISUSE = {
    "no data set": ([], r"configuration: dataset is missing: name one that fedlin data list shows"),
    "unknown data set": (["nope"], r"no data set 'nope'"),
    "unknown algorithm": (["small", "--algorithm", "hm9"], r"no algorithm 'hm9'"),
    "unknown option": (["small", "--grid", "gamma=1,2"], r"hm1 has no option 'gamma': choose from eta, "),
    "unknown fixed option": (["small", "--set", "gamma=1"], r"hm1 has no option 'gamma'"),
    "a value out of bounds": (["small", "--grid", "alpha=0.1,2"], r"alpha is a number in \(0, 1\], got 2"),
    "a value of another type": (["small", "--grid", "alpha=0.1,much"], r"hm1: alpha: input should be a valid number.*got 'much'"),
    "an empty grid": (["small", "--grid", "alpha="], r"--grid takes name=value,value or name=FIRST..LAST, got 'alpha='"),
    "a missing value": (["small", "--grid", "alpha=0.1,,0.2"], r"--grid takes name=value,value"),
    "no name": (["small", "--grid", "=0.1"], r"--grid takes name=value,value"),
    "an option twice": (["small", "--grid", "alpha=0.1", "--grid", "alpha=0.2"], r"--grid gives 'alpha' twice"),
    "a value twice": (["small", "--grid", "alpha=0.1,0.10"], r"the grid of hm1 has alpha=0.10 twice"),
    "set and searched": (["small", "--set", "alpha=0.1", "--grid", "alpha=0.1,0.2"], r"alpha of hm1 is set and in the grid"),
    "a range without draws": (["small", "--grid", "alpha=0.1..1"], r"alpha is a range, and a grid has no end of values in it"),
    "a range of words": (["small", "--random", "3", "--grid", "alpha=a..b"], r"--grid takes name=FIRST..LAST with two numbers"),
    "a range from nothing": (["small", "--random", "3", "--grid", "alpha=0..1"], r"two different numbers above 0"),
    "a range out of bounds": (["small", "--random", "50", "--grid", "alpha=2..3"], r"alpha is a number in \(0, 1\], got 2"),
    "a range for a word": (["small", "--random", "3", "--grid", "shrinkage=1..2"], r"shrinkage is no number, so it has no range"),
    "no draws": (["small", "--random", "0"], r"draws: input should be greater than or equal to 1, got 0"),
    "too many": (["small", "--grid", "steps=" + ",".join(map(str, range(1, 1002)))], r"the grid has 1,001 configurations, more than 1,000"),
    "unknown rule": (["small", "--rule", "worst"], r"configuration: rule: .*'best' or 'one-se'.*got 'worst'"),
    "all refused": (["small", "--grid", "eta=50,60"], r"all 2 trials are refused, the first one because of device a: eta=50 is not stable"),
    "no rounds": (["small", "--rounds", "0"], r"rounds is a whole number"),
    "resume and more": (["small", "--resume", "nope"], r"--resume goes on with the run's own configuration"),
    "unknown run": (["--resume", "nope"], r"no run 'nope' in"),
}


def fedlin(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedlin", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code if isinstance(left.value.code, int) else 0


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_one_line_and_leaves_nothing(
    case: str, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet(validation=4)
    before = sorted(home.rglob("*"))
    words, message = MISUSE[case]
    assert fedlin("tune", *words, monkeypatch=monkeypatch) == 2
    out, err = capfd.readouterr()
    assert re.fullmatch(rf"fedlin: error: .*{message}.*\n", err), err
    assert out == ""
    assert sorted(home.rglob("*")) == before


def test_no_validation_rows(
    home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet()
    assert fedlin("tune", "small", monkeypatch=monkeypatch) == 2
    assert capfd.readouterr().err == (
        "fedlin: error: no device of data set 'small' has 1 validation rows or more ([disclosure] rows) to score on: "
        "let the contract's [split] give them some\n"
    )


def test_what_is_tried() -> None:
    """Values are as the algorithm takes them; draws repeat, keep to their ranges, and come in the grid's order."""
    assert parse_grid(["eta=0.01, 0.1,safe", "alpha=0.001..1"]) == {"eta": ["0.01", "0.1", "safe"], "alpha": Range(0.001, 1)}
    config = TuneConfig(dataset="x", grid=parse_grid(["batch=full,8", "steps=1..5", "alpha=1..0.001"]), draws=40, seed=2)
    candidates = config.candidates()
    assert candidates == TuneConfig.model_validate_json(config.model_dump_json()).candidates()
    assert len(candidates) == 40
    tried = [candidate.tried for candidate in candidates]
    assert tried == sorted(tried, key=lambda each: (each["batch"] != "full", each["steps"], -each["alpha"]))
    assert {each["batch"] for each in tried} == {"full", 8}
    assert {each["steps"] for each in tried} == {1, 2, 3, 4, 5}
    assert all(0.001 <= each["alpha"] <= 1 for each in tried)
    assert TuneConfig(dataset="x", algorithm="separate", options={"eta": 0.1}, grid={"batch": [3]}).candidates()[0].options["eta"] == 0.1
    own = TuneConfig(dataset="x", options={"alpha": 0.2}).candidates()
    assert {candidate.options["alpha"] for candidate in own} == {0.2}
    assert len(own) == 16
