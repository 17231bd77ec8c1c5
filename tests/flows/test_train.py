"""Runs through a real Prefect server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from fedcore import DeviceData, Ditto, FitResult, Misuse, fit
from fedcore.algorithm import DeviceResult
from fedcore.data import Dataset
from fedcore.errors import DataError, PlaceAway
from fedcore.metrics import score
from fedcore.posterior import Posterior
from flows.config import TrainConfig, read_config
from flows.orchestrator import Orchestrator
from flows.train import train
from tasks.checkpoint import RunFolder
from tasks.device import device_update

VARIANTS: dict[str, dict[str, Any]] = {
    "hm1": {"rounds": 4},
    "explicit": {"rounds": 4, "options": {"shrinkage": "explicit", "eta": 0.01}},
    "minibatch, part of the fleet": {"rounds": 5, "participation": 0.5, "seed": 3, "options": {"batch": 3, "gradient": "sum"}},
    "eb": {"rounds": 4, "algorithm": "eb", "options": {"covariance": "diagonal"}},
    "eb, part of the fleet, own noise": {"rounds": 4, "algorithm": "eb", "participation": 0.5, "options": {"noise": "own"}},
    "mtrl, part of the fleet": {"rounds": 4, "algorithm": "mtrl", "participation": 0.5, "options": {"strength": 0.3}},
    "separate, part of the fleet": {"rounds": 5, "algorithm": "separate", "participation": 0.5, "options": {"batch": 3}},
    "fedavg": {"rounds": 4, "algorithm": "fedavg", "options": {"steps": 2}},
    "ditto, part of the fleet": {"rounds": 5, "algorithm": "ditto", "participation": 0.5, "options": {"batch": 3, "penalty": 0.5}},
    "pooled": {"algorithm": "pooled"},
    "hm2": {"rounds": 4, "algorithm": "hm2"},
    "hm2, part of the fleet, own noise": {"rounds": 5, "algorithm": "hm2", "participation": 0.5, "options": {"noise": "device"}},
}


def run(home: Path, config: TrainConfig | None, run_id: str = "run") -> dict[str, Any]:
    """Run the flow and read its result."""
    train(config, run_id=run_id, return_state=True)
    return json.loads((home / "runs" / run_id / "result.json").read_text())


def in_memory(dataset: Dataset, config: TrainConfig) -> FitResult:
    """The same configuration without Prefect."""
    devices = {device_id: dataset.load(device_id) for device_id in dataset.device_ids}
    schedule = config.build_schedule()
    return fit(config.build_algorithm(), devices, rounds=schedule.rounds, seed=schedule.seed, participation=schedule.participation)


def assert_equal_to_the_bit(folder: Path, dataset: Dataset, expected: FitResult) -> None:
    with np.load(folder / "results/theta.npz") as stored:
        assert stored["devices"].tolist() == list(dataset.device_ids)
        np.testing.assert_array_equal(stored["Theta"], np.array([expected.theta[name] for name in dataset.device_ids]).T)
    assert (folder / "results/posterior.npz").exists() == bool(expected.posterior)
    if expected.posterior:
        with np.load(folder / "results/posterior.npz") as stored:
            for k, name in enumerate(stored["devices"].tolist()):
                posterior = expected.posterior[name]
                np.testing.assert_array_equal(stored["mean"][k], posterior.mean)
                covariance = posterior.covariance if isinstance(posterior, Posterior) else posterior.joint.total_covariance
                np.testing.assert_array_equal(stored["covariance"][k], covariance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_run_in_memory_to_the_bit(variant: str, server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", **VARIANTS[variant]})
    result = run(home, config)
    expected = in_memory(dataset, config)
    assert_equal_to_the_bit(home / "runs/run", dataset, expected)
    assert result["outcome"] == expected.outcome.name == ("converged" if variant == "pooled" else "completed")
    assert result["uplink_bytes"] == sum(each["uplink_bytes"] for each in expected.history)


def test_what_a_run_leaves(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 3, "options": {"alpha": 0.2}})
    result = run(home, config)
    expected = in_memory(dataset, config)
    folder = home / "runs/run"

    # Prefect's records: every task ended, none is missing; and the progress artifact stands at the end, beside the table of rounds.
    assert result["task_runs"] == 5 + 3 * (5 + 1) + 5
    assert server.drain(result["flow_run_id"], result["task_runs"]) == {"COMPLETED": result["task_runs"]}
    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[result["flow_run_id"]])))
    left = {str(artifact.type): artifact.data for artifact in artifacts}
    assert len(artifacts) == len(left) == 2
    assert left["progress"] == 100.0
    rounds = [(each["round"], each["loss"]) for each in json.loads(str(left["table"]))]
    assert rounds == [(c + 1, each["loss"]) for c, each in enumerate(expected.history)]

    # The table of devices, against scores made here.
    table = pq.read_table(folder / "results/devices.parquet").to_pydict()
    alone = in_memory(dataset, config.model_copy(update={"algorithm": "separate", "options": {}}))
    assert table["device"] == list(dataset.device_ids)
    for k, name in enumerate(dataset.device_ids):
        data = dataset.load(name)
        assert table["n_train"][k] == data.train.n
        assert table["rmse_test"][k] == score(DeviceResult(expected.theta[name]), data.test).rmse
        assert table["rmse_separate"][k] == score(DeviceResult(alone.theta[name]), data.test).rmse
        np.testing.assert_array_equal(table["theta"][k], expected.theta[name])
    assert result["a_rmse"] == pytest.approx(np.mean(table["rmse_test"]), rel=1e-14)
    assert result["a_rmse_separate"] == pytest.approx(np.mean(table["rmse_separate"]), rel=1e-14)

    # MLflow: parameters, a step a round, results; what the run knew of its data is names, counts and hashes.
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    found = client.get_run(result["mlflow_run_id"])
    assert found.info.status == "FINISHED"
    assert found.data.params["option.alpha"] == "0.2"
    assert found.data.params["option.shrinkage"] == "proximal"
    assert found.data.tags["fedlin.run_id"] == "run"
    assert found.data.metrics["a_rmse"] == pytest.approx(result["a_rmse"])
    sent = client.get_metric_history(result["mlflow_run_id"], "uplink_bytes")
    assert [(metric.step, metric.value) for metric in sent] == [(c + 1, each["uplink_bytes"]) for c, each in enumerate(expected.history)]
    losses = client.get_metric_history(result["mlflow_run_id"], "loss")
    assert [(metric.step, metric.value) for metric in losses] == [(c + 1, each["loss"]) for c, each in enumerate(expected.history)]
    names = {artifact.path for artifact in client.list_artifacts(result["mlflow_run_id"])}
    assert names == {"theta.npz", "server.npz", "devices.parquet", "config.json", "manifest.json", "figures", "model"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["devices"][0]) == {"device", "n_train", "n_validation", "n_test", "sha256"}
    with np.load(folder / "results/server.npz") as stored:
        np.testing.assert_array_equal(stored["Omega"], expected.server.Omega)
        np.testing.assert_array_equal(stored["Theta"], expected.server.Theta)


def test_pooled_is_compared_with_the_exact_solution_of_each_device(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    run(home, read_config({"dataset": "small", "algorithm": "pooled", "options": {"penalty": 2.0}}))
    table = pq.read_table(home / "runs/run/results/devices.parquet").to_pydict()
    for k, name in enumerate(dataset.device_ids):
        data = dataset.load(name)
        alone = np.linalg.solve(data.train.X.T @ data.train.X + 2.0 * np.eye(3), data.train.X.T @ data.train.y)
        assert table["rmse_separate"][k] == pytest.approx(score(DeviceResult(alone), data.test).rmse, rel=1e-10)


def test_what_a_run_with_posteriors_leaves(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 2, "algorithm": "eb"})
    result = run(home, config)
    expected = in_memory(dataset, config)
    assert result["rounds"] == 3, "one of them for the start"
    shown = capfd.readouterr().err
    assert "round 1 of 3 (start): 5 of 5 devices answered" in shown
    assert "round 3 of 3: 5 of 5 devices answered" in shown
    table = pq.read_table(home / "runs/run/results/devices.parquet").to_pydict()
    np.testing.assert_array_equal(table["theta_sd"], [expected.posterior[name].sd for name in dataset.device_ids])
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    assert {"posterior.npz", "posteriors.parquet"} <= {artifact.path for artifact in client.list_artifacts(result["mlflow_run_id"])}
    likelihoods = client.get_metric_history(result["mlflow_run_id"], "log_likelihood")
    assert [(metric.step, metric.value) for metric in likelihoods] == [(c, expected.history[c - 1]["log_likelihood"]) for c in (2, 3)]


def test_no_telemetry_unless_asked_for(server: Orchestrator) -> None:
    from mlflow.telemetry.utils import is_telemetry_disabled
    from prefect.settings import get_current_settings

    assert is_telemetry_disabled()
    assert not get_current_settings().server.analytics_enabled


class Faults:
    """Makes the opening of devices' partitions fail with an error that quotes data, for chosen devices and counts of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: dict[str, set[int]] = {}
        self.reads: dict[str, int] = {}
        original = Dataset.stamp

        def stamp(dataset: Dataset, device_id: str, *before: Any) -> Any:
            self.reads[device_id] = self.reads.get(device_id, 0) + 1
            if self.reads[device_id] in self.failing.get(device_id, ()):
                raise RuntimeError("bad row 987654.321")
            return original(dataset, device_id, *before)

        monkeypatch.setattr(Dataset, "stamp", stamp)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def test_a_device_that_stumbles_is_retried(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 2})
    expected = in_memory(dataset, config)
    faults.failing = {"b": {2}}  # its first update
    run(home, config)
    assert_equal_to_the_bit(home / "runs/run", dataset, expected)
    kept = (dataset.path / "device=b/.fedlin/run.error.txt").read_text()
    assert "987654.321" in kept, "the device keeps the details for itself"
    out, err = capfd.readouterr()
    assert "987654" not in out + err
    assert "Traceback" not in err


