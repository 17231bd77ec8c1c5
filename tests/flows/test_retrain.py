"""Retraining: a first champion, challengers that are not better and one that is, rollback, and a registry that is away."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from prefect.server.events.actions import RunDeployment

from fedcore import Misuse
from fedcore.algorithm import DeviceResult
from fedcore.data import Dataset, add_partition, remove_device
from fedcore.metrics import score
from fedcore.promotion import contest
from flows.champions import open_registry, rollback
from flows.cli.app import main
from flows.config import RetrainConfig
from flows.orchestrator import Orchestrator
from flows.retrain import retrain
from flows.workspace import Workspace
from tasks.tracking.registry import Registry

OPTIONS = {"sigma": 0.3, "certificate": "off"}
FIRST = {"dataset": "small", "algorithm": "hm2", "rounds": 8, "options": OPTIONS}


def run(home: Path, run_id: str, config: dict[str, Any] | None) -> dict[str, Any]:
    """Run the flow and read its result."""
    retrain(RetrainConfig(**config) if config else None, run_id=run_id, return_state=True)
    return json.loads((home / "runs" / run_id / "result.json").read_text())


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit status and the last line."""
    monkeypatch.setattr(sys, "argv", ["fedlin", *words])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr()
    return int(str(end.value.code or 0)), (told.out if not end.value.code else told.err).strip().splitlines()[-1]


def champion(home: Path) -> int | None:
    found = open_registry(Workspace(home), "small").champion()
    return found.number if found else None


def change(home: Path, shift: float, devices: str = "abcde", rows: int = 60, *, append: bool = True, seed: int = 7) -> None:
    """Give devices further rows in which the coefficients are larger by this."""
    rng = np.random.default_rng(seed)
    for device in devices:
        X = rng.standard_normal((rows, 3))
        columns = {f"x{i + 1}": X[:, i] for i in range(3)} | {"y": X @ np.full(3, shift) + 0.3 * rng.standard_normal(rows)}
        parts = ["train"] * (rows - 20) + ["test"] * 20
        file = home / "new.parquet"
        pq.write_table(pa.table({**columns, "part": parts}), file)
        add_partition(home / "datasets", file, "small", device, append=append)


def table(home: Path, run_id: str) -> dict[str, list[Any]]:
    return pq.read_table(io.BytesIO((home / "runs" / run_id / "results/devices.parquet").read_bytes())).to_pydict()


def coefficients(home: Path, run_id: str) -> dict[str, np.ndarray]:
    with np.load(home / "runs" / run_id / "results/theta.npz") as stored:
        return dict(zip(stored["devices"].tolist(), stored["Theta"].T, strict=True))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, to be copied: to create one takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    Registry.open("none", default_store=path).champion()
    return path


@pytest.fixture
def kept(home: Path, store: Path, server: Orchestrator) -> Path:
    shutil.copy(store, home / "mlflow.db")
    return home


