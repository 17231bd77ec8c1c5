"""Runs on a data set whose design depends on the whole fleet: categories, gaps, the fleet's means and variances."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from fedcore import Hm1, Misuse, fit
from fedcore.data import Contract, Dataset, Fitted, create_dataset, fit_fleet, load_fleet
from fedcore.data.splits import split_rows
from fedcore.errors import DeviceRefusal
from fedcore.messages import Broadcast
from flows.cli.app import main
from flows.config import TrainConfig, read_config
from flows.fleet import Fleet
from flows.orchestrator import Orchestrator
from flows.train import train
from tasks.cohort import asked
from tasks.device import device_finalize, device_update

OPEN = {"parameters": 0.5}  # seven columns, and as few as 14 rows
KINDS = {"age": "int64", "dose": "float64", "drug": "string", "y": "float64"}


@pytest.fixture
def clinics(home: Path) -> Callable[..., Dataset]:
    """Stores data set `clinics`: five devices, of which only "c" has drug "z" and only "b" has gaps in the dose."""

    def create(**changes: Any) -> Dataset:
        fields: dict[str, Any] = {
            "device": "clinic",
            "target": "y",
            "features": ["age", "drug", "dose"],
            "intercept": True,
            "interactions": [["age", "dose"]],
            "scaling": {"features": "global"},
            "missing": {"policy": "mean"},
            "categories": {"drug": {"unknown": "reference"}},
            "disclosure": OPEN,
            "split": {"kind": "random", "train": 0.7},
            "columns": {name: {"type": kind} for name, kind in KINDS.items()},
        }
        return create_dataset(
            home / "datasets", "clinics", Contract.model_validate(fields | changes), zip("abcde", map(frame, range(5)), strict=True)
        )

    return create


def frame(k: int) -> pl.DataFrame:
    rng = np.random.default_rng(k)
    n = 20 + 3 * k
    drug = rng.choice(["p", "q"] + (["z"] if k == 2 else []), n)
    dose = rng.normal(100, 10, n)
    if k == 1:
        dose[::4] = np.nan
    return pl.DataFrame({"age": rng.integers(20, 80, n), "dose": dose, "drug": drug, "y": rng.normal(size=n) + (drug == "q")})


def run(home: Path, config: TrainConfig | None) -> dict[str, Any]:
    train(config, run_id="run", return_state=True)
    return json.loads((home / "runs/run/result.json").read_text())


def refused(config: TrainConfig | None) -> str:
    refusal = train(config, run_id="run", return_state=True).result(raise_on_failure=False)
    assert isinstance(refusal, Misuse)
    return str(refusal)


def test_equals_the_run_in_memory_to_the_bit(server: Orchestrator, home: Path, clinics: Callable[..., Dataset]) -> None:
    dataset = clinics()
    fitted = fit_fleet(dataset)
    assert fitted is not None
    result = run(home, read_config({"dataset": "clinics", "rounds": 3}))
    expected = fit("hm1", load_fleet(dataset), rounds=3)
    assert result["outcome"] == "completed"
    assert result["task_runs"] == (5 + 1) + 5 + 3 * (5 + 1) + 5, "five summaries and one fit before enrolment"
    folder = home / "runs/run/results"
    with np.load(folder / "theta.npz") as stored:
        names = ["intercept", "age", "drug=q", "drug=z", "dose", "dose:missing", "age*dose"]
        assert stored["coefficients"].tolist() == stored["coefficients_original"].tolist() == names
        Theta = np.array([expected.theta[name] for name in "abcde"]).T
        np.testing.assert_array_equal(stored["Theta"], Theta)
        np.testing.assert_array_equal(stored["Theta_original"], fitted.original(Theta))
    assert Fitted.model_validate_json((folder / "preprocessing.json").read_text()) == fitted
    manifest = json.loads((home / "runs/run/manifest.json").read_text())
    assert manifest["design"] == names
    assert Fitted.model_validate(manifest["preprocessing"]) == fitted
    assert manifest["gaps"] == {"b": {"dose": 6}}


def test_a_run_that_goes_on_keeps_its_preprocessing(
    server: Orchestrator, home: Path, clinics: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that changes in mid-run silences its device; it does not move the others' columns."""
    dataset = clinics()
    expected = fit_fleet(dataset)
    original, reads = Dataset.stamp, {"all": 0}

    def stamp(dataset: Dataset, device_id: str, *before: Any) -> Any:
        reads["all"] += 1
        if reads["all"] > 10:
            raise RuntimeError
        return original(dataset, device_id, *before)

    monkeypatch.setattr(Dataset, "stamp", stamp)
    assert run(home, read_config({"dataset": "clinics", "rounds": 3}))["outcome"] == "quorum_lost"
    monkeypatch.setattr(Dataset, "stamp", original)
    (dataset.path / "device=c/part-0.parquet").write_bytes((dataset.path / "device=d/part-0.parquet").read_bytes())
    assert fit_fleet(dataset) != expected
    assert run(home, None)["outcome"] == "completed"
    assert Fitted.model_validate_json((home / "runs/run/results/preprocessing.json").read_text()) == expected


