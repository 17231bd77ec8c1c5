"""`fedlin train` as a person uses it: misuse in one line, JSON last, killed and resumed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedcore import Hm1, Misuse, fit
from fedcore.algorithm import ALGORITHMS, FleetSpec
from fedcore.data import Dataset
from fedcore.rounds import RunState
from fedcore.testing import equal
from flows.cli.app import main
from flows.config import read_config
from tasks.checkpoint import Checkpoint, RunFolder

FEDLIN = [sys.executable, "-m", "flows.cli.app"]
LIMIT = 300  # seconds that a whole command may take on a busy machine


def fedlin(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command line in this process; returns the exit status."""
    monkeypatch.setattr(sys, "argv", ["fedlin", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code if isinstance(left.value.code, int) else 0


def spoil(dataset: Dataset, device: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    part = dataset.path / f"device={device}/part-0.parquet"
    change(pl.read_parquet(part, hive_partitioning=False)).write_parquet(part)


MISUSE = {
    "no data set": (["train"], r"configuration: dataset is missing: name one that fedlin data list shows"),
    "unknown data set": (["train", "nope"], r"no data set 'nope' .*\(small\)"),
    "unknown algorithm": (
        ["train", "small", "--algorithm", "hm9"],
        f"no algorithm 'hm9': choose one of {', '.join(sorted(ALGORITHMS))}",
    ),
    "unknown option": (["train", "small", "--set", "gamma=1"], r"hm1 has no option 'gamma': choose from eta, .*alpha"),
    "option of another algorithm": (["train", "small", "--algorithm", "separate", "--set", "alpha=1"], r"separate has no option 'alpha'"),
    "option out of bounds": (["train", "small", "--set", "alpha=2"], r"alpha is a number in \(0, 1\], got 2"),
    "option of another type": (["train", "small", "--set", "alpha=much"], r"hm1: alpha: input should be a valid number.*got 'much'"),
    "option without a value": (["train", "small", "--set", "alpha"], r"--set takes name=value, got 'alpha'"),
    "unsafe rate": (
        ["train", "small", "--set", "eta=50"],
        r"device a: eta=50 is not stable on this device's rows: .*below [0-9.]+; choose",
    ),
    "unknown flag": (["train", "small", "--gamma", "1"], r"No such option: --gamma"),
    "unknown command": (["trian", "small"], r"No such command 'trian'"),
    "no rounds": (["train", "small", "--rounds", "0"], r"rounds is a whole number from 1 to 1,000,000,000, got 0"),
    "rounds that are no number": (["train", "small", "--rounds", "many"], r"Invalid value for '--rounds'"),
    "participation": (["train", "small", "--participation", "1.5"], r"participation is a number in \(0, 1\], got 1.5"),
    "unknown target": (["train", "small", "--target", "z"], r"no target 'z': choose one of y"),
    "unknown scaling": (["train", "small", "--target-scaling", "z"], r"no target scaling 'z': choose one of none, train, own"),
    "missing configuration": (["train", "--config", "nope.toml"], r"configuration nope.toml cannot be read \(No such file or directory\)"),
    "unknown run": (["train", "--resume", "nope"], r"no run 'nope' in .*runs: fedlin status lists them"),
    "a path as run": (["train", "--resume", "../x"], r"run id '../x' starts with a dot: choose another id"),
    "resume and more": (["train", "small", "--resume", "nope"], r"--resume goes on with the run's own configuration"),
    "unknown case": (["simulate", "hm1-5", "--dataset", "x"], r"no simulated case 'hm1-5': choose one of demo, hm1-1"),
    "existing data set": (["simulate", "demo", "--dataset", "small"], r"data set 'small' has partitions already"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_one_line_and_leaves_nothing(
    case: str, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet()
    before = sorted(home.rglob("*"))
    words, message = MISUSE[case]
    assert fedlin(*words, monkeypatch=monkeypatch) == 2
    out, err = capfd.readouterr()
    assert re.fullmatch(rf"fedlin: error: .*{message}.*\n", err), err
    assert out == ""
    assert sorted(home.rglob("*")) == before


SPOILED = {
    "corrupt": (
        lambda part: part.write_bytes(part.read_bytes()[:-20]),
        r"error: device=b/part-0.parquet: not a readable parquet file \(\d+ bytes",
    ),
    "missing column": (lambda part: pl.read_parquet(part).drop("x2").write_parquet(part), r"device=b/part-0.parquet: .*x2"),
    "text where numbers belong": (
        lambda part: pl.read_parquet(part).with_columns(pl.lit("SECRET").alias("x2")).write_parquet(part),
        r"device=b/part-0.parquet: .*x2",
    ),
    "not a number": (
        lambda part: pl.read_parquet(part).with_columns(pl.lit(float("nan")).alias("x2")).write_parquet(part),
        r"device=b/part-0.parquet: .*x2.*17",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_bad_data_are_one_line_and_leave_nothing(
    case: str, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = fleet((7, 12, 9))
    damage, message = SPOILED[case]
    damage(dataset.path / "device=b/part-0.parquet")
    before = sorted(home.rglob("*"))
    assert fedlin("train", "small", monkeypatch=monkeypatch) == 2
    out, err = capfd.readouterr()
    assert re.fullmatch(rf"fedlin: .*{message}.*\n", err), err
    assert "SECRET" not in err
    assert out == ""
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("closed", ["", "datasets/small/device=c", "runs", "mlflow.db", ".prefect"])
def test_a_store_that_cannot_be_written(
    closed: str,
    home: Path,
    fleet: Callable[..., Dataset],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    unprivileged: Callable[[], AbstractContextManager[None]],
) -> None:
    fleet()
    for folder in ("runs", ".prefect"):
        (home / folder).mkdir()
    (home / "mlflow.db").touch()
    for folder in (home, *home.rglob("*")):
        folder.chmod(0o777 if folder.is_dir() else 0o666)
    for folder in home.parents:  # so that nobody may look, and write where allowed
        if folder.owner() == home.owner() and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | 0o055)
    (home / closed).chmod(0o555 if (home / closed).is_dir() else 0o444)
    before = sorted(home.rglob("*"))
    with unprivileged():
        status = fedlin("train", "small", monkeypatch=monkeypatch)
    assert status == 2
    err = capfd.readouterr().err
    assert re.fullmatch(r"fedlin: error: .* cannot be written: give it write permission, or name another .*\n", err), err
    assert sorted(home.rglob("*")) == before


@pytest.mark.slow
def test_killed_in_a_round_and_resumed(environment: dict[str, str], home: Path, fleet: Callable[..., Dataset]) -> None:
    """SIGKILL between two checkpoints, when some devices have their result of the next round pending and others do not; then --resume."""
    dataset = fleet((12, 7, 30, 9, 15, 8, 11, 10))
    config = read_config(
        {"dataset": "small", "algorithm": "separate", "rounds": 12, "options": {"batch": 3}, "participation": 0.8, "seed": 4}
    )
    words = ["train", "small", "--algorithm", "separate", "--rounds", "12", "--set", "batch=3", "--participation", "0.8", "--seed", "4"]
    begun = subprocess.Popen([*FEDLIN, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    folder = await_round(home, 3)
    devices_before = states(dataset)
    while states(dataset) == devices_before:
        assert begun.poll() is None
        time.sleep(0.001)
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    assert not (folder / "result.json").exists()

    resumed = subprocess.run(
        [*FEDLIN, "train", "--resume", folder.name, "--json"], env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "Traceback" not in resumed.stderr
    result = json.loads(resumed.stdout.splitlines()[-1])
    assert set(result) >= {
        "run_id", "algorithm", "rounds", "outcome", "message", "a_rmse", "a_rmse_separate",
        "wall_s", "round_s", "uplink_bytes", "artifacts",
    }  # fmt: skip
    assert resumed.stdout.count("\n") == 1
    assert (result["run_id"], result["rounds"], result["outcome"]) == (folder.name, 12, "completed")
    assert result["task_runs_recorded"] == result["task_runs"]
    straight = fit(
        config.build_algorithm(), {name: dataset.load(name) for name in dataset.device_ids}, rounds=12, seed=4, participation=0.8
    )
    with np.load(Path(result["artifacts"]) / "theta.npz") as stored:
        np.testing.assert_array_equal(stored["Theta"], np.array([straight.theta[name] for name in dataset.device_ids]).T)


def await_round(home: Path, round_num: int) -> Path:
    """The run's folder once its checkpoint has reached a round."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for checkpoint in home.glob("runs/*/checkpoint.npz"):
            with np.load(checkpoint) as stored:
                if stored["round_num"] >= round_num:
                    return checkpoint.parent
        time.sleep(0.01)
    raise AssertionError("the run did not get that far")


def states(dataset: Dataset) -> list[int]:
    """When each device's state was last written."""
    return [file.stat().st_mtime_ns for file in sorted(dataset.path.glob("device=*/.fedlin/*.state"))]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status", "what"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")])
def test_interrupted_says_how_to_go_on(
    number: int, status: int, what: str, environment: dict[str, str], home: Path, fleet: Callable[..., Dataset]
) -> None:
    """And ends, resumed, where a run ends that nobody has interrupted."""
    dataset = fleet()
    words = ["train", "small", "--rounds", "100", "--set", "batch=3", "--set", "gradient=sum"]
    talkative = environment | {"PYTHONFAULTHANDLER": "1"}
    begun = subprocess.Popen([*FEDLIN, *words], env=talkative, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = await_round(home, 2)
    begun.send_signal(number)
    try:
        out, err = begun.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        begun.send_signal(signal.SIGABRT)  # it tells what each of its threads is at, and ends
        out, err = begun.communicate()
    assert begun.returncode == status, err
    assert out == ""
    words = f"fedlin: error: {what}: a run that has begun its rounds goes on with fedlin train --resume {folder.name}"
    assert err.splitlines()[-1] == words
    assert "Traceback" not in err
    assert not (folder / "result.json").exists()
    resumed = subprocess.run([*FEDLIN, "train", "--resume", folder.name], env=environment, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    devices = {device_id: dataset.load(device_id) for device_id in dataset.device_ids}
    expected = fit(Hm1(batch=3, gradient="sum"), devices, rounds=100)
    with np.load(folder / "results/theta.npz") as stored:
        np.testing.assert_array_equal(stored["Theta"], np.array([expected.theta[name] for name in dataset.device_ids]).T)


def test_what_is_unexpected_says_its_kind_only(
    home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bug in device code that the check before the start meets, and one in the command itself."""
    dataset = fleet()

    def broken(*_: object) -> None:
        raise SystemExit("row 987654.321")

    monkeypatch.setattr(Hm1, "init_devices", broken)
    assert fedlin("train", "small", monkeypatch=monkeypatch) == 1
    assert capfd.readouterr().err == (
        "fedlin: error: device a: SystemExit in its check; the details are in its own folder, .fedlin/preflight.error.txt\n"
    )
    assert "987654" in (dataset.path / "device=a/.fedlin/preflight.error.txt").read_text()

    def wrong(*_: object) -> None:
        raise ValueError("row 987654.321")

    monkeypatch.setattr("flows.cli.train._preflight", wrong)
    assert fedlin("train", "small", monkeypatch=monkeypatch) == 1
    assert capfd.readouterr().err == ("fedlin: error: unexpected ValueError: FEDLIN_DEBUG=1 shows where, with a text that may quote data\n")


@pytest.mark.parametrize("damage", [b"", b"PK", None])
def test_a_damaged_checkpoint_is_named(
    damage: bytes | None, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at any place, or with any byte changed, it is refused in one line, or is still what it was."""
    fleet()
    folder = RunFolder(home / "runs/run")
    folder.create({"given": {"dataset": "small"}}, {})
    spec = FleetSpec(("a", "b"), 2)
    checkpoint = Checkpoint(RunState.initial(Hm1(), spec), ({"round_num": 1},), None)
    folder.save(checkpoint)
    file = folder.path / "checkpoint.npz"
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        if damage is None:
            position = int(rng.integers(len(whole)))
            file.write_bytes(whole[:position] + bytes([whole[position] ^ int(rng.integers(1, 256))]) + whole[position + 1 :])
        else:
            file.write_bytes(damage + whole[len(damage) : int(rng.integers(len(whole)))])
        try:
            loaded = folder.load()
        except Misuse as error:
            if not str(error).startswith("run run: checkpoint.npz is damaged"):
                raise
        else:
            assert loaded is not None
            assert equal(loaded.state, checkpoint.state)
