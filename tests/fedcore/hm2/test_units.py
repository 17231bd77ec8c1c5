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
