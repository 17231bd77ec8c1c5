"""What is done on a device for a retraining, beside the rounds: its drift from the champion, and both models' scores on its held-out rows.
Only figures leave it, and none over fewer rows than its contract's disclosure rules ask for."""

from __future__ import annotations

from typing import Any

from prefect import task

from fedcore.algorithm import DeviceResult
from fedcore.data import Dataset
from fedcore.data.disclosure import scored_rows
from fedcore.drift import Drift, residual_drift
from fedcore.errors import DeviceRefusal, FedlinError
from fedcore.metrics import Score, score
from fedcore.receipts import settle
from fedcore.rows import DeviceData, Floats
from tasks.device import Earlier, Station, device_task, examined, recall, sealed


@task(name="device-drift", task_run_name="drift {device_id}", **device_task)
@sealed("drift")
def device_drift(station: Station, device_id: str, theta: Floats, earlier: Earlier, down: Any) -> Drift:
    """How far a device's rows have moved away from the champion; it keeps nothing.

    Parameters
    ----------
    station
        Of the champion's algorithm and preprocessing, with the devices that it knows.
    device_id
        The device.
    theta
        Its coefficients, shape (d,).
    earlier
        The champion's run, and what its server last took of the device.
    down
        What the champion's server would tell the device now.
    """
    data, _ = examined(station, device_id)
    return residual_drift(theta, data, scored_rows(data.test, station.dataset.contract), _moved(station, device_id, data, earlier, down))


def _moved(station: Station, device_id: str, data: DeviceData, earlier: Earlier, down: Any) -> float | None:
    algorithm = station.algorithm
    try:
        before = settle(algorithm, recall(station, device_id, earlier.run_id).memory, earlier.receipt)
        device = algorithm.continued_device(before.accepted, algorithm.init_device(station.spec, data))
    except FedlinError:  # its state is lost, or the algorithm does not go on; residuals need neither
        return None
    return algorithm.moved(down, device, data)


@task(name="device-contest", task_run_name="contest {device_id}", **device_task)
@sealed("contest")
def device_contest(station: Station, device_id: str, before: Dataset, champion: Floats, challenger: Floats) -> tuple[Score, Score]:
    """The scores of champion and challenger on the same held-out rows of a device.

    Parameters
    ----------
    station
        Of the challenger.
    device_id
        The device.
    before
        The data set with the champion's preprocessing.
    champion, challenger
        The device's coefficients in each, shape (d,).
    """
    data, _ = examined(station, device_id)
    contract = station.dataset.contract
    theirs, ours = scored_rows(before.load(device_id).test, contract), scored_rows(data.test, contract)
    if theirs.n != ours.n:
        raise DeviceRefusal(f"the champion's preprocessing leaves {theirs.n} of its held-out rows, the challenger's {ours.n}")
    return score(DeviceResult(champion), theirs), score(DeviceResult(challenger), ours)
