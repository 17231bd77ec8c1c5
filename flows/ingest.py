"""New rows as a flow: what `fedlin data add` and `fedlin data import` do, for deployments to start."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from fedcore.data import add_partition, import_file
from fedcore.data.places import place
from flows.config import IngestConfig
from flows.events import PARTITION_ADDED, tell_added
from flows.inspection import inspect_devices, rows_by_device
from flows.progress import say
from flows.workspace import Workspace


@flow(name="fedlin-ingest", persist_result=False)
def ingest(config: IngestConfig) -> State[None]:
    """Add rows to a data set, and emit one event for them; the same rows again change nothing and emit none.

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
    root, source = Workspace.find().datasets, place(config.file)
    if config.device is None:
        _, cards = inspect_devices(import_file(root, source, config.dataset, units=config.units), say)
        rows = rows_by_device(cards)
    else:
        added = add_partition(root, source, config.dataset, config.device, append=config.append, units=config.units)
        if not added.changed:
            return Completed(message=f"device {added.device} of data set {config.dataset} holds these {added.rows} rows already")
        rows = {added.device: added.rows}
    counted = f"data set {config.dataset} has {sum(rows.values())} further rows of {len(rows)} devices"
    if failure := tell_added(config.dataset, rows):
        return Failed(message=f"{counted}, but {failure}: start what waits for {PARTITION_ADDED} by hand")
    return Completed(message=counted)
