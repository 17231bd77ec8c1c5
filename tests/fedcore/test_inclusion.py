"""Which coefficients are included, across devices, and the refit on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore import Misuse, Posterior, coefficient_intervals
from fedcore.inclusion import included_signs, inclusions, refit
from fedcore.rows import Rows


def test_signs_are_where_the_interval_leaves_out_zero() -> None:
    posterior = Posterior(np.array([1.0, -2.0, 0.1]), np.diag([0.25, 1.0, 1.0]), noise=1.0, freedom=5.0)
    assert included_signs(posterior).tolist() == [1, -1, 0]
    assert included_signs(posterior, 0.99).tolist() == [0, 0, 0]
    assert included_signs(posterior, 0.95, reference="t").tolist() == [0, 0, 0]
    low, high = coefficient_intervals(posterior, 0.95).T
    assert included_signs(posterior, 0.95).tolist() == ((low > 0).astype(int) - (high < 0)).tolist() == [1, -1, 0]


def test_across_devices() -> None:
    found = inclusions([np.array([1, 0, 0]), np.array([1, -1, 0]), np.array([-1, 0, 0]), np.array([1, 0, 0])])
    assert found.positive.tolist() == [3, 0, 0]
    assert found.negative.tolist() == [1, 1, 0]
    assert found.share.tolist() == [1.0, 0.25, 0.0]
    np.testing.assert_array_equal(found.agreement, [0.75, 1.0, np.nan])


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 6))
def test_refit_is_least_squares_on_the_included_columns(seed: int, n: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    rows, included = Rows(rng.standard_normal((n, d)), rng.standard_normal(n)), rng.random(d) < 0.6
    theta = refit(rows, included)
    assert (theta[~included] == 0).all()
    expected = np.linalg.lstsq(rows.X[:, included], rows.y)[0] if included.any() else np.empty(0)
    np.testing.assert_allclose(theta[included], expected, rtol=1e-6, atol=1e-8)


def test_refit_with_dependent_columns_of_other_units() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(20)
    rows = Rows(np.column_stack([x, 1e-6 * rng.standard_normal(20), x, np.ones(20)]), 2.0 * x)
    theta = refit(rows, np.array([True, True, True, False]))
    np.testing.assert_allclose(theta, [1.0, 0.0, 1.0, 0.0], atol=1e-8)


def test_refusals() -> None:
    rows = Rows(np.ones((3, 2)), np.ones(3))
    with pytest.raises(Misuse, match=r"included: expected shape \(2,\), got \(3,\)"):
        refit(rows, np.ones(3, dtype=bool))
    with pytest.raises(Misuse, match="without training rows"):
        refit(Rows.empty(2), np.ones(2, dtype=bool))
    with pytest.raises(Misuse, match=r"all of one length, got lengths \[1, 2\]"):
        inclusions([np.zeros(2, dtype=np.int64), np.zeros(1, dtype=np.int64)])
    with pytest.raises(Misuse, match=r"got lengths \[\]"):
        inclusions([])
