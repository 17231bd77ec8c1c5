"""The communication-round loop, and which devices and random numbers a round uses.

The loop is a generator and does no work of its own: a `Backend` carries broadcasts to devices and answers back, in this
process or through an orchestrator, and the caller stores what each `RoundReport` says before it asks for the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from fedcore.algorithm import Aggregated, AnyAlgorithm, FleetSpec, Outcome
from fedcore.messages import Broadcast, DeviceInfo, Receipt, alike, columns, nbytes, stacked, take
from fedcore.options import number, whole
from fedcore.quarantine import Faults, faults

HEADER_BYTES = nbytes(Broadcast(0, 0, None, None))
RECEIPT_BYTES = nbytes(Receipt(0, 0.0))
DIGEST_BYTES = 8


@dataclass(frozen=True)
class Schedule:
    """How long a run is and who takes part.

    Attributes
    ----------
    rounds
        The most rounds of the main phase; rounds of other phases, before and after it, do not count.
    seed
        Root of all random numbers of the run.
    participation
        Share in (0, 1] of the fleet that is drawn each round, at least one device.
    quorum
        Share in (0, 1] of the drawn devices that must answer for the round to count.
    fewest
        The fewest devices that must answer for it; the disclosure rule of a contract, where there is one.
    """

    rounds: int = 30
    seed: int = 0
    participation: float = 1.0
    quorum: float = 0.5
    fewest: int = 1

    def __post_init__(self) -> None:
        """Raises Misuse on a value out of bounds."""
        whole("rounds", self.rounds, 1, 1_000_000_000)
        whole("seed", self.seed, 0, 2**63 - 1)
        number("participation", self.participation, 0, 1, above=True)
        number("quorum", self.quorum, 0, 1, above=True)
        whole("fewest", self.fewest, 1, 1_000_000_000)

    def drawn(self, K: int) -> int:
        """How many devices of a fleet of K are drawn each round."""
        return max(1, round(self.participation * K))

    def lost(self, answered: int, drawn: int) -> str:
        """Why so many answers of so many devices are not enough; empty where they are."""
        if answered < self.quorum * drawn:
            return f"the quorum is {self.quorum:g}"
        if answered < self.fewest:
            return f"fewer than [disclosure] devices = {self.fewest}"
        return ""


class RunState(NamedTuple):
    """All that the server side of a run must keep to go on from here.

    Attributes
    ----------
    round_num
        The last finished round, 0 before the first.
    main_rounds
        How many of them were in the main phase.
    server
        The algorithm's server state.
    taken_round, taken_fraction
        Per device, shape (K,): the last round whose update was taken (0 for none), and the fraction of it that was
        applied.
    """

    round_num: int
    main_rounds: int
    server: Any
    taken_round: NDArray[np.int64]
    taken_fraction: NDArray[np.float64]

    @classmethod
    def initial(cls, algorithm: AnyAlgorithm, spec: FleetSpec) -> RunState:
        """The state before the first round."""
        K = len(spec.device_ids)
        return cls(0, 0, algorithm.init_server(spec), np.zeros(K, dtype=np.int64), np.zeros(K))

    def receipt(self, k: int) -> Receipt | None:
        """What device k is told of its last accepted update."""
        return self.receipts([k])[0]

    def receipts(self, cohort: Sequence[int]) -> list[Receipt | None]:
        """The same for each device of a cohort."""
        whose = columns(cohort, len(self.taken_round))
        each = zip(self.taken_round[whose].tolist(), self.taken_fraction[whose].tolist(), strict=True)
        return [Receipt(taken, fraction) if taken else None for taken, fraction in each]


class Call(NamedTuple):
    """A round as it goes out: `downs[i]` is for device `cohort[i]`; the state holds everybody's receipts."""

    round_num: int
    cohort: Sequence[int]
    downs: Sequence[Any]
    state: RunState

    def broadcasts(self) -> list[Broadcast]:
        """All that each device of the cohort is told."""
        m, each = len(self.cohort), zip(self.state.receipts(self.cohort), self.downs, strict=True)
        return [Broadcast(self.round_num, m, receipt, down) for receipt, down in each]

    @property
    def nbytes(self) -> int:
        """Size of all its broadcasts in bytes."""
        receipts = int(np.count_nonzero(self.state.taken_round[columns(self.cohort, len(self.state.taken_round))]))
        return nbytes(self.downs) + len(self.cohort) * HEADER_BYTES + receipts * RECEIPT_BYTES


