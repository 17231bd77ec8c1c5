"""Several algorithms trained side by side, in the rounds of one run: what a search over settings or a comparison of methods costs no more
messages for than a single run does.

Each trial goes as it would alone: the same draws, the same steps, the same end, equal to the last bit. One that has ended stays as it is
while the others go on. A trial's warm-up rounds count as rounds here, since the trials share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, overload

import numpy as np
from numpy.random import Generator

from fedcore.algorithm import Aggregated, Algorithm, AnyAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.deadline import check_deadline
from fedcore.errors import Misuse
from fedcore.messages import DeviceInfo, nbytes, take
from fedcore.rows import DeviceData, Floats

SETTLED = 0.01
"""How near to its last training error a trial has to stay to count as settled, relative."""


class Trial(NamedTuple):
    """What the server knows of one trial.

    Attributes
    ----------
    server
        The algorithm's own server state.
    losses
        Mean training error of those who answered, one for each of r rounds that the trial has had, shape (r,).
    uplink_bytes
        Size of what its devices have sent so far.
    """

    server: Any
    losses: Floats
    uplink_bytes: int

    @property
    def rounds(self) -> int:
        """How many rounds it has had."""
        return len(self.losses)

    @property
    def overflowed(self) -> bool:
        """Whether its training error has stopped being finite, which ends it."""
        return bool(self.rounds and not np.isfinite(self.losses[-1]))

    @property
    def settled(self) -> int:
        """The round from which on its training error has stayed within 1 % of the last one; 0 before the first."""
        off = np.flatnonzero(~np.isclose(self.losses, self.losses[-1:], rtol=SETTLED, atol=0.0))
        return int(off[-1]) + 2 if len(off) else min(1, self.rounds)


class Server(NamedTuple):
    """One trial an algorithm, and the fraction that each has applied of each device's last update, shape (K, number of trials)."""

    trials: tuple[Trial, ...]
    fractions: Floats


class Device(NamedTuple):
    """Two device states a trial: after its last step, and before it; () for the latter where updates are always applied whole.

    One receipt speaks for all trials, and fractions differ between them, so it is with the next message that a state moves by part.
    """

    states: tuple[Any, ...]
    before: tuple[Any, ...]


class Down(NamedTuple):
    """One message a trial, which of the trials go on, and the fractions that they have applied of the device's last update."""

    downs: tuple[Any, ...]
    running: tuple[bool, ...]
    fractions: tuple[float, ...]


class Up(NamedTuple):
    """One update and training error a trial, None and NaN for those that have ended."""

    ups: tuple[Any, ...]
    losses: tuple[float, ...]


class Info(NamedTuple):
    """Of a round: how many trials go on after it."""

    running: int


class Zipped(Sequence[Any]):
    """What m devices hold or are sent, kept by trial as each algorithm wants it, and read device by device."""

    def __init__(self, parts: Sequence[Sequence[Any]], join: Callable[[tuple[Any, ...]], Any], length: int) -> None:
        self.parts = parts
        self.join = join
        self.length = length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Zipped: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(range(self.length)[index])
        if not -self.length <= index < self.length:
            raise IndexError(index)
        return self.join(tuple(part[index] for part in self.parts))

    def take(self, positions: Sequence[int]) -> Zipped:
        """The messages at these positions, in this order."""
        return Zipped([take(part, positions) for part in self.parts], self.join, len(positions))


class Fresh(Sequence[Generator]):
    """Generators of a cohort as they were given, for each trial anew: no trial's draws move another's."""

    def __init__(self, rngs: Sequence[Generator]) -> None:
        self.rngs = rngs

    def __len__(self) -> int:
        return len(self.rngs)

    @overload
    def __getitem__(self, index: int) -> Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Fresh: ...
    def __getitem__(self, index: int | slice) -> Generator | Fresh:
        return Fresh(self.rngs[index]) if isinstance(index, slice) else deepcopy(self.rngs[index])


