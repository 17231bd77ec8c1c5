"""What is done on a device for a retraining, beside the rounds: its drift from the champion, and both models' scores on its held-out rows.
Only figures leave it, and none over fewer rows than its contract's disclosure rules ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcore.algorithm import DeviceResult
from fedcore.data import Dataset
from fedcore.data.disclosure import scored_rows
from fedcore.drift import Drift, residual_drift
from fedcore.errors import DeviceRefusal, FedlinError
from fedcore.metrics import Score, score
from fedcore.rows import DeviceData, Floats
from tasks.cohort import Attempt, device_task
from tasks.device import continued, examined
from tasks.ground import Earlier, Station


@device_task("device-drift", "drift {errand.name}", "drift")
def device_drift(attempt: Attempt[Station]) -> Mapping[str, Drift]:
    """How far a device's rows have moved away from the champion; it keeps nothing.

    The station is of the champion's algorithm and preprocessing, with the devices that it knows. A device is told its coefficients there,
    shape (d,), the champion's run and what its server last took of the device, and what that server would tell it now.
    """

    def drift(device_id: str, told: tuple[Floats, Earlier, Any]) -> Drift:
        theta, earlier, down = told
        data = examined(attempt, device_id).data
        test = scored_rows(data.test, attempt.ground.dataset.contract)
        return residual_drift(theta, data, test, _moved(attempt, device_id, data, earlier, down))

    return attempt.each(drift, attempt.told)


def _moved(attempt: Attempt[Station], device_id: str, data: DeviceData, earlier: Earlier, down: Any) -> float | None:
    station = attempt.ground
    algorithm = station.algorithm
    try:
        device = continued(attempt, device_id, earlier, algorithm.init_device(station.spec, data))
    except FedlinError:  # its state is lost, or the algorithm does not go on; residuals need neither
        return None
    return algorithm.moved(down, device, data)


@device_task("device-contest", "contest {errand.name}", "contest")
def device_contest(attempt: Attempt[Station]) -> Mapping[str, tuple[Score, Score]]:
    """The scores of champion and challenger on the same held-out rows of a device.

    The station is of the challenger. A device is told the data set with the champion's preprocessing, and its coefficients in each of
    both, shape (d,).

    Raises
    ------
    DeviceRefusal
        Where preprocessing leaves the two different numbers of rows to be scored on.
    """

    def scores(device_id: str, told: tuple[Dataset, Floats, Floats]) -> tuple[Score, Score]:
        before, champion, challenger = told
        data, contract = examined(attempt, device_id).data, attempt.ground.dataset.contract
        theirs, ours = scored_rows(before.load(device_id).test, contract), scored_rows(data.test, contract)
        if theirs.n != ours.n:
            raise DeviceRefusal(f"the champion's preprocessing leaves {theirs.n} of its held-out rows, the challenger's {ours.n}")
        return score(DeviceResult(champion), theirs), score(DeviceResult(challenger), ours)

    return attempt.each(scores, attempt.told)
