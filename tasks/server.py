"""The server's task of a round."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedcore.algorithm import Aggregated, AnyAlgorithm
from fedcore.rounds import Answers


@task(name="aggregate", task_run_name="aggregate", cache_policy=NO_CACHE, persist_result=False)
def aggregate(algorithm: AnyAlgorithm, server: Any, answers: Answers) -> Aggregated:
    """The round's updates taken into the server's state; see `Algorithm.aggregate`."""
    return algorithm.aggregate(server, answers.answered, answers.ups)
