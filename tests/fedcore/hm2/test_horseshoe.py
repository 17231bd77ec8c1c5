"""The horseshoe against the exact mixture over kappa, which is small enough to sum for three coefficients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.integrate import quad

from fedcore import DeviceData
from fedcore.fit import fit
from fedcore.hm2.hm2 import Hm2
from fedcore.hm2.horseshoe import LOG_KAPPA, LOG_SHARES, Horseshoe
from fedcore.hm2.natural import NaturalParams, natural
from fedcore.hm2.scale_mixture import variational
from fedcore.hm2.sited import scale_ratio
from fedcore.testing import small_fleet

MODEL = Horseshoe()


def device(seed: int, n: int, theta: tuple[float, ...]) -> DeviceData:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, len(theta)))
    return DeviceData.of(X, X @ np.array(theta) + 0.3 * rng.standard_normal(n))


def exact(data: DeviceData, phi: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """log evidence, and the coefficients' means and variances."""
    X, y, noise = data.train.X, data.train.y, np.exp(phi[1])
    n, d = X.shape
    scale = np.exp(0.5 * phi[1] - phi[0])
    points = np.array(list(itertools.product(range(len(LOG_KAPPA)), repeat=d)))
    precision = np.exp(-2.0 * LOG_KAPPA[points]) / scale**2
    covariance = np.linalg.inv(X.T @ X / noise + precision[:, :, None] * np.eye(d))
    mean = covariance @ (X.T @ y / noise)
    log_weight = LOG_SHARES[points].sum(axis=1) + 0.5 * (np.log(precision).sum(axis=1) + np.linalg.slogdet(covariance)[1])
    log_weight -= 0.5 * (n * np.log(2 * np.pi * noise) + ((y - mean @ X.T) ** 2).sum(axis=1) / noise + (precision * mean**2).sum(axis=1))
    weight = np.exp(log_weight - log_weight.max())
    evidence = log_weight.max() + np.log(weight.sum())
    weight /= weight.sum()
    centre = weight @ mean
    return evidence, centre, weight @ (np.diagonal(covariance, axis1=1, axis2=2) + (mean - centre) ** 2)


@pytest.mark.parametrize(("mean", "variance", "scale"), [(0.0, 1.0, 1.0), (3.0, 0.1, 0.5), (50.0, 0.01, 0.1), (0.1, 1.0, 1e-3)])
def test_prior_against_quadrature(mean: float, variance: float, scale: float) -> None:
    def density(x: float) -> float:
        both = variance + scale**2 * np.exp(2.0 * x)
        return np.exp(-0.5 * mean**2 / both) / np.sqrt(2.0 * np.pi * both) / np.cosh(x) / np.pi

    mass = quad(density, -30, 30, points=[np.log(max(abs(mean), 0.1) / scale), 0.0], epsabs=0.0, epsrel=1e-10, limit=500)[0]
    found = MODEL.tilt(np.array([mean]), np.array([variance]), np.array([scale]))
    assert found.log_normaliser[0] == pytest.approx(np.log(mass), abs=1e-3)


@pytest.mark.parametrize(("n", "off", "wide", "nats"), [(8, 0.15, 0.5, 0.02), (20, 0.02, 0.03, 0.002)])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("log_lambda", [-1.0, 1.0, 3.0])
def test_against_the_exact_mixture(seed: int, log_lambda: float, n: int, off: float, wide: float, nats: float) -> None:
    data, phi = device(seed, n, (2.0, 0.0, 0.2)), np.array([log_lambda, np.log(0.09)])
    evidence, mean, variance = exact(data, phi)
    inner = MODEL.inner(MODEL.prepare([data]), phi[None, None])
    assert inner.log_evidence[0, 0] == pytest.approx(evidence, abs=nats)
    assert np.abs((inner.mean[0, 0] - mean) / np.sqrt(variance)).max() < off
    assert np.sqrt(np.diagonal(inner.covariance[0, 0])) == pytest.approx(np.sqrt(variance), rel=wide)
    point = natural(phi[None], 1e12 * np.eye(2)[None])
    (found,) = MODEL.coefficients(MODEL.prepare([data]), NaturalParams(point.shift[0], point.precision[0]), point)
    marginals = found.marginals
    centre = (marginals.weight * marginals.mean).sum(axis=0)
    assert np.abs((centre - mean) / np.sqrt(variance)).max() < off
    spread = (marginals.weight * (marginals.variance + (marginals.mean - centre) ** 2)).sum(axis=0)
    assert np.sqrt(spread) == pytest.approx(np.sqrt(variance), rel=wide)
    assert np.isinf(marginals.scale).all()
    assert marginals.weight.min() > 0
    np.testing.assert_allclose(marginals.weight.sum(axis=0), 1.0)


