"""FedAvg against a textbook version, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore import DeviceData, FedAvg, Misuse, Separate, fit
from fedcore.algorithm import FleetSpec
from fedcore.rounds import Schedule, draw_cohort
from fedcore.testing import equal, small_fleet


def textbook(fleet: dict[str, DeviceData], eta: float, steps: int, weights: str, cohorts: list[list[str]]) -> np.ndarray:
    """The loop of the source, with full-batch steps on mean gradients."""
    theta = np.zeros(next(iter(fleet.values())).train.d)
    for cohort in cohorts:
        reached, weight = [], []
        for name in cohort:
            X, y = fleet[name].train
            own = theta
            for _ in range(steps):
                own = own + 2 * eta * X.T @ (y - X @ own) / len(y)
            reached.append(own)
            weight.append(len(y) if weights == "rows" else 1)
        theta = np.average(reached, axis=0, weights=weight)
    return theta


def the_same_everywhere(theta: dict[str, np.ndarray]) -> np.ndarray:
    one, *others = theta.values()
    assert all(np.array_equal(one, other) for other in others), "devices end with different global models"
    return one


@pytest.mark.parametrize("weights", ["rows", "equal"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_is_the_textbook(weights: str, participation: float) -> None:
    fleet, ids = small_fleet(rows=(12, 7, 30, 9)), tuple("abcd")
    ours = fit(FedAvg(eta=0.05, steps=5, weights=weights), fleet, rounds=6, participation=participation, seed=4)
    cohorts = [[ids[k] for k in draw_cohort(ids, Schedule(seed=4, participation=participation), c + 1)] for c in range(6)]
    np.testing.assert_allclose(the_same_everywhere(ours.theta), textbook(fleet, 0.05, 5, weights, cohorts), rtol=1e-12)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 2**32), st.integers(1, 5))
def test_one_step_a_round_is_the_pooled_gradient(rows: list[int], d: int, seed: int, C: int) -> None:
    """One full-batch step and weights by rows are one gradient step on the stacked table."""
    fleet = small_fleet(rows=tuple(rows), d=d, seed=seed)
    X, y = (np.concatenate(parts) for parts in zip(*(data.train for data in fleet.values()), strict=True))
    eta = 0.5 / max(np.linalg.eigvalsh(data.train.X.T @ data.train.X / data.train.n)[-1] for data in fleet.values())
    theta = np.zeros(d)
    for _ in range(C):
        theta = theta + 2 * eta * X.T @ (y - X @ theta) / len(y)
    ours = fit(FedAvg(eta=float(eta), steps=1, tolerance=0.0), fleet, rounds=C)
    np.testing.assert_allclose(the_same_everywhere(ours.theta), theta, rtol=1e-12, atol=1e-12 * np.abs(theta).max())


def test_one_step_a_round_converges_to_pooled_least_squares() -> None:
    fleet = small_fleet(rows=(12, 7, 30))
    X, y = (np.concatenate(parts) for parts in zip(*(data.train for data in fleet.values()), strict=True))
    ours = fit(FedAvg(eta=0.1, steps=1, tolerance=1e-13), fleet, rounds=5000)
    assert ours.outcome.name == "converged"
    np.testing.assert_allclose(ours.theta["a"], np.linalg.lstsq(X, y)[0], rtol=1e-10)


def test_many_steps_a_round_give_the_mean_of_separate_models() -> None:
    """The other end: each device goes all the way to its own least squares."""
    fleet = small_fleet(rows=(12, 7, 30))
    ours = fit(FedAvg(steps=100_000, weights="equal"), fleet, rounds=5)
    assert ours.outcome.name == "converged"
    alone = [np.linalg.lstsq(*data.train)[0] for data in fleet.values()]
    np.testing.assert_allclose(ours.theta["a"], np.mean(alone, axis=0), rtol=1e-10)


@pytest.mark.parametrize("batch", ["full", 3])
def test_a_fleet_of_one_is_separate(batch: str | int) -> None:
    fleet = small_fleet(rows=(9,))
    ours, alone = fit(FedAvg(batch=batch), fleet, rounds=5), fit(Separate(batch=batch), fleet, rounds=5)
    np.testing.assert_array_equal(ours.theta["a"], alone.theta["a"])


def test_converges_only_where_everybody_answered() -> None:
    fleet = small_fleet()
    assert fit(FedAvg(tolerance=0.9), fleet, rounds=3).outcome.name == "converged"
    assert fit(FedAvg(tolerance=0.9), fleet, rounds=3, participation=0.67).outcome.name == "completed"


@pytest.mark.parametrize("power", [-500, -20, 10, 500])
def test_targets_in_other_units_give_the_same_coefficients(power: int) -> None:
    """To the bit for a power of two, also where squares of coefficients would vanish or overflow."""
    fleet = small_fleet()
    scaled = {name: (data.train.X, data.train.y * 2.0**power) for name, data in fleet.items()}
    one, other = fit(FedAvg(), fleet, rounds=200), fit(FedAvg(), scaled, rounds=200)
    assert one.outcome == other.outcome
    assert len(one.history) == len(other.history)
    for name in fleet:
        np.testing.assert_array_equal(other.theta[name], one.theta[name] * 2.0**power)


def test_an_update_that_is_not_finite_is_an_outcome() -> None:
    fedavg, fleet = FedAvg(), small_fleet()
    spec = FleetSpec(tuple(sorted(fleet)), 3)
    server = fedavg.init_server(spec)
    devices = fedavg.init_devices(spec, list(fleet.values()))
    _, ups, _ = fedavg.local_steps(fedavg.broadcasts(server, range(3)), devices, list(fleet.values()), [])
    for bad in (np.inf, np.nan):
        spoiled = [ups[0], ups[1]._replace(theta=ups[1].theta * bad), ups[2]]
        aggregated = fedavg.aggregate(server, range(3), spoiled)
        outcome = fedavg.status(aggregated.server)
        assert (outcome.name, outcome.ok) == ("diverged", False)
        assert "not finite" in outcome.message
        assert equal(aggregated.server._replace(failed=False), server)


@settings(max_examples=40, deadline=None)
@given(
    eta=st.one_of(st.just("safe"), st.floats(1e-6, 1e2)),
    batch=st.sampled_from(["full", 1, 4]),
    gradient=st.sampled_from(["mean", "sum"]),
    weights=st.sampled_from(["rows", "equal"]),
    participation=st.floats(0.05, 1.0),
    C=st.integers(1, 60),
    scale=st.sampled_from([-150, -6, 0, 6, 100, 150]),
)
def test_is_refused_or_ends_finite(eta, batch, gradient, weights, participation, C, scale) -> None:
    fleet = {name: (data.train.X, 10.0**scale * data.train.y) for name, data in small_fleet(rows=(4, 9, 2, 15, 6)).items()}
    try:
        result = fit(FedAvg(eta=eta, batch=batch, gradient=gradient, weights=weights), fleet, rounds=C, participation=participation)
    except Misuse as refusal:
        if "is not stable" not in str(refusal):
            raise
        return
    assert result.outcome.ok
    assert np.isfinite(the_same_everywhere(result.theta)).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "Rows"}, "weights is one of rows, equal, got 'Rows'"),
        ({"tolerance": 1.0}, r"tolerance is a number in \[0, 1\)"),
        ({"steps": 0}, "steps is a whole number"),
    ],
)
def test_options_out_of_bounds(options: dict, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        FedAvg(**options)
