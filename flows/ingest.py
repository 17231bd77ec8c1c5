"""New rows as a flow: what `fedlin data add` and `fedlin data import` do, for deployments to start."""

from __future__ import annotations

import os

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from fedcore.data import add_partition, import_file
from fedcore.data.places import place
from flows.config import IngestConfig
from flows.events import owed, tell
from flows.inspection import inspect_devices, rows_by_device
from flows.progress import say
from flows.workspace import Workspace


@flow(name="fedlin-ingest", persist_result=False)
def ingest(config: IngestConfig) -> State[None]:
    """Add rows to a data set, and emit one event for them; the same rows again change nothing, and emit one only
    where it was not taken before.

    It takes no turn: each file is put in place in one step, and a run reads what was there when it began.

    Parameters
    ----------
    config
        Which rows, and whose.

    Returns
    -------
    State
        Completed; Failed where the rows are there, but the event was not taken.

    Raises
    ------
    Misuse
        Where the rows cannot be added as it is asked for, or break the contract.
    """
    workspace, source = Workspace.find(), place(config.file)
    with owed(workspace, config.dataset) as rows:
        if config.device is None:
            _, cards = inspect_devices(import_file(workspace.datasets, source, config.dataset, units=config.units), say)
            rows.update(rows_by_device(cards))
            counted = f"data set {config.dataset} has {sum(rows.values())} further rows of {len(rows)} devices"
        else:
            added = add_partition(workspace.datasets, source, config.dataset, config.device, append=config.append, units=config.units)
            if added.changed:
                rows[added.device] = added.rows
                counted = f"data set {config.dataset} has {added.rows} further rows of 1 devices"
            else:
                counted = f"device {added.device} of data set {config.dataset} holds these {added.rows} rows already"
    if failure := tell(workspace, os.environ.get("PREFECT_API_URL")):
        return Failed(message=f"{counted}, but {failure}")
    return Completed(message=counted)
