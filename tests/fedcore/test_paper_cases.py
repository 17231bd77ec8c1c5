"""The paper's simulated cases at the setting that comes closest to its tables, 30 fleets each.

The expected means and their half-widths are those of an independent implementation (its own generator and random
numbers); the paper reports HM1 / Separate as .081 / .094, .050 / .056, .044 / .072 and .035 / .035.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedcore import Hm1, Separate, fit
from fedcore.algorithm import DeviceResult
from fedcore.metrics import a_rmse, score
from fedcore.simulate import simulate

RUNS = 30
BUDGET = {"eta": 0.01, "batch": 5, "gradient": "sum", "steps": 20}
ALGORITHMS = {"separate": Separate(**BUDGET), "explicit": Hm1(shrinkage="explicit", alpha=0.1, **BUDGET)}
EXPECTED = {
    ("hm1-1", "separate"): (0.028, 0.010),
    ("hm1-2", "separate"): (0.0553, 0.0022),
    ("hm1-3", "separate"): (0.0835, 0.0023),
    ("hm1-4", "separate"): (0.0350, 0.0006),
    ("hm1-1", "explicit"): (0.0945, 0.017),
    ("hm1-2", "explicit"): (0.0559, 0.0021),
    ("hm1-3", "explicit"): (0.0899, 0.0036),
    ("hm1-4", "explicit"): (0.0353, 0.0008),
}
SCORED = {"hm1-1": 1, "hm1-2": 30}
"""Cases that are evaluated on their first devices only."""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["hm1-1", "hm1-2", "hm1-3", "hm1-4"])
def test_case(case: str, record_property: Callable[[str, object], None]) -> None:
    errors: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    for seed in range(RUNS):
        fleet = simulate(case, seed)
        scored = list(fleet.devices.items())[: SCORED.get(case)]
        for name, algorithm in ALGORITHMS.items():
            result = fit(algorithm, fleet.devices, rounds=30, seed=seed)
            assert result.outcome.ok
            errors[name].append(a_rmse(score(DeviceResult(result.theta[device]), data.test) for device, data in scored))
    for name, found in errors.items():
        mean, half_width = EXPECTED[case, name]
        summary = f"{case} {name}: A-RMSE {np.mean(found):.4f} (sd {np.std(found, ddof=1):.4f}), expected {mean} +- {half_width}"
        record_property(name, summary)
        assert abs(np.mean(found) - mean) <= half_width, summary
