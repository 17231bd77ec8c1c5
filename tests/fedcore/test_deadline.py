"""Deadlines: a device's work stops at them in the middle, changes nothing, and the round goes on as if it had never begun."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from fedcore import Hm1, Hm2
from fedcore.algorithm import AnyAlgorithm, FleetSpec
from fedcore.deadline import check_deadline, deadline
from fedcore.ditto import Ditto
from fedcore.errors import DeviceLate
from fedcore.fit import InProcess
from fedcore.receipts import Memory, settle
from fedcore.rounds import Answers, Call, RoundReport, RunState, Schedule, device_rng, rounds
from fedcore.testing import equal, small_fleet
from fedcore.trials import Trials

LOOPING: dict[str, tuple[AnyAlgorithm, int]] = {
    "minibatches": (Hm1(batch=3), 20),
    "ditto": (Ditto(batch=3, steps=7), 14),
    "gaussian": (Hm2(), 1),
    "own noise": (Hm2(noise="device"), 1),
    "ridge": (Hm2(prior="ridge"), 1),
    "lasso": (Hm2(prior="lasso"), 5),
    "elastic net": (Hm2(prior="elastic_net"), 5),
    "horseshoe": (Hm2(prior="horseshoe"), 5),
    "trials": (Trials((Hm1(), Hm1(alpha=0.4))), 2),
}
"""Algorithms whose local steps may take long, and how often one of these asks at least."""

LATE = (5, 1)
"""The round and the device that are late; the start of hm2 takes the rounds before, or some of them."""


class Clock:
    """Goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class OneByOne(InProcess):
    """Devices work one after the other, each within a context of its own; `late` names those that were stopped."""

    def __init__(self, algorithm: AnyAlgorithm, limit: Callable[[int, int], AbstractContextManager[Any]]) -> None:
        fleet = small_fleet(rows=(12, 9, 30, 14))
        super().__init__(algorithm, FleetSpec(tuple(fleet), 3), list(fleet.values()), seed=0)
        self.memories = [Memory.initial(device) for device in self.accepted]
        self.limit = limit
        self.late: list[tuple[int, int]] = []

    def local_steps(self, call: Call) -> Answers:
        self.memories = [settle(self.algorithm, memory, call.state.receipt(k)) for k, memory in enumerate(self.memories)]
        found: list[tuple[int, Any, Any]] = []
        for i, k in enumerate(call.cohort):
            memory, rng = self.memories[k], device_rng(self.seed, call.round_num, self.spec.device_ids[k])
            try:
                with self.limit(call.round_num, k):
                    state, up, info = self.algorithm.local_step(call.downs[i], memory.accepted, self.datas[k], rng)
            except DeviceLate:
                self.late.append((call.round_num, k))
                continue
            self.memories[k] = memory.awaiting(state, call.round_num)
            found.append((k, up, info))
        answered, ups, infos = map(list, zip(*found, strict=True))
        return Answers(answered, ups, infos)

    def run(self) -> list[RoundReport]:
        return list(rounds(self.algorithm, self.spec, self, Schedule(rounds=8), RunState.initial(self.algorithm, self.spec)))


def refused(round_num: int, k: int) -> AbstractContextManager[Any]:
    """The device is not there in that round."""
    if (round_num, k) == LATE:
        raise DeviceLate("away")
    return nullcontext()


@pytest.mark.parametrize("name", LOOPING)
def test_a_device_that_is_late_is_silent_and_comes_back(name: str) -> None:
    """Stopped at the first place where its work asks, in the middle, and at the last one: every time it is as if it had been away."""
    (algorithm, least), clock = LOOPING[name], Clock()
    OneByOne(algorithm, lambda *at: deadline(1e9, clock) if at == LATE else nullcontext()).run()
    asked = int(clock.now) - 1
    assert asked >= least
    expected = OneByOne(algorithm, refused)
    told = expected.run()
    for seconds in sorted({0, asked // 2, asked - 1}):
        backend = OneByOne(algorithm, lambda *at, after=seconds: deadline(after, Clock()) if at == LATE else nullcontext())
        reports = backend.run()
        assert backend.late == [LATE]
        assert reports[LATE[0] - 1].silent == [LATE[1]]
        assert equal(reports[-1].state, told[-1].state)
        ends = backend.finalize(reports[-1].state), expected.finalize(told[-1].state)
        assert all(np.array_equal(ends[0][device_id], ends[1][device_id]) for device_id in backend.spec.device_ids)


@pytest.mark.parametrize("name", LOOPING)
def test_a_deadline_that_is_not_reached_changes_nothing(name: str) -> None:
    limited, free = (OneByOne(LOOPING[name][0], limit) for limit in (lambda *_: deadline(1e9, Clock()), lambda *_: nullcontext()))
    assert equal(limited.run()[-1].state, free.run()[-1].state)


def test_it_says_how_long_the_deadline_was() -> None:
    with (
        deadline(0.5, Clock()),
        pytest.raises(DeviceLate, match=r"^its work in this round took longer than its deadline of 0\.5 s, and was stopped$"),
    ):
        check_deadline()


def test_it_ends_with_its_context() -> None:
    clock = Clock()
    with deadline(5, clock):
        with deadline(None):
            clock.now = 100.0
            check_deadline()
        with pytest.raises(DeviceLate):
            check_deadline()
    check_deadline()
