"""Device and server never drift apart, whatever is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator

from fedcore import DeviceFailure, Separate, fit
from fedcore.algorithm import Aggregated, Algorithm, BatchedAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.fit import InProcess
from fedcore.messages import DeviceInfo, Empty, Receipt
from fedcore.receipts import Memory, settle
from fedcore.rounds import Answers, Call, RunState, Schedule, rounds
from fedcore.rows import DeviceData
from fedcore.testing import check_algorithm, small_fleet


class Total(NamedTuple):
    value: float


@dataclass(frozen=True)
class Damped(Algorithm[Total, Total, Empty, Total]):
    """Each device proposes 1 a round, and the server applies a fraction: its total is the sum of the devices' own."""

    fraction: float = 0.25

    def init_server(self, spec: FleetSpec) -> Total:
        return Total(0.0)

    def init_device(self, spec: FleetSpec, data: DeviceData) -> Total:
        return Total(0.0)

    def broadcast(self, server: Total, k: int) -> Empty:
        return Empty()

    def local_step(self, down: Empty, device: Total, data: DeviceData, rng: Any) -> tuple[Total, Total, DeviceInfo]:
        return Total(device.value + 1.0), Total(1.0), DeviceInfo(0.0)

    def form(self, spec: FleetSpec, server: Total) -> Total:
        return server

    def accept(self, device: Total, pending: Total, fraction: float) -> Total:
        return Total(device.value + fraction * (pending.value - device.value))

    def aggregate(self, server: Total, cohort: Sequence[int], ups: Sequence[Total]) -> Aggregated:
        return Aggregated(Total(server.value + self.fraction * sum(up.value for up in ups)), self.fraction, Empty())

    def status(self, server: Total) -> Continue | Outcome:
        return Continue()

    def finalize(self, down: Empty, device: Total, data: DeviceData) -> DeviceResult:
        return DeviceResult(np.array([device.value]))


class Lossy(InProcess):
    """Answers that are lost on the way, after the device has computed them."""

    def __init__(self, *args: Any, lost: Sequence[Sequence[bool]]) -> None:
        super().__init__(*args)
        self.lost = lost

    def local_steps(self, call: Call) -> Answers:
        answers = super().local_steps(call)
        kept = [i for i, k in enumerate(answers.answered) if not self.lost[call.round_num - 1][k]]
        return Answers([answers.answered[i] for i in kept], [answers.ups[i] for i in kept], [answers.infos[i] for i in kept])


def lossy_run(algorithm: Any, lost: Sequence[Sequence[bool]], quorum: float = 1e-9) -> tuple[Any, dict[str, np.ndarray]]:
    fleet = small_fleet()
    ids = tuple(sorted(fleet))
    spec = FleetSpec(ids, 3)
    backend = Lossy(algorithm, spec, [fleet[name] for name in ids], 0, lost=lost)
    state = RunState.initial(algorithm, spec)
    for report in rounds(algorithm, spec, backend, Schedule(rounds=len(lost), quorum=quorum), state):
        state = report.state
    return state.server, backend.finalize(state)


class Ragged(NamedTuple):
    """A state with a number for each of the device's rows."""

    value: np.ndarray


class Steady(Damped):
    """Whose rounds leave devices' states as they are."""

    STEADY: ClassVar[bool] = True


class OfItsRows(BatchedAlgorithm[Empty, Ragged, Empty, Empty]):
    """Whose devices' states differ in shape."""

    def init_server(self, spec: FleetSpec) -> Empty:
        return Empty()

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Ragged]:
        return [Ragged(np.zeros(data.train.n)) for data in datas]

    def broadcasts(self, server: Empty, cohort: Sequence[int]) -> Sequence[Empty]:
        return [Empty() for _ in cohort]

    def local_steps(
        self, downs: Sequence[Empty], devices: Sequence[Ragged], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[Ragged], Sequence[Empty], Sequence[DeviceInfo]]:
        return [Ragged(device.value + 1.0) for device in devices], list(downs), [DeviceInfo(0.0) for _ in devices]

    def form(self, spec: FleetSpec, server: Empty) -> Empty:
        return Empty()

    def aggregate(self, server: Empty, cohort: Sequence[int], ups: Sequence[Empty]) -> Aggregated:
        return Aggregated(server, 1.0, Empty())

    def status(self, server: Empty) -> Continue | Outcome:
        return Continue()

    def finalize(self, down: Empty, device: Ragged, data: DeviceData) -> DeviceResult:
        return DeviceResult(device.value[:3])


