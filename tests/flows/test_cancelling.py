"""Runs that are cancelled in Prefect without a worker that would end them; with one it is in `test_stack`."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.states import Cancelling

from fedcore import Hm1, fit
from fedcore.data import Dataset
from flows.background import BackgroundCall
from flows.config import RetrainConfig, TrainConfig
from flows.orchestrator import Orchestrator
from flows.retrain import retrain
from flows.train import train

ROUNDS, AFTER = 8, 2
SETTINGS: dict[str, Any] = {"dataset": "small", "algorithm": "hm1", "rounds": ROUNDS, "options": {"batch": 3, "gradient": "sum"}}


@pytest.fixture
def run_id(monkeypatch: pytest.MonkeyPatch) -> str:
    """Somebody cancels the run of this name while the first device of a round works."""
    steps, local_steps, name = count(1), Hm1.local_steps, f"cancelled-{uuid4()}"

    def cancelling(algorithm: Hm1, *args: Any) -> Any:
        if next(steps) == 5 * AFTER + 1:
            with get_client(sync_client=True) as client:
                (run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))
                client.set_flow_run_state(run.id, Cancelling())
        return local_steps(algorithm, *args)

    monkeypatch.setattr(Hm1, "local_steps", cancelling)
    return name


@pytest.mark.parametrize(("flow", "config", "suffix"), [(train, TrainConfig, ""), (retrain, RetrainConfig, "-challenger")])
def test_a_run_that_is_cancelled_ends_after_its_round_and_goes_on_to_the_same_bits(
    flow: Any,
    config: Any,
    suffix: str,
    server: Orchestrator,
    home: Path,
    fleet: Callable[..., Dataset],
    run_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BackgroundCall, "poll", BackgroundCall.flush)  # it asks after each round
    dataset = fleet()
    state = flow(config(**SETTINGS), run_id=run_id, return_state=True)
    assert (state.is_cancelled(), state.message) == (True, "it was cancelled in Prefect")
    with get_client(sync_client=True) as client:
        recorded = client.read_flow_run(state.state_details.flow_run_id).state
    assert recorded is not None
    assert recorded.is_cancelled()
    folder = home / "runs" / (run_id + suffix)
    with np.load(folder / "checkpoint.npz") as stored:
        assert len(json.loads(str(stored["ledger"]))["history"]) == AFTER + 1
    assert not list(home.glob("runs/*/result.json"))
    assert flow(None, run_id=run_id, return_state=True).is_completed()
    expected = fit(Hm1(batch=3, gradient="sum"), {name: dataset.load(name) for name in dataset.device_ids}, rounds=ROUNDS)
    with np.load(folder / "results/theta.npz") as stored:
        np.testing.assert_array_equal(stored["Theta"], np.array([expected.theta[name] for name in dataset.device_ids]).T)


@pytest.mark.slow
def test_a_run_of_short_rounds_is_cancelled_after_one_of_the_next(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], run_id: str
) -> None:
    """It asks seldom, and does not wait for the answer."""
    fleet()
    config = TrainConfig(**SETTINGS | {"rounds": 2000, "options": {"tolerance": 0.0}})
    assert train(config, run_id=run_id, return_state=True).is_cancelled()
    with np.load(home / "runs" / run_id / "checkpoint.npz") as stored:
        assert AFTER < len(json.loads(str(stored["ledger"]))["history"]) < 2000