def test_from_the_first_champion_to_a_rollback(
    kept: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: Orchestrator
) -> None:
    home, dataset = kept, fleet()
    monkeypatch.setenv("FEDLIN_ACTOR", "the tests")

    first = run(home, "one", FIRST)
    assert (first["outcome"], first["champion"], first["version"], first["start"]) == ("promoted", None, 1, "anew")
    assert champion(home) == 1
    assert server.drain(first["flow_run_id"], first["task_runs"]) == {"COMPLETED": first["task_runs"]}

    # The same data: nothing has drifted, and with the question left out the challenger is as good, and not better.
    calm = run(home, "calm", {"dataset": "small", "only_if_drifted": True})
    assert (calm["outcome"], calm["ok"], calm["devices_drifted"], calm["drift_devices"]) == ("skipped", True, 0, 5)
    assert calm["uplink_bytes"] == 5 * 5 * 8  # five scalars a device
    assert calm["drift_move_largest"] < 1e-3
    assert not (home / "runs/calm-challenger").exists()
    same = run(home, "same", {"dataset": "small", "rounds": 3})
    assert (same["outcome"], same["ok"], same["start"], same["version"]) == ("kept", True, "warm", 2)
    assert "and the margin is 1 %" in same["message"]
    assert champion(home) == 1

    # Other data, and a device that the champion does not know.
    change(home, 2.0)
    change(home, 2.0, "f", append=False)
    moved = run(home, "moved", {"dataset": "small", "only_if_drifted": True, "rounds": 8})
    assert (moved["outcome"], moved["champion"], moved["version"], moved["start"]) == ("promoted", 1, 3, "warm")
    assert (moved["devices_new"], moved["devices_paired"]) == (1, 5)
    assert moved["devices_drifted"] >= 4  # where half of the rows that train are old ones, the device's noise seems larger
    assert moved["drift_move_largest"] > 1
    assert champion(home) == 3
    given = json.loads((home / "runs/moved-challenger/config.json").read_text())["given"]
    assert (given["parent"], given["algorithm"], given["options"]) == ("one-challenger", "hm2", OPTIONS)

    # Both were scored on the rows that the devices have now.
    before, after, told = coefficients(home, "one-challenger"), coefficients(home, "moved-challenger"), table(home, "moved")
    assert told["device"] == list("abcde")
    rows = {device: dataset.load(device).test for device in "abcde"}
    assert {part.n for part in rows.values()} == {25}
    theirs, ours = (np.array([score(DeviceResult(theta[each]), rows[each]).rmse for each in "abcde"]) for theta in (before, after))
    np.testing.assert_array_equal(told["rmse_champion"], theirs)
    np.testing.assert_array_equal(told["rmse_challenger"], ours)
    expected = contest(theirs, ours)
    assert (moved["improvement"], moved["p"], moved["devices_better"]) == (expected.improvement, expected.p, 5)

    # MLflow: the version's source is the challenger's artifacts, the decision is a tag of it and an artifact of the retraining.
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    version = client.get_model_version_by_alias("fedlin-small", "champion")
    assert version.tags["fedlin.run_id"] == "moved-challenger"
    assert float(version.tags["fedlin.p"]) == expected.p
    assert "theta.npz" in {artifact.path for artifact in client.list_artifacts(version.run_id)}
    decision = json.loads((home / "runs/moved/decision.json").read_text())
    assert json.loads(version.tags["fedlin.decision.moved"]) == decision
    assert (decision["who"], decision["champion"], decision["version"]) == ("the tests", 1, 3)
    assert decision["figures"]["improvement"] == expected.improvement
    assert "decision.json" in {artifact.path for artifact in client.list_artifacts(moved["mlflow_run_id"])}
    assert client.get_run(moved["mlflow_run_id"]).data.metrics["p"] == expected.p

    # Back, by one command; and what it shows of all this.
    status, line = said(monkeypatch, capsys, "rollback", "small", "--json")
    assert status == 0
    assert (json.loads(line)["champion"], json.loads(line)["version"], champion(home)) == (3, 1, 1)
    status, line = said(monkeypatch, capsys, "champion", "small", "--json")
    shown = json.loads(line)
    assert (status, shown["model"], shown["version"], shown["run_id"]) == (0, "fedlin-small", 1, "one-challenger")
    kinds = [(each["decision"], each["champion"], each["version"]) for each in shown["decisions"]]
    assert kinds == [("promoted", None, 1), ("skipped", 1, None), ("kept", 1, 2), ("promoted", 1, 3), ("rolled_back", 3, 1)]
    assert said(monkeypatch, capsys, "champion", "small")[1].startswith("the champion of fedlin-small is version 1, trained by run")
    refused = {
        ("rollback", "small"): "no decision says which version was the champion before version 1: name one with --to",
        ("rollback", "small", "--to", "1"): "version 1 is the champion of fedlin-small already: name another one",
        ("rollback", "small", "--to", "9"): "fedlin-small has no version 9: fedlin champion shows those that were decided about",
    }
    for words, reason in refused.items():
        assert said(monkeypatch, capsys, *words) == (2, f"fedlin: error: {reason}")
    assert rollback(Workspace(home), "small", to=3).version == 3
    assert champion(home) == 3


