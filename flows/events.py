"""What a user's own Prefect server is told outside of runs: automations wait for such events.

A batch of rows that was added is owed to the server that `PREFECT_API_URL` names until it has taken the event. So a note of it is written
before the rows are, one file a batch in `.outbox/`, and goes once the event was taken: neither a server that is away nor a killed command
loses it. Where no server is named there is nobody to tell, and no note.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import tasks as tasks  # (settles the environment, which prefect reads on import)
from fedcore.data.places import write_durably
from fedcore.errors import FedlinError, Misuse
from flows.workspace import Workspace

PARTITION_ADDED = "fedlin.partition.added"


class Untold(NamedTuple):
    """A batch that is to be told: its note, its data set, and rows by device (none of a command that was killed over it)."""

    note: Path
    dataset: str
    rows: dict[str, int]


@contextmanager
def owed(workspace: Workspace, dataset: str) -> Iterator[dict[str, int]]:
    """Note that rows are added within; what is yielded is for the block to fill with their number by device.

    Nothing is owed where it stays empty, or the block refuses the rows.

    Raises
    ------
    Misuse
        Where the note cannot be written; nothing has been added then.
    """
    rows: dict[str, int] = {}
    if not os.environ.get("PREFECT_API_URL"):
        yield rows
        return
    note = workspace.outbox / f"{time.time_ns()}-{secrets.token_hex(4)}.json"
    _write(note, dataset, rows)
    try:
        yield rows
    except FedlinError:
        note.unlink(missing_ok=True)
        raise
    if rows:
        _write(note, dataset, rows)
    else:
        note.unlink(missing_ok=True)


def untold(workspace: Workspace) -> list[Untold]:
    """What is still owed, the oldest first."""
    found: list[Untold] = []
    for note in sorted(workspace.outbox.glob("*.json")):
        try:
            told = json.loads(note.read_bytes())
        except FileNotFoundError:  # another command has told it just now
            continue
        found.append(Untold(note, told["dataset"], told["rows"]))
    return found


def tell(workspace: Workspace, url: str | None) -> str:
    """Emit one event for each batch that is owed, where a server is named; none is started for it.

    The event is `fedlin.partition.added` about the resource `fedlin.dataset.<dataset>`. It is sent by a request that is answered, and
    not through Prefect's event worker, which says nothing where an event is lost.

    Parameters
    ----------
    workspace
        The project.
    url
        The Prefect server, such as what ``PREFECT_API_URL`` says.

    Returns
    -------
    str
        Why an event was not taken, and what tells it; empty where nothing is owed, or there is nobody to tell. The data are there in any
        case.
    """
    due = untold(workspace) if url else []
    if not due:
        return ""
    # Imported here: it takes seconds, and most imports of data have nobody to tell.
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.events import Event
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    try:
        with temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 1}), get_client(sync_client=True) as client:
            for batch in due:
                resource = {"prefect.resource.id": f"fedlin.dataset.{batch.dataset}", "prefect.resource.name": batch.dataset}
                event = Event(event=PARTITION_ADDED, resource=resource, payload={"rows": batch.rows})  # type: ignore[arg-type]
                client.request("POST", "/events", json=[event.model_dump(mode="json")])
                batch.note.unlink(missing_ok=True)
    except httpx.HTTPError as error:
        what = f"the Prefect server at {url} did not take the event {PARTITION_ADDED} ({type(error).__name__})"
        return f"{what}: once it is back, the next fedlin data add tells it (the same one again will do), as does make stack"
    return ""


def _write(note: Path, dataset: str, rows: dict[str, int]) -> None:
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_durably(note, json.dumps({"dataset": dataset, "rows": rows}).encode())
    except OSError as error:
        raise Misuse(f"{note.parent} cannot be written ({error.strerror}): make room or give permission") from None
