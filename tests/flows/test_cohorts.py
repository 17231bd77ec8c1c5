"""Several devices in one task: nothing changes but the number of tasks and files, and each device still fails alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun

import fedcore.data.store as store
from fedcore import Eb, Hm1, Misuse
from fedcore.alike import all_single
from fedcore.data import Dataset
from fedcore.data.slots import write_slots
from fedcore.errors import DataError, DeviceRefusal, PlaceAway
from fedcore.testing import equal
from flows.cli.app import main
from flows.compare import compare
from flows.config import TrainConfig, read_config
from flows.fleet import automatic
from flows.orchestrator import Orchestrator
from flows.searches import CompareConfig
from flows.train import train
from tasks.checkpoint import RunFolder
from tasks.ground import Ground
from tasks.keeping import Keeping, erase

VARIANTS: dict[str, dict[str, Any]] = {
    "hm1": {"rounds": 4},
    "hm1, minibatch, part of the fleet": {"rounds": 5, "participation": 0.5, "seed": 3, "options": {"batch": 3}},
    "eb, part of the fleet": {"rounds": 4, "algorithm": "eb", "participation": 0.5},
    "ditto": {"rounds": 4, "algorithm": "ditto", "options": {"batch": 3}},
    "hm2": {"rounds": 4, "algorithm": "hm2"},
    "pooled": {"algorithm": "pooled"},
}


def run(home: Path, config: TrainConfig | None, run_id: str) -> dict[str, Any]:
    train(config, run_id=run_id, return_state=True)
    return json.loads((home / "runs" / run_id / "result.json").read_text())


def ledger(home: Path, run_id: str) -> list[dict[str, Any]]:
    return json.loads(str(np.load(home / "runs" / run_id / "checkpoint.npz")["ledger"]))["history"]


def found(home: Path, run_id: str) -> tuple[list[str], np.ndarray]:
    with np.load(home / "runs" / run_id / "results/theta.npz") as stored:
        return stored["devices"].tolist(), stored["Theta"]


FIGURES = ("a_rmse", "a_rmse_separate", "uplink_bytes", "downlink_bytes", "rounds", "outcome", "message", "devices_missing")


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_to_a_task_a_device_to_the_bit(variant: str, server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    fleet()
    one, shared = (run(home, read_config({"dataset": "small", "devices_per_task": n, **VARIANTS[variant]}), f"of-{n}") for n in (1, 2))
    assert {name: one[name] for name in FIGURES} == {name: shared[name] for name in FIGURES}
    assert found(home, "of-1")[0] == found(home, "of-2")[0]
    np.testing.assert_array_equal(found(home, "of-1")[1], found(home, "of-2")[1])
    assert one["task_runs"] > shared["task_runs"]


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("algorithm", ["hm1", "ditto"])
def test_a_state_that_rounds_leave_as_it_is_is_not_written_again(
    algorithm: str, shared: int, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, files = fleet(), Counter[str]()

    def counted(path: Path, *content: Any) -> Any:
        written = write_slots(path, *content)
        files[str(path.relative_to(dataset.path))] += 1
        return written

    monkeypatch.setattr("tasks.keeping.write_slots", counted)
    run(home, read_config({"dataset": "small", "algorithm": algorithm, "rounds": 6, "devices_per_task": shared}), "run")
    assert len(files) == (5 if shared == 1 else 3)
    # At enrolment, and on devices of their own once more in the first round, since their folder is another one with the first file in it.
    expected = {8} if algorithm == "ditto" else {2} if shared == 1 else {1}
    assert set(files.values()) == expected


@pytest.mark.parametrize("algorithm", ["hm1", "fedavg", "mtrl"])
def test_an_older_copy_of_a_state_that_rounds_leave_as_it_is_does_as_well(
    algorithm: str, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, config = fleet(), read_config({"dataset": "small", "algorithm": algorithm, "rounds": 4})
    run(home, config, "straight")
    save, saved = RunFolder.save, dict[Path, bytes]()

    def restored(folder: RunFolder, checkpoint: Any) -> None:
        save(folder, checkpoint)
        for state in dataset.path.glob("device=*/.fedlin/run.*.state"):
            state.write_bytes(saved.setdefault(state, state.read_bytes()))

    monkeypatch.setattr(RunFolder, "save", restored)
    run(home, config, "run")
    assert len(saved) == 5
    np.testing.assert_array_equal(found(home, "run")[1], found(home, "straight")[1])


OF_ONE_NAME: dict[str, dict[str, Any]] = {
    "hm1": {"rounds": 3, "options": {"batch": 3}},
    "eb": {"rounds": 3},
    "ditto": {"rounds": 3},
    "pooled": {},
}


@pytest.mark.parametrize(("algorithm", "shared"), [("hm1", 1), ("eb", 2), ("ditto", 1), ("pooled", 2)])
def test_runs_of_one_name_are_out_of_each_others_way(
    algorithm: str, shared: int, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two project folders with one data set: with other settings, in rounds of the same numbers, and where an enrolment fails."""
    fleet()
    settings = {"dataset": "small", "algorithm": algorithm, "devices_per_task": shared} | OF_ONE_NAME[algorithm]
    straight = run(home, read_config(settings), "straight")
    stopped(settings, "run", monkeypatch)
    (home / "runs/run").rename(home / "elsewhere")
    assert run(home, read_config(settings | {"target_scaling": "train"}), "run")["ok"]
    shutil.rmtree(home / "runs/run")
    with monkeypatch.context() as refusing:
        refusing.setattr(Dataset, "loaded", refused)
        assert train(read_config(settings), run_id="run", return_state=True).is_failed()
    assert not (home / "runs/run").exists()
    (home / "elsewhere").rename(home / "runs/run")
    assert run(home, None, "run")["outcome"] == straight["outcome"]
    np.testing.assert_array_equal(found(home, "run")[1], found(home, "straight")[1])


