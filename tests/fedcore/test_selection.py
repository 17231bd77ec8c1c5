"""Selection on validation figures, against a reference and by a table of cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import ttest_rel

from fedcore.selection import Rule, paired, select

figures = npst.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 8)), elements=st.floats(0, 1e3))


def test_paired_agrees_with_scipy() -> None:
    """The t statistic of a paired test is mean / se."""
    rng = np.random.default_rng(0)
    ours, theirs = rng.gamma(2, size=30), rng.gamma(2.5, size=30)
    found = paired(ours, theirs)
    assert found.mean == pytest.approx(np.mean(ours) - np.mean(theirs), rel=1e-12)
    assert found.mean / found.se == pytest.approx(ttest_rel(ours, theirs).statistic, rel=1e-12)


def test_without_pairs_there_is_no_uncertainty_to_tell() -> None:
    one = paired(np.array([3.0]), np.array([1.0]))
    assert one.mean == 2
    assert np.isnan(one.se)
    assert np.isnan(paired(np.empty(0), np.empty(0))).all()


CASES: dict[str, tuple[list[list[float]], Rule, int | None]] = {
    "the smallest mean": ([[3, 3], [1, 2], [2, 2]], "best", 1),
    "the earlier of equals": ([[3, 3], [1, 2], [2, 1]], "best", 1),
    # Differences 1 and 0.2 to the best one: mean 0.6, standard error 0.4.
    "not within one standard error": ([[2, 2.2], [1, 2]], "one-se", 1),
    # Differences 1 and -0.2: mean 0.4, standard error 0.6.
    "within one standard error": ([[2, 1.8], [1, 2]], "one-se", 0),
    "the first that is within": ([[9, 9], [2, 1.8], [1, 2], [1.1, 1.9]], "one-se", 1),
    "equal to the best": ([[1, 2], [1, 2]], "one-se", 0),
    "worse on every device by the same": ([[1.1, 2.1], [1, 2]], "one-se", 1),
    "one device has no standard error": ([[1.1], [1]], "one-se", 1),
    "what is not finite cannot be selected": ([[np.inf, 1], [np.nan, 0], [5, 5]], "best", 2),
    "nor as the simpler one": ([[np.nan, 1], [3, 1], [1, 2]], "one-se", 1),
    "nothing can": ([[np.inf, 1], [np.nan, np.nan]], "best", None),
}


@pytest.mark.parametrize("case", CASES)
def test_rules(case: str) -> None:
    rows, rule, expected = CASES[case]
    assert select(np.array(rows, dtype=float), rule) == expected


@given(figures)
def test_one_se_takes_something_as_simple_that_is_as_good(rmse: np.ndarray) -> None:
    best, simple = select(rmse, "best"), select(rmse, "one-se")
    assert best is not None
    assert simple is not None
    assert simple <= best
    assert rmse[best].mean() == rmse.mean(axis=1).min()
    assert simple == best or paired(rmse[simple], rmse[best]).mean <= paired(rmse[simple], rmse[best]).se
