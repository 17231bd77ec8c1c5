"""Comparisons through a real Prefect server, and their configurations."""

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
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from fedcore import Misuse, fit
from fedcore.algorithm import DeviceResult
from fedcore.comparison import standing
from fedcore.data import ColumnSplit, Dataset, RandomSplit, open_dataset
from fedcore.hm1 import Hm1
from fedcore.metrics import constant_errors, score, squared_errors
from fedcore.rows import DeviceData
from fedcore.selection import paired
from flows.cli.app import main
from flows.compare import compare, reseeded
from flows.orchestrator import Orchestrator
from flows.searches import CompareConfig, parse_grids

FEDLIN = [sys.executable, "-m", "flows.cli.app"]
LIMIT = 300


def run(home: Path, config: CompareConfig | None, run_id: str = "run") -> dict[str, Any]:
    """Run the flow and read its result."""
    compare(config, run_id=run_id, return_state=True)
    return json.loads((home / "runs" / run_id / "result.json").read_text())


def random_split(dataset: Dataset, validation: float = 0.4) -> Dataset:
    """The same rows under a contract that draws their parts."""
    contract = dataset.path / "dataset.toml"
    text = contract.read_text()
    text = text.replace('kind = "column"\ncolumn = "part"', f'kind = "random"\ntrain = 0.6\nvalidation = {validation}\nseed = 7')
    contract.write_text(text)
    return open_dataset(dataset.path.parent, "small")


def by_hand(dataset: Dataset, config: CompareConfig, r: int) -> dict[str, list[tuple[float, float, float]]]:
    """A repeat's test RMSE, excess and its standard error by method and device, each candidate run on its own in memory."""
    data = {device_id: reseeded(dataset, r).load(device_id) for device_id in dataset.device_ids}
    results: dict[str, dict[str, DeviceResult]] = {}
    for method in config.methods:
        found = []
        for candidate in config.candidates():
            if candidate.method == method:
                theta = fit(candidate.algorithm, data, rounds=config.rounds, seed=config.seed + r).theta
                result = {name: DeviceResult(theta[name]) for name in data}
                errors = [score(result[name], data[name].validation).rmse for name in data if data[name].validation.n]
                found.append((np.mean(errors), len(found), result))
        results[method] = min(found)[2]
    figures: dict[str, list[tuple[float, float, float]]] = {"constant": []}
    for name, each in data.items():
        alone = squared_errors(results["separate"][name], each.test)
        errors = constant_errors(each, each.test)
        figures["constant"].append((np.sqrt(errors.mean()), *paired(errors, alone)))
        for method in config.methods:
            excess = paired(squared_errors(results[method][name], each.test), alone)
            figures.setdefault(method, []).append((score(results[method][name], each.test).rmse, *excess))
    return figures