def test_a_device_that_stays_silent_does_not_end_the_round(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet()
    faults.failing = {"b": {2, 3, 4}}  # its first update and both retries
    result = run(home, read_config({"dataset": "small", "rounds": 2}))
    history = [json.loads(str(np.load(home / "runs/run/checkpoint.npz")["ledger"]))["history"][c] for c in range(2)]
    assert [each["silent"] for each in history] == [["b"], []]
    assert [each["answered"] for each in history] == [4, 5]
    assert result["outcome"] == "completed"
    error = capfd.readouterr().err
    assert "round 1: no answer, device b: RuntimeError in its local step; the details are in its own folder, .fedlin/run.error.txt" in error
    assert "987654" not in error


def test_quorum_lost_then_resumed(server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 3, "algorithm": "separate", "options": {"batch": 2}})
    expected = in_memory(dataset, config)
    faults.failing = {name: {3, 4} for name in ("a", "b", "c")}  # round 2 and its retry
    lost = run(home, config)
    assert (lost["outcome"], lost["ok"], lost["rounds"], lost["a_rmse"]) == ("quorum_lost", False, 1, None)
    assert "2 answers of 5 devices" in lost["message"]
    found = MlflowClient(f"sqlite:///{home}/mlflow.db").get_run(lost["mlflow_run_id"])
    assert found.info.status == "FAILED"
    resumed = run(home, None)
    assert (resumed["outcome"], resumed["rounds"]) == ("completed", 3)
    assert resumed["mlflow_run_id"] == lost["mlflow_run_id"]
    assert_equal_to_the_bit(home / "runs/run", dataset, expected)


