"""The same run on threads, on processes, and on Dask and Ray clusters that the test starts; also where a worker is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore import Misuse
from fedcore.data import Dataset
from flows.config import read_config
from flows.orchestrator import Orchestrator
from flows.runners import EXTRAS, task_runner
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
    for algorithm, shared in (("hm1", 1), ("eb", 2)):
        settings = {"algorithm": algorithm, "devices_per_task": shared}
        expected, Theta = run(home, f"{algorithm}-threads", **settings)
        result, other = run(home, algorithm, **settings, runner=runner)
        np.testing.assert_allclose(other, Theta, rtol=1e-12, atol=0)
        assert result["a_rmse"] == pytest.approx(expected["a_rmse"], rel=1e-12)
        assert (result["outcome"], result["task_runs"]) == (expected["outcome"], expected["task_runs"])


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
