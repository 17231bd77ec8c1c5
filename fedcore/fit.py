"""A whole federated run in one process, for notebooks, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcore.algorithm import Aggregated, AnyAlgorithm, DeviceResult, FleetSpec, Outcome, algorithm_class
from fedcore.errors import DataError, Misuse
from fedcore.messages import columns, take
from fedcore.posterior import AnyPosterior
from fedcore.rounds import Answers, Call, DeviceRngs, RunState, Schedule, rounds
from fedcore.rows import DeviceData, Floats


@dataclass(frozen=True)
class FitResult:
    """What a run gives.

    Attributes
    ----------
    theta
        Coefficients by device id, each of shape (d,).
    server
        The algorithm's last server state.
    history
        Per round, its scalars by name.
    outcome
        How the run ended.
    posterior
        The coefficients' posterior by device id, where the algorithm has one.
    """

    theta: dict[str, Floats]
    server: Any
    history: tuple[dict[str, float], ...]
    outcome: Outcome
    posterior: dict[str, AnyPosterior]


def fit(
    algorithm: AnyAlgorithm | str,
    devices: Mapping[str, DeviceData | tuple[object, object]],
    *,
    rounds: int = 30,
    seed: int = 0,
    participation: float = 1.0,
) -> FitResult:
    """Run an algorithm on data in memory.

    Parameters
    ----------
    algorithm
        An instance such as `Hm1(alpha=0.1)`, or a name, which takes the defaults.
    devices
        By device id: `DeviceData`, or a pair of training arrays X (n, d) and y (n,). All have the same d.
    rounds
        The most communication rounds.
    seed
        Root of all random numbers.
    participation
        Share in (0, 1] of the devices drawn each round.

    Raises
    ------
    Misuse
        Where an option is out of bounds or unsafe for a device's data, which the message names.
    DataError
        Where a device's arrays are not of the shapes above, or hold non-finite values.
    """
    if isinstance(algorithm, str):
        algorithm = algorithm_class(algorithm)()
    schedule = Schedule(rounds=rounds, seed=seed, participation=participation)
    spec, datas = _fleet(devices)
    backend = InProcess(algorithm, spec, datas, seed)
    state, outcome = RunState.initial(algorithm, spec), None
    history: list[dict[str, float]] = []
    for report in _loop(algorithm, spec, backend, schedule, state):
        state, outcome = report.state, report.outcome
        history.append(report.metrics())
    assert outcome is not None
    results = backend.results(state)
    theta = {device_id: result.theta for device_id, result in results.items()}
    posterior = {device_id: result.posterior for device_id, result in results.items() if result.posterior}
    return FitResult(theta, state.server, tuple(history), outcome, posterior)


_loop = rounds  # `rounds` is also the name that users know the number of rounds by


def _fleet(devices: Mapping[str, DeviceData | tuple[object, object]]) -> tuple[FleetSpec, list[DeviceData]]:
    if not isinstance(devices, Mapping) or not all(isinstance(name, str) for name in devices):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Misuse(f"devices are a mapping of ids, which are strings, to data; got {type(devices).__name__}")
    if not devices:
        raise Misuse("a fleet has at least one device, got none")
    for name, device in devices.items():
        if not isinstance(device, tuple) or len(device) not in (2, 3):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Misuse(f"device {name}: expected DeviceData or a pair (X, y), got {type(device).__name__}")
    ids = tuple(sorted(devices))
    datas = [
        device if isinstance(device, DeviceData) else _pair(name, device)
        for name, device in zip(ids, map(devices.__getitem__, ids), strict=True)
    ]
    d = datas[0].train.d
    for device_id, data in zip(ids, datas, strict=True):
        if data.train.d != d:
            raise Misuse(f"device {device_id} has {data.train.d} columns, device {ids[0]} has {d}: give all the same design")
    return FleetSpec(ids, d), datas


def _pair(device_id: str, pair: tuple[object, ...]) -> DeviceData:
    try:
        X, y = pair
        return DeviceData.of(X, y)
    except DataError as error:
        raise DataError(f"device {device_id}: {error}") from None
    except ValueError:
        raise Misuse(f"device {device_id}: expected DeviceData or a pair (X, y), got a tuple of {len(pair)}") from None


class InProcess:
    """A backend whose devices live in this process and always answer.

    Attributes
    ----------
    accepted
        The devices' states, one a device, after what the server has told them to have taken; held together where an algorithm does.
    """

    def __init__(self, algorithm: AnyAlgorithm, spec: FleetSpec, datas: Sequence[DeviceData], seed: int) -> None:
        self.algorithm = algorithm
        self.spec = spec
        self.datas = datas
        self.seed = seed
        self.accepted: Sequence[Any] = _initial_states(algorithm, spec, datas)
        self._last: tuple[int, Sequence[int], Sequence[Any]] | None = None  # round, cohort and new states, where these have moved

    def local_steps(self, call: Call) -> Answers:
        """The cohort's local steps, as one call of the algorithm."""
        self._settle(call.state)
        devices = self._of(self.accepted, call.cohort)
        ids = self._of(self.spec.device_ids, call.cohort)
        rngs = DeviceRngs(self.seed, call.round_num, ids)
        states, ups, infos = self.algorithm.local_steps(call.downs, devices, self._of(self.datas, call.cohort), rngs)
        self._last = None if states is devices else (call.round_num, call.cohort, states)
        return Answers(call.cohort, ups, infos)

    def aggregate(self, server: Any, answers: Answers) -> Aggregated:
        """The algorithm's aggregation."""
        return self.algorithm.aggregate(server, answers.answered, answers.ups)

    def results(self, state: RunState) -> dict[str, DeviceResult]:
        """Every device's result after its last receipt."""
        self._settle(state)
        downs = self.algorithm.broadcasts(state.server, range(len(self.datas)))
        return dict(zip(self.spec.device_ids, self.algorithm.finalize_devices(downs, self.accepted, self.datas), strict=True))

    def finalize(self, state: RunState) -> dict[str, Floats]:
        """Every device's coefficients after its last receipt, shape (d,) each."""
        return {device_id: result.theta for device_id, result in self.results(state).items()}

    def _settle(self, state: RunState) -> None:
        """What devices do by their receipts (see `fedcore.receipts`), for all of them at once: those whose last update was taken move."""
        if self._last is None:
            return
        round_num, cohort, states = self._last
        self._last = None
        taken = np.flatnonzero(state.taken_round[columns(cohort, len(self.datas))] == round_num).tolist()
        if not taken:
            return
        moved = [cohort[i] for i in taken]
        fraction = float(state.taken_fraction[moved[0]])  # one a round
        after = self.algorithm.accepts(self._of(self.accepted, moved), self._of(states, taken), fraction)
        if len(moved) == len(self.datas):
            self.accepted = after
        else:
            by_number = dict(zip(moved, after, strict=True))
            self.accepted = [by_number.get(k, before) for k, before in enumerate(self.accepted)]

    def _of(self, whole: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
        return whole if len(positions) == len(whole) else take(whole, positions)


def _initial_states(algorithm: AnyAlgorithm, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Any]:
    try:
        return algorithm.init_devices(spec, datas)
    except Misuse:
        for device_id, data in zip(spec.device_ids, datas, strict=True):
            try:
                algorithm.init_device(spec, data)
            except Misuse as error:
                raise Misuse(f"device {device_id}: {error}") from None
        raise
