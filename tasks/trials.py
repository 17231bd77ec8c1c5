"""What is done on a device for trials side by side, beside the rounds themselves: it says which settings it refuses, and at the end it
scores. What leaves it are texts of refusals and scores, and no score of fewer rows than its contract's disclosure rules ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from prefect import task

from fedcore.algorithm import AnyAlgorithm, DeviceResult
from fedcore.data import DeviceCard
from fedcore.data.disclosure import scored_rows
from fedcore.errors import Misuse
from fedcore.messages import Broadcast
from fedcore.metrics import Score, constant_errors, score, squared_errors
from fedcore.rows import DeviceData
from fedcore.selection import Paired, paired
from fedcore.trials import Trials
from tasks.device import Station, device_task, examined, sealed, settled


class Screening(NamedTuple):
    """What a device says before the rounds.

    Attributes
    ----------
    card
        What may be told of its rows.
    refusals
        One a trial: why its settings are unsafe for these rows, None where they are not.
    """

    card: DeviceCard
    refusals: tuple[str | None, ...]


class Tested(NamedTuple):
    """What a device says of chosen trials at the end: first of the constant that is its training rows' mean, then one a trial.

    Attributes
    ----------
    scores
        Their scores.
    excess
        How much larger their squared errors are than those of the reference, paired by row.
    """

    scores: tuple[Score, ...]
    excess: tuple[Paired, ...]


@task(name="device-screen", task_run_name="screen {device_id}", **device_task)
@sealed("screening")
def device_screen(station: Station, device_id: str) -> Screening:
    """Which trials' settings a device refuses; it keeps nothing."""
    data, card = examined(station, device_id)
    return Screening(card, tuple(_refusal(station, algorithm, data) for algorithm in _trials(station).algorithms))


@task(name="device-validate", task_run_name="validate {device_id}", **device_task)
@sealed("validation")
def device_validate(station: Station, device_id: str, broadcast: Broadcast) -> tuple[Score, ...]:
    """Each trial's score on a device's validation rows."""
    data, results = _results(station, device_id, broadcast)
    rows = scored_rows(data.validation, station.dataset.contract)
    return tuple(score(result, rows) for result in results)


@task(name="device-test", task_run_name="test {device_id}", **device_task)
@sealed("test")
def device_test(station: Station, device_id: str, broadcast: Broadcast, chosen: Sequence[int], reference: int) -> Tested:
    """The chosen trials' scores on a device's test rows, and how each compares with the reference."""
    data, results = _results(station, device_id, broadcast)
    rows = scored_rows(data.test, station.dataset.contract)
    constant, against = constant_errors(data, rows), squared_errors(results[reference], rows)
    scores = (Score(rows.n, float(constant.sum())), *(score(results[i], rows) for i in chosen))
    errors = (constant, *(squared_errors(results[i], rows) for i in chosen))
    return Tested(scores, tuple(paired(each, against) for each in errors))


def _results(station: Station, device_id: str, broadcast: Broadcast) -> tuple[DeviceData, tuple[DeviceResult, ...]]:
    data, _, memory = settled(station, device_id, broadcast)
    return data, _trials(station).results(broadcast.down, memory.accepted, data)


def _refusal(station: Station, algorithm: AnyAlgorithm, data: DeviceData) -> str | None:
    try:
        algorithm.init_device(station.spec, data)
    except Misuse as refusal:
        return str(refusal)
    return None


def _trials(station: Station) -> Trials:
    algorithm: Any = station.algorithm
    assert isinstance(algorithm, Trials)
    return algorithm
