"""A random search over HM1's settings: each is refused before its first round, with a reason, or ends finite and with no device dead."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fedcore import FitResult, Hm1, Misuse, fit
from fedcore.separate import separate_rival

DEAD = 1e-6
"""A device whose coefficients are below this share of what it reaches on its own, with the same budget, has lost its signal."""

Fleet = dict[str, tuple[np.ndarray, np.ndarray]]


def fleet(rng: np.random.Generator, scale: float) -> Fleet:
    """Devices of 2 to 40 rows and 1 to 6 columns, with two shared factors; every device has signal."""
    K, d = int(rng.integers(2, 25)), int(rng.integers(1, 7))
    Theta = rng.standard_normal((d, 2)) @ rng.standard_normal((2, K)) + 0.3 * rng.standard_normal((d, K))
    devices = {}
    for k in range(K):
        n = int(rng.integers(2, 41))
        X = rng.standard_normal((n, d))
        devices[f"{k:02d}"] = (X, scale * (X @ Theta[:, k] + 0.3 * rng.standard_normal(n)))
    return devices


def setting(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    options = {
        "alpha": float(rng.choice([rng.uniform(0.01, 1.0), 10.0 ** rng.uniform(-4, 0), 1.0])),
        "eta": "safe" if rng.random() < 0.5 else float(10.0 ** rng.uniform(-3, 0.3)),
        "batch": "full" if rng.random() < 0.7 else int(rng.integers(1, 8)),
        "gradient": str(rng.choice(["mean", "sum"])),
    }
    schedule = {
        "rounds": int(rng.choice([1, 3, 10, 30, 100])),
        "participation": float(rng.choice([1.0, 0.1, rng.uniform(0.1, 1.0)])),
        "seed": int(rng.integers(1000)),
    }
    return options, schedule


def dead(result: FitResult, alone: FitResult, devices: Fleet) -> list[str]:
    """Devices without signal, of those that have more rows than columns: only they can tell signal from noise."""
    norm = np.linalg.norm
    return [name for name, (X, _) in devices.items() if len(X) > X.shape[1] and norm(result.theta[name]) < DEAD * norm(alone.theta[name])]


@pytest.mark.slow
@pytest.mark.parametrize("prior_rate", ["default", "tied", 0.1])
def test_every_setting_is_refused_or_ends_finite(prior_rate: str | float) -> None:
    rng = np.random.default_rng(20)
    refused = 0
    for _ in range(250):
        devices = fleet(rng, 10.0 ** rng.uniform(-6, 6))
        options, schedule = setting(rng)
        try:
            hm1 = Hm1(prior_rate=prior_rate, **options)
            result = fit(hm1, devices, **schedule)
        except Misuse as refusal:
            if not re.fullmatch(r".* is not stable on this device's rows: .*", str(refusal)):  # of one line
                raise
            refused += 1
            continue
        assert result.outcome.ok, (options, schedule, result.outcome)
        assert all(np.isfinite(theta).all() for theta in result.theta.values()), (options, schedule)
        if prior_rate == "default":
            assert not dead(result, fit(separate_rival(hm1), devices, **schedule), devices), (options, schedule)
    assert 25 < refused < 225, "the search covers settings of both kinds"