def stopped(settings: dict[str, Any], run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that breaks off after its first round."""
    save = RunFolder.save

    def stop(folder: RunFolder, checkpoint: Any) -> None:
        save(folder, checkpoint)
        raise OSError("stopped")

    with monkeypatch.context() as stopping:
        stopping.setattr(RunFolder, "save", stop)
        assert train(read_config(settings), run_id=run_id, return_state=True).is_failed()


def refused(dataset: Dataset, device_id: str) -> Any:
    raise DataError(f"device={device_id}/part-0.parquet: 1 row has no target: mend it")


def test_a_run_goes_on_from_the_one_that_is_meant(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    fleet()
    settings = {"dataset": "small", "algorithm": "eb", "rounds": 3}
    run(home, read_config(settings), "first")
    run(home, read_config(settings | {"parent": "first"}), "then")
    (home / "runs/first").rename(home / "elsewhere")
    run(home, read_config(settings | {"target_scaling": "train"}), "first")
    shutil.rmtree(home / "runs/first")
    (home / "elsewhere").rename(home / "runs/first")
    run(home, read_config(settings | {"parent": "first"}), "again")
    np.testing.assert_array_equal(found(home, "again")[1], found(home, "then")[1])


@pytest.mark.parametrize("shared", [1, 2])
def test_a_run_from_before_runs_had_uuids_goes_on(
    shared: int, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, settings = fleet(), {"dataset": "small", "algorithm": "eb", "rounds": 3, "devices_per_task": shared}
    run(home, read_config(settings), "straight")
    stopped(settings, "run", monkeypatch)
    folder = RunFolder(home / "runs/run")
    manifest = folder.manifest()
    uuid = manifest.pop("run_uuid")
    folder.write_json("manifest.json", manifest)
    kept = list(dataset.path.glob(f"**/.fedlin/run.{uuid}*"))
    assert len(kept) == (10 if shared == 1 else 1), "states and rows of five devices, or a folder"
    for each in kept:
        each.rename(each.with_name(each.name.replace(f".{uuid}", "")))
    run(home, None, "run")
    np.testing.assert_array_equal(found(home, "run")[1], found(home, "straight")[1])


def test_a_step_to_a_new_state_that_would_not_be_kept_is_refused(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet()
    original = Hm1.local_steps

    def moving(self: Hm1, downs: Any, devices: Any, datas: Any, rngs: Any) -> Any:
        states, ups, infos = original(self, downs, devices, datas, rngs)
        return [state._replace() for state in states], ups, infos

    monkeypatch.setattr(Hm1, "local_steps", moving)
    assert run(home, read_config({"dataset": "small", "rounds": 2}), "run")["outcome"] == "quorum_lost"
    assert "device a: its step made a new state, and its algorithm says that rounds leave states as they are" in capfd.readouterr().err


def test_tasks_and_files_are_those_of_cohorts(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    result = run(home, read_config({"dataset": "small", "rounds": 2, "devices_per_task": 2}), "run")
    assert result["task_runs"] == 3 + 2 * (3 + 1) + 3
    assert server.drain(result["flow_run_id"], result["task_runs"]) == {"COMPLETED": result["task_runs"]}
    names = [each.name for each in task_runs(result["flow_run_id"])]
    assert {"enrol cohort 00000 (2 devices)", "round 2 cohort 00002 (1 devices)", "finalize cohort 00001 (2 devices)"} <= set(names)
    manifest = RunFolder(home / "runs/run").manifest()
    assert sorted(str(each.relative_to(dataset.path)) for each in dataset.path.glob("**/.fedlin/**/*.state")) == [
        f".fedlin/run.{manifest['run_uuid']}/cohort-0000{c}.state" for c in range(3)
    ], "a file a cohort, and the rows are gone"
    assert manifest["devices_per_task"] == 2


def task_runs(flow_run_id: str) -> list[TaskRun]:
    with get_client(sync_client=True) as client:
        return client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))


def test_large_fleets_go_into_forty_cohorts() -> None:
    assert [automatic(K) for K in (2, 1000, 1001, 10_000, 100_000)] == [1, 1, 26, 250, 2500]
    with pytest.raises(Misuse, match="devices_per_task: input should be greater than or equal to 1, got 0"):
        read_config({"dataset": "small", "devices_per_task": 0})


def test_a_device_fails_alone_and_only_it_is_tried_again(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a batch with others: device b always, device c once; the failure of either would end the batch of all."""
    dataset = fleet()
    always, once = dataset.load("b").train.n, dataset.load("c").train.n
    original = Hm1.local_steps
    seen: list[int] = []

    def local_steps(self: Hm1, downs: Any, devices: Any, datas: Any, rngs: Any) -> Any:
        rows = [data.train.n for data in datas]
        if len(rows) == 1:
            seen.extend(rows)
        if always in rows or (once in rows and (len(rows) > 1 or seen.count(once) == 1)):
            raise ValueError("row 987654.321")
        return original(self, downs, devices, datas, rngs)

    monkeypatch.setattr(Hm1, "local_steps", local_steps)
    result = run(home, read_config({"dataset": "small", "rounds": 1, "devices_per_task": 5}), "run")
    assert [each["silent"] for each in ledger(home, "run")] == [["b"]]
    assert {name: seen.count(dataset.load(name).train.n) for name in "abcde"} == {"a": 1, "b": 2, "c": 2, "d": 1, "e": 1}
    assert found(home, "run")[0] == list("abcde"), "whoever was silent has a result from before"
    assert "987654.321" in (dataset.path / "device=b/.fedlin/run.error.txt").read_text()
    told = capfd.readouterr().err
    assert "no answer, device b: ValueError in its local step; the details are in its own folder, .fedlin/run.error.txt" in told
    assert "987654" not in told
    server.drain(result["flow_run_id"], result["task_runs"])
    runs = task_runs(result["flow_run_id"])
    assert "987654" not in "".join(each.model_dump_json() for each in runs)
    assert {each.name: each.run_count for each in runs if each.name.startswith("round")} == {"round 1 cohort 00000 (5 devices)": 2}
    assert all(each.state and each.state.is_completed() for each in runs), "a task fails where none of its devices answers"


def test_where_no_device_of_a_cohort_answers_its_task_fails_with_each_ones_reason(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet()
    original, asked = Dataset.loaded, dict.fromkeys("abcde", 0)

    def loaded(dataset: Dataset, device_id: str) -> Any:
        asked[device_id] += 1
        if device_id == "a":
            raise PlaceAway("TimeoutError")
        if device_id == "b":
            raise DataError("device=b/part-0.parquet: 1 row has no target: mend it")
        return original(dataset, device_id)

    monkeypatch.setattr(Dataset, "loaded", loaded)
    state = train(read_config({"dataset": "small", "devices_per_task": 2}), run_id="run", return_state=True)
    refusal = state.result(raise_on_failure=False)
    assert str(refusal).startswith("2 of 5 devices cannot take part: device a: the object store cannot be used now (TimeoutError)")
    assert asked == {"a": 3, "b": 1, "c": 1, "d": 1, "e": 1}
    assert not list(home.glob("datasets/**/cohort-*")), "what others have kept is cleared up"


def test_a_file_that_cannot_be_written_silences_its_cohort_alone(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For one round; then all goes on from the states that are there."""
    fleet()
    config = read_config({"dataset": "small", "rounds": 3, "algorithm": "eb", "devices_per_task": 2})
    original, writes = Keeping.keep, {"of b": 0}

    def keep(self: Keeping, kept: Any) -> None:
        kept = list(kept)
        writes["of b"] += any(each.device == "b" for each in kept)
        if any(each.device == "b" for each in kept) and writes["of b"] in (3, 4, 5):  # enrolment, the first round, then all tries
            raise OSError(28, "No space left on device")
        original(self, kept)

    monkeypatch.setattr(Keeping, "keep", keep)
    result = run(home, config, "run")
    assert [each["silent"] for each in ledger(home, "run")][:3] == [[], ["a", "b"], []]
    assert (result["outcome"], result["devices_missing"]) == ("completed", [])
    assert "device b: OSError in its local step" in capfd.readouterr().err


def test_a_run_that_stopped_goes_on_with_its_cohorts(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its devices are in the files that they were in, and it ends where one ends that nobody has disturbed."""
    fleet()
    config = read_config({"dataset": "small", "rounds": 4, "algorithm": "eb", "devices_per_task": 2})
    run(home, config, "straight")
    original, steps = Eb.local_steps, {"all": 0}

    def local_steps(*args: Any) -> Any:
        steps["all"] += 1
        if steps["all"] > 7:
            raise Misuse("will not")
        return original(*args)

    with monkeypatch.context() as broken:
        broken.setattr(Eb, "local_steps", local_steps)
        assert run(home, config, "run")["outcome"] == "quorum_lost"
    assert run(home, None, "run")["outcome"] == "completed"
    np.testing.assert_array_equal(found(home, "run")[1], found(home, "straight")[1])


def test_a_run_goes_on_from_one_with_other_cohorts(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    fleet()
    ends: list[np.ndarray] = []
    for first, then in ((1, 1), (2, 3), (3, 1)):
        settings = {"dataset": "small", "rounds": 3, "algorithm": "eb"}
        run(home, read_config({**settings, "devices_per_task": first}), f"first-{first}-{then}")
        config = read_config({**settings, "devices_per_task": then, "parent": f"first-{first}-{then}", "devices": list("abcde")[1:]})
        train(config, run_id=f"then-{first}-{then}", return_state=True)
        ends.append(found(home, f"first-{first}-{then}")[1])
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("algorithm", ["hm1", "eb"])
def test_a_partition_is_read_once_a_run(
    shared: int, algorithm: str, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = fleet()
    original, read = store._read, []

    def reading(folder: Any, where: str) -> bytes:
        read.append(where)
        return original(folder, where)

    monkeypatch.setattr(store, "_read", reading)
    result = run(home, read_config({"dataset": "small", "rounds": 4, "algorithm": algorithm, "devices_per_task": shared}), "run")
    assert result["rounds"] >= 4
    assert sorted(read) == [f"device={device_id}/part-0.parquet" for device_id in dataset.device_ids]
    assert not list(dataset.path.glob("**/*.rows")), "what was kept of it dies with the run"


@pytest.mark.parametrize("shared", [1, 2])
def test_a_partition_that_changes_is_noticed_in_the_next_round(
    shared: int, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where size and time of change are as before; a file that is the same, written anew, does no harm."""
    dataset = fleet((12, 12, 12, 12))
    save = RunFolder.save

    def changing(folder: RunFolder, checkpoint: Any) -> None:
        save(folder, checkpoint)
        if checkpoint.state.round_num == 2:
            part, same = dataset.path / "device=b/part-0.parquet", dataset.path / "device=c/part-0.parquet"
            before = part.stat()
            content = bytearray(part.read_bytes())
            content[len(content) // 2] ^= 1
            part.write_bytes(content)
            os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert (part.stat().st_size, part.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
            same.write_bytes(same.read_bytes())

    monkeypatch.setattr(RunFolder, "save", changing)
    run(home, read_config({"dataset": "small", "rounds": 4, "devices_per_task": shared}), "run")
    assert [each["silent"] for each in ledger(home, "run")] == [[], [], ["b"], ["b"]]


@pytest.mark.parametrize("shared", [1, 2])
def test_rows_of_a_run_that_was_killed_go_with_the_next(
    shared: int, server: Orchestrator, home: Path, fleet: Callable[..., Dataset]
) -> None:
    dataset = fleet()
    config = read_config({"dataset": "small", "rounds": 1, "devices_per_task": shared})
    names = [
        f"device={name}/.fedlin/{{}}dead.rows" if shared == 1 else f".fedlin/dead/{{}}cohort-0000{c}.rows" for c, name in enumerate("abc")
    ]
    left = [dataset.path / name for each in names for name in (each.format(""), f"{each.format('.')}.tmp")]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"rows")
    run(home, config, "run")
    assert [file for file in left if file.exists()] == []


def test_what_cohorts_keep_of_a_device_goes_with_it(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet()
    run(home, read_config({"dataset": "small", "rounds": 2, "devices_per_task": 2}), "run")
    uuid = RunFolder(home / "runs/run").manifest()["run_uuid"]
    folder = dataset.path / f".fedlin/run.{uuid}"
    (folder / "cohort-00007.rows").write_bytes(b"damaged")
    (folder / ".cohort-00001.rows.tmp").write_bytes(b"of a process that was killed")
    before = {device: Keeping(Ground("run", uuid, dataset, 5), place // 2).recall(device) for place, device in enumerate("abcde")}
    for device in "ae":  # one of two in its cohort, and one alone in its
        erase(home / "datasets", "small", device)
    assert sorted(file.name for file in folder.iterdir()) == ["cohort-00000.state", "cohort-00001.state"]
    for place, device in enumerate("bcd", 1):
        assert equal(all_single(Keeping(Ground("run", uuid, dataset, 5), place // 2).recall(device)), all_single(before[device]))
    with pytest.raises(DeviceRefusal, match="its state of run run is missing or damaged"):  # not: of b, whose folder had another's name
        Keeping(Ground("run", uuid, dataset, 5), 0).recall("a")


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize("shared", [1, 2])
def test_no_device_is_removed_under_the_hands_of_a_run(
    shared: int,
    command: str,
    server: Orchestrator,
    home: Path,
    fleet: Callable[..., Dataset],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its tasks would write the device's state anew, and a removal would put an older state of its cohort in place of theirs."""
    dataset = fleet(validation=6)
    if command == "train":
        run(home, read_config({"dataset": "small", "rounds": 1, "devices_per_task": shared}), "run")
    else:
        config = CompareConfig(dataset="small", rounds=1, algorithms=("separate", "hm1"), budget=1, devices_per_task=shared)
        compare(config, run_id="run", return_state=True)
    shutil.copytree(dataset.path, home / "datasets/other")
    monkeypatch.setattr(sys, "argv", ["fedlin", "data", "remove", "small", "--device", "b"])
    with RunFolder(home / "runs/run").held():
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        expected = "fedlin: error: run run goes on with data set 'small': wait for it, or end it and resume it afterwards"
        assert capsys.readouterr().err.splitlines()[-1] == expected
        assert "b" in dataset.device_ids
        monkeypatch.setattr(sys, "argv", ["fedlin", "data", "remove", "other", "--device", "b"])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, "no run goes on with this one"
    monkeypatch.setattr(sys, "argv", ["fedlin", "data", "remove", "small", "--device", "b"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "b" not in dataset.device_ids


@pytest.mark.parametrize(("shared", "moment"), [(1, "read"), (2, "read"), (1, "written")])
def test_a_device_that_is_removed_while_it_enrols_does_not_come_back(
    shared: int, moment: str, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows of the run yet: its folder is made once all have enrolled."""
    dataset = fleet()

    def remove() -> None:
        erase(home / "datasets", "small", "b")
        shutil.rmtree(dataset.path / "device=b")

    loaded, keep = Dataset.loaded, Keeping.keep

    def removed_when_read(self: Dataset, device_id: str) -> Any:
        found = loaded(self, device_id)
        if device_id == "b":
            remove()
        return found

    def removed_when_written(self: Keeping, kept: Any) -> None:
        kept = list(kept)
        if any(each.device == "b" for each in kept):
            remove()
        keep(self, kept)

    if moment == "read":
        monkeypatch.setattr(Dataset, "loaded", removed_when_read)
    else:
        monkeypatch.setattr(Keeping, "keep", removed_when_written)
    config = read_config({"dataset": "small", "rounds": 1, "devices_per_task": shared})
    refusal = str(train(config, run_id="run", return_state=True).result(raise_on_failure=False))
    why = "its folder has gone since it was read a moment ago" if moment == "read" else "the device's folder is gone"
    assert f"device b: {why}" in refusal
    assert "b" not in dataset.device_ids
    assert not list(dataset.path.glob("**/*.state")) + list(dataset.path.glob("**/*.rows")), "of the others neither: no run has begun"
    assert not list(dataset.path.glob(".fedlin/*"))


def test_a_folder_of_a_cohorts_states_that_has_become_a_link_is_not_followed(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset, settings = fleet(), {"dataset": "small", "algorithm": "eb", "rounds": 3, "devices_per_task": 2}
    for link in (".fedlin", ".fedlin/{}"):
        stopped(settings, f"run-{len(link)}", monkeypatch)
        uuid = RunFolder(home / f"runs/run-{len(link)}").manifest()["run_uuid"]
        own, outside = dataset.path / link.format(f"run-{len(link)}.{uuid}"), home / f"outside-{len(link)}"
        own.rename(outside)
        own.symlink_to(outside)
        before = {file: file.read_bytes() for file in outside.rglob("cohort-*")}
        assert len(before) == 6, "states and rows"
        assert run(home, None, f"run-{len(link)}")["outcome"] == "quorum_lost"
        why = "is a link: replace it by a folder"
        assert f"the data set's .fedlin, or the run's folder in it, {why}" in capfd.readouterr().err
        with pytest.raises(Misuse, match=why):
            erase(home / "datasets", "small", "b")
        if link == ".fedlin":
            refusal = train(read_config(settings), run_id="another", return_state=True).result(raise_on_failure=False)
            assert why in str(refusal)
        assert {file: file.read_bytes() for file in outside.rglob("cohort-*")} == before
        own.unlink()


def test_compare_in_cohorts(server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    dataset = fleet(validation=6)
    told: list[Any] = []
    for shared in (1, 2):
        config = CompareConfig(dataset="small", rounds=2, algorithms=("separate", "hm1"), budget=2, devices_per_task=shared)
        compare(config, run_id=f"of-{shared}", return_state=True)
        told.append(json.loads((home / f"runs/of-{shared}/result.json").read_text())["methods"])
    assert told[0] == told[1]
    assert not list(dataset.path.glob("**/*.rows"))


def test_what_cohorts_keep_for_others_stays_where_their_algorithm_is_not_imported(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset]
) -> None:
    dataset = fleet()
    run(home, read_config({"dataset": "small", "algorithm": "hm2", "rounds": 2, "devices_per_task": 2}), "run")
    ground = Ground("run", RunFolder(home / "runs/run").manifest()["run_uuid"], dataset, 5)
    before = {device: Keeping(ground, place // 2).recall(device) for place, device in enumerate("abcde")}
    words = [sys.executable, "-m", "flows.cli.app", "data", "remove", "small", "--device", "a"]
    subprocess.run(words, check=True, env=os.environ | {"FEDLIN_HOME": str(home)}, capture_output=True)
    for place, device in enumerate("bcde", 1):
        assert equal(all_single(Keeping(ground, place // 2).recall(device)), all_single(before[device]))
    with pytest.raises(DeviceRefusal, match="is missing or damaged"):
        Keeping(ground, 0).recall("a")
