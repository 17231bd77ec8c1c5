"""A half-Cauchy prior of lambda against integrals."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

from fedcore import DeviceData
from fedcore.fit import fit
from fedcore.hm2 import half_cauchy
from fedcore.hm2.hm2 import Hm2
from fedcore.hm2.natural import moments
from fedcore.hm2.penalised import Ridge


def test_the_density_is_that_of_a_half_cauchy_lambda() -> None:
    x = np.array([-30.0, -1.0, 0.0, 2.0, 800.0])
    lam = np.exp(x[:-1])
    np.testing.assert_allclose(np.exp(half_cauchy.log_density(x[:-1])), 2.0 * lam / (np.pi * (1.0 + lam**2)))
    assert half_cauchy.log_density(x)[-1] == pytest.approx(np.log(2.0 / np.pi) - 800.0)
    total, _ = quad(lambda x: x**2 / np.cosh(x) / np.pi, -50, 50)
    assert pytest.approx(total) == half_cauchy.VARIANCE


@pytest.mark.parametrize("mean", [-20.0, -1.0, 0.0, 3.0])
@pytest.mark.parametrize("sd", [1e-3, 0.2, 1.0, 5.0, 1e3])
def test_moments(mean: float, sd: float) -> None:
    found = half_cauchy.matched(mean, sd**2)

    def product(x: float, power: int = 0) -> float:
        return (x - found.mean) ** power * np.exp(-0.5 * ((x - mean) / sd) ** 2) / (np.sqrt(2.0 * np.pi) * sd) / (np.pi * np.cosh(x))

    near = [found.mean + step * np.sqrt(found.variance) for step in (-30, -10, -3, 0, 3, 10, 30)]
    integrals = [sum(quad(product, a, b, args=(power,))[0] for a, b in pairwise(near)) for power in (0, 1, 2)]
    assert np.exp(found.log_normaliser) == pytest.approx(integrals[0], rel=1e-7)
    assert abs(integrals[1]) < 1e-7 * integrals[0] * np.sqrt(found.variance)
    assert found.variance == pytest.approx(integrals[2] / integrals[0], rel=1e-6)


@pytest.mark.parametrize(("K", "shift"), [(2, 0.0), (30, 0.0), (30, 3.0)])
def test_phi_against_a_grid(K: int, shift: float) -> None:
    """Two devices leave lambda open, and with coefficients that are all small it is far from its prior's mean."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((K, 3)) * np.exp(-0.5 * shift)
    X = rng.standard_normal((K, 30, 3))
    y = (X @ theta[:, :, None])[:, :, 0] + 0.5 * rng.standard_normal((K, 30))
    devices = {f"{k:02d}": (X[k], y[k]) for k in range(K)}
    result = fit(Hm2(prior="ridge", lambda_prior="half_cauchy", certificate="off", tolerance=1e-6), devices, rounds=60)
    q = moments(result.server.approximation.q)
    sd = np.sqrt(q.covariance.diagonal())
    axes = [centre + 7.0 * width * np.linspace(-1, 1, 201) for centre, width in zip(q.mean, sd, strict=True)]
    phi = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    model = Ridge(lambda_prior="half_cauchy")
    prepared = model.prepare([DeviceData.of(*pair) for pair in zip(X, y, strict=True)])
    prior = -np.log(np.pi * np.cosh(phi[:, 0])) - 0.5 * (phi[:, 1] / 3.0) ** 2 - np.log(3.0 * np.sqrt(2.0 * np.pi))
    log_density = model.log_factor(prepared, phi).sum(axis=0) + prior
    top = log_density.max()
    weight = np.exp(log_density - top)
    evidence = top + np.log(weight.sum()) + np.log((14.0 / 200.0) ** 2 * sd.prod())
    weight /= weight.sum()
    mean = weight @ phi
    exact = np.sqrt(weight @ (phi - mean) ** 2)
    assert np.abs((q.mean - mean) / exact).max() < (0.0003 if K > 2 else 0.01)
    assert np.abs(sd / exact - 1.0).max() < 0.01
    assert result.history[-1]["log_evidence"] == pytest.approx(evidence, abs=0.01)
    normal = fit(Hm2(prior="ridge", certificate="off"), devices, rounds=60)
    assert abs(moments(normal.server.approximation.q).mean[0] - mean[0]) > 0.05 * exact[0]


def test_the_certificate_is_against_the_prior_itself() -> None:
    """With two devices q is off, and weights by the exact density mend it."""
    rng = np.random.default_rng(1)
    X, theta = rng.standard_normal((2, 12, 3)), rng.standard_normal((2, 3))
    y = (X @ theta[:, :, None])[:, :, 0] + 0.5 * rng.standard_normal((2, 12))
    result = fit(Hm2(prior="ridge", lambda_prior="half_cauchy", certificate="on"), {f"{k}": (X[k], y[k]) for k in range(2)})
    certificate = result.server.certificate
    assert certificate.reliable
    points = np.stack(np.meshgrid(np.linspace(-12.0, 12.0, 801), np.linspace(-5.0, 5.0, 801), indexing="ij"), axis=-1).reshape(-1, 2)
    model = Ridge(lambda_prior="half_cauchy")
    prepared = model.prepare([DeviceData.of(*pair) for pair in zip(X, y, strict=True)])
    log_density = model.log_factor(prepared, points).sum(axis=0) - np.log(np.cosh(points[:, 0])) - 0.5 * (points[:, 1] / 3.0) ** 2
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = weight @ points
    sd = np.sqrt(weight @ (points - mean) ** 2)
    assert np.abs((certificate.mean - mean) / sd).max() < 0.05
    assert np.abs(np.sqrt(certificate.covariance.diagonal()) / sd - 1.0).max() < 0.05
