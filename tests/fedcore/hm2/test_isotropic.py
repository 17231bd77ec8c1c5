"""The isotropic hierarchy against quadrature from the model's definition, and its posterior against a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedcore import DeviceData
from fedcore.hm2.gaussian import Gaussian
from fedcore.hm2.isotropic import Isotropic
from tests.fedcore.hm2.brute import normal_log_density
from tests.fedcore.hm2.test_gaussian import NOISES, distance, mixed, site
from tests.fedcore.hm2.textbook import propagate


def fleet(seed: int, K: int, n: int, d: int, tau: float) -> list[DeviceData]:
    rng = np.random.default_rng(seed)
    datas, mu = [], np.linspace(-1.0, 1.0, d)
    for _ in range(K):
        X = rng.standard_normal((n, d))
        theta = mu + np.sqrt(tau) * rng.standard_normal(d)
        datas.append(DeviceData.of(X, X @ theta + 0.5 * rng.standard_normal(n)))
    return datas


def grid_posterior(datas: list[DeviceData], sigma: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of (mu, log tau[, log sigma^2]) under standard normal priors, and N(0, 9) on log sigma^2; given these
    mu has a normal posterior."""
    d = datas[0].train.d
    t_values = np.linspace(-4.0, 3.0, 71)
    s_values = np.array([2.0 * np.log(sigma)]) if sigma else np.linspace(-6.0, 1.0, 141)
    t, s = (axis.ravel() for axis in np.meshgrid(t_values, s_values, indexing="ij"))
    log_density = -0.5 * t**2 - (0.0 if sigma else 0.5 * s**2 / 9.0)
    precision, shift = np.tile(np.eye(d), (len(t), 1, 1)), np.zeros((len(t), d))
    for data in datas:
        X, y = data.train
        V = np.exp(t)[:, None, None] * (X @ X.T) + np.exp(s)[:, None, None] * np.eye(len(y))
        log_density += normal_log_density(np.broadcast_to(y, (len(t), len(y))), V)
        solved = np.linalg.solve(V, np.broadcast_to(np.column_stack([X, y]), (len(t), len(y), d + 1)))
        precision += X.T @ solved[:, :, :d]
        shift += (X.T @ solved[:, :, d:])[:, :, 0]
    covariance = np.linalg.inv(precision)
    mu = (covariance @ shift[:, :, None])[:, :, 0]
    log_density += 0.5 * (shift * mu).sum(axis=1) - 0.5 * np.linalg.slogdet(precision)[1]
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    values = np.column_stack([mu, t] if sigma else [mu, t, s])
    mean = weight @ values
    variance = weight @ (values - mean) ** 2
    variance[:d] += weight @ np.diagonal(covariance, axis1=1, axis2=2)
    return mean, np.sqrt(variance)


@pytest.mark.parametrize(("sigma", "noise"), NOISES)
@pytest.mark.parametrize(("sharpness", "error"), [(1.0, 0.06), (30.0, 0.01)])
@pytest.mark.parametrize(("d", "n"), [(1, 4), (2, 1), (2, 12), (4, 3), (4, 9)])
def test_a_site_has_its_moments(sigma: Any, noise: Any, sharpness: float, error: float, d: int, n: int) -> None:
    for seed in range(2):
        tilted, joint, brute = site(Isotropic(sigma=sigma, noise=noise), d, n, seed, sharpness, 21)
        assert tilted.proper[0]
        assert max(distance(tilted, brute)) < error + (0.03 if noise == "device" else 0.0)
        theta, covariance = mixed(joint)
        scale = np.sqrt(brute.theta_covariance.diagonal())
        assert np.abs((theta - brute.theta) / scale).max() < error
        assert np.abs(np.sqrt(covariance.diagonal()) / scale - 1.0).max() < error


@pytest.mark.parametrize("sigma", [0.5, None])
@pytest.mark.parametrize(("K", "n", "d"), [(40, 12, 3), (40, 2, 3)])
def test_the_posterior_is_that_on_a_grid(sigma: float | None, K: int, n: int, d: int) -> None:
    datas = fleet(0, K, n, d, 0.4)
    mean, sd = grid_posterior(datas, sigma)
    fit = propagate(Isotropic(sigma=sigma or "unknown"), datas)
    assert fit.proper
    assert np.abs((fit.phi.mean - mean) / sd).max() < 0.03
    ratio = np.sqrt(fit.phi.covariance.diagonal()) / sd
    assert 0.93 < ratio.min() <= ratio.max() < 1.03


def test_with_one_coefficient_it_is_the_gaussian_hierarchy() -> None:
    datas = fleet(1, 20, 6, 1, 0.5)
    one, other = propagate(Isotropic(), datas), propagate(Gaussian(), datas)
    sd = np.sqrt(one.phi.covariance.diagonal())
    assert np.abs((one.phi.mean - other.phi.mean) / sd).max() < 0.01
    assert np.allclose(one.phi.covariance, other.phi.covariance, rtol=0.02, atol=1e-4)
