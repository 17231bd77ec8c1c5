"""Runs as an MLflow store holds them, found by what they are and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import tasks as tasks  # isort: skip  (settles the environment, which mlflow reads on import)
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from fedcore.errors import Misuse
from tasks.tracking.runs import PARENT, RUN_ID
from tasks.tracking.store import in_one_line, own_uri, store_uri, usable

PAGE = 200


class FoundRun(NamedTuple):
    """A run in the store.

    Attributes
    ----------
    run_id, mlflow_run_id
        Its names, fedlin's and MLflow's.
    status
        As MLflow has it: RUNNING, FINISHED, FAILED or KILLED.
    began
        When.
    params, metrics
        What it was, and the last figures that came of it.
    """

    run_id: str
    mlflow_run_id: str
    status: str
    began: datetime
    params: Mapping[str, str]
    metrics: Mapping[str, float]


def find_runs(default_store: Path, where: str, sort: str | None, most: int) -> list[FoundRun]:
    """Runs of all experiments, without those below another one.

    Parameters
    ----------
    default_store
        The SQLite file that is the store where ``MLFLOW_TRACKING_URI`` is not set.
    where
        A condition in MLflow's search syntax; all runs where it is empty.
    sort
        A metric, by which the lowest comes first and runs without it are left out; by default the newest run comes first.
    most
        How many are wanted at most.

    Raises
    ------
    Misuse
        If the store cannot be used, or the condition is not understood.
    """
    uri = store_uri(default_store)
    if uri == own_uri(default_store) and not default_store.exists():  # MLflow would make one
        return []
    conditions = [f"tags.`{RUN_ID}` != ''", *([where] if where else []), *([f"metrics.`{sort}` > -1.8e308"] if sort else [])]
    order = [f"metrics.`{sort}` ASC"] if sort else ["attributes.start_time DESC"]
    with usable(uri):
        client = MlflowClient(uri)
        experiments = [each.experiment_id for each in client.search_experiments()]
        try:
            return list(islice(_above(client, experiments, " and ".join(conditions), order), most))
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            reason = in_one_line(error)
    raise Misuse(f"MLflow cannot read the condition {where!r} ({reason}): give one like \"metrics.a_rmse < 0.5 and params.seed = '0'\"")


def _above(client: MlflowClient, experiments: list[str], condition: str, order: list[str]) -> Iterator[FoundRun]:
    """Runs that are below no other one, page by page: MLflow has no condition for that."""
    token: str | None = None
    while experiments:
        page = client.search_runs(experiments, condition, max_results=PAGE, order_by=order, page_token=token)
        yield from (_found(run) for run in page if PARENT not in run.data.tags)
        token = page.token
        if not token:
            return


def _found(run: Run) -> FoundRun:
    began = datetime.fromtimestamp(run.info.start_time / 1000, UTC)
    return FoundRun(run.data.tags[RUN_ID], run.info.run_id, run.info.status, began, run.data.params, run.data.metrics)
