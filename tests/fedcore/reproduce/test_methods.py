"""A run of a reproduction is `fit` on the same fleet, to the last bit; and the choice by validation rows."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore import Ditto, Eb, FedAvg, Hm1, Pooled, Separate, fit
from fedcore.algorithm import AnyAlgorithm, DeviceResult
from fedcore.metrics import a_rmse, score
from fedcore.reproduce import engines, simulations
from fedcore.reproduce.engines import ROUNDS, ascending, chosen, engine_run
from fedcore.reproduce.methods import Method, run
from fedcore.reproduce.simulations import EXPLICIT, METHODS, REPRODUCED, simulated_run, tabulated
from fedcore.reproduce.verdict import Word
from fedcore.rows import DeviceData, Rows
from fedcore.simulate import simulate
from fedcore.testing import small_fleet

ALGORITHMS = [
    Separate(batch=3),
    Separate(),
    FedAvg(weights="equal"),
    Ditto(batch=2),
    Ditto(),
    Hm1(),
    Hm1(alpha=0.9, shrinkage="explicit", eta=0.1),  # diverges
    Hm1(batch=4, prior_rate="tied", floor=0.0),
    Pooled(),  # converges in its first round
    Eb(),  # has a start
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_a_run_is_fit_to_the_last_bit(algorithm: AnyAlgorithm) -> None:
    fleet = small_fleet(rows=(12, 7, 30, 9))
    path = run(algorithm, fleet, 12, seed=3, follow=True)
    whole = fit(algorithm, fleet, rounds=12, seed=3)
    assert path.outcome == whole.outcome
    start = isinstance(algorithm, Eb)
    assert len(path.thetas) == len(whole.history) - start - (not whole.outcome.ok)
    np.testing.assert_array_equal(path.thetas[-1], list(whole.theta.values()))
    for count, theta in list(enumerate(path.thetas, 1))[:3]:
        np.testing.assert_array_equal(theta, list(fit(algorithm, fleet, rounds=count, seed=3).theta.values()))
    last = run(algorithm, fleet, 12, seed=3).thetas
    assert len(last) == whole.outcome.ok
    if last:
        np.testing.assert_array_equal(last[0], path.thetas[-1])


@pytest.mark.slow
@pytest.mark.parametrize("case", [REPRODUCED[0], REPRODUCED[2]], ids=lambda case: case.label)
def test_a_cell_is_fit_on_the_same_fleet(case: simulations.Case) -> None:
    """Also where the run goes on past the round that the table is read at."""
    found, fleet = simulated_run(case, seed=5), simulate(case.fleet, 5)
    devices = list(fleet.devices.items())[: case.scored]
    for method in METHODS:
        result = fit(method.grid[0], fleet.devices, rounds=simulations.ROUNDS, seed=5)
        assert found.reached[method.label].value == a_rmse(score(DeviceResult(result.theta[name]), data.test) for name, data in devices)
        if case.followed:
            Theta = np.array(list(result.theta.values()))
            error = np.sqrt(((Theta - fleet.Theta.T) ** 2).sum() / len(Theta))
            assert found.errors[method.label][simulations.ROUNDS - 1] == pytest.approx(error, rel=1e-12)
    assert set(found.errors) == (set(found.reached) if case.followed else set())
    again = simulated_run(case, seed=5)
    assert again == found


def test_a_table_of_simulations() -> None:
    """Three runs of Case I, which take milliseconds, stand for all four cases."""
    runs = [simulated_run(REPRODUCED[0], seed) for seed in range(3)]
    lengths = (44, 50, 46)
    followed = [each._replace(errors={EXPLICIT: [1.0] * length, "OLS": [0.5]}) for each, length in zip(runs, lengths, strict=True)]
    found = tabulated({case.label: followed if case.followed else runs for case in REPRODUCED}, seed=0)
    (table,) = found.tables
    labels = [*(method.label for method in METHODS), *simulations.LIMITS]
    assert [(cell.part, cell.method) for cell in table.cells] == [(case.label, label) for case in REPRODUCED for label in labels]
    assert len(found.judged) == 12
    assert found.count(Word.NOT_REPRODUCED) + found.count(Word.REPRODUCED) + found.count(Word.UNDECIDED) == 12
    explicit = table.cells[0]
    assert (explicit.ours.runs, explicit.ours.diverged) == (3, 0)
    assert explicit.ours.mean == pytest.approx(np.mean([each.reached[EXPLICIT].value for each in runs]))
    assert found.runs == 3
    assert {part: len(curves[EXPLICIT].mean) for part, curves in found.curves.items()} == {"Case II": 44, "Case III": 44}
    assert sum("HM1 explicit diverged in 2 of 3 runs, the first in round 45" in sentence for sentence in found.findings) == 2


def curved(n: int, level: float, rng: np.random.Generator) -> DeviceData:
    """A device with an intercept first, whose validation rows are apart from its training rows."""

    def rows(t: np.ndarray) -> Rows:
        return Rows(t[:, None] ** np.arange(3), level + t**2 + 0.1 * rng.standard_normal(len(t)))

    return DeviceData(rows(rng.uniform(0, 0.6, n)), rows(rng.uniform(0, 0.6, 6)), rows(rng.uniform(0.6, 1, 8)))


@pytest.fixture
def fleet() -> dict[str, DeviceData]:
    rng = np.random.default_rng(2)
    return {name: curved(n, level, rng) for name, n, level in (("a", 20, 0.0), ("b", 15, 1.0), ("c", 25, 0.3))}


def test_the_choice_is_the_best_on_the_validation_rows(fleet: dict[str, DeviceData]) -> None:
    grid = [Ditto(eta=eta, penalty=penalty) for eta in (0.01, 0.1, 0.4) for penalty in (0.01, 1.0)]
    errors, thetas = [], []
    for algorithm in grid:
        theta = fit(algorithm, fleet, rounds=ROUNDS).theta
        thetas.append(list(theta.values()))
        errors.append(a_rmse(score(DeviceResult(theta[name]), data.validation) for name, data in fleet.items()))
    best = int(np.argmin(errors))
    choice = chosen(Method("Ditto", grid), fleet)
    np.testing.assert_array_equal(choice.thetas, thetas[best])
    assert choice.setting == f"eta={grid[best].eta}, penalty={grid[best].penalty}"
    assert choice.failure == ""


def test_settings_that_diverge_are_not_chosen(fleet: dict[str, DeviceData]) -> None:
    unstable, stable = Hm1(alpha=0.9, eta=0.1, shrinkage="explicit"), Hm1(alpha=0.9, eta=0.1)
    both = chosen(Method("HM1", [unstable, stable]), fleet)
    assert (both.setting, both.failure) == ("shrinkage=proximal", "")
    none = chosen(Method("HM1", [unstable]), fleet)
    assert none.failure == "the explicit shrinkage step is unstable, its prior rate exceeds the smallest eigenvalue of Omega"


def test_a_table_of_engines(fleet: dict[str, DeviceData]) -> None:
    own = {name: Rows(data.test.X, (data.test.y - data.test.y.min()) / np.ptp(data.test.y)) for name, data in fleet.items()}
    result = engine_run(fleet, own)
    half = a_rmse(score(DeviceResult(np.array([0.5, 0.0, 0.0])), rows) for rows in own.values())
    assert result["own"]["Constant 0.5"].value == half
    mean = [np.sqrt(((data.test.y - data.train.y.mean()) ** 2).mean()) for data in fleet.values()]
    assert result["train"]["Training mean"].value == pytest.approx(np.mean(mean))
    found = engines.tabulated({sensor: [result, result] for sensor in engines.SENSORS}, seed=0)
    assert [len(table.cells) for table in found.tables] == [4 * 9, 4 * 10]
    assert "train" in found.tables[0].title
    assert "leaking" in found.tables[1].title
    assert len(found.judged) == 40
    explicit = [cell for cell in found.judged if cell.method == EXPLICIT]
    assert all(cell.ours.diverged == 2 and cell.verdict.word is Word.NOT_REPRODUCED for cell in explicit)
    assert all(cell.chosen == {} for cell in explicit)
    assert all(sum(cell.chosen.values()) == 2 for cell in found.judged if cell.method != EXPLICIT)


@pytest.mark.parametrize(
    ("values", "rising"), [([1, 2, 3], True), ([1, 3, 2], False), ([1, 1], False), ([np.nan, 1], False), ([1, np.nan], False)]
)
def test_ascending(values: list[float], rising: bool) -> None:
    assert ascending(values) == rising