def test_a_partition_that_changes_during_a_run_is_noticed(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults
) -> None:
    dataset = fleet()
    faults.failing = {name: set(range(3, 6)) for name in dataset.device_ids}
    config = read_config({"dataset": "small", "rounds": 3})
    assert run(home, config)["outcome"] == "quorum_lost"
    partition = dataset.path / "device=c/part-0.parquet"
    other = dataset.path / "device=d/part-0.parquet"
    partition.write_bytes(other.read_bytes())
    faults.failing = {}
    run(home, None)
    ledger = json.loads(str(np.load(home / "runs/run/checkpoint.npz")["ledger"]))
    assert [each["silent"] for each in ledger["history"]] == [[], ["c"], ["c"]]


def test_enrolment_refuses_a_device_that_breaks_the_contract(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    (dataset.path / "device=c/part-0.parquet").write_bytes(b"PAR1")
    state = train(read_config({"dataset": "small"}), run_id="run", return_state=True)
    refusal = state.result(raise_on_failure=False)
    assert isinstance(refusal, Misuse)
    assert str(refusal).startswith("1 of 5 devices cannot take part: device=c/part-0.parquet: not a readable parquet file")
    assert not (home / "runs").exists()


def test_an_ended_run_is_not_run_again(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 2})
    first = run(home, config)
    again = run(home, None)
    assert again["rounds"] == first["rounds"] == 2
    assert again["a_rmse"] == first["a_rmse"]
    assert_equal_to_the_bit(home / "runs/run", dataset, in_memory(dataset, config))


