"""One training run in MLflow: parameters at its start, metrics of its rounds, results at its end.

Everything is sent by the server's side of a run and holds aggregates only; no row and no device's value comes here. The run's own
ledger is the truth, and MLflow a copy of it: when the store is away, training goes on, and the copy catches up later.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, Self

import tasks as tasks  # isort: skip  (settles the environment, which mlflow reads on import)
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import MAX_METRICS_PER_BATCH, MAX_PARAM_VAL_LENGTH

from fedcore.data.places import Place, local_copy
from fedcore.errors import Misuse
from tasks.tracking.store import creation, in_one_line, public, store_uri, usable

RUN_ID, RUN_UUID = "fedlin.run_id", "fedlin.run_uuid"
ROUND = "round_num"
OBJECTIVE = "loss"
PARENT = "mlflow.parentRunId"

PAUSE = 1.0
"""Seconds from one batch of rounds to the next: quick rounds are sent together, for a store takes as long for ten as for one."""

DIGEST = 36
"""Characters that MLflow keeps of a digest."""

logger = logging.getLogger("fedlin.tracking")
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it announces every retry, beside our own one line
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # a store that an interruption finds at work has nothing else to tell


class Nested(NamedTuple):
    """A run below another one, as it has ended.

    Attributes
    ----------
    name
        Its own among its siblings.
    params, metrics
        What it was, and what came of it; values that are too long or not finite are left out.
    ok
        Whether its result is one to use.
    """

    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    ok: bool


class Trained(NamedTuple):
    """The data set of a run.

    Attributes
    ----------
    name
        Its name.
    digest
        Hex digest of all that its devices train on.
    counts
        Of devices, and of the rows of all of them by part.
    """

    name: str
    digest: str
    counts: Mapping[str, int]


class Tracker:
    """One run's place in an MLflow store.

    Make it with `open`, then call `start` once, `log_rounds` after every round and `through_rounds` around them, `nest` for runs below it
    and `finish` once.

    Attributes
    ----------
    uri : str
        Address of the store.
    mlflow_run_id : str
        MLflow's name of the run; empty before `start`.
    """

    def __init__(self, client: MlflowClient, uri: str, experiment_id: str) -> None:
        self.uri = uri
        self.mlflow_run_id = ""
        self._client = client
        self._experiment_id = experiment_id
        self._rounds: Sequence[Mapping[str, float]] = ()
        self._sent = 0  # the last round that the store holds
        self._unsure = False  # whether it may hold more, of a batch that was interrupted or had no answer
        self._ended: dict[int, int] = {}  # when a round did, in ms
        self._away = False
        self._try_at = 0.0

    @classmethod
    def open(cls, uri: str | None, *, default_store: Path, artifacts: Path, experiment: str) -> Self:
        """Open a store, and the experiment in it; both are made where missing, by one of several processes that start at once.

        Parameters
        ----------
        uri
            The store; None for ``MLFLOW_TRACKING_URI``, or a SQLite file at `default_store` where that is not set.
        default_store
            The SQLite file.
        artifacts
            Folder for the artifacts of a new experiment in a SQLite store; a tracking server has its own place.
        experiment
            Name of the experiment.

        Raises
        ------
        Misuse
            If the store cannot be reached, written or understood, or the experiment has been deleted in it.
        """
        uri = uri or store_uri(default_store)
        with usable(uri), creation(uri):
            client = MlflowClient(uri)
            found = client.get_experiment_by_name(experiment)
            if found is None:
                location = artifacts.resolve().as_uri() if uri.startswith("sqlite") else None
                try:
                    client.create_experiment(experiment, location)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":  # else another process has made it meanwhile
                        raise
                found = client.get_experiment_by_name(experiment)
                assert found is not None
            if found.lifecycle_stage != "active":
                raise Misuse(f"the MLflow experiment {experiment!r} has been deleted: restore it in the store, or name another one")
        return cls(client, uri, found.experiment_id)

    def start(
        self, run_id: str, *, params: Mapping[str, str], tags: Mapping[str, str], trained: Trained | None = None, run_uuid: str = ""
    ) -> None:
        """Create the run in MLflow, or continue the one that this run has there from before an interruption.

        Parameters
        ----------
        run_id
            The run; kept as the tag ``fedlin.run_id``.
        params
            Settings. Values longer than MLflow takes are left out (it would cut them): they are in the config artifact.
        tags
            Further tags.
        trained
            What it trains on, where it trains.
        run_uuid
            What tells it from others of its name; kept as the tag ``fedlin.run_uuid``; empty for runs from before they had one.

        Raises
        ------
        Misuse
            If the store cannot be reached or written.
        """
        with usable(self.uri):
            own = {RUN_ID: run_id} | ({RUN_UUID: run_uuid} if run_uuid else {})
            named = self._client.search_runs([self._experiment_id], f"tags.`{RUN_ID}` = '{run_id}'")
            run = next((each for each in named if each.data.tags.get(RUN_UUID, "") == run_uuid), None)
            if run:
                self._client.update_run(run.info.run_id, status="RUNNING")
            else:
                run = self._client.create_run(self._experiment_id, run_name=_named(run_id, params), tags=own)
            self.mlflow_run_id = run.info.run_id
            self._sent = int(run.data.metrics.get(ROUND, 0))
            missing = {name: value for name, value in params.items() if name not in run.data.params}
            self._client.log_batch(self.mlflow_run_id, params=_params(missing), tags=[RunTag(*tag) for tag in tags.items()])
            if trained and not (run.inputs and run.inputs.dataset_inputs):
                self._client.log_inputs(self.mlflow_run_id, [_input(trained)])

    def log_rounds(self, records: Sequence[Mapping[str, float]]) -> None:
        """Send the rounds that the store does not hold yet, unless some were sent within the last second; never raises.

        A store that does not answer is reported once, by a warning, and tried again at a later call: after ten times as long
        as the vain attempt took, so that it costs a run a tenth of its time at most.

        Parameters
        ----------
        records
            All rounds so far, in order. ``round_num`` (from 1) is the step, every other entry a metric; non-finite values are
            left out.
        """
        self._rounds = records
        now = _now()
        for record in reversed(records):
            if self._ended.setdefault(int(record[ROUND]), now) != now:
                break
        if time.monotonic() >= self._try_at:
            self._attempt(self._send_rounds)

    @contextmanager
    def through_rounds(self) -> Generator[None]:
        """Send at the end, and where rounds break off, what the last second has held back, for the run may not go on; unless the store is
        away, or was being told, for then it may be locked."""
        try:
            yield
        finally:
            if not (self._away or self._unsure):
                self._attempt(self._send_rounds)

    def nest(self, runs: Sequence[Nested]) -> bool:
        """Send runs below this one; never raises.

        Each is one run in the store, however often it is sent: its tag ``fedlin.run_id`` is this run's and its own name.

        Returns
        -------
        bool
            Whether the store now holds them all.
        """
        return not runs or self._attempt(lambda: self._send_nested(runs))

    def finish(
        self,
        status: Literal["FINISHED", "FAILED"],
        *,
        metrics: Mapping[str, float],
        artifacts: Place | None,
        params: Mapping[str, str] | None = None,
    ) -> bool:
        """Send what is left and end the run; never raises.

        Parameters
        ----------
        status
            How the run ended.
        metrics
            Final metrics; non-finite values are left out.
        artifacts
            Folder whose files become the run's artifacts.
        params
            Settings that were found during the run.

        Returns
        -------
        bool
            Whether the store now holds everything. If not, a resume of the run can send the rest.
        """
        client, run = self._client, self.mlflow_run_id
        arrived = self._attempt(self._send_rounds) and self._attempt(
            lambda: client.log_batch(run, metrics=_metrics(metrics, self._sent, _now()), params=_params(params or {}))
        )
        uploaded = artifacts is None or self._attempt(lambda: _upload(client, run, artifacts))
        ended = self._attempt(lambda: client.set_terminated(run, status))
        return arrived and uploaded and ended

    def _send_rounds(self) -> None:
        if self._unsure:
            self._sent = max(self._sent, int(self._client.get_run(self.mlflow_run_id).data.metrics.get(ROUND, 0)))
            self._unsure = False
        left = [record for record in self._rounds if record[ROUND] > self._sent]
        together = max(1, MAX_METRICS_PER_BATCH // max(map(len, left), default=1))
        for first in range(0, len(left), together):
            batch = left[first : first + together]
            # round_num goes along as a metric: the batch is one transaction, so it tells a resume what has arrived.
            # MLflow's compare page plots the metric that came first, so that is the objective.
            told = [dict(sorted(record.items(), key=lambda item: item[0] != OBJECTIVE)) for record in batch]
            numbers = [int(record[ROUND]) for record in batch]
            metrics = [each for number, one in zip(numbers, told, strict=True) for each in _metrics(one, number, self._ended[number])]
            self._unsure = True
            self._client.log_batch(self.mlflow_run_id, metrics=metrics)
            self._sent, self._unsure = numbers[-1], False

    def _send_nested(self, runs: Sequence[Nested]) -> None:
        parent = self._client.get_run(self.mlflow_run_id).data.tags[RUN_ID]
        children = self._client.search_runs([self._experiment_id], f"tags.`{PARENT}` = '{self.mlflow_run_id}'", max_results=50_000)
        found = {child.data.tags[RUN_ID]: child for child in children}
        for nested in runs:
            own = f"{parent}/{nested.name}"
            tags = {RUN_ID: own, PARENT: self.mlflow_run_id}
            run = found.get(own) or self._client.create_run(self._experiment_id, run_name=own, tags=tags)
            missing = {name: value for name, value in nested.params.items() if name not in run.data.params}
            self._client.log_batch(run.info.run_id, metrics=_metrics(nested.metrics, 0, _now()), params=_params(missing))
            self._client.set_terminated(run.info.run_id, "FINISHED" if nested.ok else "FAILED")

    def _attempt(self, send: Callable[[], object]) -> bool:
        begun = time.monotonic()
        self._try_at = begun + PAUSE
        try:
            send()
        except Exception as error:  # whatever it is: a copy of the ledger is no reason to end a training run
            now = time.monotonic()
            self._try_at = now + 10 * (now - begun)
            if not self._away:
                logger.warning("the MLflow store %s is away, and will be tried again: %s", public(self.uri), in_one_line(error))
            self._away = True
            return False
        self._away = False
        return True


def _now() -> int:
    return int(time.time() * 1000)


def _metrics(values: Mapping[str, float], step: int, at: int) -> list[Metric]:
    # MLflow stores infinity as 1.8e308 and NaN as 0 with a flag.
    return [Metric(name, float(value), at, step) for name, value in values.items() if math.isfinite(value)]


def _named(run_id: str, params: Mapping[str, str]) -> str:
    """How MLflow's pages call a run: by what it did, where that is one thing, and its id."""
    return " ".join((*filter(None, [params.get("algorithm")]), run_id))


def _params(values: Mapping[str, str]) -> list[Param]:
    return [Param(name, value) for name, value in values.items() if len(value) <= MAX_PARAM_VAL_LENGTH]


def _input(trained: Trained) -> DatasetInput:
    # Of the source there is no more than the name: it is known to the devices alone.
    source = json.dumps({"dataset": trained.name})
    dataset = Dataset(trained.name, trained.digest[:DIGEST], "fedlin", source, profile=json.dumps(dict(trained.counts)))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def _upload(client: MlflowClient, run: str, artifacts: Place) -> None:
    with local_copy(artifacts) as folder:
        client.log_artifacts(run, str(folder))
