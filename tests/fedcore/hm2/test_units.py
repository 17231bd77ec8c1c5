"""Targets and columns in any units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedcore.fit import fit
from fedcore.hm2.hm2 import Hm2


def fleet(K: int, n: int, d: int = 4, noise: float = 0.5) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Devices with coefficients of about 1."""
    rng, mean = np.random.default_rng(1), np.linspace(1.0, 3.0, d)
    X = rng.standard_normal((K, n, d))
    theta = mean + rng.standard_normal((K, d))
    y = (X @ theta[:, :, None])[:, :, 0] + noise * rng.standard_normal((K, n))
    return {f"{k:04d}": (X[k], y[k]) for k in range(K)}


@pytest.mark.parametrize("size", [1e3, 1e4])
@pytest.mark.parametrize("options", [{}, {"prior": "isotropic"}, {"noise": "device"}], ids=str)
@pytest.mark.parametrize(("K", "n"), [(8, 200), (40, 30)])
def test_large_targets_are_not_taken_for_noise(K: int, n: int, options: dict[str, Any], size: float) -> None:
    """With coefficients so much larger than their prior has them, everything as noise is a mode too, in which least squares are far off."""
    devices = {name: (X, size * y) for name, (X, y) in fleet(K, n).items()}
    result = fit(Hm2(**options), devices, rounds=30)
    assert result.outcome.name == "converged"
    for name, (X, y) in devices.items():
        least_squares = np.linalg.lstsq(X, y)[0]
        assert (np.abs(result.theta[name] - least_squares) < result.posterior[name].sd).all()


@pytest.mark.parametrize("prior", ["lasso", "ridge", "elastic_net", "horseshoe"])
@pytest.mark.parametrize("lambda_prior", ["log_normal", "half_cauchy"])
@pytest.mark.parametrize(("target", "column"), [(1e3, 1.0), (1e9, 1.0), (1e-6, 1.0), (1.0, 1e-6), (1.0, 1e6)])
def test_penalties_far_from_their_prior_are_found(prior: Any, lambda_prior: Any, target: float, column: float) -> None:
    devices = {name: (column * X, target * y) for name, (X, y) in fleet(12, 20, 3).items()}
    result = fit(Hm2(prior=prior, lambda_prior=lambda_prior), devices, rounds=30)
    assert result.outcome.name == "converged"
    for name, (X, y) in devices.items():
        least_squares = np.linalg.lstsq(X, y)[0]
        assert (np.abs(result.theta[name] - least_squares) < 0.5 * result.posterior[name].sd).all()


SCALED: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "gaussian, each its noise": {"noise": "device"},
    "isotropic": {"prior": "isotropic"},
    "lasso": {"prior": "lasso"},
    "lasso, half-Cauchy": {"prior": "lasso", "lambda_prior": "half_cauchy"},
    "ridge": {"prior": "ridge"},
    "elastic net": {"prior": "elastic_net"},
    "horseshoe": {"prior": "horseshoe"},
}


@pytest.mark.parametrize("case", SCALED)
@pytest.mark.parametrize(("target", "column"), [(1e3, 1.0), (1e-3, 1e4), (1e9, 1e-6)])
def test_with_a_scaled_hyperprior_results_follow_the_units(case: str, target: float, column: float) -> None:
    algorithm = Hm2(**SCALED[case], hyperprior="scaled")
    columns = column * (np.array([1.0, 100.0, 0.01]) if "gaussian" in case else np.ones(3))
    devices = fleet(12, 20, 3)
    one = fit(algorithm, devices, rounds=60)
    other = fit(algorithm, {name: (X * columns, target * y) for name, (X, y) in devices.items()}, rounds=60)
    assert one.outcome.name == other.outcome.name == "converged"
    assert len(one.history) == len(other.history)
    for name, posterior in one.posterior.items():
        assert np.abs(other.theta[name] * columns / target - one.theta[name]).max() < 1e-4 * posterior.sd.min()
        np.testing.assert_allclose(other.posterior[name].sd * columns / target, posterior.sd, rtol=1e-4)
    assert "far from" not in other.outcome.message


def test_what_is_far_from_the_prior_is_said() -> None:
    devices = {name: (X, 1e3 * y) for name, (X, y) in fleet(12, 20, 3).items()}
    for prior in ("gaussian", "isotropic", "lasso", "ridge"):
        assert "hyperprior=scaled" in fit(Hm2(prior=prior), devices).outcome.message
        assert "hyperprior=scaled" not in fit(Hm2(prior=prior, hyperprior="scaled"), devices).outcome.message
        assert "hyperprior=scaled" not in fit(Hm2(prior=prior), fleet(12, 20, 3)).outcome.message


def test_units_of_columns_and_targets_that_are_zero() -> None:
    devices = {name: (X * [1.0, 0.0, 1.0], y * (name > "0003")) for name, (X, y) in fleet(12, 20, 3).items()}
    result = fit(Hm2(hyperprior="scaled"), devices)
    assert result.outcome.ok
    assert all(np.isfinite(theta).all() for theta in result.theta.values())


def test_a_scaled_hyperprior_without_a_start() -> None:
    devices = {name: (X, 1e3 * y) for name, (X, y) in fleet(12, 20, 3).items()}
    warm, cold = (fit(Hm2(sigma=500.0, hyperprior="scaled", start=start), devices) for start in ("warm", "zero"))
    for name, posterior in warm.posterior.items():
        assert np.abs(warm.theta[name] - cold.theta[name]).max() < 1e-2 * posterior.sd.min()