def test_a_run_keeps_the_devices_and_the_contract_that_it_began_with(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults
) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 3})
    expected = in_memory(dataset, config)
    faults.failing = {name: set(range(3, 6)) for name in dataset.device_ids}
    assert run(home, config)["outcome"] == "quorum_lost"

    contract = dataset.path / "dataset.toml"
    text = contract.read_text()
    contract.write_text(text.replace("intercept = false", "intercept = true"))
    refusal = train(None, run_id="run", return_state=True).result(raise_on_failure=False)
    assert isinstance(refusal, Misuse)
    assert str(refusal) == "the contract of data set 'small' has changed since run run began: restore it, or start a new run"
    contract.write_text(text)

    newcomer = dataset.path / "device=aa"
    newcomer.mkdir()
    (newcomer / "part-0.parquet").write_bytes((dataset.path / "device=a/part-0.parquet").read_bytes())
    assert run(home, None)["outcome"] == "completed"
    with np.load(home / "runs/run/results/theta.npz") as stored:
        assert stored["devices"].tolist() == ["a", "b", "c", "d", "e"]
        np.testing.assert_array_equal(stored["Theta"], np.array([expected.theta[name] for name in "abcde"]).T)


def test_devices_that_give_no_result_are_named(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = fleet()
    faults.failing = {"b": set(range(4, 7))}  # enrolment, two rounds, then the final step and both retries
    result = run(home, read_config({"dataset": "small", "rounds": 2}))
    assert (result["outcome"], result["devices_missing"]) == ("completed", ["b"])
    assert "no result, device b: RuntimeError in its final step" in capfd.readouterr().err
    with np.load(home / "runs/run/results/theta.npz") as theta, np.load(home / "runs/run/results/server.npz") as stored:
        assert theta["devices"].tolist() == ["a", "c", "d", "e"]
        assert stored["device-ids"].tolist() == list(dataset.device_ids)

    faults.failing = {name: set(range(faults.reads[name] + 4, faults.reads[name] + 7)) for name in ("a", "b", "c")}
    lost = run(home, read_config({"dataset": "small", "rounds": 2}), run_id="other")
    assert (lost["outcome"], lost["rounds"], lost["a_rmse"]) == ("quorum_lost", 2, None)
    assert "only 2 of 5 devices could give their result" in lost["message"]
    again = run(home, None, run_id="other")
    assert (again["outcome"], again["devices_missing"]) == ("completed", [])


def test_exchanged_device_folders_are_noticed(server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults) -> None:
    dataset = fleet()
    faults.failing = {name: set(range(3, 6)) for name in dataset.device_ids}
    assert run(home, read_config({"dataset": "small", "rounds": 2}))["outcome"] == "quorum_lost"
    one, other, aside = dataset.path / "device=a", dataset.path / "device=b", dataset.path / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    result = run(home, None)
    assert result["devices_missing"] == ["a", "b"]


def test_a_folder_of_states_that_has_become_a_link_is_not_followed(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults
) -> None:
    dataset = fleet()
    faults.failing = {name: set(range(3, 6)) for name in dataset.device_ids}
    assert run(home, read_config({"dataset": "small", "rounds": 2}))["outcome"] == "quorum_lost"
    own, outside = dataset.path / "device=a/.fedlin", home / "outside"
    own.rename(outside)
    own.symlink_to(outside)
    before = {file.name: file.read_bytes() for file in outside.iterdir() if file.suffix != ".txt"}
    assert run(home, None)["devices_missing"] == ["a"]
    assert {file.name: file.read_bytes() for file in outside.iterdir() if file.suffix != ".txt"} == before


def test_a_run_belongs_to_one_process_and_one_configuration(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 1})
    run(home, config)
    (file,) = (dataset.path / "device=a/.fedlin").glob("run.*.state")
    state = file.read_bytes()
    with RunFolder(home / "runs/run").held():
        refusal = train(None, run_id="run", return_state=True).result(raise_on_failure=False)
    assert str(refusal) == "run run goes on in another process: wait for it, or end that one"
    refusal = train(config, run_id="run", return_state=True).result(raise_on_failure=False)
    assert str(refusal) == "there is a run run already: resume it, or choose another id"
    assert file.read_bytes() == state