def test_the_outcome_says_what_it_is_not_good_for() -> None:
    outcome = fit(Hm2(prior="horseshoe"), small_fleet(), rounds=30).outcome
    assert outcome.ok
    assert outcome.message.endswith("means of a device whose rows do not tell its columns apart may be off by some standard deviations")


@pytest.mark.parametrize("log_lambda", [-1.0, 1.0, 3.0])
def test_few_rows_are_as_rough_as_the_caution_says(log_lambda: float) -> None:
    off = []
    for seed in range(5):
        data, phi = device(seed, 2, (2.0, 0.0, 0.2)), np.array([log_lambda, np.log(0.09)])
        evidence, mean, variance = exact(data, phi)
        inner = MODEL.inner(MODEL.prepare([data]), phi[None, None])
        assert inner.log_evidence[0, 0] == pytest.approx(evidence, abs=3.0)
        off.append(np.abs((inner.mean[0, 0] - mean) / np.sqrt(variance)).max())
    assert max(off) < 1.0


@pytest.mark.parametrize("n", [1, 2, 8, 40])
@pytest.mark.parametrize("log_lambda", [-1.0, 1.0, 3.0])
def test_the_variational_bound(n: int, log_lambda: float) -> None:
    """Below the exact evidence, and means that leave no more unexplained than zeros do."""
    for seed in range(4):
        data, phi = device(seed, n, (2.0, 0.0, 0.2)), np.array([log_lambda, np.log(0.09)])[None, None]
        evidence, mean, variance = exact(data, phi[0, 0])
        found = variational(MODEL.prepare([data]).rows, np.exp(phi[..., 1]), scale_ratio(phi), LOG_KAPPA, LOG_SHARES)
        assert found.log_evidence[0, 0] < evidence
        X, y = data.train
        assert ((y - X @ found.mean[0, 0]) ** 2).sum() <= (y**2).sum()
        if n == 40:
            assert found.log_evidence[0, 0] == pytest.approx(evidence, abs=2.0)
            tilt = MODEL.tilt(found.cavity_mean[0, 0], found.cavity_variance[0, 0], scale_ratio(phi)[0])
            assert np.abs((tilt.mean - mean) / np.sqrt(variance)).max() < 0.1


def test_the_variational_approximation_at_a_flat_prior_is_ridge() -> None:
    """With one width the prior is normal, and nothing is approximated."""
    data = device(0, 2, (2.0, 0.0, 0.2))
    X, y = data.train
    noise, scale = np.array([[0.09]]), np.array([[1.5]])
    found = variational(MODEL.prepare([data]).rows, noise, scale, np.zeros(1), np.zeros(1))
    covariance = np.linalg.inv(X.T @ X / 0.09 + np.eye(3) / 1.5**2)
    np.testing.assert_allclose(found.covariance[0, 0], covariance, rtol=1e-9)
    np.testing.assert_allclose(found.mean[0, 0], covariance @ X.T @ y / 0.09, rtol=1e-9)
    V = 1.5**2 * X @ X.T + 0.09 * np.eye(2)
    exact = -0.5 * (y @ np.linalg.solve(V, y) + np.linalg.slogdet(V)[1] + 2 * np.log(2 * np.pi))
    assert found.log_evidence[0, 0] == pytest.approx(exact)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "n"), [(0, 30), (2, 30), (0, 3), (2, 3)])
def test_columns_that_are_one_another(seed: int, n: int) -> None:
    """What their coefficients are together is known, and each is within what rows and prior allow."""
    rng = np.random.default_rng(seed)
    devices: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for k in range(8):
        X = rng.standard_normal((n, 4))
        y = X @ (np.linspace(1.0, 3.0, 4) + rng.standard_normal(4)) + 0.5 * rng.standard_normal(n)
        X[:, 3] = X[:, 2]
        devices[f"{k}"] = (X, y)
    result = fit(Hm2(prior="horseshoe"), devices, rounds=30)
    assert result.outcome.ok
    for name, (X, y) in devices.items():
        theta = result.theta[name]
        assert ((y - X @ theta) ** 2).sum() <= (y**2).sum()
        assert abs(theta[2] - theta[3]) < (0.2 if n == 30 else 1.0) * result.posterior[name].sd[2]
        if n == 30:
            together = np.linalg.lstsq(X, y)[0][2:].sum()
            assert abs(theta[2:].sum() - together) < 0.5
