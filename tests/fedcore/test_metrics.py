"""Scores of a device's estimates."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.algorithm import DeviceResult
from fedcore.metrics import contrast, score, score_constant
from fedcore.rows import DeviceData, Rows


def test_the_constant_is_the_mean_of_the_training_rows() -> None:
    data = DeviceData.of([[1.0], [2.0]], [1.0, 5.0], X_test=[[1.0], [1.0], [1.0]], y_test=[3.0, 4.0, 1.0])
    assert score_constant(data, data.test) == (3, 0 + 1 + 4)


def test_a_contrast_is_the_difference_of_mean_squared_errors() -> None:
    rng = np.random.default_rng(0)
    rows = Rows(rng.standard_normal((20, 3)), rng.standard_normal(20))
    one, other = (DeviceResult(rng.standard_normal(3)) for _ in range(2))
    found = contrast(one, other, rows)
    assert found.mean == pytest.approx((score(one, rows).sse - score(other, rows).sse) / 20, rel=1e-12)
    assert 0 < found.se < np.inf
    assert contrast(one, one, rows) == (0, 0)
    assert np.isnan(contrast(one, other, Rows.empty(3)).mean)
