"""Adaptation: a result for a device outside a run's fleet, from its own rows and what the fleet has learned; the fleet is not asked."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import uuid4

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field

from fedcore.algorithm import FleetSpec, Outcome
from fedcore.errors import DeviceFailure, Misuse
from flows.config import DataConfig
from flows.parent import Parent
from flows.runners import THREADS
from flows.running import Run, flow_run_name, open_data
from flows.workspace import Workspace
from tasks.adapt import device_adapt
from tasks.cohort import Answered, Errand
from tasks.device import DeviceReport
from tasks.ground import Station
from tasks.results import figures, write_results


class AdaptConfig(DataConfig):
    """A device, and the run that it learns from.

    Attributes
    ----------
    parent
        The run.
    device
        Id of the device, which was not in it.
    """

    COMMAND: ClassVar[str] = "adapt"

    parent: str = Field(description="The run whose fleet it learns from.")
    device: str = Field(description="Id of a device that was not in it.")


@flow(name="fedlin-adapt", flow_run_name=flow_run_name, task_runner=THREADS, persist_result=False)
def adapt(config: AdaptConfig, run_id: str | None = None) -> State[None]:
    """Adapt what a run has learned to one device.

    Parameters
    ----------
    config
        The device and the run.
    run_id
        Name of this run; by default a new one.

    Returns
    -------
    State
        Completed; the figures are in `runs/<run_id>/result.json`.

    Raises
    ------
    Misuse
        Where the device was in the run, its rows do not suit the run or may not be told of, or the run is of no use to it.
    """
    run = Run.open(AdaptConfig, config, run_id)
    parent = Parent.open(run.workspace, config.parent)
    station, down = newcomer_station(run.folder.run_id, config, run.workspace, parent)
    history = parent.checkpoint.history
    report = _of_one(station, config.device, down, sum(entry["phase"] == "main" for entry in history))
    own = {"run_uuid": station.run_uuid, "devices": [], "gaps": {}, "adapted": config.device}
    run.create(config.model_dump(mode="json"), parent.manifest | own)
    with run.held():
        run.start_tracking({**config.model_dump(exclude_none=True), "algorithm": parent.config.algorithm})
        write_results(
            run.folder.results,
            [report],
            station.dataset.design_names,
            parent.checkpoint.state.server,
            device_ids=parent.device_ids,
            fitted=station.dataset.fitted,
            gaps={},
        )
        learned = f"device {config.device} has a result from its {report.n_train} rows and run {config.parent}"
        result = {"algorithm": parent.config.algorithm, "rounds": 0, "round_s": None, "uplink_bytes": 0, "downlink_bytes": 0}
        result |= {"parent": config.parent, "device": config.device, "n_train": report.n_train, "devices_missing": [], **figures([report])}
        return run.end(Outcome("completed", learned, ok=True), result, uploads=True, task_runs=1, earlier=0.0)


def newcomer_station(run_id: str, config: AdaptConfig, workspace: Workspace, parent: Parent) -> tuple[Station, Any]:
    """What a device's task needs, and what the device is told of the fleet.

    Raises
    ------
    Misuse
        Where the device was in the run, or the run is of no use to others.
    """
    algorithm = parent.config.build_algorithm()
    if config.device in parent.device_ids:
        raise Misuse(f"device {config.device} was in run {config.parent}, whose results hold its own: name one that was not")
    dataset = parent.prepared(open_data(config, workspace))
    spec = FleetSpec(tuple(sorted((*parent.device_ids, config.device))), len(dataset.design_names))
    down = algorithm.newcomer(parent.checkpoint.state.server)
    return Station(run_id, uuid4().hex, dataset, algorithm, spec, parent.config.seed), down


def _of_one(station: Station, device_id: str, down: Any, rounds: int) -> DeviceReport:
    future = device_adapt.submit(station, Errand(device_id, {device_id: (down, rounds)}))
    future.wait()
    found = future.state.result(raise_on_failure=False)
    if isinstance(found, Answered):
        return found.answers[device_id]
    raise Misuse(str(found) if isinstance(found, DeviceFailure) else f"device {device_id}: {type(found).__name__}")