class Answers(NamedTuple):
    """What came back: devices in ascending order, with their updates and infos."""

    answered: Sequence[int]
    ups: Sequence[Any]
    infos: Sequence[DeviceInfo]


class Backend(Protocol):
    """Where device steps and aggregation are carried out."""

    def local_steps(self, call: Call) -> Answers:
        """The cohort's local steps; devices that failed are missing from the answers."""
        ...

    def aggregate(self, server: Any, answers: Answers) -> Aggregated:
        """The algorithm's aggregation."""
        ...


class RoundReport(NamedTuple):
    """What happened in a round.

    Attributes
    ----------
    round_num, phase
        Number from 1, and the phase that it belonged to.
    cohort, answered
        Devices drawn, and those of them that answered and were taken, ascending.
    quarantined
        Devices whose answer was not taken, with the reason; they count as silent.
    state
        The state to go on from; the previous one where the round did not count.
    loss
        Mean over the answering devices of the training error at their local estimates, in squared target units.
    info
        The algorithm's own scalars.
    uplink_bytes, downlink_bytes
        Size of the round's messages.
    outcome
        Set in the last report of a run.
    """

    round_num: int
    phase: str
    cohort: Sequence[int]
    answered: Sequence[int]
    quarantined: Mapping[int, str]
    state: RunState
    loss: float
    info: tuple[float, ...]
    uplink_bytes: int
    downlink_bytes: int
    outcome: Outcome | None

    @property
    def counted(self) -> bool:
        """Whether the round's updates were taken; else the state is still the one before it."""
        return self.state.round_num == self.round_num

    @property
    def silent(self) -> list[int]:
        """Devices that were drawn and did not answer, or were not taken."""
        return sorted(set(self.cohort) - set(self.answered))

    def reasons(self, device_ids: Sequence[str]) -> dict[str, str]:
        """Why answers were not taken, by device id."""
        return {device_ids[k]: why for k, why in self.quarantined.items()}

    def metrics(self) -> dict[str, float]:
        """The round's scalars by name."""
        named: dict[str, float] = self.info._asdict() if self.info else {}  # type: ignore[attr-defined]
        return {
            "cohort": len(self.cohort),
            "answered": len(self.answered),
            "quarantined": len(self.quarantined),
            "loss": self.loss,
            "uplink_bytes": self.uplink_bytes,
            "downlink_bytes": self.downlink_bytes,
            **named,
        }


def rounds(algorithm: AnyAlgorithm, spec: FleetSpec, backend: Backend, schedule: Schedule, state: RunState) -> Iterator[RoundReport]:
    """Communication rounds from `state` to the run's outcome, one report each.

    Parameters
    ----------
    algorithm, spec, backend
        What is run, on which fleet, and where.
    schedule
        Length, seed, participation and quorum.
    state
        `RunState.initial`, or the state of a checkpoint.

    Yields
    ------
    RoundReport
        The last one carries the outcome. Nothing is yielded for a state that already is at its end.
    """
    status = algorithm.status(state.server)
    while not isinstance(status, Outcome) and (status.phase != "main" or state.main_rounds < schedule.rounds):
        round_num = state.round_num + 1
        cohort = draw_cohort(spec.device_ids, schedule, round_num)
        call = Call(round_num, cohort, algorithm.broadcasts(state.server, cohort), state)
        heard = backend.local_steps(call)
        told = Answers(heard.answered, alike(heard.ups), alike(heard.infos))
        answers, quarantined = _sound(told, algorithm, spec, state, schedule, len(cohort))
        phase, loss, info, outcome = status.phase, np.nan, (), None
        if why := schedule.lost(len(answers.answered), len(cohort)):
            outcome = _quorum_lost(round_num, len(answers.answered), len(cohort), why, len(quarantined))
        else:
            server, fraction, info = backend.aggregate(state.server, answers)
            state = _advanced(state, server, answers.answered, fraction, main=phase == "main")
            loss = float(np.asarray(stacked(answers.infos).loss).mean())
            status = algorithm.status(server)
            if isinstance(status, Outcome):
                outcome = status
            elif not np.isfinite(loss):
                outcome = _overflowed(round_num)
            elif status.phase == "main" and state.main_rounds == schedule.rounds:
                outcome = Outcome("completed", f"all {schedule.rounds} rounds were run", ok=True)
            if outcome and outcome.ok and (caution := algorithm.caution(server)):
                outcome = replace(outcome, message=f"{outcome.message}; {caution}")
        uplink = nbytes(told.ups) + nbytes(told.infos)
        yield RoundReport(round_num, phase, cohort, answers.answered, quarantined, state, loss, info, uplink, call.nbytes, outcome)
        if outcome:
            return


