"""The demo's fleet, in which sharing pays: what each method reaches on five of them, with settings chosen on validation rows.

The bounds are those of an independent implementation on other draws: least squares .735, the full empirical Bayes .386, oracle .307.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from fedcore.algorithm import AnyAlgorithm
from fedcore.eb import Eb
from fedcore.hm1 import Hm1
from fedcore.reproduce.limits import least_squares
from fedcore.reproduce.methods import run, scored
from fedcore.separate import Separate
from fedcore.simulate import Fleet, simulate

ROUNDS = 30
RATES, PRIOR_RATES, BATCHES = ("safe", 0.1, 0.03, 0.01), ("default", 0.01, 0.03, 0.1, 0.3), ("full", 5)


def tuned(grid: Sequence[AnyAlgorithm], fleet: Fleet, seed: int) -> float:
    """A-RMSE on test rows of the configuration with the least one on validation rows, of those that did not diverge."""
    datas = [fleet.devices[each] for each in sorted(fleet.devices)]
    found: list[tuple[float, float]] = []
    for algorithm in grid:
        thetas, outcome = run(algorithm, fleet.devices, ROUNDS, seed)
        if outcome.ok:
            found.append((scored(thetas[-1], [data.validation for data in datas]), scored(thetas[-1], [data.test for data in datas])))
    return min(found)[1]


@pytest.mark.slow
def test_what_methods_reach_where_sharing_pays() -> None:
    grids: dict[str, list[AnyAlgorithm]] = {
        "eb": [Eb()],
        "hm1": [Hm1(eta=eta, prior_rate=rate, batch=batch) for eta, rate, batch in product(RATES, PRIOR_RATES, BATCHES)],
        "explicit": [
            Hm1(shrinkage="explicit", eta=eta, prior_rate=rate, batch=batch) for eta, rate, batch in product(RATES, PRIOR_RATES, BATCHES)
        ],
        "separate": [Separate(eta=eta, batch=batch) for eta, batch in product(RATES, BATCHES)],
    }
    reached: dict[str, list[float]] = {name: [] for name in (*grids, "ols")}
    for seed in range(5):
        fleet = simulate("demo", seed)
        for name, grid in grids.items():
            reached[name].append(tuned(grid, fleet, seed))
        datas = [fleet.devices[each] for each in sorted(fleet.devices)]
        reached["ols"].append(scored(least_squares([data.train for data in datas]), [data.test for data in datas]))
    mean = {name: float(np.mean(values)) for name, values in reached.items()}
    assert mean["eb"] <= 0.42
    assert mean["hm1"] <= 0.50
    assert mean["hm1"] < min(mean["explicit"], mean["separate"])
    assert abs(mean["ols"] - 0.735) <= 0.03
