"""Expectation propagation within a device: exact where it must be, close to importance sampling elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_t

from fedcore.compression import Compressed, compress
from fedcore.hm2.inner import Inner, inner_ep
from fedcore.hm2.laplace import elastic_net_tilt, laplace_tilt
from fedcore.rows import DeviceData

NOISE = 0.3


def drawn(seed: int, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    theta = np.where(rng.random(d) < 0.5, 0.0, rng.laplace(size=d))
    return X, X @ theta + NOISE * rng.standard_normal(n)


def rows_of(*fleet: tuple[np.ndarray, np.ndarray]) -> Compressed:
    return compress([DeviceData.of(X, y) for X, y in fleet])


def lasso(rows: Compressed, noise: np.ndarray, scale: np.ndarray) -> Inner:
    return inner_ep(rows, noise, laplace_tilt, (scale,), 2.0 * scale**2)


def log_likelihood(X: np.ndarray, y: np.ndarray, theta: np.ndarray, noise: float) -> np.ndarray:
    return -0.5 * (((y - theta @ X.T) ** 2).sum(axis=-1) / noise + len(y) * np.log(2.0 * np.pi * noise))


def test_one_coefficient_is_exact() -> None:
    X, y = drawn(0, 12, 1)
    noise, scale = np.array([[0.02, 0.09, 2.0]]), np.array([[0.1, 1.0, 1e-3]])
    found = lasso(rows_of((X, y)), noise, scale)
    t = np.linspace(-5.0, 5.0, 1_000_001)
    for node in range(3):
        sigma2, b = noise[0, node], scale[0, node]
        log_density = log_likelihood(X, y, t[:, None], sigma2) - np.abs(t) / b - np.log(2.0 * b)
        density = np.exp(log_density - log_density.max())
        assert found.log_evidence[0, node] == pytest.approx(log_density.max() + np.log(density.sum() * 1e-5), abs=1e-5)
        assert found.mean[0, node, 0] == pytest.approx(density @ t / density.sum(), rel=1e-5)


def test_orthogonal_columns_are_exact() -> None:
    rng = np.random.default_rng(1)
    X = 3.0 * np.linalg.qr(rng.standard_normal((20, 4)))[0]
    y = X @ [1.0, 0.0, -0.5, 0.0] + NOISE * rng.standard_normal(20)
    sigma2, b = NOISE**2, 0.4
    found = lasso(rows_of((X, y)), np.array([[sigma2]]), np.array([[b]]))
    centre, variance = X.T @ y / 9.0, np.full(4, sigma2 / 9.0)
    np.testing.assert_allclose(found.cavity_mean[0, 0], centre, rtol=1e-9)
    np.testing.assert_allclose(found.cavity_variance[0, 0], variance, rtol=1e-9)
    tilt = laplace_tilt(centre, variance, np.full(4, b))
    flat = log_likelihood(X, y, centre[None], sigma2)[0] + 0.5 * np.log(2.0 * np.pi * variance).sum()
    assert found.log_evidence[0, 0] == pytest.approx(flat + tilt.log_normaliser.sum(), abs=1e-8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("b", [0.05, 0.5, 5.0])
def test_evidence_against_importance_sampling(seed: int, b: float) -> None:
    X, y = drawn(seed, 24, 4)
    found = lasso(rows_of((X, y)), np.array([[NOISE**2]]), np.array([[b]]))
    sampled, error = sampled_evidence(X, y, found, lambda theta: -np.abs(theta).sum(axis=1) / b - 4 * np.log(2.0 * b))
    assert found.log_evidence[0, 0] == pytest.approx(sampled, abs=0.003 + 3.0 * error)


@pytest.mark.parametrize("seed", range(3))
def test_elastic_net_evidence_against_importance_sampling(seed: int) -> None:
    X, y = drawn(seed, 24, 4)
    b, width = np.array([[0.5]]), np.array([[0.3]])
    found = inner_ep(rows_of((X, y)), np.array([[NOISE**2]]), elastic_net_tilt, (b, width), width)

    def log_prior(theta: np.ndarray) -> np.ndarray:
        alone = quad(lambda t: np.exp(-abs(t) / 0.5 - t**2 / 0.6), -20, 20, points=[0.0])[0]
        return (-np.abs(theta) / 0.5 - theta**2 / 0.6).sum(axis=1) - 4 * np.log(alone)

    sampled, error = sampled_evidence(X, y, found, log_prior)
    assert found.log_evidence[0, 0] == pytest.approx(sampled, abs=0.003 + 3.0 * error)


def sampled_evidence(X: np.ndarray, y: np.ndarray, found: Inner, log_prior: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """log evidence at the first node by importance sampling around the joint approximation, and its standard error."""
    proposal = multivariate_t(found.mean[0, 0], found.covariance[0, 0] * 1.2, df=6, seed=0)
    theta = proposal.rvs(400_000)
    log_weight = log_likelihood(X, y, theta, NOISE**2) + log_prior(theta) - proposal.logpdf(theta)
    weight = np.exp(log_weight - log_weight.max())
    return log_weight.max() + np.log(weight.mean()), weight.std() / weight.mean() / np.sqrt(len(weight))


def test_a_column_of_zeros_changes_nothing_and_keeps_its_prior() -> None:
    X, y = drawn(2, 15, 3)
    noise, scale = np.array([[0.09, 0.2]]), np.array([[0.5, 0.1]])
    without = lasso(rows_of((X, y)), noise, scale)
    found = lasso(rows_of((np.insert(X, 1, 0.0, axis=1), y)), noise, scale)
    kept = [0, 2, 3]
    np.testing.assert_allclose(found.log_evidence, without.log_evidence, rtol=1e-12)
    np.testing.assert_allclose(found.mean[:, :, kept], without.mean, rtol=1e-9)
    assert np.array_equal(found.mean[:, :, 1], np.zeros((1, 2)))
    np.testing.assert_allclose(found.covariance[:, :, 1, 1], 2.0 * scale**2, rtol=1e-12)
    prior = laplace_tilt(found.cavity_mean[:, :, 1], found.cavity_variance[:, :, 1], scale)
    np.testing.assert_allclose(prior.variance, 2.0 * scale**2, rtol=1e-6)


def test_columns_that_are_one_another() -> None:
    X, y = drawn(3, 15, 2)
    found = lasso(rows_of((np.column_stack([X, X[:, 0]]), y)), np.array([[0.09]]), np.array([[0.5]]))
    assert np.isfinite(found.log_evidence).all()
    assert found.mean[0, 0, 0] == pytest.approx(found.mean[0, 0, 2], rel=1e-5)


@pytest.mark.parametrize("n", [3, 8, 40])
def test_a_device_is_the_same_alone_and_among_others(n: int) -> None:
    rng = np.random.default_rng(5)
    fleet = [drawn(seed, n + seed, 6) for seed in range(5)]
    noise, scale = 0.09 * np.exp(rng.normal(size=(5, 4))), np.exp(rng.normal(size=(5, 4)) - 1.0)
    together = lasso(rows_of(*fleet), noise, scale)
    for k in range(5):
        alone = lasso(rows_of(fleet[k]), noise[k : k + 1], scale[k : k + 1])
        for one, all_ in zip(alone, together, strict=True):
            assert np.array_equal(one[0], all_[k])


def test_units_of_the_targets_change_nothing_but_units() -> None:
    X, y = drawn(6, 10, 5)
    noise, scale = np.array([[0.09]]), np.array([[0.5]])
    one = lasso(rows_of((X, y)), noise, scale)
    other = lasso(rows_of((X, y * 1024.0)), noise * 1024.0**2, scale * 1024.0)
    np.testing.assert_allclose(other.mean, one.mean * 1024.0, rtol=1e-10)
    assert other.log_evidence[0, 0] == pytest.approx(one.log_evidence[0, 0] - 10 * np.log(1024.0), abs=1e-8)