def _sound(
    answers: Answers, algorithm: AnyAlgorithm, spec: FleetSpec, state: RunState, schedule: Schedule, drawn: int
) -> tuple[Answers, dict[int, str]]:
    """The answers that can be taken, and of the other devices the reasons.

    Where so many are not finite that the others are no quorum, it is the local steps that overflow and not a device that is broken: these
    are taken, and the algorithm says what to try.
    """
    found = faults(answers.ups, answers.infos, algorithm.form(spec, state.server), finite=algorithm.FINITE)
    if not any(found):
        return answers, {}
    m = len(answers.answered)
    if schedule.lost(m - len(found.malformed) - len(found.not_finite), drawn) and not schedule.lost(m - len(found.malformed), drawn):
        found = Faults(found.malformed, {})
    reasons = found.malformed | found.not_finite
    kept = [i for i in range(m) if i not in reasons]
    sound = Answers([answers.answered[i] for i in kept], take(answers.ups, kept), take(answers.infos, kept))
    return sound, {answers.answered[i]: reasons[i] for i in sorted(reasons)}


def _advanced(state: RunState, server: Any, answered: Sequence[int], fraction: float, *, main: bool) -> RunState:
    taken_round, taken_fraction, devices = state.taken_round.copy(), state.taken_fraction.copy(), columns(answered, len(state.taken_round))
    taken_round[devices] = state.round_num + 1
    taken_fraction[devices] = fraction
    return RunState(state.round_num + 1, state.main_rounds + main, server, taken_round, taken_fraction)


def _overflowed(round_num: int) -> Outcome:
    advice = "try a smaller eta, eta=safe or batch=full, and scale features and target"
    return Outcome("diverged", f"the devices' training error is no longer finite in round {round_num}: {advice}", ok=False)


def _quorum_lost(round_num: int, answered: int, drawn: int, why: str, quarantined: int) -> Outcome:
    others = f" and {quarantined} that could not be taken" if quarantined else ""
    got = f"round {round_num} got {answered} answers{others} of {drawn} devices"
    return Outcome("quorum_lost", f"{got}, {why}: see why devices fail, then resume the run", ok=False)


def draw_cohort(device_ids: Sequence[str], schedule: Schedule, round_num: int) -> Sequence[int]:
    """The devices of a round, ascending.

    Each device draws a number of its own from (seed, round, id), and the smallest take part, so that a device that
    joins the fleet displaces at most one other.
    """
    K = len(device_ids)
    if schedule.participation == 1:
        return range(K)
    shared = blake2b(f"{schedule.seed}/{round_num}/".encode(), digest_size=DIGEST_BYTES)
    draws: list[bytes] = []
    for device_id in device_ids:
        draw = shared.copy()
        draw.update(device_id.encode())
        draws.append(draw.digest())
    order = np.frombuffer(b"".join(draws), ">u8").argsort(kind="stable")
    return np.sort(order[: schedule.drawn(K)]).tolist()


def device_rng(seed: int, round_num: int, device_id: str) -> Generator:
    """A device's random numbers in a round; who else takes part does not change them."""
    return default_rng(SeedSequence(seed, spawn_key=(round_num, _digest(device_id))))


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=DIGEST_BYTES).digest(), "big")


class DeviceRngs(Sequence[Generator]):
    """The generators of a cohort, each made when it is asked for: most algorithms draw nothing."""

    def __init__(self, seed: int, round_num: int, device_ids: Sequence[str]) -> None:
        self._seed = seed
        self._round_num = round_num
        self._device_ids = device_ids

    def __len__(self) -> int:
        return len(self._device_ids)

    @overload
    def __getitem__(self, index: int) -> Generator: ...
    @overload
    def __getitem__(self, index: slice) -> DeviceRngs: ...
    def __getitem__(self, index: int | slice) -> Generator | DeviceRngs:
        if isinstance(index, slice):
            return DeviceRngs(self._seed, self._round_num, self._device_ids[index])
        return device_rng(self._seed, self._round_num, self._device_ids[index])
