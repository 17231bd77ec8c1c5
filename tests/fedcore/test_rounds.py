"""Cohorts and random numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore import Hm1, Misuse
from fedcore.algorithm import FleetSpec
from fedcore.fit import InProcess
from fedcore.messages import nbytes
from fedcore.rounds import Answers, Call, DeviceRngs, RoundReport, RunState, Schedule, device_rng, draw_cohort, rounds
from fedcore.testing import small_fleet

IDS = tuple(f"{k:03d}" for k in range(100))


def test_cohort_sizes_and_order() -> None:
    assert list(draw_cohort(IDS, Schedule(), 1)) == list(range(100))
    for participation, size in ((0.1, 10), (0.001, 1), (0.999, 100)):
        cohort = draw_cohort(IDS, Schedule(participation=participation), 3)
        assert len(cohort) == size
        assert list(cohort) == sorted(set(cohort))


def test_cohorts_stay_what_they_are() -> None:
    """A run that is repeated with a later version draws the same devices."""
    assert draw_cohort(IDS, Schedule(participation=0.08, seed=7), 3) == [29, 37, 51, 54, 59, 69, 77, 95]


def test_cohorts_are_fair() -> None:
    counts = np.zeros(100)
    for round_num in range(1, 2001):
        counts[list(draw_cohort(IDS, Schedule(participation=0.2), round_num))] += 1
    # Binomial(2000, .2) has sd 18; five of them either way.
    assert counts.min() > 400 - 90
    assert counts.max() < 400 + 90


@given(st.integers(0, 2**40), st.integers(1, 10**6))
def test_a_device_that_joins_displaces_at_most_one(seed: int, round_num: int) -> None:
    schedule = Schedule(seed=seed, participation=0.3)
    before = {IDS[k] for k in draw_cohort(IDS[:50], schedule, round_num)}
    joined = (*IDS[:50], "999")
    after = {joined[k] for k in draw_cohort(joined, schedule, round_num)}
    assert len(before - after) <= 1


def test_draws_belong_to_device_round_and_seed() -> None:
    draw = device_rng(1, 2, "a").random(4)
    np.testing.assert_array_equal(draw, device_rng(1, 2, "a").random(4))
    others = [device_rng(2, 2, "a"), device_rng(1, 3, "a"), device_rng(1, 2, "b")]
    assert all(not np.array_equal(draw, other.random(4)) for other in others)
    rngs = DeviceRngs(1, 2, ["z", "a"])
    np.testing.assert_array_equal(rngs[1].random(4), draw)
    np.testing.assert_array_equal(rngs[1:][0].random(4), draw)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rounds": 0}, "rounds is a whole number from 1 to 1,000,000,000, got 0"),
        ({"rounds": 2.5}, "rounds is a whole number"),
        ({"seed": -1}, "seed is a whole number from 0"),
        ({"participation": 0.0}, "participation is a number in"),
        ({"participation": float("nan")}, "participation is a number in"),
        ({"quorum": 1.1}, "quorum is a number in"),
        ({"fewest": 0}, "fewest is a whole number from 1"),
    ],
)
def test_schedule_out_of_bounds(values: dict, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        Schedule(**values)


class Deaf(InProcess):
    """Hears the first devices of a cohort only, as many as `hears` says for the round; keeps the calls."""

    hears = (3, 3)

    def local_steps(self, call: Call) -> Answers:
        self.calls = [*getattr(self, "calls", []), call]
        told = super().local_steps(call)
        m = self.hears[call.round_num - 1]
        return Answers(list(told.answered)[:m], list(told.ups)[:m], list(told.infos)[:m])


def reports(hears: tuple[int, ...], **values: int | float) -> tuple[list[RoundReport], list[Call]]:
    fleet = small_fleet()
    spec, algorithm = FleetSpec(tuple(sorted(fleet)), 3), Hm1()
    backend = Deaf(algorithm, spec, [fleet[name] for name in spec.device_ids], seed=0)
    backend.hears = hears
    schedule = Schedule(rounds=len(hears), quorum=0.01, **values)  # pyright: ignore[reportArgumentType]
    return list(rounds(algorithm, spec, backend, schedule, RunState.initial(algorithm, spec))), backend.calls


def test_a_round_with_fewer_answers_than_allowed_does_not_count() -> None:
    (first, second), _ = reports((2, 1), fewest=2)
    assert (first.counted, first.outcome) == (True, None)
    assert not second.counted
    assert second.state is first.state
    assert second.outcome is not None
    assert (second.outcome.name, second.outcome.ok) == ("quorum_lost", False)
    words = "round 2 got 1 answers of 3 devices, fewer than [disclosure] devices = 2: see why devices fail, then resume the run"
    assert second.outcome.message == words
    assert [each.counted for each in reports((2, 1))[0]] == [True, True], "without a contract one device is enough"


def test_the_bytes_of_a_round_are_those_of_its_broadcasts() -> None:
    told, calls = reports((2, 3, 3))
    for report, call in zip(told, calls, strict=True):
        broadcasts = call.broadcasts()
        assert report.downlink_bytes == nbytes(broadcasts)
        assert {each.devices for each in broadcasts} == {3}
    receipts = [report.downlink_bytes - told[0].downlink_bytes for report in told]
    assert receipts == [0, 2 * 16, 3 * 16], "none before anything was taken"
