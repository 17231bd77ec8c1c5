"""What a user's own Prefect server is told outside of runs: automations wait for such events."""

from __future__ import annotations

import os
from collections.abc import Mapping

import tasks as tasks  # (settles the environment, which prefect reads on import)

PARTITION_ADDED = "fedlin.partition.added"


def tell_added(dataset: str, rows: Mapping[str, int]) -> str:
    """Emit one event for a batch of partitions that was added, where ``PREFECT_API_URL`` is set; no server is started for it.

    The event is `fedlin.partition.added` about the resource `fedlin.dataset.<dataset>`. It is sent by a request that is answered, and
    not through Prefect's event worker, which says nothing where an event is lost.

    Parameters
    ----------
    dataset
        Name of the data set.
    rows
        Number of rows that were added, by device id.

    Returns
    -------
    str
        Why the event was not taken; empty where it was, or where there is nobody to tell. The data are there in any case.
    """
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return ""
    # Imported here: it takes seconds, and most imports of data have nobody to tell.
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.events import Event
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    resource = {"prefect.resource.id": f"fedlin.dataset.{dataset}", "prefect.resource.name": dataset}
    event = Event(event=PARTITION_ADDED, resource=resource, payload={"rows": dict(rows)})  # type: ignore[arg-type]
    try:
        with temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 1}), get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[event.model_dump(mode="json")])
    except httpx.HTTPError as error:
        return f"the Prefect server at {url} did not take the event {PARTITION_ADDED} ({type(error).__name__})"
    return ""
