"""What a device outside a run's fleet gets from the run: its own result, from its rows and from what the fleet has learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.cohort import Attempt, device_task
from tasks.device import DeviceReport, alone, examined, reported
from tasks.ground import Station


@device_task("device-adapt", "adapt {errand.name}", "adaptation")
def device_adapt(attempt: Attempt[Station]) -> Mapping[str, DeviceReport]:
    """A newcomer's result and its scores, beside those of as many rounds on its own; it keeps nothing of them.

    The station is of the run that it adapts to, with this device among the fleet. The device is told what the run's algorithm tells a
    newcomer, and how many rounds the run had.
    """
    station = attempt.ground

    def report(device_id: str, told: tuple[Any, int]) -> DeviceReport:
        down, rounds = told
        data = examined(attempt, device_id).data
        result = station.algorithm.finalize(down, station.algorithm.init_device(station.spec, data), data)
        (own,) = alone(station, [device_id], [data], [range(1, rounds + 1)])
        return reported(station, device_id, data, result, own)

    return attempt.each(report, attempt.told)
