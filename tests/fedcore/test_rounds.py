"""Cohorts and random numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore import Misuse
from fedcore.rounds import DeviceRngs, Schedule, device_rng, draw_cohort

IDS = tuple(f"{k:03d}" for k in range(100))


def test_cohort_sizes_and_order() -> None:
    assert list(draw_cohort(IDS, Schedule(), 1)) == list(range(100))
    for participation, size in ((0.1, 10), (0.001, 1), (0.999, 100)):
        cohort = draw_cohort(IDS, Schedule(participation=participation), 3)
        assert len(cohort) == size
        assert list(cohort) == sorted(set(cohort))


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
    ],
)
def test_schedule_out_of_bounds(values: dict, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        Schedule(**values)
