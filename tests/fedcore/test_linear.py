"""Local steps against the loops that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore import DeviceData, Misuse
from fedcore.linear import LocalSteps, affine_map
from fedcore.rounds import DeviceRngs, device_rng

sizes = st.tuples(st.integers(1, 40), st.integers(1, 8))


def device(n: int, d: int, seed: int, noise: float = 0.5) -> DeviceData:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return DeviceData.of(X, X @ rng.standard_normal(d) + noise * rng.standard_normal(n))


def plain_steps(theta: np.ndarray, X: np.ndarray, y: np.ndarray, rate: float, steps: int) -> np.ndarray:
    """The paper's loop, on the sum over rows."""
    for _ in range(steps):
        theta = theta + 2 * rate * X.T @ (y - X @ theta)
    return theta


def run(local: LocalSteps, data: DeviceData, theta: np.ndarray, seed: int = 0) -> np.ndarray:
    return local.run(theta[None], local.prepare([data]), [data], DeviceRngs(seed, 1, ["a"]))[0]


@given(sizes, st.integers(1, 60), st.sampled_from(["mean", "sum"]), st.integers(0, 2**32))
def test_affine_map_is_the_loop(size: tuple[int, int], steps: int, gradient: str, seed: int) -> None:
    data = device(*size, seed)
    local = LocalSteps(steps=steps, gradient=gradient)
    problem = local.prepare([data])
    theta = np.random.default_rng(seed).standard_normal(size[1])
    X, y = data.train
    rate = problem.eta[0] / (len(y) if gradient == "mean" else 1)
    expected = plain_steps(theta, X, y, rate, steps)
    np.testing.assert_allclose(run(local, data, theta), expected, rtol=1e-9, atol=1e-11 * np.abs(expected).max())


def test_affine_map_limit_of_a_zero_eigenvalue() -> None:
    """A direction without data moves by 2 rate T moment, and near-zero eigenvalues approach that."""
    for value in (0.0, 1e-300, 1e-12):
        matrix, offset = affine_map(np.array([[value]]), np.ones((1, 1, 1)), np.array([[3.0]]), np.array([0.1]), 7)
        np.testing.assert_allclose(matrix, 1.0, rtol=1e-11)
        np.testing.assert_allclose(offset, 2 * 0.1 * 7 * 3.0, rtol=1e-10)


@given(st.integers(2, 30), st.integers(1, 6), st.integers(1, 6), st.sampled_from(["mean", "sum"]), st.integers(0, 2**32))
def test_minibatches_are_the_loop(n: int, d: int, batch: int, gradient: str, seed: int) -> None:
    data = device(n, d, seed)
    local = LocalSteps(steps=4, batch=batch, gradient=gradient)
    size = min(batch, n)
    draws = device_rng(seed, 1, "a").integers(n, size=(4, size))
    theta = np.zeros(d)
    X, y = data.train
    rate = local.prepare([data]).eta[0] / (size if gradient == "mean" else 1)
    for draw in draws:
        theta = plain_steps(theta, X[draw], y[draw], rate, 1)
    np.testing.assert_allclose(run(local, data, np.zeros(d), seed), theta, rtol=1e-9, atol=1e-12)


@given(sizes, st.integers(0, 2**32))
def test_noise_variance_is_that_of_least_squares(size: tuple[int, int], seed: int) -> None:
    n, d = size
    data = device(n, d, seed)
    X, y = data.train
    _, rss, rank, _ = np.linalg.lstsq(X, y)
    expected = rss[0] / (n - d) if n > d else y @ y / n
    assert rank == min(n, d)
    np.testing.assert_allclose(LocalSteps().prepare([data]).noise_variance[0], expected, rtol=1e-6)


@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_largest_stable_rate_full_batch(gradient: str) -> None:
    """Just below the limit T steps contract towards least squares, just above they expand."""
    data = device(30, 4, 1)
    X, y = data.train
    limit = 1 / np.linalg.eigvalsh(X.T @ X)[-1] * (len(y) if gradient == "mean" else 1)
    LocalSteps(eta=0.999 * limit, gradient=gradient).prepare([data])
    with pytest.raises(Misuse, match=rf"must stay below {limit:.3g}; choose a smaller eta, or eta=safe"):
        LocalSteps(eta=1.001 * limit, gradient=gradient).prepare([data])
    rate = limit / (len(y) if gradient == "mean" else 1)
    best = np.linalg.lstsq(X, y)[0]
    start = best + np.ones(4)
    assert np.linalg.norm(plain_steps(start, X, y, 0.999 * rate, 2000) - best) < np.linalg.norm(start - best)
    assert np.linalg.norm(plain_steps(start, X, y, 1.001 * rate, 5000) - best) > np.linalg.norm(start - best)


@pytest.mark.parametrize("batch", [1, 3])
def test_largest_stable_rate_minibatch(batch: int) -> None:
    """The limit is that of the second moment of the error, which is computed here exactly from all batches' mean outer products."""
    data = device(12, 3, 2)
    X, _ = data.train
    n, d = X.shape

    def growth(rate: float) -> float:
        """Largest factor of E|e|^2 in one step, over error directions."""
        C = X.T @ X / n
        M = (X.T * (X**2).sum(axis=1)) @ X / n
        second = M / batch + (1 - 1 / batch) * C @ C
        return float(np.linalg.eigvalsh(np.eye(d) - 4 * rate * C + 4 * rate**2 * second)[-1])

    def stable(rate: float) -> bool:
        try:
            LocalSteps(eta=rate, batch=batch).prepare([data])
        except Misuse:
            return False
        return True

    rates = np.geomspace(1e-3, 10, 400)
    limit = rates[[stable(rate) for rate in rates]][-1]
    assert growth(0.99 * limit) < 1
    assert growth(1.05 * limit) > 1
    assert LocalSteps(batch=batch).prepare([data]).eta[0] == pytest.approx(limit / 2, rel=0.03)


def test_a_column_of_zeros_does_no_harm() -> None:
    X = np.column_stack([np.ones(6), np.zeros(6)])
    data = DeviceData.of(X, np.arange(6.0))
    theta = run(LocalSteps(steps=500), data, np.array([0.0, 5.0]))
    np.testing.assert_allclose(theta, [2.5, 5.0])
    nothing = DeviceData.of(np.zeros((4, 2)), np.zeros(4))
    np.testing.assert_array_equal(run(LocalSteps(), nothing, np.ones(2)), np.ones(2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eta": 0.0}, r"eta is a number in \(0, inf\) or"),
        ({"eta": float("inf")}, r"eta is a number in \(0, inf\) or"),
        ({"steps": 0}, "steps is a whole number from 1 to 1,000,000, got 0"),
        ({"steps": 2.5}, "steps is a whole number"),
        ({"gradient": "Sum"}, "gradient is one of mean, sum, got 'Sum'"),
        ({"batch": 0}, "batch .unless .full.. is a whole number from 1"),
    ],
)
def test_options_out_of_bounds(options: dict, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        LocalSteps(**options)
