"""Scores of a device's estimates."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.algorithm import DeviceResult
from fedcore.metrics import constant_errors, score, squared_errors
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