@dataclass(frozen=True)
class Trials(Algorithm[Server, Device, Down, Up]):
    """Algorithms that share a run.

    Attributes
    ----------
    algorithms
        One a trial.
    """

    FINITE: ClassVar[bool] = False
    """A trial that overflows on a device ends by itself, and the device goes on with the others."""

    algorithms: tuple[AnyAlgorithm, ...]

    def __post_init__(self) -> None:
        """Raises Misuse without any algorithm."""
        if not self.algorithms:
            raise Misuse("trials: expected at least one algorithm, got none")

    def init_server(self, spec: FleetSpec) -> Server:
        trials = tuple(Trial(algorithm.init_server(spec), np.empty(0), 0) for algorithm in self.algorithms)
        return Server(trials, np.ones((len(spec.device_ids), len(trials))))

    def init_device(self, spec: FleetSpec, data: DeviceData) -> Device:
        return Device(tuple(algorithm.init_device(spec, data) for algorithm in self.algorithms), ((),) * len(self.algorithms))

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Device]:
        nothing = [[()] * len(datas)] * len(self.algorithms)
        return Zipped([*(algorithm.init_devices(spec, datas) for algorithm in self.algorithms), *nothing], self._device, len(datas))

    def _device(self, parts: tuple[Any, ...]) -> Device:
        return Device(parts[: len(self.algorithms)], parts[len(self.algorithms) :])

    def broadcast(self, server: Server, k: int) -> Down:
        return self.broadcasts(server, [k])[0]

    def broadcasts(self, server: Server, cohort: Sequence[int]) -> Sequence[Down]:
        running = tuple(self._runs(server, i) for i in range(len(self.algorithms)))
        parts = [algorithm.broadcasts(trial.server, cohort) for algorithm, trial in zip(self.algorithms, server.trials, strict=True)]
        fractions = [tuple(row) for row in server.fractions[list(cohort)].tolist()]
        return Zipped([*parts, fractions], lambda each: Down(each[:-1], running, each[-1]), len(cohort))

    def local_step(self, down: Down, device: Device, data: DeviceData, rng: Generator) -> tuple[Device, Up, DeviceInfo]:
        states, ups, infos = self.local_steps([down], [device], [data], [rng])
        return states[0], ups[0], infos[0]

    def local_steps(
        self, downs: Sequence[Down], devices: Sequence[Device], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[Device], Sequence[Up], Sequence[DeviceInfo]]:
        m = len(devices)
        states: list[Sequence[Any]] = []
        before: list[Sequence[Any]] = []
        ups: list[Sequence[Any]] = []
        losses: list[list[float]] = []
        for i, algorithm in enumerate(self.algorithms):
            mine = self._settled(i, downs, devices)
            before.append([()] * m if algorithm.WHOLE else mine)
            if not downs[0].running[i]:
                states.append(mine)
                ups.append([None] * m)
                losses.append([np.nan] * m)
                continue
            check_deadline()
            told = _part(downs, i, lambda down: down.downs)
            moved, sent, infos = algorithm.local_steps(told, mine, datas, Fresh(rngs))
            states.append(moved)
            ups.append(sent)
            losses.append([float(info.loss) for info in infos])
        up = Zipped(ups, lambda sent: sent, m)
        each = list(zip(*losses, strict=True))
        return (
            Zipped([*states, *before], self._device, m),
            [Up(up[j], each[j]) for j in range(m)],
            [DeviceInfo(min((loss for loss in losses if np.isfinite(loss)), default=np.nan)) for losses in each],
        )

    def _settled(self, i: int, downs: Sequence[Down], devices: Sequence[Device]) -> Sequence[Any]:
        """The devices' states in trial i, by as much as it has applied of their last updates."""
        states = _part(devices, i, lambda device: device.states)
        if self.algorithms[i].WHOLE:
            return states
        before = _part(devices, i + len(self.algorithms), lambda device: (*device.states, *device.before))
        each = zip(before, states, (down.fractions[i] for down in downs), strict=True)
        return [state if old == () else self.algorithms[i].accept(old, state, fraction) for old, state, fraction in each]

    def form(self, spec: FleetSpec, server: Server) -> Up:
        each = enumerate(zip(self.algorithms, server.trials, strict=True))
        ups = tuple(algorithm.form(spec, trial.server) if self._runs(server, i) else None for i, (algorithm, trial) in each)
        return Up(ups, (0.0,) * len(ups))

    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Up]) -> Aggregated:
        trials: list[Trial] = []
        fractions = server.fractions.copy()
        for i, (algorithm, trial) in enumerate(zip(self.algorithms, server.trials, strict=True)):
            if ups[0].ups[i] is None:
                trials.append(trial)
                continue
            mine = [up.ups[i] for up in ups]
            new, fractions[list(cohort), i], _ = algorithm.aggregate(trial.server, cohort, mine)
            losses = [up.losses[i] for up in ups]
            trials.append(Trial(new, np.array([*trial.losses, float(np.mean(losses))]), trial.uplink_bytes + nbytes(mine) + nbytes(losses)))
        after = Server(tuple(trials), fractions)
        return Aggregated(after, 1.0, Info(sum(self._runs(after, i) for i in range(len(trials)))))

    def _runs(self, server: Server, i: int) -> bool:
        return isinstance(self.ended(server, i), Continue)

    def ended(self, server: Server, i: int) -> Continue | Outcome:
        """How trial i has ended, or that it goes on."""
        trial = server.trials[i]
        status = self.algorithms[i].status(trial.server)
        if trial.overflowed and isinstance(status, Continue):
            return Outcome(
                "diverged", "the devices' training error is no longer finite: try a smaller eta, eta=safe or batch=full", ok=False
            )
        return status

    def status(self, server: Server) -> Continue | Outcome:
        if any(self._runs(server, i) for i in range(len(self.algorithms))):
            return Continue()
        return Outcome("completed", f"all {len(self.algorithms)} trials have ended", ok=True)

    def results(self, down: Down, device: Device, data: DeviceData) -> tuple[DeviceResult, ...]:
        """A device's result in every trial."""
        states = [self._settled(i, [down], [device])[0] for i in range(len(self.algorithms))]
        each = zip(self.algorithms, down.downs, states, strict=True)
        return tuple(algorithm.finalize(told, state, data) for algorithm, told, state in each)

    def finalize(self, down: Down, device: Device, data: DeviceData) -> DeviceResult:
        """All trials' coefficients, shape (number of trials, d)."""
        return DeviceResult(np.array([result.theta for result in self.results(down, device, data)]))


def _part(messages: Sequence[Any], i: int, of: Callable[[Any], tuple[Any, ...]]) -> Sequence[Any]:
    """What trial i has of each message, as its algorithm holds it where that is known."""
    return messages.parts[i] if isinstance(messages, Zipped) else [of(message)[i] for message in messages]
