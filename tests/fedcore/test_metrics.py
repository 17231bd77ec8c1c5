"""Scores of a device's estimates."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.algorithm import DeviceResult
from fedcore.metrics import LEVELS, constant_errors, covered, score, squared_errors
from fedcore.posterior import Posterior, prediction_intervals
from fedcore.rows import DeviceData, Rows


def test_the_constant_is_the_mean_of_the_training_rows() -> None:
    data = DeviceData.of([[1.0], [2.0]], [1.0, 5.0], X_test=[[1.0], [1.0], [1.0]], y_test=[3.0, 4.0, 1.0])
    np.testing.assert_array_equal(constant_errors(data, data.test), [0, 1, 4])


def test_squared_errors_sum_up_to_the_score() -> None:
    rng = np.random.default_rng(0)
    rows, result = Rows(rng.standard_normal((20, 3)), rng.standard_normal(20)), DeviceResult(rng.standard_normal(3))
    found = squared_errors(result, rows)
    assert found.shape == (20,)
    assert found.sum() == pytest.approx(score(result, rows).sse, rel=1e-14)
    assert squared_errors(result, Rows.empty(3)).shape == (0,)


def test_covered_counts_the_targets_in_their_prediction_intervals() -> None:
    rng = np.random.default_rng(0)
    root = rng.standard_normal((2, 4))
    posterior = Posterior(root[:, 0], 0.1 * root @ root.T, 0.5, 6.0)
    rows = Rows(X := rng.standard_normal((40, 2)), X @ posterior.mean + rng.standard_normal(40))
    for level, count in zip(LEVELS, covered(posterior, rows), strict=True):
        low, high = prediction_intervals(posterior, X, level).T
        assert count == ((rows.y >= low) & (rows.y <= high)).sum()
    assert covered(posterior, Rows.empty(2)) == (0,) * len(LEVELS)
