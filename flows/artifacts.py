"""A run in Prefect's own pages: how far it is, and a table of its rounds. Aggregates alone, no device's values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from flows.background import BackgroundCall
from tasks.checkpoint import Record

MOST = 200
"""Rounds of the table, the last ones: an update sends all of it."""

SHOWN = ("phase", "cohort", "answered", "loss", "uplink_bytes", "downlink_bytes")


class RunArtifacts:
    """The two artifacts of the flow run that this is made in. Where the server does not take one, the run goes on without."""

    def __init__(self, total: int, history: Sequence[Record]) -> None:
        """`total` is how many rounds the main phase has at most, `history` those that are behind us."""
        self._total = total
        self._history = history
        self._written = -1
        self._ids: tuple[UUID, UUID] | None = None
        self._writing = BackgroundCall(self._write, "artifacts")
        self._writing.poll()

    def show(self, history: Sequence[Record]) -> None:
        """The rounds so far; to be written where the last writing is long enough ago."""
        self._history = history
        self._writing.poll()

    def close(self) -> None:
        """Write what has not been."""
        self._writing.join()
        if len(self._history) != self._written:
            self._writing.flush()

    def _write(self) -> None:
        history = self._history  # which may be another one by the end of this
        done = 100.0 * sum(each["phase"] == "main" for each in history) / self._total
        rows = table(history)
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
        self._written = len(history)


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
def run_artifacts(total: int, history: Sequence[Record]) -> Iterator[RunArtifacts]:
    """Artifacts that are up to date when the context ends well.

    Parameters
    ----------
    total, history
        See `RunArtifacts`.
    """
    artifacts = RunArtifacts(total, history)
    yield artifacts
    artifacts.close()
