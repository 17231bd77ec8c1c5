"""The same run on threads, on processes, and on Dask and Ray clusters that the test starts; also where a worker is killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore import Hm2, Misuse, fit
from fedcore.data import Dataset, load_fleet, open_dataset
from flows.config import read_config
from flows.fleet import WorkersLost
from flows.orchestrator import Orchestrator
from flows.runners import EXTRAS, started, task_runner
from flows.train import train
from tasks import device

pytestmark = pytest.mark.filterwarnings("ignore")  # of clusters that are started and ended within a test


@pytest.fixture(params=["process", "dask", "ray"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A runner that is installed."""
    if request.param in EXTRAS:
        pytest.importorskip(EXTRAS[request.param][0], reason=f"needs the extra {request.param}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # for workers of a project that is not installed
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    return request.param


def run(home: Path, run_id: str, **settings: Any) -> tuple[dict[str, Any], np.ndarray]:
    train(read_config({"dataset": "small", "rounds": 3, **settings}), run_id=run_id, return_state=True)
    with np.load(home / "runs" / run_id / "results/theta.npz") as stored:
        assert stored["devices"].tolist() == list("abcde")
        return json.loads((home / "runs" / run_id / "result.json").read_text()), stored["Theta"]


@pytest.mark.slow
def test_the_same_result_as_on_threads(runner: str, server: Orchestrator, home: Path, fleet: Callable[..., Dataset]) -> None:
    fleet()
    expected, Theta = run(home, "threads", algorithm="hm1")
    result, other = run(home, "run", algorithm="hm1", runner=runner)
    np.testing.assert_allclose(other, Theta, rtol=1e-12, atol=0)
    assert result["a_rmse"] == pytest.approx(expected["a_rmse"], rel=1e-12)
    assert (result["outcome"], result["task_runs"]) == (expected["outcome"], expected["task_runs"])


@pytest.mark.slow
def test_on_the_command_line(
    runner: str, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], environment: dict[str, str]
) -> None:
    """A process in which other modules are imported than in that of the tests, with a Prefect server of its own."""
    fleet()
    expected, Theta = run(home, "threads", algorithm="eb", devices_per_task=2)
    words = ["train", "small", "--algorithm", "eb", "--rounds", "3", "--devices-per-task", "2", "--runner", runner, "--json"]
    done = subprocess.run([sys.executable, "-m", "flows.cli.app", *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    result = json.loads(done.stdout)
    assert result["task_runs_recorded"] == result["task_runs"] == expected["task_runs"]
    with np.load(home / "runs" / result["run_id"] / "results/theta.npz") as stored:
        np.testing.assert_allclose(stored["Theta"], Theta, rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the children of a process from /proc")
def test_killed_with_its_workers_and_resumed(home: Path, fleet: Callable[..., Dataset], environment: dict[str, str]) -> None:
    """Of workers that have read no state yet; those of the process that was killed end with it."""
    fleet()
    words = [sys.executable, "-m", "flows.cli.app", "train"]
    more = ["small", "--algorithm", "hm2", "--set", "noise=device", "--rounds", "6", "--runner", "process"]
    begun = subprocess.Popen([*words, *more], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not (checkpoints := list(home.glob("runs/*/checkpoint.npz"))):
        assert begun.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    workers = descendants(begun.pid)
    assert workers
    begun.kill()
    begun.wait()
    while any(map(at_work, workers)):
        assert time.monotonic() < until, "its workers are still there"
        time.sleep(0.05)
    resume = [*words, "--resume", checkpoints[0].parent.name, "--json"]
    resumed = subprocess.run(resume, env=environment, capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    straight = fit(Hm2(noise="device"), load_fleet(open_dataset(home / "datasets", "small")), rounds=6)
    with np.load(checkpoints[0].parent / "results/theta.npz") as stored:
        np.testing.assert_allclose(stored["Theta"], np.array([straight.theta[device] for device in "abcde"]).T, rtol=1e-12, atol=0)


def at_work(pid: int) -> bool:
    """Whether a process has not ended; one may wait for its end to be taken note of."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """The processes that one has started, and those that these have."""
    children = [int(each) for file in Path(f"/proc/{pid}/task").glob("*/children") for each in file.read_text().split()]
    return [one for child in children for one in (child, *descendants(child))]


@pytest.mark.slow
def test_workers_that_are_lost_again_and_again_are_no_fault_of_a_device(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet()
    here = os.getpid()

    def steps(*_: Any) -> None:
        assert os.getpid() != here
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(device, "_steps", steps)
    config = read_config({"dataset": "small", "rounds": 3, "algorithm": "eb", "runner": "process", "devices_per_task": 5})
    state = train(config, run_id="run", return_state=True)
    words = (
        r"^1 tasks were given to workers 3 times and came to nothing \(BrokenProcessPool\): see that workers stay up and have this fedlin$"
    )
    with pytest.raises(WorkersLost, match=words):
        state.result()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_without_workers_that_can_do_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra dask")
    monkeypatch.setattr("flows.runners.PATIENCE", 1)

    def refused(words: str, address: str) -> None:
        config = read_config({"dataset": "small", "runner": "dask", "dask_address": address})
        with pytest.raises(Misuse, match=words), started(config):
            pass

    refused("^no Dask cluster with workers answers at 'nonsense' .*: start it, or name another one$", "nonsense")
    gc.collect()  # the client that found no cluster; Dask may wait for itself where it is collected while another one starts
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster:
        refused("^no Dask cluster with workers answers at .*: start it, or name another one$", cluster.scheduler_address)
        cluster.scale(1)
        monkeypatch.setattr("flows.runners.PATIENCE", 60)
        with started(read_config({"dataset": "small", "runner": "dask", "dask_address": cluster.scheduler_address})):
            pass
        real = metadata.version

        def other(name: str) -> str:
            return real(name) if threading.current_thread() is threading.main_thread() else "0.0.1"

        def none(name: str) -> str:
            if threading.current_thread() is threading.main_thread():
                return real(name)
            raise metadata.PackageNotFoundError(name)

        for found, told in ((other, "fedlin 0.0.1"), (none, "no fedlin")):
            monkeypatch.setattr(metadata, "version", found)
            refused(f"^a worker of the Dask cluster has {told}, expected {real('fedlin')}: install", cluster.scheduler_address)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_another_try(
    runner: str, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kills itself in the second round, in the middle of a device's step."""
    fleet()
    _, Theta = run(home, "threads", algorithm="eb")
    original, killed, here = device._steps, str(home / "killed"), os.getpid()

    def steps(station: Any, ids: Any, ready: Any) -> Any:
        if "c" in ids and ready[0].broadcast.round_num == 2 and os.getpid() != here and not os.path.exists(killed):
            with open(killed, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        return original(station, ids, ready)

    monkeypatch.setattr(device, "_steps", steps)
    result, other = run(home, "run", algorithm="eb", runner=runner)
    assert os.path.exists(killed)
    assert (result["outcome"], result["devices_missing"]) == ("completed", [])
    np.testing.assert_allclose(other, Theta, rtol=1e-12, atol=0)
    ledger = json.loads(str(np.load(home / "runs/run/checkpoint.npz")["ledger"]))["history"]
    assert [each["silent"] for each in ledger] == [[]] * len(ledger)


@pytest.mark.parametrize("kind", EXTRAS)
def test_a_runner_that_is_not_installed_is_named_with_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> Any:
        raise ImportError(module)

    monkeypatch.setattr("flows.runners.import_module", missing)
    words = f"runner {kind} needs prefect-{kind}: install fedlin with its extra {kind}"
    with pytest.raises(Misuse, match=f"^{words}$"):
        task_runner(read_config({"dataset": "small", "runner": kind}))


def test_an_address_belongs_to_its_runner() -> None:
    with pytest.raises(Misuse, match=r"^dask_address is of no use to runner thread: give runner dask too, or leave it out$"):
        task_runner(read_config({"dataset": "small", "dask_address": "tcp://127.0.0.1:1"}))
    with pytest.raises(Misuse, match="runner: input should be 'thread', 'process', 'dask' or 'ray', got 'spark'"):
        read_config({"dataset": "small", "runner": "spark"})
