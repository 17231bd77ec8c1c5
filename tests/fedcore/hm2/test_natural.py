"""Natural parameters of normal distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.hm2.natural import NaturalParams, flat, inverse, log_partition, moments, natural


def drawn(seed: int, m: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and precision matrices."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((*shape, m, m + 2)) * 10.0 ** rng.uniform(-3, 3, (m, 1))
    return rng.standard_normal((*shape, m)), root @ root.swapaxes(-1, -2)


@given(st.integers(0, 1000), st.integers(1, 6))
def test_moments_are_those_the_parameters_were_made_from(seed: int, m: int) -> None:
    mean, matrix = drawn(seed, m, 3)
    found = moments(natural(mean, matrix))
    assert found.proper.all()
    scale = np.sqrt(np.einsum("kii->ki", matrix))
    unit = matrix / scale[:, :, None] / scale[:, None, :]
    tolerance = 1e-13 * np.linalg.cond(unit).max()  # what rounding of the matrix alone does
    assert (np.abs(found.mean - mean) * scale).max() < tolerance * (1.0 + (np.abs(mean) * scale).max())
    assert np.abs((found.covariance * scale[:, :, None] * scale[:, None, :]) @ unit - np.eye(m)).max() < tolerance


def test_one_set_is_the_same_alone_and_among_others() -> None:
    mean, matrix = drawn(0, 4, 5)
    together = natural(mean, matrix)
    for k in range(5):
        alone = natural(mean[k], matrix[k])
        assert np.array_equal(alone.precision, together.precision[k])
        assert np.array_equal(moments(alone).mean, moments(together).mean[k])
        assert np.array_equal(moments(alone).covariance, moments(together).covariance[k])
        assert log_partition(alone) == log_partition(together)[k]


@pytest.mark.parametrize("bad", [np.diag([1.0, -1.0]), np.zeros((2, 2)), np.full((2, 2), np.nan), np.ones((2, 2)) - 2.0 * np.eye(2)])
def test_what_is_no_distribution_says_so(bad: np.ndarray) -> None:
    found, proper = inverse(np.stack([bad, np.eye(2)]))
    assert proper.tolist() == [False, True]
    assert np.isfinite(found).all()
    assert np.isnan(log_partition(NaturalParams(np.zeros(2), np.array([bad[0, 0], bad[1, 0], bad[1, 1]]))))


def test_factors_multiply() -> None:
    one, other = natural(*drawn(1, 3)), natural(*drawn(2, 3))
    assert np.allclose(one.plus(other).minus(other).precision, one.precision, rtol=1e-9)
    assert np.array_equal(flat(3).plus(one).shift, one.shift)
    both = NaturalParams(np.stack([one.shift, other.shift]), np.stack([one.precision, other.precision]))
    assert np.array_equal(both.total().precision, one.plus(other).precision)


def test_log_partition_in_one_dimension() -> None:
    # The integral of exp(r x - q x^2 / 2) is sqrt(2 pi / q) exp(r^2 / 2 q).
    assert log_partition(NaturalParams(np.array([3.0]), np.array([4.0]))) == pytest.approx(0.5 * np.log(2 * np.pi / 4) + 9 / 8, rel=1e-15)
