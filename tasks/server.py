"""The server's tasks: one before the first round, where the data need it, and one a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedcore.algorithm import Aggregated, AnyAlgorithm
from fedcore.data import Contract, DeviceSummary, Fitted
from fedcore.data import fit_preprocessing as fit
from fedcore.rounds import Answers


@task(name="fit-preprocessing", task_run_name="fit preprocessing", cache_policy=NO_CACHE, persist_result=False)
def fit_preprocessing(contract: Contract, summaries: Sequence[DeviceSummary]) -> Fitted:
    """The fleet's preprocessing from its devices' summaries; see `fedcore.data.fit_preprocessing`."""
    return fit(contract, summaries)


@task(name="aggregate", task_run_name="aggregate", cache_policy=NO_CACHE, persist_result=False)
def aggregate(algorithm: AnyAlgorithm, server: Any, answers: Answers) -> Aggregated:
    """The round's updates taken into the server's state; see `Algorithm.aggregate`."""
    return algorithm.aggregate(server, answers.answered, answers.ups)
