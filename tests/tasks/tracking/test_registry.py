"""A data set's champion in a registry on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from fedcore.errors import Misuse
from tasks.decision import KEPT, PROMOTED, Decision, actor, now
from tasks.tracking.registry import Registry, Version, model_name
from tasks.tracking.runs import Tracker


@pytest.fixture(autouse=True)
def no_store_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the module: to create one takes seconds."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def registry(root: Path, request: pytest.FixtureRequest) -> Registry:
    return Registry.open(model_name(request.node.name), default_store=root / "mlflow.db")


def tracked(root: Path, run_id: str, run_uuid: str = "") -> str:
    """A run in MLflow; returns its id there."""
    tracker = Tracker.open(None, default_store=root / "mlflow.db", artifacts=root / "artifacts", experiment="pumps")
    tracker.start(run_id, params={}, tags={}, run_uuid=run_uuid)
    return tracker.mlflow_run_id


def decision(what: str, run_id: str, when: str, version: int, champion: int | None) -> Decision:
    return Decision(run_id, what, "me@here", when, "the reason", "pumps", "fedlin-pumps", champion, version, {"p": 0.01, "a_rmse": None})


def test_there_and_back(registry: Registry, root: Path) -> None:
    assert registry.champion() is None
    assert registry.decisions() == []
    first = registry.register("run-1", tracked(root, "run-1"), {"fedlin.p": "0.01"})
    second = registry.register("run-2", tracked(root, "run-2"), {})
    assert (first, second) == (Version(1, "run-1"), Version(2, "run-2"))
    assert registry.champion() is None
    registry.promote(1)
    assert registry.champion() == first
    registry.promote(2)
    assert registry.champion() == second
    assert registry.version(1) == first
    with pytest.raises(Misuse, match=f"^{registry.name} has no version 3"):
        registry.version(3)
    # What MLflow itself says of it.
    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    found = client.get_model_version_by_alias(registry.name, "champion")
    run = client.get_run(found.run_id)
    assert (int(found.version), found.source) == (2, run.info.artifact_uri)
    assert run.data.tags["fedlin.run_id"] == "run-2"
    assert client.get_model_version(registry.name, "1").tags["fedlin.p"] == "0.01"


def test_a_run_is_one_version_however_often_it_is_registered(registry: Registry, root: Path) -> None:
    mlflow_run = tracked(root, "run-3")
    assert registry.register("run-3", mlflow_run, {}) == registry.register("run-3", mlflow_run, {}) == Version(1, "run-3")


def test_runs_of_one_name_are_versions_of_their_own(registry: Registry, root: Path) -> None:
    runs = [tracked(root, "run-6"), tracked(root, "run-6", "another")]
    assert runs[0] != runs[1]
    assert [registry.register("run-6", each, {}) for each in (*runs, *runs)] == [Version(number, "run-6") for number in (1, 2, 1, 2)]


def test_decisions_are_kept_side_by_side_and_told_by_time(registry: Registry, root: Path) -> None:
    for run_id in ("run-4", "run-5"):
        registry.register(run_id, tracked(root, run_id), {})
    made = [
        decision(PROMOTED, "b", "2026-01-01T00:00:00+00:00", 1, None),
        decision(KEPT, "a", "2026-01-02T00:00:00+00:00", 2, 1),
        decision(PROMOTED, "c", "2026-01-03T00:00:00+00:00", 1, 2),
    ]
    for each in reversed(made):
        registry.note(each.version or 0, each)
        registry.note(each.version or 0, each)
    assert registry.decisions() == made
    # Somebody else's tag of that name is passed over.
    MlflowClient(f"sqlite:///{root / 'mlflow.db'}").set_model_version_tag(registry.name, "1", "fedlin.decision.x", "no JSON")
    assert registry.decisions() == made


def test_data_sets_and_targets_have_models_of_their_own() -> None:
    names = [model_name("a"), model_name("b"), model_name("a", "flow"), model_name("a", "m/s:x"), model_name("a-flow")]
    assert names == ["fedlin-a", "fedlin-b", "fedlin-a~flow", "fedlin-a~m%2Fs%3Ax", "fedlin-a-flow"]


def test_a_store_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    registry = Registry.open("fedlin-pumps", default_store=tmp_path / "mlflow.db")
    for ask in (registry.champion, registry.decisions, lambda: registry.promote(1), lambda: registry.register("run", "run", {})):
        with pytest.raises(Misuse, match=r"^the MLflow store http://127.0.0.1:9 cannot be used") as error:
            ask()
        assert "\n" not in str(error.value)
        assert "secret" not in str(error.value)


def test_who_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDLIN_ACTOR", raising=False)
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    assert actor() == "me@here"
    monkeypatch.setattr("getpass.getuser", lambda: {}["no such user"])
    assert actor().startswith("uid ")
    monkeypatch.setenv("FEDLIN_ACTOR", "the nightly schedule")
    assert actor() == "the nightly schedule"
    assert now().endswith("+00:00")


def test_a_decision_survives_being_stored() -> None:
    made = decision(PROMOTED, "a", now(), 1, None)
    assert Decision.read(made.text()) == made
