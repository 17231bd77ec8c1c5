"""A run in MLflow: what is sent, what is sent again, and what never is."""

import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

import tasks
from fedcore.errors import Misuse
from tasks.tracking.runs import Nested, Tracker

RECORDS = [{"round_num": n, "change": 1 / n, "answered": 4} for n in range(1, 6)]


@pytest.fixture(autouse=True)
def no_store_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the module: to create one takes seconds."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def tracker(root: Path) -> Tracker:
    return open_tracker(root)


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    return request.node.name


def open_tracker(root: Path, experiment: str = "meters") -> Tracker:
    return Tracker.open(None, default_store=root / "mlflow.db", artifacts=root / "artifacts", experiment=experiment)


def history(tracker: Tracker, name: str) -> list[tuple[int, float]]:
    """Steps and values, in the order in which they came."""
    return [(each.step, each.value) for each in MlflowClient(tracker.uri).get_metric_history(tracker.mlflow_run_id, name)]


def test_a_run_from_start_to_finish(tracker: Tracker, run_id: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "inner" / "devices.parquet").write_bytes(b"PAR1")
    tracker.start(run_id, params={"algorithm": "hm1"}, tags={"mlflow.source.git.commit": "abc"})
    for count in range(1, 6):
        tracker.log_rounds(RECORDS[:count])
    assert tracker.finish("FINISHED", metrics={"a_rmse": 0.5}, artifacts=tmp_path)

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    run = client.get_run(tracker.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"algorithm": "hm1"}
    assert run.data.tags["fedlin.run_id"] == run_id
    assert run.data.tags["mlflow.source.git.commit"] == "abc"
    assert run.data.metrics["a_rmse"] == 0.5
    assert history(tracker, "change") == [(n, 1 / n) for n in range(1, 6)]
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == {"config.json", "inner"}
    stored = root / "artifacts" / run.info.run_id / "artifacts"
    assert (stored / "inner" / "devices.parquet").read_bytes() == b"PAR1"


