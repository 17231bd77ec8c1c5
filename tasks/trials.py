"""What is done on a device for trials side by side, beside the rounds themselves: it says which settings it refuses, and at the end it
scores. What leaves it are texts of refusals and scores, and no score of fewer rows than its contract's disclosure rules ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from fedcore.algorithm import AnyAlgorithm, DeviceResult
from fedcore.alike import single
from fedcore.data import DeviceCard
from fedcore.data.disclosure import scored_rows
from fedcore.errors import Misuse
from fedcore.messages import Broadcast
from fedcore.metrics import Score, constant_errors, score, squared_errors
from fedcore.rows import DeviceData
from fedcore.selection import Paired, paired
from fedcore.trials import Trials
from tasks.cohort import Attempt, device_task
from tasks.device import examined, settled
from tasks.ground import Station

R = TypeVar("R")


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


@device_task("device-screen", "screen {errand.name}", "screening")
def device_screen(attempt: Attempt[Station]) -> Mapping[str, Screening]:
    """Which trials' settings a device refuses; it keeps nothing."""
    station = attempt.ground

    def screening(device_id: str, _: object) -> Screening:
        opened = examined(attempt, device_id)
        return Screening(opened.card, tuple(_refusal(station, algorithm, opened.data) for algorithm in _trials(station).algorithms))

    return attempt.each(screening, attempt.told)


@device_task("device-validate", "validate {errand.name}", "validation")
def device_validate(attempt: Attempt[Station]) -> Mapping[str, tuple[Score, ...]]:
    """Each trial's score on a device's validation rows, after the last broadcast."""

    def scores(device_id: str, told: tuple[Broadcast]) -> tuple[Score, ...]:
        data, results = _results(attempt, device_id, *told)
        rows = scored_rows(data.validation, attempt.ground.dataset.contract)
        return tuple(score(result, rows) for result in results)

    return _at_the_end(attempt, scores)


@device_task("device-test", "test {errand.name}", "test")
def device_test(attempt: Attempt[Station]) -> Mapping[str, Tested]:
    """The scores of chosen trials on a device's test rows, and how each compares with the reference; it is told the last broadcast, which
    trials are chosen, and which one is the reference."""

    def tested(device_id: str, told: tuple[Broadcast, Sequence[int], int]) -> Tested:
        broadcast, chosen, reference = told
        data, results = _results(attempt, device_id, broadcast)
        rows = scored_rows(data.test, attempt.ground.dataset.contract)
        constant, against = constant_errors(data, rows), squared_errors(results[reference], rows)
        scores = (Score(rows.n, float(constant.sum())), *(score(results[i], rows) for i in chosen))
        errors = (constant, *(squared_errors(results[i], rows) for i in chosen))
        return Tested(scores, tuple(paired(each, against) for each in errors))

    return _at_the_end(attempt, tested)


def _at_the_end(attempt: Attempt[Station], ask: Callable[[str, Any], R]) -> dict[str, R]:
    """What devices answer after the rounds, whose rows they need not keep any longer: a last task more reads them again."""
    answers = attempt.each(ask, attempt.told)
    attempt.files.let_go()
    return answers


def _results(attempt: Attempt[Station], device_id: str, broadcast: Broadcast) -> tuple[DeviceData, tuple[DeviceResult, ...]]:
    device = settled(attempt, device_id, broadcast)
    return device.data, _trials(attempt.ground).results(broadcast.down, single(device.memory.accepted), device.data)


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
