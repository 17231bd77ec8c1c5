"""Figures of a comparison, by hand and against a reference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedcore.comparison import standing


def test_figures() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.gamma(2, size=(3, 20)), rng.gamma(2.5, size=(3, 20))
    excess, se = rng.normal(size=(3, 20)), rng.gamma(2, size=(3, 20)) / 4
    found = standing(ours, theirs, excess, se)
    np.testing.assert_allclose(found.rmse, ours.mean(axis=0))
    assert found.a_rmse == pytest.approx(ours.mean())
    assert found.sd_over_repeats == pytest.approx(np.std([each.mean() for each in ours], ddof=1))
    assert found.worst == max(found.rmse)
    assert found.difference.mean == pytest.approx(ours.mean() - theirs.mean())
    # Repeats are averaged first: 20 devices are the sample, not 60 figures.
    assert found.difference.mean / found.difference.se == pytest.approx(ttest_rel(ours.mean(axis=0), theirs.mean(axis=0)).statistic)
    assert found.hurt.tolist() == [excess[:, k].mean() > 2 * se[:, k].mean() for k in range(20)]
    assert 0 < sum(found.hurt) < 20


def test_more_repeats_of_the_same_do_not_shrink_an_error() -> None:
    rng = np.random.default_rng(1)
    ours, theirs, excess, se = (rng.gamma(2, size=(1, 12)) for _ in range(4))
    once, often = (standing(*(np.repeat(each, R, axis=0) for each in (ours, theirs, excess, se))) for R in (1, 50))
    assert often.difference.se == pytest.approx(once.difference.se, rel=1e-12)
    assert often.hurt.tolist() == once.hurt.tolist()
    assert np.isnan(once.sd_over_repeats)
    assert often.sd_over_repeats == pytest.approx(0, abs=1e-12)


def test_a_device_without_an_uncertainty_is_not_called_hurt() -> None:
    found = standing(np.array([[2.0]]), np.array([[1.0]]), np.array([[3.0]]), np.array([[np.nan]]))
    assert found.hurt.tolist() == [False]
    assert np.isnan(found.difference.se)
