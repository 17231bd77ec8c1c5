"""A run in Prefect's own pages: how far it is, and a table of its rounds. Aggregates alone, no device's values."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.context import SettingsContext
from prefect.exceptions import PrefectException

from tasks.checkpoint import Record

PAUSE = 20
"""Between two writings a run goes on for so many times as long as the last one took, so they cost it less than a twentieth."""

MOST = 200
"""Rounds of the table, the last ones: an update sends all of it."""

SHOWN = ("phase", "cohort", "answered", "loss", "uplink_bytes", "downlink_bytes")


class RunArtifacts:
    """The two artifacts of the flow run that this is made in. Where the server does not take one, the run goes on without."""

    def __init__(self, total: int, history: Sequence[Record], asking: SettingsContext) -> None:
        """`total` is how many rounds the main phase has at most, `history` those that are behind us, `asking` of `flows.asking.once`."""
        self._total = total
        self._history = history
        self._written = -1
        self._ids: tuple[UUID, UUID] | None = None
        self._next = 0.0
        self._once = asking
        self._timed()

    def show(self, history: Sequence[Record]) -> None:
        """The rounds so far; written where the last writing is long enough ago."""
        self._history = history
        if time.perf_counter() >= self._next:
            self._timed()

    def close(self) -> None:
        """Write what has not been."""
        if len(self._history) != self._written:
            self._timed()

    def _timed(self) -> None:
        begun = time.perf_counter()
        # A picture of the run, not the run: a server that is away is not waited for.
        with suppress(PrefectException, httpx.HTTPError), self._once:
            self._write()
        ended = time.perf_counter()
        self._next = ended + PAUSE * (ended - begun)

    def _write(self) -> None:
        done = 100.0 * sum(each["phase"] == "main" for each in self._history) / self._total
        rows = table(self._history)
        if self._ids is None:
            progress = create_progress_artifact(done, key="rounds", description=f"{self._total} communication rounds")
            rounds = create_table_artifact(
                rows, key="round-table", description=f"The last rounds, {MOST} at most; all of them are in MLflow"
            )
            self._ids = cast("tuple[UUID, UUID]", (progress, rounds))  # coroutines only where the caller is one
        else:
            with get_client(sync_client=True) as client:
                for which, data in zip(self._ids, (done, json.dumps(rows)), strict=True):
                    client.update_artifact(which, ArtifactUpdate(data=data))
        self._written = len(self._history)


def table(history: Sequence[Record]) -> list[dict[str, Any]]:
    """One row a round: counts, sizes, the devices' mean training error and seconds."""
    return [
        {
            "round": each["round_num"],
            **{name: each[name] for name in SHOWN},
            "silent": len(each["silent"]),
            "seconds": round(each["seconds"], 3),
        }
        for each in history[-MOST:]
    ]


@contextmanager
def run_artifacts(total: int, history: Sequence[Record], asking: SettingsContext) -> Iterator[RunArtifacts]:
    """Artifacts that are up to date when the context ends well.

    Parameters
    ----------
    total, history, asking
        See `RunArtifacts`.
    """
    artifacts = RunArtifacts(total, history, asking)
    yield artifacts
    artifacts.close()