def test_a_better_challenger_has_to_be_past_the_margin(kept: Path, fleet: Callable[..., Dataset]) -> None:
    """And a champion whose state devices have lost is compared all the same, with a challenger that starts anew."""
    home, _ = kept, fleet()
    run(home, "one", FIRST | {"algorithm": "hm1", "options": {}})
    change(home, 0.5)
    for state in (home / "datasets").glob("**/one-challenger.*.state"):
        state.unlink()
    wide = run(home, "wide", {"dataset": "small", "margin": 0.99})
    assert (wide["outcome"], wide["version"], wide["start"]) == ("kept", 2, "anew")
    assert "its state of run one-challenger is missing or damaged" in wide["start_why"]
    assert wide["improvement"] > 0.05
    assert (wide["devices_better"], wide["drift_move_largest"]) == (5, None)
    assert champion(home) == 1
    sure = run(home, "sure", {"dataset": "small", "p_value": 0.01})
    assert sure["outcome"] == "kept"
    assert sure["message"].endswith("p = 0.031 against 0.01, and 5 devices cannot give less than 0.031")
    assert run(home, "enough", {"dataset": "small"})["outcome"] == "promoted"
    assert champion(home) == 4
    again = run(home, "again", {"dataset": "small", "rounds": 2})
    assert (again["outcome"], again["start"], champion(home)) == ("kept", "warm", 4)
    # What was learned from a device that is removed is not carried on.
    remove_device(home / "datasets", "small", "e")
    without = run(home, "without", {"dataset": "small", "only_if_drifted": True, "rounds": 2})
    assert (without["devices_gone"], without["start"], without["devices_paired"]) == (1, "anew", 4)
    assert "cannot take back what was learned from 1 devices that have left" in without["start_why"]


