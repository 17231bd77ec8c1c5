"""Stacked messages read as sequences; sizes are counted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from fedcore.messages import DeviceInfo, Empty, Receipt, Stacked, nbytes, stacked, take


class Inner(NamedTuple):
    matrix: np.ndarray


class Outer(NamedTuple):
    vector: np.ndarray
    scalar: float
    inner: Inner


def messages(m: int) -> list[Outer]:
    rng = np.random.default_rng(0)
    return [Outer(rng.standard_normal(3), float(k), Inner(rng.standard_normal((2, 2)))) for k in range(m)]


def test_stacked_reads_as_the_messages() -> None:
    one_by_one = messages(4)
    together = Stacked(stacked(one_by_one), 4)
    assert len(together) == 4
    for direct, iterated, original in zip((together[k] for k in range(4)), together, one_by_one, strict=True):
        for copy in (direct, iterated):
            assert type(copy) is Outer
            np.testing.assert_array_equal(copy.vector, original.vector)
            np.testing.assert_array_equal(copy.inner.matrix, original.inner.matrix)
            assert copy.scalar == original.scalar


def test_take_keeps_the_form() -> None:
    plain, together = messages(5), Stacked(stacked(messages(5)), 5)
    assert [message.scalar for message in take(plain, [3, 1])] == [3.0, 1.0]
    chosen = take(together, [3, 1])
    assert isinstance(chosen, Stacked)
    assert chosen.fields.scalar.tolist() == [3.0, 1.0]
    assert together[1:3].fields.scalar.tolist() == [1.0, 2.0]
    with pytest.raises(IndexError):
        together[5]


def test_nbytes() -> None:
    one = messages(1)[0]
    assert nbytes(one) == 8 * (3 + 1 + 4)
    assert nbytes(Stacked(stacked(messages(4)), 4)) == nbytes(messages(4)) == 4 * nbytes(one)
    assert nbytes(Receipt(1, 1.0)) == 16
    assert nbytes([DeviceInfo(0.5)] * 3) == 24
    assert nbytes(Stacked(Empty(), 7)) == nbytes(None) == 0
    assert list(Stacked(Empty(), 2)) == [Empty(), Empty()]
    assert nbytes({"Ä": [1.0, "ab"], "b": None}) == 2 + 8 + 2 + 1, "names and text in UTF-8"
