"""A noise variance that devices share, and one device that has more of it."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.fit import fit
from fedcore.hm2.hm2 import Hm2
from fedcore.hm2.state import phi


@pytest.mark.parametrize(("K", "n", "times"), [(40, 30, 8.0), (20, 30, 8.0), (100, 30, 20.0), (20, 300, 3.0), (20, 300, 0.1)])
@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_one_noisier_device(K: int, n: int, times: float, damping: float) -> None:
    """The residuals of all tell what the posterior of sigma^2 is, to which coefficients add next to nothing."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((K, n, 2))
    theta = np.array([1.0, -0.5]) + 0.7 * rng.standard_normal((K, 2))
    scale = np.where(np.arange(K) == 0, times, 1.0)
    y = (X @ theta[:, :, None])[:, :, 0] + 0.5 * scale[:, None] * rng.standard_normal((K, n))
    algorithm = Hm2(damping=damping, certificate="off")
    result = fit(algorithm, {f"{k:03d}": (X[k], y[k]) for k in range(K)}, rounds=60)
    assert result.outcome.name == "converged"
    found = phi(result.server, algorithm.hierarchy.blocks(2), algorithm.hierarchy.prior(2))["log_sigma2"]
    rss = sum(float(np.linalg.lstsq(each, target)[1][0]) for each, target in zip(X, y, strict=True))
    freedom = K * (n - 2)
    sd = np.sqrt(2.0 / freedom)
    assert abs(found["mean"][0] - (np.log(rss / freedom) - 1.0 / freedom)) < 0.1 * sd
    assert found["sd"][0] == pytest.approx(sd, rel=0.05)


def test_what_has_not_settled_is_said() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 20, 2))
    y = X.sum(axis=2) + 0.5 * rng.standard_normal((40, 20))
    devices = {f"{k:03d}": (X[k], y[k]) for k in range(40)}
    short, whole = (fit(Hm2(damping=0.2), devices, rounds=rounds).outcome for rounds in (3, 80))
    assert (short.name, whole.name) == ("completed", "converged")
    assert "phi has not settled" in short.message
    assert "phi has not settled" not in whole.message
