"""A method of a table: what it is called, the settings to choose from, and its run on a fleet in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedcore.algorithm import AnyAlgorithm, DeviceResult, FleetSpec, Outcome
from fedcore.fit import InProcess
from fedcore.metrics import a_rmse, score
from fedcore.rounds import RunState, Schedule, rounds
from fedcore.rows import DeviceData, Floats, Rows


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes
    ----------
    label
        What the row is called.
    grid
        The settings of which validation rows choose; one where nothing is to be chosen.
    column
        The column of the paper's table that it is held against; None where the paper has none.
    """

    label: str
    grid: Sequence[AnyAlgorithm]
    column: str | None = None

    def setting(self, algorithm: AnyAlgorithm) -> str:
        """What sets one of the grid apart, such as "eta=0.1, penalty=0.3"."""
        mine = vars(algorithm)
        return ", ".join(f"{name}={mine[name]}" for name in mine if any(vars(each)[name] != mine[name] for each in self.grid))


class Path(NamedTuple):
    """How a run went.

    Attributes
    ----------
    thetas
        Coefficients after each round that was followed, and after the last, shape (K, d) each, devices in the order of their ids. Rounds
        of a start, and one in which the run diverged, are none of them.
    outcome
        How the run ended.
    """

    thetas: list[Floats]
    outcome: Outcome


def run(algorithm: AnyAlgorithm, fleet: Mapping[str, DeviceData], count: int, seed: int, *, follow: bool = False) -> Path:
    """Run an algorithm on a fleet: the coefficients of `fedcore.fit` to the last bit, and after each round where wanted.

    Parameters
    ----------
    algorithm, fleet
        What is run, on which devices by id.
    count
        The most rounds.
    seed
        Root of all random numbers.
    follow
        Whether the coefficients are wanted after each round, or after the last only.
    """
    ids = tuple(sorted(fleet))
    datas = [fleet[device_id] for device_id in ids]
    spec = FleetSpec(ids, datas[0].train.d)
    backend = InProcess(algorithm, spec, datas, seed)
    thetas: list[Floats] = []
    outcome = None
    for report in rounds(algorithm, spec, backend, Schedule(rounds=count, seed=seed), RunState.initial(algorithm, spec)):
        outcome = report.outcome
        if ((follow and report.phase == "main") or outcome) and (outcome is None or outcome.ok):
            thetas.append(np.array(list(backend.finalize(report.state).values())))
    assert outcome is not None
    return Path(thetas, outcome)


def scored(thetas: Floats, tests: Sequence[Rows]) -> float:
    """A-RMSE of coefficients, shape (K, d), on each device's rows."""
    return a_rmse(score(DeviceResult(theta), rows) for theta, rows in zip(thetas, tests, strict=True))


def why(outcome: Outcome) -> str:
    """What an outcome says happened, without what it says to try."""
    return outcome.message.partition(":")[0]
