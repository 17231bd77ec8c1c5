"""Least squares and the oracle against their textbook forms."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.reproduce.limits import least_squares, oracle_bayes
from fedcore.rows import Rows
from fedcore.testing import small_fleet

NOISE = 0.3
ROWS = [data.train for data in small_fleet(rows=(12, 7, 30), d=3).values()]


def covariance(K: int, seed: int = 1) -> np.ndarray:
    A = np.random.default_rng(seed).standard_normal((K, K))
    return A @ A.T


def test_least_squares_solves_the_normal_equations() -> None:
    for theta, rows in zip(least_squares(ROWS), ROWS, strict=True):
        np.testing.assert_allclose(rows.X.T @ (rows.y - rows.X @ theta), 0.0, atol=1e-12)


def test_oracle_is_the_posterior_mean_of_the_stacked_model() -> None:
    """(blkdiag(X_k'X_k) / s^2 + (Omega x I)^-1)^-1 blkdiag(X_k)'y / s^2, with everything formed and inverted."""
    K, d, Omega = len(ROWS), ROWS[0].d, covariance(len(ROWS))
    X, start = np.zeros((sum(rows.n for rows in ROWS), K * d)), 0
    for k, rows in enumerate(ROWS):
        X[start : start + rows.n, k * d : (k + 1) * d] = rows.X
        start += rows.n
    y = np.concatenate([rows.y for rows in ROWS])
    precision = X.T @ X / NOISE**2 + np.linalg.inv(np.kron(Omega, np.eye(d)))
    expected = np.linalg.solve(precision, X.T @ y / NOISE**2).reshape(K, d)
    np.testing.assert_allclose(oracle_bayes(ROWS, Omega, NOISE), expected, rtol=1e-9)


def test_oracle_of_one_device_is_ridge() -> None:
    rows = ROWS[0]
    ridge = np.linalg.solve(rows.X.T @ rows.X + NOISE**2 / 2.0 * np.eye(rows.d), rows.X.T @ rows.y)
    np.testing.assert_allclose(oracle_bayes([rows], np.array([[2.0]]), NOISE)[0], ridge, rtol=1e-12)


def test_oracle_without_noise_is_least_squares() -> None:
    np.testing.assert_allclose(oracle_bayes(ROWS, covariance(3), 1e-5), least_squares(ROWS), rtol=1e-6)


def test_oracle_under_a_singular_covariance_pools() -> None:
    """Omega = 1 1' says that all devices have one theta, and the posterior mean is the ridge on all rows."""
    stacked = Rows(np.concatenate([rows.X for rows in ROWS]), np.concatenate([rows.y for rows in ROWS]))
    pooled = oracle_bayes([stacked], np.array([[1.0]]), NOISE)[0]
    for theta in oracle_bayes(ROWS, np.ones((3, 3)), NOISE):
        np.testing.assert_allclose(theta, pooled, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_oracle_is_equivariant(scale: float) -> None:
    """Targets in other units, with Omega and the noise in them too, give the coefficients in those units."""
    rescaled = [Rows(rows.X, scale * rows.y) for rows in ROWS]
    found = oracle_bayes(rescaled, scale**2 * covariance(3), scale * NOISE)
    np.testing.assert_allclose(found, scale * oracle_bayes(ROWS, covariance(3), NOISE), rtol=1e-9)
