"""What a device outside a run's fleet gets from the run: its own result, from its rows and from what the fleet has learned."""

from __future__ import annotations

from typing import Any

from prefect import task

from tasks.device import DeviceReport, Station, device_task, examined, reported, sealed


@task(name="device-adapt", task_run_name="adapt {device_id}", **device_task)
@sealed("adaptation")
def device_adapt(station: Station, device_id: str, down: Any, rounds: int) -> DeviceReport:
    """A newcomer's result and its scores, beside those of as many rounds on its own; it keeps nothing of them.

    Parameters
    ----------
    station
        Of the run that it adapts to, with this device among the fleet.
    device_id
        The device.
    down
        What the run's algorithm tells a newcomer.
    rounds
        How many rounds the run had.
    """
    data, _ = examined(station, device_id)
    result = station.algorithm.finalize(down, station.algorithm.init_device(station.spec, data), data)
    return reported(station, device_id, data, result, range(1, rounds + 1))