@pytest.mark.parametrize("spoiled", ["theta is not finite", "theta is of shape (4,), expected (3,)"])
def test_an_answer_that_cannot_be_taken_is_left_out_with_a_reason(
    spoiled: str,
    server: Orchestrator,
    home: Path,
    fleet: Callable[..., Dataset],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One device's answer in the second of three rounds."""
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 3, "algorithm": "ditto"})
    local_steps, b, steps = Ditto.local_steps, dataset.load("b").train.n, count(1)

    def broken(self: Ditto, downs: Any, devices: Any, datas: Sequence[DeviceData], rngs: Any) -> Any:
        (state,), (up,), (info,) = local_steps(self, downs, devices, datas, rngs)
        (data,) = datas
        if data.train.n == b and next(steps) == 2:
            theta = up.shared.theta
            up = up._replace(shared=up.shared._replace(theta=theta * np.nan if "finite" in spoiled else np.append(theta, 987654.321)))
        return [state], [up], [info]

    monkeypatch.setattr(Ditto, "local_steps", broken)
    result = run(home, config)
    assert result["outcome"] == "completed"
    ledger = json.loads(str(np.load(home / "runs/run/checkpoint.npz")["ledger"]))["history"]
    assert [each["silent"] for each in ledger] == [[], ["b"], []]
    assert [each["reasons"] for each in ledger] == [{}, {"b": f"shared.{spoiled}"}, {}]
    error = capfd.readouterr().err
    assert f"round 2: no answer, device b: quarantined, shared.{spoiled}" in error
    assert "987654" not in error + json.dumps(ledger)
    counts = MlflowClient(f"sqlite:///{home}/mlflow.db").get_metric_history(result["mlflow_run_id"], "quarantined")
    assert [metric.value for metric in counts] == [0, 1, 0]


def test_only_what_may_pass_is_tried_again(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that is away is asked three times, rows that are refused once; between tries are growing pauses of chance lengths."""
    fleet()
    original = Dataset.loaded

    def loaded(dataset: Dataset, device_id: str) -> Any:
        found = original(dataset, device_id)
        if device_id == "b":
            raise PlaceAway("TimeoutError")
        if device_id == "c":
            raise DataError("device=c/part-0.parquet: 1 row has no target: mend it")
        return found

    monkeypatch.setattr(Dataset, "loaded", loaded)
    refusal = train(read_config({"dataset": "small"}), run_id="run", return_state=True).result(raise_on_failure=False)
    assert isinstance(refusal, Misuse)
    assert str(refusal).startswith("2 of 5 devices cannot take part: device b: the object store cannot be used now (TimeoutError)")
    assert faults.reads == {"a": 1, "b": 3, "c": 1, "d": 1, "e": 1}
    assert (device_update.retries, device_update.retry_delay_seconds, device_update.retry_jitter_factor) == (2, [1, 2], 0.5)
