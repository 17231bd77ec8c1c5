"""Trials side by side in the rounds of one run: how they begin, what became of each, and what devices say of them at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedcore.algorithm import Continue
from fedcore.data import Dataset
from fedcore.data.disclosure import may_score
from fedcore.errors import Misuse
from fedcore.metrics import Score
from fedcore.rounds import RunState
from fedcore.rows import Floats
from fedcore.trials import Trials
from flows.config import RunConfig
from flows.fleet import Fleet
from flows.running import reopened
from flows.searches import Candidate
from tasks.checkpoint import RunFolder
from tasks.trials import Screening, device_screen

Refusals = list[str | None]
"""One a candidate: why its settings are left out, None where they are not."""


class Course(NamedTuple):
    """How a candidate's trial went.

    Attributes
    ----------
    status
        `refused`, or the outcome's name.
    message
        Why, empty where it just ran to the end.
    ok
        Whether its estimate is one to use.
    rounds, settled, uplink_bytes
        See `fedcore.trials.Trial`.
    """

    status: str
    message: str
    ok: bool
    rounds: int = 0
    settled: int = 0
    uplink_bytes: int = 0


def screened(fleet: Fleet, screenings: Sequence[Screening], parts: Sequence[str]) -> Refusals:
    """Which of a fleet's trials some device refuses, and why the first one does.

    Parameters
    ----------
    fleet, screenings
        Its algorithm is the trials; one screening a device.
    parts
        Names of the parts of the rows, `validation` or `test`, that trials are to be scored on.

    Raises
    ------
    Misuse
        Where all are refused, or no device has the rows to score on.
    """
    by_trial = zip(*(screening.refusals for screening in screenings), strict=True)
    refusals = [_first(fleet.device_ids, texts) for texts in by_trial]
    if None not in refusals:
        raise Misuse(f"all {len(refusals)} trials are refused, the first one because of {refusals[0]}")
    contract = fleet.dataset.contract
    for part in parts:
        if not any(may_score(getattr(screening.card, f"n_{part}"), contract) for screening in screenings):
            rows = f"{contract.disclosure.rows} {part} rows or more ([disclosure] rows)"
            raise Misuse(f"no device of data set {fleet.dataset.name!r} has {rows} to score on: let the contract's [split] give them some")
    return refusals


def trial_fleet(
    folder: RunFolder,
    config: RunConfig,
    dataset: Dataset,
    candidates: Sequence[Candidate],
    parts: Sequence[str],
    create: Callable[[Mapping[str, Any]], None],
) -> tuple[Fleet, Refusals]:
    """The fleet of a run of trials, without those that devices refuse.

    Parameters
    ----------
    folder
        The run's; `create` makes it of the manifest where it is not there.
    config, dataset, candidates, parts
        What is tried, how and on what, and the parts of the rows that trials are to be scored on.

    Raises
    ------
    Misuse
        As `screened` does, or where the fleet cannot take part.
    """
    algorithms = [candidate.algorithm for candidate in candidates]
    if folder.exists:
        refusals: Refusals = folder.manifest()["refusals"]
        return reopened(folder, config, dataset, _kept(algorithms, refusals)), refusals
    fleet = Fleet(folder.run_id, config, dataset, Trials(tuple(algorithms)))
    fleet.preprocess()
    refusals = screened(fleet, fleet.from_all(device_screen), parts)
    fleet.algorithm = _kept(algorithms, refusals)
    create(fleet.manifest(fleet.enrol()) | {"refusals": refusals})
    return fleet, refusals


def courses(fleet: Fleet, state: RunState, refusals: Refusals) -> list[Course]:
    """How each candidate's trial went."""
    algorithm: Any = fleet.algorithm
    found: list[Course] = []
    kept = iter(range(len(state.server.trials)))
    for refusal in refusals:
        if refusal is not None:
            found.append(Course("refused", refusal, ok=False))
            continue
        i = next(kept)
        trial, ended = state.server.trials[i], algorithm.ended(state.server, i)
        name, message, ok = ("completed", "", True) if isinstance(ended, Continue) else (ended.name, ended.message, ended.ok)
        found.append(Course(name, message, ok, trial.rounds, trial.settled, trial.uplink_bytes))
    return found


def validation(scores: Mapping[str, Sequence[Score]], refusals: Refusals, courses: Sequence[Course]) -> Floats:
    """Every candidate's RMSE on the devices that have told scores, shape (m, K); NaN for those whose estimate is not one to use."""
    told = [each for each in scores.values() if each[0].n]
    place = places(refusals)
    usable = [place[i] if course.ok else None for i, course in enumerate(courses)]
    rmse = [[np.nan if i is None else each[i].rmse for each in told] for i in usable]
    return np.array(rmse, dtype=float).reshape(len(courses), len(told))


def places(refusals: Refusals) -> list[int | None]:
    """Where each candidate is among those that were not refused."""
    kept = iter(range(len(refusals)))
    return [None if refusal is not None else next(kept) for refusal in refusals]


def _kept(algorithms: Sequence[Any], refusals: Refusals) -> Trials:
    return Trials(tuple(algorithm for algorithm, refusal in zip(algorithms, refusals, strict=True) if refusal is None))


def _first(device_ids: Sequence[str], texts: Sequence[str | None]) -> str | None:
    return next((f"device {device_id}: {text}" for device_id, text in zip(device_ids, texts, strict=True) if text is not None), None)