def test_posteriors_in_original_units(server: Orchestrator, home: Path, clinics: Callable[..., Dataset]) -> None:
    """What they say of a raw row's prediction is what the scaled ones say of the scaled row's."""
    dataset = clinics()
    fitted = fit_fleet(dataset)
    assert fitted is not None
    run(home, read_config({"dataset": "clinics", "rounds": 3, "algorithm": "eb"}))
    with np.load(home / "runs/run/results/posterior.npz") as stored, np.load(home / "runs/run/results/theta.npz") as theta:
        assert stored["coefficients_original"].tolist() == theta["coefficients_original"].tolist()
        U = np.array([fitted.original(each) for each in np.eye(len(fitted.design))])
        for scaled, original in zip(stored["covariance"], stored["covariance_original"], strict=True):
            np.testing.assert_allclose(original, U.T @ scaled @ U, rtol=1e-9, atol=1e-12)


def test_a_contract_that_needs_no_exchange_has_none(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    fleet()
    result = run(home, read_config({"dataset": "small", "rounds": 1}))
    assert result["task_runs"] == 5 + (5 + 1) + 5
    assert not (home / "runs/run/results/preprocessing.json").exists()
    assert json.loads((home / "runs/run/manifest.json").read_text())["preprocessing"] is None
    with np.load(home / "runs/run/results/theta.npz") as stored:
        assert sorted(stored) == ["Theta", "coefficients", "devices"]


def spoil(dataset: Dataset, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    part = dataset.path / "device=b/part-0.parquet"
    change(pl.read_parquet(part, hive_partitioning=False)).write_parquet(part)


SPOILED: dict[str, tuple[dict[str, Any], Callable[[pl.DataFrame], pl.DataFrame], str]] = {
    "a summary": (
        {},
        lambda frame: frame.with_columns(dose=pl.lit(float("inf"))),
        "device=b/part-0.parquet: column 'dose' has 23 infinite values: correct them, or leave them empty",
    ),
    "an unknown level": (
        {"categories": {}, "split": {"kind": "time", "column": "age", "train": 0.5}, "disclosure": {"parameters": 1, "level_rows": 1}},
        lambda frame: frame.with_columns(drug=pl.when(pl.col("age") == pl.col("age").max()).then(pl.lit("SECRET")).otherwise("drug")),
        "device=b: column 'drug' has 1 values that no device's training rows have: correct them, or set unknown in [categories.drug]",
    ),
}


FEW = {"disclosure": {"rows": 25}}
BLOCKED: dict[str, tuple[dict[str, Any], str]] = {
    "rows": (FEW, "4 of 5 devices cannot take part: device=a: 14 training rows are fewer than [disclosure] rows = 25"),
    "devices": ({"disclosure": {"devices": 6}}, "5 of 5 devices cannot take part: device=a: the fleet's 5 devices are fewer than"),
    "columns": ({"disclosure": {"columns": ["age"]}}, "5 of 5 devices cannot take part: device=a: column 'drug' is not among"),
    "parameters": (
        {"disclosure": {}},
        "4 of 5 devices cannot take part: device=a: 7 design columns are more than [disclosure] parameters = 0.33",
    ),
    "few values": ({"disclosure": OPEN | {"rows": 14}}, "1 of 5 devices cannot take part: device=b: column 'dose' has values in some"),
    "levels": ({"disclosure": {"level_rows": 12}}, "devices cannot take part: device=a: column 'drug' has "),
    "training rows": (
        FEW | {"features": ["age"], "scaling": {}, "interactions": [], "missing": {"policy": "drop"}, "categories": {}},
        "devices cannot take part: device=a: 14 training rows are fewer than [disclosure] rows = 25",
    ),
}


@pytest.mark.parametrize("case", BLOCKED)
def test_the_disclosure_gate_is_on_the_device(case: str, server: Orchestrator, home: Path, clinics: Callable[..., Dataset]) -> None:
    changes, message = BLOCKED[case]
    clinics(**changes)
    assert message in refused(read_config({"dataset": "clinics"}))
    assert not (home / "runs").exists()


def test_rounds_of_too_few_devices_are_refused_before_the_start(
    server: Orchestrator, home: Path, clinics: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the flow, by the command line, and by a device that is asked all the same."""
    dataset = clinics(disclosure=OPEN | {"devices": 3})
    words = "participation = 0.4 draws 2 of 5 devices a round, fewer than [disclosure] devices = 3: raise it to 0.6 or more"
    config = read_config({"dataset": "clinics", "participation": 0.4})
    assert refused(config) == words
    monkeypatch.setattr(sys, "argv", ["fedlin", "train", "clinics", "--participation", "0.4"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capfd.readouterr().err == f"fedlin: error: {words}\n"
    assert not (home / "runs").exists()

    config = read_config({"dataset": "clinics"})
    station = Fleet("run", config, dataset.with_fitted(fit_fleet(dataset)), config.build_algorithm()).station
    for task, more in ((device_update, ()), (device_finalize, ([],))):
        with pytest.raises(DeviceRefusal, match=r"^device=a: the round's 2 devices are fewer than \[disclosure\] devices = 3: raise"):
            asked(task, station, "a", Broadcast(1, 2, None, None), *more)


def test_a_round_of_too_few_answers_does_not_count(
    server: Orchestrator, home: Path, clinics: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the quorum is met; afterwards the run goes on."""
    clinics(disclosure=OPEN | {"devices": 3})
    original, steps = Hm1.local_steps, {"all": 0}

    def local_steps(*args: Any) -> Any:
        steps["all"] += 1
        if 5 < steps["all"] <= 5 + 3:
            raise Misuse("will not")
        return original(*args)

    monkeypatch.setattr(Hm1, "local_steps", local_steps)
    lost = run(home, read_config({"dataset": "clinics", "rounds": 3, "quorum": 0.2}))
    assert (lost["outcome"], lost["rounds"]) == ("quorum_lost", 1)
    words = "round 2 got 2 answers of 5 devices, fewer than [disclosure] devices = 3"
    assert lost["message"] == f"{words}: see why devices fail, then resume the run"
    assert run(home, None)["outcome"] == "completed"


def test_the_exchange_counts_among_the_bytes(server: Orchestrator, home: Path, clinics: Callable[..., Dataset]) -> None:
    dataset = clinics()
    result = run(home, read_config({"dataset": "clinics", "rounds": 2}))
    rounds = fit("hm1", load_fleet(dataset), rounds=2).history
    # Of each device: its rows; count, mean and M2 of age and dose; three marks; levels of one letter.
    up = 5 * (8 + 2 * 3 * 8 + 3) + 4 * 2 + 3
    fitted = fit_fleet(dataset)
    assert fitted is not None
    names = ["n", "means", "scales", "categories", "marked", "design", "intercept", "interactions"]
    categories = ["drug", "reference", "p", "levels", "q", "z", "dummies", "drug=q", "drug=z"]
    text = [*names, *2 * ["age", "dose"], *categories, "dose", *fitted.design, "age*dose", "age", "dose"]
    down = 5 * (sum(map(len, text)) + 8 * (1 + 2 + 2 + 1))
    assert (result["preprocessing_uplink_bytes"], result["preprocessing_downlink_bytes"]) == (up, down)
    assert result["uplink_bytes"] == up + sum(each["uplink_bytes"] for each in rounds)
    assert result["downlink_bytes"] == down + sum(each["downlink_bytes"] for each in rounds)
    metrics = MlflowClient(f"sqlite:///{home}/mlflow.db").get_run(result["mlflow_run_id"]).data.metrics
    assert metrics["total_uplink_bytes"] == result["uplink_bytes"]
    assert metrics["total_preprocessing_downlink_bytes"] == down
    again = run(home, None)
    assert [again[name] for name in ("uplink_bytes", "downlink_bytes")] == [result[name] for name in ("uplink_bytes", "downlink_bytes")]


def test_the_table_of_devices_has_their_gaps(server: Orchestrator, home: Path, clinics: Callable[..., Dataset]) -> None:
    dataset = clinics(disclosure={"parameters": 5}, missing={"policy": "drop"})
    spoil(dataset, lambda rows: rows.with_columns(drug=pl.when(pl.int_range(pl.len()) < 2).then(None).otherwise("drug")))
    run(home, read_config({"dataset": "clinics", "rounds": 1}))
    table = pq.read_table(home / "runs/run/results/devices.parquet").to_pydict()
    assert {name: values for name, values in table.items() if name.startswith("missing.")} == {
        "missing.dose": [0, 6, 0, 0, 0],
        "missing.drug": [0, None, 0, 0, 0],
    }
    assert json.loads((home / "runs/run/manifest.json").read_text())["gaps"] == {"b": {"dose": 6, "drug": None}}


POWER = {"kind": "polynomial", "feature": "age", "degree": 2, "origin": 50, "scale": 30}
PREDICTED: dict[str, dict[str, Any]] = {
    "global": {"feature_map": POWER, "disclosure": {"parameters": 1}},
    "own ranges, rows dropped": {"scaling": {"features": "train", "target": "train"}, "missing": {"policy": "drop"}},
}


@pytest.mark.parametrize("case", PREDICTED)
def test_results_are_all_that_prediction_needs(case: str, server: Orchestrator, home: Path, clinics: Callable[..., Dataset]) -> None:
    """Beside the device's own rows: test rows predicted from the results score as the run did."""
    path = clinics(**PREDICTED[case]).path
    run(home, read_config({"dataset": "clinics", "rounds": 2}))
    results = home / "runs/run/results"
    contract = Contract.model_validate(json.loads((results / "manifest.json").read_text())["contract"])
    fitted = Fitted.model_validate_json((results / "preprocessing.json").read_text())
    dataset = Dataset("clinics", path, contract, fitted)
    scores = pq.read_table(results / "devices.parquet").to_pydict()
    with np.load(results / "theta.npz") as stored:
        for k, device_id in enumerate(stored["devices"].tolist()):
            rows = pl.concat(dataset.parts(device_id).values())
            if contract.missing.policy == "drop":
                rows = rows.drop_nulls()
            test = split_rows(rows, contract.split, device_id).test
            target = rows["y"].to_numpy()
            unit = np.ptp(target[~test]) if contract.scaling.target == "train" else 1.0
            error = target[test] - dataset.predict(device_id, stored["Theta"][:, k], rows.filter(test).drop("y"))
            assert np.sqrt(np.mean(error**2)) / unit == pytest.approx(scores["rmse_test"][k], rel=1e-12)


@pytest.mark.parametrize("case", SPOILED)
def test_a_device_that_cannot_be_prepared_is_refused(
    case: str,
    server: Orchestrator,
    home: Path,
    clinics: Callable[..., Dataset],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """By the flow, and before it by the command line."""
    changes, change, message = SPOILED[case]
    spoil(clinics(**changes), change)
    assert refused(read_config({"dataset": "clinics"})) == f"1 of 5 devices cannot take part: {message}; {Fleet.REMEDY}"
    assert not (home / "runs").exists()
    monkeypatch.setattr(sys, "argv", ["fedlin", "train", "clinics"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capfd.readouterr().err == f"fedlin: error: {message}\n"


def test_what_the_server_cannot_join_is_refused(server: Orchestrator, home: Path, clinics: Callable[..., Dataset]) -> None:
    dataset = clinics()
    contract = dataset.path / "dataset.toml"
    contract.write_text(contract.read_text().replace('unknown = "reference"', 'unknown = "reference"\nreference = "w"'))
    assert refused(read_config({"dataset": "clinics"})).startswith("categories.drug.reference: 'w' is in no device's training rows")
