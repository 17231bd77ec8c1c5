"""When a challenger takes a champion's place."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from fedcore.promotion import contest, refusal

MARGIN, P = 0.01, 0.05


def fleet(K: int, share: float, spread: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """K devices on which the challenger's errors are smaller by about this share."""
    rng = np.random.default_rng(seed)
    champion = rng.gamma(8, size=K) / 8
    return champion, champion * (1 - share + spread * rng.standard_normal(K))


def by_hand(difference: np.ndarray) -> float:
    """Wilcoxon's p by all signs that the differences may have."""
    told = difference[difference != 0]
    size = np.abs(told)
    ranks = np.array([(size < each).sum() + ((size == each).sum() + 1) / 2 for each in size])
    observed = ranks[told > 0].sum()
    sums = [ranks @ np.array(signs) for signs in product((0, 1), repeat=len(told))]
    return float(np.mean(np.array(sums) <= observed + 1e-9))


def test_a_better_challenger_is_promoted_and_a_worse_one_is_not() -> None:
    champion, challenger = fleet(40, 0.2)
    assert refusal(contest(champion, challenger), MARGIN, P) == ""
    found = contest(challenger, champion)
    assert found.improvement < 0
    assert found.p > 0.9
    assert refusal(found, MARGIN, P).startswith("its A-RMSE is ")
    assert " larger, and the margin is 1 %" in refusal(found, MARGIN, P)


def test_figures() -> None:
    found = contest(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 2.5, 3.0, 3.0]))
    assert (found.devices, found.champion, found.challenger) == (4, 2.5, 2.25)
    assert found.improvement == pytest.approx(0.1)
    assert (found.better, found.worse) == (2, 1)


@pytest.mark.parametrize("K", [1, 2, 5, 9, 13])
def test_p_is_exact_for_few_devices(K: int) -> None:
    champion, challenger = fleet(K, 0.05, spread=0.2, seed=K)
    assert contest(champion, challenger).p == pytest.approx(by_hand(challenger - champion), rel=1e-12)


def test_p_is_exact_with_ties_and_zeros() -> None:
    difference = np.array([-1.0, -1.0, 1.0, -2.0, 0.0, -2.0, 3.0, 0.0])
    champion = np.full(8, 8.0)
    assert contest(champion, champion + difference).p == pytest.approx(by_hand(difference), rel=1e-12)


def test_p_is_that_of_the_library_where_nothing_is_tied() -> None:
    """Exact at 50 devices, and its normal approximation from there on."""
    for K, method in ((50, "exact"), (51, "asymptotic")):
        champion, challenger = fleet(K, 0.02, seed=K)
        reference = wilcoxon(challenger - champion, alternative="less", method=method).pvalue
        assert contest(champion, challenger).p == pytest.approx(reference, rel=1e-9)


def test_the_same_model_is_never_promoted() -> None:
    champion, _ = fleet(20, 0.0)
    found = contest(champion, champion)
    assert (found.improvement, found.p, found.better, found.worse) == (0.0, 1.0, 0, 0)
    assert refusal(found, 0.0, 0.5)  # not even without a margin


def test_the_margin_is_on_the_mean_however_sure_the_difference_is() -> None:
    champion, challenger = fleet(200, 0.02, spread=1e-3)
    found = contest(champion, challenger)
    assert found.p < 1e-20
    assert refusal(found, 0.01, P) == ""
    assert "smaller, and the margin is 3 %" in refusal(found, 0.03, P)


def test_the_margin_has_to_be_exceeded() -> None:
    champion = np.full(10, 4.0)
    assert refusal(contest(champion, champion * 0.5), 0.5, P)
    assert refusal(contest(champion, champion * 0.5), 0.49, P) == ""


def test_one_device_with_large_errors_does_not_decide() -> None:
    """It makes the mean far smaller, while half of the others are better and half worse."""
    champion, challenger = np.ones(21), np.ones(21)
    champion[0] = 100.0
    challenger[1:11] += 0.01 * np.arange(1, 11)
    challenger[11:] -= 0.01 * np.arange(1, 11)
    found = contest(champion, challenger)
    assert found.improvement > 0.5
    assert refusal(found, MARGIN, P).startswith("it is better on 11 of 21 devices, p = ")


@pytest.mark.parametrize(("K", "promoted"), [(4, False), (5, True)])
def test_few_devices_cannot_be_sure_and_it_says_so(K: int, promoted: bool) -> None:
    champion = np.arange(1.0, K + 1)
    found = contest(champion, 0.5 * champion)
    assert found.p == pytest.approx(0.5**K)
    why = refusal(found, MARGIN, P)
    assert (why == "") == promoted
    if not promoted:
        assert why.endswith("and 4 devices cannot give less than 0.062")


def test_no_device_no_promotion() -> None:
    found = contest(np.empty(0), np.empty(0))
    assert (found.devices, found.p) == (0, 1.0)
    assert refusal(found, 0.0, 0.5) == "no device could score both"


def test_a_champion_without_errors_stays() -> None:
    assert refusal(contest(np.zeros(9), np.zeros(9)), 0.0, 0.5)
    assert refusal(contest(np.zeros(9), np.ones(9)), 0.0, 0.5)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=40))
def test_neither_order_nor_unit_of_the_errors_matters(pairs: list[tuple[float, float]]) -> None:
    champion, challenger = np.array(pairs).T
    found, turned = contest(champion, challenger), contest(champion[::-1], challenger[::-1])
    assert turned.p == pytest.approx(found.p, rel=1e-12)
    assert turned.improvement == pytest.approx(found.improvement, abs=1e-12)
    assert contest(4 * champion, 4 * challenger).p == found.p


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=13))
def test_not_both_are_better(pairs: list[tuple[float, float]]) -> None:
    champion, challenger = np.array(pairs).T
    assert refusal(contest(champion, challenger), 0.0, 0.5) or refusal(contest(challenger, champion), 0.0, 0.5)


def test_chance_promotes_as_often_as_p_says() -> None:
    """Without a margin: 400 fleets in which neither is better."""
    rng = np.random.default_rng(3)
    promoted = 0
    for _ in range(400):
        champion = rng.gamma(8, size=25)
        promoted += not refusal(contest(champion, champion * np.exp(0.1 * rng.standard_normal(25))), 0.0, P)
    assert promoted <= 400 * P + 3 * np.sqrt(400 * P * (1 - P))