def test_states_of_different_shapes() -> None:
    theta = fit(OfItsRows(), small_fleet(), rounds=4).theta
    assert all((each == 4.0).all() for each in theta.values())


losses = st.lists(st.lists(st.booleans(), min_size=3, max_size=3).filter(lambda row: not all(row)), min_size=1, max_size=12)


def test_damped_keeps_the_protocol() -> None:
    check_algorithm(lambda: Damped(fraction=1.0))


@given(losses)
def test_server_and_devices_agree_on_what_was_applied(lost: list[list[bool]]) -> None:
    server, theta = lossy_run(Damped(), lost)
    assert server.value == sum(each[0] for each in theta.values())


@given(losses)
def test_a_lost_answer_is_as_if_the_round_had_not_been(lost: list[list[bool]]) -> None:
    _, theta = lossy_run(Separate(), lost)
    for k, (name, data) in enumerate(sorted(small_fleet().items())):
        took_part = sum(not row[k] for row in lost)
        if took_part == 0:
            np.testing.assert_array_equal(theta[name], 0.0)
        else:
            np.testing.assert_array_equal(theta[name], fit(Separate(), {name: data}, rounds=took_part).theta[name])


def test_quorum_lost_ends_the_run_and_keeps_the_state() -> None:
    fleet, algorithm = small_fleet(), Damped()
    spec = FleetSpec(tuple(sorted(fleet)), 3)
    backend = Lossy(algorithm, spec, list(fleet.values()), 0, lost=[[False] * 3, [True, True, False]])
    reports = list(rounds(algorithm, spec, backend, Schedule(rounds=9), RunState.initial(algorithm, spec)))
    assert [report.counted for report in reports] == [True, False]
    last = reports[-1]
    assert last.outcome is not None
    assert (last.outcome.name, last.outcome.ok) == ("quorum_lost", False)
    assert "round 2 got 1 answers of 3 devices" in last.outcome.message
    assert last.silent == [0, 1]
    assert last.state is reports[0].state


def test_settle() -> None:
    algorithm = Damped()
    memory = Memory(Total(1.0), 3, Total(2.0), 5)
    assert settle(algorithm, memory, Receipt(5, 0.5)) == Memory(Total(1.5), 5, None, 0)
    assert settle(algorithm, memory, Receipt(3, 0.5)) == Memory(Total(1.0), 3, None, 0)
    again = settle(algorithm, memory, Receipt(5, 0.5))
    assert settle(algorithm, again, Receipt(5, 0.5)) == again, "a receipt that is read twice counts once"
    first = Memory.initial(Total(0.0)).awaiting(Total(1.0), 1)
    assert settle(algorithm, first, Receipt(1, 1.0)).accepted == Total(1.0)
    unmoved = Memory.initial(first.accepted).awaiting(first.accepted, 1)
    assert unmoved.pending is None
    assert settle(algorithm, unmoved, Receipt(1, 0.5)) == Memory(first.accepted, 1, None, 0)
    assert settle(algorithm, first, None).accepted == Total(0.0)


@pytest.mark.parametrize("receipt", [None, Receipt(2, 1.0), Receipt(9, 0.5)])
def test_a_state_that_rounds_leave_as_it_is_has_no_receipts_to_keep(receipt: Receipt | None) -> None:
    memory = Memory.initial(Total(1.0))
    assert settle(Steady(), memory, receipt) is memory


@pytest.mark.parametrize("receipt", [None, Receipt(2, 1.0), Receipt(9, 1.0)])
def test_a_lost_state_is_noticed(receipt: Receipt | None) -> None:
    with pytest.raises(DeviceFailure, match=r"its state is from round 3: restore"):
        settle(Damped(), Memory(Total(1.0), 3, Total(2.0), 5), receipt)