def test_repeats_of_tuned_methods_against_each_run_alone(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = random_split(fleet((30, 40, 30, 35, 25)))
    grid = {"hm1": {"alpha": [0.1, 0.5], "prior_rate": ["default", 0.1]}, "separate": {"eta": ["safe", 0.01]}}
    config = CompareConfig(dataset="small", algorithms=("hm1",), grid=grid, options={"batch": 4}, budget=3, repeats=2, rounds=4, seed=5)
    result = run(home, config)
    assert [sum(each.method == method for each in config.candidates()) for method in ("separate", "hm1")] == [2, 3]
    assert all(each.options["batch"] == 4 for each in config.candidates())

    repeats = [by_hand(dataset, config, r) for r in range(2)]
    assert repeats[0] != repeats[1]
    figures = {name: np.array([[repeat[name][k] for k in range(5)] for repeat in repeats]) for name in repeats[0]}
    ids = np.array(dataset.device_ids)
    for row in result["methods"]:
        rmse, excess, se = np.moveaxis(figures[row["method"]], -1, 0)
        expected = standing(rmse, figures["separate"][..., 0], excess, se)
        assert row["a_rmse"] == pytest.approx(expected.a_rmse, rel=1e-12)
        assert row["a_rmse_sd_over_repeats"] == pytest.approx(expected.sd_over_repeats, rel=1e-9)
        assert (row["difference"], row["difference_se"]) == pytest.approx(expected.difference, rel=1e-9)
        assert row["worst_rmse"] == pytest.approx(expected.worst, rel=1e-12)
        assert row["hurt"] == ids[expected.hurt].tolist()
        assert row["devices_hurt"] == len(row["hurt"])
    assert [row["method"] for row in result["methods"]] == ["constant", "separate", "hm1"]
    assert (result["rounds"], result["repeats"], result["devices_scored"]) == (8, 2, 5)
    hm1 = result["methods"][2]
    # Each of 5 devices sends 3 coefficients, a prior rate and its training error in each of 4 rounds.
    assert (hm1["uplink_bytes"], hm1["trials"], len(hm1["chosen"])) == (4 * 5 * 8 * 5, 6, 2)
    best = min(result["methods"], key=lambda row: row["a_rmse"])
    assert result["message"].startswith(f"{best['method']} has the smallest A-RMSE, ")

    # Files: one row a method, and one a device, without any row of data.
    with (home / "runs/run/results/compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["constant", "separate", "hm1"]
    assert json.loads(rows[2]["chosen"]) == hm1["chosen"]
    devices = pq.read_table(home / "runs/run/results/devices.parquet").to_pydict()
    assert devices["device"] == list(dataset.device_ids)
    assert set(devices) == {"device", "n_test", "rmse.constant", "rmse.separate", "rmse.hm1", "hurt.constant", "hurt.hm1"}
    np.testing.assert_allclose(devices["rmse.hm1"], figures["hm1"][..., 0].mean(axis=0), rtol=1e-12)

    # MLflow: the rounds of both repeats one after the other, and one run a method below.
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    parent = client.get_run(result["mlflow_run_id"])
    assert [metric.step for metric in client.get_metric_history(parent.info.run_id, "loss")] == list(range(1, 9))
    children = client.search_runs([parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    told = {child.data.params["algorithm"]: child.data.metrics for child in children}
    assert set(told) == {"constant", "separate", "hm1"}
    assert told["hm1"]["difference_se"] == hm1["difference_se"]
    assert server.drain(result["flow_run_id"], result["task_runs"]) == {"COMPLETED": result["task_runs"]}

    # Gone on with although it has ended, it asks the devices once more and says the same.
    assert run(home, None)["methods"] == result["methods"]


def test_without_a_choice_no_validation_rows_are_needed(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    config = CompareConfig(dataset="small", algorithms=("separate", "hm1"), budget=1, rounds=3)
    assert config.parts == ("test",)
    result = run(home, config)
    data = {device_id: dataset.load(device_id) for device_id in dataset.device_ids}
    theta = fit(Hm1(), data, rounds=3).theta
    errors = [score(DeviceResult(theta[name]), data[name].test).rmse for name in data]
    assert result["methods"][2]["a_rmse"] == pytest.approx(np.mean(errors), rel=1e-14)
    assert result["methods"][2]["a_rmse_sd_over_repeats"] is None


def test_a_method_without_a_usable_trial_is_said_to_have_none(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    fleet(validation=4)
    grid = {"hm1": {"eta": [50, 60]}}
    config = CompareConfig(dataset="small", algorithms=("separate", "hm1"), grid=grid, rounds=2)
    result = run(home, config)
    hm1 = result["methods"][2]
    assert (hm1["usable"], hm1["a_rmse"], hm1["trials"], hm1["trials_refused"]) == (False, None, 2, 2)
    assert (result["outcome"], result["ok"]) == ("diverged", False)
    assert "no other method can be used: device a: eta=50 is not stable" in result["message"]
    assert result["methods"][1]["usable"]
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiment = client.get_run(result["mlflow_run_id"]).info.experiment_id
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{result['mlflow_run_id']}'")
    assert {child.data.params["algorithm"]: child.info.status for child in children} == {
        "constant": "FINISHED",
        "separate": "FINISHED",
        "hm1": "FAILED",
    }

    reversed_roles = config.model_copy(update={"grid": {"separate": {"eta": [50]}}})
    alone = run(home, reversed_roles, run_id="alone")
    assert (alone["outcome"], alone["methods"]) == ("diverged", [])
    assert "separate, with which the others are compared, is not one that can be used: device a: eta=50" in alone["message"]


def test_devices_that_do_not_answer_at_the_end(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = fleet(validation=4)
    counts = {dataset.load(name).train.n: name for name in dataset.device_ids}
    failing = {"b"}
    original = Hm1.finalize

    def finalize(self: Hm1, down: Any, device: Any, data: DeviceData) -> DeviceResult:
        if counts[data.train.n] in failing:
            raise RuntimeError("row 987654.321")
        return original(self, down, device, data)

    monkeypatch.setattr(Hm1, "finalize", finalize)
    config = CompareConfig(dataset="small", algorithms=("separate", "hm1"), budget=2, rounds=2)
    result = run(home, config)
    assert (result["outcome"], result["devices_missing"], result["devices_scored"]) == ("completed", ["b"], 4)
    failing |= {"a", "c"}
    lost = run(home, config.model_copy(update={"repeats": 2}), run_id="lost")
    assert (lost["outcome"], lost["methods"], lost["repeats"]) == ("quorum_lost", [], 1)
    failing.clear()
    found = run(home, None, run_id="lost")
    assert (found["outcome"], found["devices_scored"], found["repeats"]) == ("completed", 5, 2)


@pytest.mark.slow
def test_killed_in_its_second_repeat_and_resumed(environment: dict[str, str], home: Path, fleet: Callable[..., Dataset]) -> None:
    fleet(validation=4)
    words = ["compare", "small", "--algorithms", "separate,hm1", "--budget", "2", "--rounds", "6", "--repeats", "2", "--set", "batch=3"]
    begun = subprocess.Popen([*FEDLIN, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + LIMIT
    while not list(home.glob("runs/*/repeats/*-2/checkpoint.npz")):
        assert begun.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    (folder,) = (home / "runs").iterdir()
    ended = [
        subprocess.run([*FEDLIN, *more, "--json"], env=environment, capture_output=True, text=True, timeout=LIMIT)
        for more in (["compare", "--resume", folder.name], words)
    ]
    assert [each.returncode for each in ended] == [0, 0], ended[0].stderr
    resumed, straight = (json.loads(each.stdout.splitlines()[-1]) for each in ended)
    assert resumed["run_id"] == folder.name
    assert resumed["methods"] == straight["methods"]
    assert resumed["uplink_bytes"] == straight["uplink_bytes"]

    # The table keeps to 80 columns, and an ended run is shown without being run.
    screen = environment | {"COLUMNS": "80"}
    shown = subprocess.run([*FEDLIN, "compare", "--resume", folder.name], env=screen, capture_output=True, text=True, timeout=LIMIT)
    assert shown.returncode == 0
    lines = [line for line in shown.stdout.splitlines() if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in lines] == ["constant", "separate", "hm1"]
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())


MISUSE = {
    "no data set": ([], r"configuration: dataset is missing: name one that fedlin data list shows"),
    "unknown data set": (["nope"], r"no data set 'nope'"),
    "unknown algorithm": (["small", "--algorithms", "separate,hm9"], r"no algorithm 'hm9'"),
    "no algorithm": (["small", "--algorithms", ""], r"no algorithm ''"),
    "an algorithm twice": (["small", "--algorithms", "hm1,hm1"], r"algorithm 'hm1' comes twice: name it once"),
    "unknown option": (["small", "--set", "gamma=1"], r"none of separate, .* has an option 'gamma'"),
    "an option out of bounds": (["small", "--set", "steps=0"], r"steps is a whole number from 1 to 1,000,000, got 0"),
    "a grid without an algorithm": (
        ["small", "--grid", "alpha=0.1"],
        r"--grid takes algorithm.name=value,value, got no algorithm for 'alpha'",
    ),
    "a grid of another algorithm": (
        ["small", "--algorithms", "separate", "--grid", "hm1.alpha=0.1"],
        r"there is a grid for 'hm1', which is not compared: add it to --algorithms",
    ),
    "unknown option in a grid": (["small", "--grid", "separate.alpha=0.1"], r"separate has no option 'alpha'"),
    "a local budget of one's own": (["small", "--grid", "hm1.steps=1,100"], r"steps is the local budget that all algorithms share"),
    "no budget": (["small", "--budget", "0"], r"budget: input should be greater than or equal to 1, got 0"),
    "no repeats": (["small", "--repeats", "0"], r"repeats: input should be greater than or equal to 1, got 0"),
    "participation": (["small", "--participation", "2"], r"participation is a number in \(0, 1\], got 2"),
    "resume and more": (["--resume", "nope", "--repeats", "2"], r"--resume goes on with the run's own configuration"),
    "unknown run": (["--resume", "nope"], r"no run 'nope' in"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_one_line_and_leaves_nothing(
    case: str, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet(validation=4)
    before = sorted(home.rglob("*"))
    words, message = MISUSE[case]
    monkeypatch.setattr(sys, "argv", ["fedlin", "compare", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    out, err = capfd.readouterr()
    assert re.fullmatch(rf"fedlin: error: .*{message}.*\n", err), err
    assert out == ""
    assert sorted(home.rglob("*")) == before


def test_rows_to_score_on(
    home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Validation rows where there is something to choose, and test rows always."""
    dataset = random_split(fleet((30, 40)), validation=0)
    monkeypatch.setattr(sys, "argv", ["fedlin", "compare", "small"])
    with pytest.raises(SystemExit):
        main()
    assert "no device of data set 'small' has 1 validation rows or more" in capfd.readouterr().err
    contract = dataset.path / "dataset.toml"
    contract.write_text(contract.read_text().replace("train = 0.6", "train = 1.0"))
    monkeypatch.setattr(sys, "argv", ["fedlin", "compare", "small", "--budget", "1"])
    with pytest.raises(SystemExit):
        main()
    assert "no device of data set 'small' has 1 test rows or more" in capfd.readouterr().err


def test_what_is_compared() -> None:
    config = CompareConfig(dataset="x", algorithms=("hm1",), grid=parse_grids(["hm1.alpha=0.2,0.01..1", "separate.eta=0.1"]), budget=3)
    with pytest.raises(Misuse, match="input should be a valid number"):
        config.candidates()  # a range is a range only by itself
    ranged = CompareConfig(dataset="x", algorithms=("hm1",), grid=parse_grids(["hm1.alpha=0.01..1", "separate.eta=0.1"]), budget=3)
    tried = [(each.method, each.tried) for each in ranged.candidates()]
    assert [method for method, _ in tried] == ["separate", "hm1", "hm1", "hm1"]
    assert tried[1][1] == {"alpha": 0.01}, "the first end is always among the draws"
    assert ranged.candidates() == CompareConfig.model_validate_json(ranged.model_dump_json()).candidates()
    own = CompareConfig(dataset="x", options={"eta": 0.1}, budget=1000)
    assert len(own.candidates()) >= 1 + 10
    assert own.methods[0] == "separate"


def test_repeats_draw_other_parts_where_parts_are_drawn(fleet: Callable[..., Dataset]) -> None:
    dataset = fleet(validation=4)
    assert isinstance(dataset.contract.split, ColumnSplit)
    assert reseeded(dataset, 3) is dataset
    drawn = random_split(dataset)
    assert isinstance(reseeded(drawn, 3).contract.split, RandomSplit)
    one, same, other = (reseeded(drawn, r).load("c").train.X for r in (0, 0, 3))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