def test_a_registry_that_goes_away_leaves_the_champion_and_is_caught_up_with(
    kept: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = kept, fleet()
    run(home, "one", FIRST)
    change(home, 2.0)
    for name in ("register", "note", "promote"):
        with monkeypatch.context() as outage:
            outage.setattr(Registry, name, _away)
            result = run(home, "two", {"dataset": "small"} if name == "register" else None)
            assert (result["outcome"], result["ok"]) == ("registry_away", False)
            assert result["message"].endswith("the store is away; go on with fedlin retrain --resume two")
            assert champion(home) == 1
    rounds = (home / "runs/two-challenger/checkpoint.npz").stat().st_mtime_ns
    result = run(home, "two", None)
    assert (result["outcome"], result["version"], result["devices_paired"], champion(home)) == ("promoted", 2, 5, 2)
    # It was trained and decided once, and once more changes nothing.
    assert (home / "runs/two-challenger/checkpoint.npz").stat().st_mtime_ns == rounds
    assert run(home, "two", None)["version"] == 2
    assert len(open_registry(Workspace(home), "small").decisions()) == 2

    # Somebody has moved the champion before a decision is carried out: it is not any more about the right one.
    change(home, -2.0, seed=8)
    with monkeypatch.context() as outage:
        outage.setattr(Registry, "promote", _away)
        assert run(home, "three", {"dataset": "small"})["outcome"] == "registry_away"
    rollback(Workspace(home), "small", to=1)
    late = run(home, "three", None)
    assert (late["outcome"], late["ok"], champion(home)) == ("superseded", False, 1)
    assert "version 1 became the champion after it was compared with version 2" in late["message"]


def _away(*_: object) -> None:
    raise Misuse("the store is away: set MLFLOW_TRACKING_URI to another one")


def test_a_registry_that_is_away_from_the_start_leaves_nothing(
    kept: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    state = retrain(RetrainConfig(**FIRST), run_id="one", return_state=True)
    found = state.result(raise_on_failure=False)
    assert isinstance(found, Misuse)
    assert str(found).startswith("the MLflow store http://127.0.0.1:9 cannot be used")
    assert not (kept / "runs").exists()
    assert not list((kept / "datasets").glob("**/.fedlin"))


def test_a_challenger_without_a_usable_result_is_no_version(kept: Path, fleet: Callable[..., Dataset]) -> None:
    home, _ = kept, fleet()
    run(home, "one", FIRST | {"algorithm": "hm1", "options": {}})
    options = {"shrinkage": "explicit", "prior_rate": 0.9, "alpha": 0.9}
    result = run(home, "two", {"dataset": "small", "options": options})
    assert (result["outcome"], result["ok"], result["version"], result["start"]) == ("diverged", False, None, "anew")
    assert result["start_why"] == "algorithm or options are not the champion's"
    assert champion(home) == 1
    decisions = open_registry(Workspace(home), "small").decisions()
    assert [(each.decision, each.version) for each in decisions] == [("promoted", 1), ("kept", None)]
    assert decisions[1].why == "the challenger ended without a usable result (diverged)"


def test_a_challenger_that_cannot_be_trained_is_an_outcome_and_can_be_gone_on_with(kept: Path, fleet: Callable[..., Dataset]) -> None:
    home, dataset = kept, fleet()
    run(home, "one", FIRST)
    part = dataset.path / "device=d/part-0.parquet"
    sound = part.read_bytes()
    part.write_bytes(sound[:100])
    result = run(home, "two", {"dataset": "small", "rounds": 3})
    assert (result["outcome"], result["ok"], result["version"], result["drift_devices"]) == ("refused", False, None, 4)
    assert "the challenger could not be trained, and the champion stays: 1 of 5 devices cannot take part: device=d" in result["message"]
    assert result["message"].endswith("; mend such a device, or take it out with fedlin data remove")
    assert MlflowClient(f"sqlite:///{home}/mlflow.db").get_run(result["mlflow_run_id"]).info.status == "FAILED"
    assert not (home / "runs/two/decision.json").exists()
    part.write_bytes(sound)
    assert run(home, "two", None)["outcome"] == "kept"
    assert champion(home) == 1


def test_another_design_cannot_be_compared_and_is_for_a_person(kept: Path, fleet: Callable[..., Dataset]) -> None:
    home, _ = kept, fleet()
    run(home, "one", FIRST)
    contract = home / "datasets/small/dataset.toml"
    contract.write_text(contract.read_text().replace('    "x3",\n]', "]"))
    result = run(home, "two", {"dataset": "small", "only_if_drifted": True})
    assert (result["outcome"], result["version"], result["start"]) == ("kept", 2, "anew")
    assert "it differs in features: look at it, and take it by fedlin rollback small --to its number" in result["message"]
    assert champion(home) == 1
    done = rollback(Workspace(home), "small", to=2)
    assert (done.champion, done.why) == (1, "a person went on from version 1")
    # From there on the new design is the champion's.
    assert run(home, "three", {"dataset": "small"})["start"] == "warm"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("none",), "no data set 'none'"),
        (("small", "--margin", "1"), "configuration: margin: input should be less than 1, got 1.0"),
        (("small", "--p-value", "0.7"), "configuration: p_value: input should be less than or equal to 0.5, got 0.7"),
        (("small", "--drift", "0"), "configuration: drift: input should be greater than 0, got 0.0"),
        (("small", "--algorithm", "hm3"), "no algorithm 'hm3'"),
        (("small", "--resume", "x"), "--resume goes on with the run's own configuration: give nothing beside it but --json"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(
    words: tuple[str, ...],
    reason: str,
    home: Path,
    fleet: Callable[..., Dataset],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fleet()
    status, line = said(monkeypatch, capsys, "retrain", *words)
    assert status == 2
    assert line.startswith(f"fedlin: error: {reason}")
    assert not (home / "runs").exists()


def test_parameters_from_an_event_are_a_configuration() -> None:
    """The template that a deployment's trigger on `fedlin.partition.added` gives; Prefect takes it, and what it makes of it is valid."""
    template = {"config": {"dataset": "{{ event.resource.name }}"}}
    action = RunDeployment(source="inferred", parameters=template)
    assert action.parameters == template
    assert retrain.validate_parameters({"config": {"dataset": "small"}})["config"] == RetrainConfig(dataset="small")