@pytest.fixture
def sent(tracker: Tracker, run_id: str, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rounds of each batch that a started tracker sends, in order; none reaches the store."""
    tracker.start(run_id, params={}, tags={})
    batches: list[list[int]] = []
    monkeypatch.setattr(
        tracker._client, "log_batch", lambda run, metrics: batches.append(list(dict.fromkeys(each.step for each in metrics)))
    )
    return batches


def test_slow_rounds_go_alone_and_quick_ones_together(tracker: Tracker, sent: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tasks.tracking.runs.time.monotonic", lambda: now)
    for count, seconds in enumerate((0.4, 0.4, 0.4, 60.0, 60.0, 60.0), 1):
        tracker.log_rounds([{"round_num": n, "loss": 1.0} for n in range(1, count + 1)])
        now += seconds
    assert sent == [[1], [2, 3, 4], [5], [6]]


def test_a_batch_holds_what_mlflow_takes(tracker: Tracker, sent: list[list[int]]) -> None:
    tracker.log_rounds([{"round_num": n} | {f"m{i}": 0.5 for i in range(299)} for n in range(1, 9)])
    assert sent == [[1, 2, 3], [4, 5, 6], [7, 8]]


def test_a_round_with_more_than_a_batch_holds_is_sent(tracker: Tracker, run_id: str) -> None:
    tracker.start(run_id, params={}, tags={})
    tracker.log_rounds([{"round_num": 1} | {f"m{i}": 0.5 for i in range(1100)}])
    assert len(MlflowClient(tracker.uri).get_run(tracker.mlflow_run_id).data.metrics) == 1101


def broken_off(tracker: Tracker, *counts: int) -> None:
    """So many rounds are told, and then somebody interrupts them."""

    def rounds() -> None:
        with tracker.through_rounds():
            for count in counts:
                tracker.log_rounds(RECORDS[:count])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds()


def test_what_was_held_back_is_sent_at_the_end_and_where_rounds_break_off(tracker: Tracker, sent: list[list[int]]) -> None:
    broken_off(tracker, 1, 3)
    assert sent == [[1], [2, 3]]
    with tracker.through_rounds():
        tracker.log_rounds(RECORDS)
    assert sent == [[1], [2, 3], [4, 5]]


def test_a_batch_that_was_interrupted_after_it_arrived_is_not_sent_again(
    tracker: Tracker, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.start(run_id, params={}, tags={})
    original = MlflowClient.log_batch

    def interrupted(self: MlflowClient, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)  # pyright: ignore[reportArgumentType]
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(MlflowClient, "log_batch", interrupted)
    broken_off(tracker, 3)
    assert tracker.finish("FAILED", metrics={}, artifacts=None)
    assert [step for step, _ in history(tracker, "change")] == [1, 2, 3]


def test_rounds_of_a_batch_keep_their_times(tracker: Tracker, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker.start(run_id, params={}, tags={})
    for count in (1, 2, 3):
        monkeypatch.setattr("tasks.tracking.runs.time.time", lambda at=count: 1000.0 + at)
        tracker.log_rounds(RECORDS[:count])
    assert tracker.finish("FINISHED", metrics={}, artifacts=None)
    told = MlflowClient(tracker.uri).get_metric_history(tracker.mlflow_run_id, "change")
    assert [(each.step, each.timestamp) for each in told] == [(1, 1_001_000), (2, 1_002_000), (3, 1_003_000)]


def test_rounds_that_break_off_do_not_wait_for_a_store_that_is_away(tracker: Tracker, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker.start(run_id, params={}, tags={})
    attempts: list[object] = []

    def away(*args: object, **kwargs: object) -> None:
        attempts.append(args)
        raise ConnectionError("away")

    monkeypatch.setattr(tracker._client, "log_batch", away)
    broken_off(tracker, 1)
    assert len(attempts) == 1


def test_an_interrupted_run_is_continued(root: Path, run_id: str) -> None:
    first = open_tracker(root)
    first.start(run_id, params={"rounds": "5"}, tags={})
    first.log_rounds(RECORDS[:3])
    second = open_tracker(root)
    second.start(run_id, params={"rounds": "9", "resumed": "yes"}, tags={})
    second.log_rounds(RECORDS)
    assert second.mlflow_run_id == first.mlflow_run_id
    assert second.finish("FINISHED", metrics={}, artifacts=None)
    assert [step for step, _ in history(second, "change")] == [1, 2, 3, 4, 5]
    run = MlflowClient(second.uri).get_run(second.mlflow_run_id)
    assert run.data.params == {"rounds": "5", "resumed": "yes"}  # MLflow refuses to change a parameter


def test_another_run_of_the_name_has_a_place_of_its_own(root: Path, run_id: str) -> None:
    def of(run_uuid: str) -> Tracker:
        tracker = open_tracker(root)
        tracker.start(run_id, params={"eta": run_uuid}, tags={}, run_uuid=run_uuid)
        return tracker

    first, second = of("1"), of("2")
    assert first.mlflow_run_id != second.mlflow_run_id
    older = of("")  # of before runs had uuids
    assert older.mlflow_run_id not in (first.mlflow_run_id, second.mlflow_run_id)
    assert [of(each).mlflow_run_id for each in ("1", "2", "")] == [each.mlflow_run_id for each in (first, second, older)]


def test_a_failed_run_runs_again_when_it_is_continued(root: Path, run_id: str) -> None:
    first = open_tracker(root)
    first.start(run_id, params={}, tags={})
    assert first.finish("FAILED", metrics={}, artifacts=None)
    second = open_tracker(root)
    second.start(run_id, params={}, tags={})
    assert MlflowClient(second.uri).get_run(second.mlflow_run_id).info.status == "RUNNING"


def test_rounds_of_an_outage_are_sent_afterwards(
    tracker: Tracker, run_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker.start(run_id, params={}, tags={})
    tracker.log_rounds(RECORDS[:1])
    with monkeypatch.context() as outage, caplog.at_level(logging.WARNING):
        outage.setattr(tracker._client, "log_batch", _raise)
        for count in range(2, 5):
            tracker._try_at = 0.0
            tracker.log_rounds(RECORDS[:count])
    warnings = [each.getMessage() for each in caplog.records if each.name == "fedlin.tracking"]
    assert len(warnings) == 1
    assert "\n" not in warnings[0]
    assert [step for step, _ in history(tracker, "change")] == [1]
    tracker._try_at = 0.0
    tracker.log_rounds(RECORDS)
    assert [step for step, _ in history(tracker, "change")] == [1, 2, 3, 4, 5]


def test_a_store_that_is_away_costs_a_tenth_of_the_time_at_most(tracker: Tracker, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker.start(run_id, params={}, tags={})
    now = 0.0
    attempts = []

    def slow(*args, **kwargs):
        nonlocal now
        attempts.append(now)
        now += 20.0
        raise ConnectionError("nobody answers")

    monkeypatch.setattr("tasks.tracking.runs.time.monotonic", lambda: now)
    monkeypatch.setattr(tracker._client, "log_batch", slow)
    for count in range(1, 501):
        tracker.log_rounds([{"round_num": n} for n in range(1, count + 1)])
        now += 1.0
    assert len(attempts) >= 2
    assert len(attempts) * 20.0 <= 0.1 * now + 20.0


def test_an_outage_at_the_end_is_told(tracker: Tracker, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker.start(run_id, params={}, tags={})
    tracker.log_rounds(RECORDS)
    with monkeypatch.context() as outage:
        outage.setattr(tracker._client, "log_artifacts", _raise)
        assert not tracker.finish("FINISHED", metrics={}, artifacts=tmp_path)
    assert tracker.finish("FINISHED", metrics={}, artifacts=tmp_path)


def test_finish_sends_the_rounds_that_are_left(tracker: Tracker, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker.start(run_id, params={}, tags={})
    with monkeypatch.context() as outage:
        outage.setattr(tracker._client, "log_batch", _raise)
        tracker.log_rounds(RECORDS)
    assert tracker.finish("FINISHED", metrics={}, artifacts=None)
    assert [step for step, _ in history(tracker, "change")] == [1, 2, 3, 4, 5]


def test_nested_runs_are_there_once_however_often_they_are_sent(
    tracker: Tracker, run_id: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.start(run_id, params={}, tags={})
    runs = [Nested("1", {"eta": "0.1"}, {"error": 2.0}, True), Nested("2", {"eta": "9"}, {"error": math.nan}, False)]
    original, calls = MlflowClient.log_batch, iter([False, True])

    def away_once(self: MlflowClient, *args: object, **kwargs: object) -> None:
        if next(calls, False):
            raise ConnectionError("away")
        original(self, *args, **kwargs)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(MlflowClient, "log_batch", away_once)
    assert not tracker.nest(runs), "the second one is away"
    later = open_tracker(root)
    later.start(run_id, params={}, tags={})
    assert later.nest(runs)
    assert later.nest([runs[0]._replace(metrics={"error": 3.0}), runs[1]])
    assert later.nest([])
    client = MlflowClient(tracker.uri)
    experiment = client.get_run(tracker.mlflow_run_id).info.experiment_id
    found = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{tracker.mlflow_run_id}'", order_by=["tags.`fedlin.run_id`"])
    assert [each.data.tags["fedlin.run_id"] for each in found] == [f"{run_id}/1", f"{run_id}/2"]
    assert [each.data.params["eta"] for each in found] == ["0.1", "9"]
    assert [each.info.status for each in found] == ["FINISHED", "FAILED"]
    assert [each.data.metrics for each in found] == [{"error": 3.0}, {}]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_values_that_are_not_finite_are_never_sent(tracker: Tracker, run_id: str, value: float) -> None:
    tracker.start(run_id, params={}, tags={})
    tracker.log_rounds([{"round_num": 1, "change": value, "answered": 4}])
    assert tracker.finish("FAILED", metrics={"a_rmse": value}, artifacts=None)
    metrics = MlflowClient(tracker.uri).get_run(tracker.mlflow_run_id).data.metrics
    assert metrics == {"round_num": 1, "answered": 4}


def test_long_parameters_are_left_out_not_cut(tracker: Tracker, run_id: str) -> None:
    tracker.start(run_id, params={"long": "x" * 6001, "longest": "x" * 6000}, tags={})
    params = MlflowClient(tracker.uri).get_run(tracker.mlflow_run_id).data.params
    assert params == {"longest": "x" * 6000}


@pytest.mark.parametrize(
    "uri", ["nowhere://store", "sqlite://mlflow.db", "not a store", "http://127.0.0.1:9", "http://user:secret@127.0.0.1:9"]
)
def test_an_unusable_store_is_one_line(uri: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"^the MLflow store .* cannot be used .*: set MLFLOW_TRACKING_URI to ") as caught:
        Tracker.open(uri, default_store=tmp_path / "mlflow.db", artifacts=tmp_path, experiment="meters")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_store_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Misuse, match=r"^the MLflow store .* cannot be used .*: set MLFLOW_TRACKING_URI to "):
        open_tracker(tmp_path / "file")


def test_the_environment_names_the_store(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root / 'mlflow.db'}")
    tracker = open_tracker(tmp_path)
    assert tracker.uri == f"sqlite:///{root / 'mlflow.db'}"
    assert not list(tmp_path.iterdir())


def test_a_deleted_experiment_is_not_used(root: Path) -> None:
    tracker = open_tracker(root, "old")
    MlflowClient(tracker.uri).delete_experiment(tracker._experiment_id)
    with pytest.raises(Misuse, match="'old' has been deleted"):
        open_tracker(root, "old")


@pytest.mark.slow
def test_processes_that_start_at_once_share_a_new_store(tmp_path: Path) -> None:
    start = (
        "import sys; from pathlib import Path; from tasks.tracking.runs import Nested, Tracker\n"
        "root = Path(sys.argv[1]); t = Tracker.open(None, default_store=root / 'mlflow.db', artifacts=root, experiment='meters')\n"
        "t.start(sys.argv[2], params={}, tags={}); print(t._experiment_id)"
    )
    command = [sys.executable, "-c", start, str(tmp_path)]
    directory = Path(tasks.__file__).parents[1]
    processes = [subprocess.Popen([*command, f"run-{n}"], cwd=directory, stdout=subprocess.PIPE, text=True) for n in range(3)]
    answers = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(answers) == 1


def _raise(*args, **kwargs):
    raise ConnectionError("nobody answers\nand a second line")
