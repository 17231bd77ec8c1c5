"""Compressed rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.compression import AT_ONCE, compress
from fedcore.errors import Misuse
from fedcore.rows import DeviceData


def drawn(rows: Sequence[int], d: int, seed: int = 0) -> list[DeviceData]:
    rng = np.random.default_rng(seed)
    return [DeviceData.of(rng.normal(size=(n, d)), rng.normal(size=n)) for n in rows]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 5))
def test_holds_all_that_rows_say(rows: list[int], d: int) -> None:
    datas = drawn(rows, d)
    found = compress(datas)
    for k, data in enumerate(datas):
        X, y = data.train.X, data.train.y
        R, target = found.R[k], found.y[k]
        np.testing.assert_allclose(R.T @ R, X.T @ X, atol=1e-12)
        np.testing.assert_allclose(R.T @ target, X.T @ y, atol=1e-12)
        left = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
        np.testing.assert_allclose(np.asarray(found.rss)[k], left @ left, atol=1e-12)
        assert np.asarray(found.freedom)[k] == len(y) - np.linalg.matrix_rank(X)
        np.testing.assert_allclose(np.asarray(found.power)[k], y @ y / len(y), rtol=1e-13)
        assert np.array_equal(R, np.triu(R))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 5))
def test_a_device_is_the_same_alone_and_among_others(rows: list[int], d: int) -> None:
    datas = drawn(rows, d)
    together = compress(datas)
    for k, data in enumerate(datas):
        for part, alone in zip(together, compress([data]), strict=True):
            assert np.array_equal(np.asarray(part)[k], np.asarray(alone)[0])


def test_more_devices_than_are_factorised_at_once() -> None:
    datas = drawn([AT_ONCE // 8] * 5 + [3], 3)
    together = compress(datas)
    for k, data in enumerate(datas):
        assert np.array_equal(together.R[k], compress([data]).R[0])


def test_equal_columns_count_once() -> None:
    x = np.linspace(1.0, 2.0, 9)
    (freedom,) = np.asarray(compress([DeviceData.of(np.column_stack([x, 1e9 * x, np.zeros(9)]), x)]).freedom)
    assert freedom == 8


@pytest.mark.parametrize("where", ["X", "y"])
def test_refuses_values_whose_squares_overflow(where: str) -> None:
    X, y = np.ones((4, 2)), np.ones(4)
    (X if where == "X" else y)[1] = 1e200
    with pytest.raises(Misuse, match="squares"):
        compress([*drawn([4], 2), DeviceData.of(X, y)])
