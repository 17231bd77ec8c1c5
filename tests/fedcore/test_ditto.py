"""Ditto against a textbook version, its limits in the penalty, and what devices keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedcore import DeviceData, Ditto, FedAvg, Misuse, Separate, fit
from fedcore.algorithm import FleetSpec
from fedcore.fit import InProcess
from fedcore.messages import take
from fedcore.rounds import Answers, Call, RunState, Schedule, device_rng, rounds
from fedcore.testing import equal, small_fleet


def personal(v: np.ndarray, theta: np.ndarray, data: DeviceData, rate: float, penalty: float, steps: int) -> np.ndarray:
    """The source's loop at the rate that the penalty leaves, on mean gradients of all rows."""
    X, y = data.train
    s = rate / (1 + rate * penalty)
    for _ in range(steps):
        v = v - s * (2 * X.T @ (X @ v - y) / len(y) + penalty * (v - theta))
    return v


def global_models(fleet: dict[str, DeviceData], options: dict, C: int) -> list[np.ndarray]:
    """FedAvg's model before each of C rounds, and after the last."""
    start = np.zeros(next(iter(fleet.values())).train.d)
    return [start, *(fit(FedAvg(**options), fleet, rounds=c).theta["a"] for c in range(1, C + 1))]


@pytest.mark.parametrize("penalty", [0.0, 0.3, 50.0])
@pytest.mark.parametrize("personal_steps", ["steps", 9])
@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_is_the_textbook(penalty: float, personal_steps: str | int, gradient: str) -> None:
    fleet = small_fleet(rows=(12, 7, 30, 9))
    options = {"eta": 0.002, "steps": 5, "gradient": gradient}
    ours = fit(Ditto(penalty=penalty, personal_steps=personal_steps, **options), fleet, rounds=4)
    heard = global_models(fleet, options, 4)
    np.testing.assert_array_equal(ours.server.theta, heard[-1], "the global model is not FedAvg's")
    for name, data in fleet.items():
        n = data.train.n if gradient == "sum" else 1
        v = np.zeros(3)
        for theta in heard[:-1]:
            v = personal(v, theta, data, 0.002 * n, penalty / n, 5 if personal_steps == "steps" else 9)
        np.testing.assert_allclose(ours.theta[name], v, rtol=1e-10)


@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_minibatches_are_the_textbook(gradient: str) -> None:
    """A device's generator draws the batches of the global steps first, then those of the personal ones."""
    data, theta, penalty, b = small_fleet(rows=(12,))["a"], np.array([0.3, -1.0, 2.0]), 0.7, 4
    ditto = Ditto(batch=b, steps=3, personal_steps=6, penalty=penalty, gradient=gradient)
    spec = FleetSpec(("a",), 3)
    device = ditto.init_device(spec, data)
    down = ditto.broadcast(ditto.init_server(spec)._replace(theta=theta), 0)
    moved, _, _ = ditto.local_step(down, device, data, device_rng(0, 1, "a"))
    rng, X, y = device_rng(0, 1, "a"), *data.train
    rng.integers(12, size=(3, b))
    eta = device.problem.eta
    v, of = theta, np.mean if gradient == "mean" else np.sum
    for draw in rng.integers(12, size=(6, b)):
        gradient_of_rows = 2 * X[draw] * (X[draw] @ v - y[draw])[:, None]
        s = eta / (1 + eta * penalty)
        v = v - s * (of(gradient_of_rows, axis=0) + penalty * (v - theta))
    np.testing.assert_allclose(moved.v, v, rtol=1e-12)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 6))
@example(164713, 1, 1)
def test_without_penalty_it_is_separate(seed: int, n: int, d: int) -> None:
    fleet = small_fleet(rows=(n, 7, 12), d=d, seed=seed)
    alone = fit(Separate(), fleet, rounds=5)
    for penalty in (0.0, 1e-20):  # one row may have a curvature of 1e-6, beside which 1e-15 is 1e-9
        ours = fit(Ditto(penalty=penalty, tolerance=0.0), fleet, rounds=5)
        for name in fleet:
            np.testing.assert_allclose(ours.theta[name], alone.theta[name], rtol=1e-9, atol=1e-11 * np.abs(alone.theta[name]).max())


@pytest.mark.parametrize("penalty", [1e13, 1e100, 1e300])
@pytest.mark.parametrize("options", [{}, {"batch": 3}, {"gradient": "sum"}, {"eta": 0.01, "personal_steps": 1}])
def test_an_infinite_penalty_gives_the_global_model(penalty: float, options: dict) -> None:
    """The one that devices heard last, that of the round before."""
    fleet = small_fleet()
    ours = fit(Ditto(penalty=penalty, tolerance=0.0, **options), fleet, rounds=6)
    heard = fit(FedAvg(tolerance=0.0, **{name: each for name, each in options.items() if name != "personal_steps"}), fleet, rounds=5)
    for name in fleet:
        np.testing.assert_allclose(ours.theta[name], heard.theta[name], rtol=1e-10)


@pytest.mark.parametrize("penalty", [0.03, 1.0, 1e4])
def test_converges_to_the_penalised_solution(penalty: float) -> None:
    fleet = small_fleet(rows=(12, 7, 30, 2))
    ours = fit(Ditto(penalty=penalty, tolerance=1e-13), fleet, rounds=5000)
    assert ours.outcome.name == "converged"
    for name, data in fleet.items():
        X, y = data.train
        C, b, half = X.T @ X / len(y), X.T @ y / len(y), 0.5 * penalty * np.eye(3)
        np.testing.assert_allclose(ours.theta[name], np.linalg.solve(C + half, b + half @ ours.server.theta), rtol=1e-9)


def test_has_not_converged_before_its_personal_models_have() -> None:
    fleet = small_fleet()
    setting = {"eta": 0.05, "tolerance": 1e-6}
    ours = fit(Ditto(penalty=0.0, steps=200, personal_steps=1, **setting), fleet, rounds=2000)
    assert ours.outcome.name == "converged"
    assert len(ours.history) > 5 * len(fit(FedAvg(steps=200, **setting), fleet, rounds=2000).history)
    for name, data in fleet.items():
        np.testing.assert_allclose(ours.theta[name], np.linalg.lstsq(*data.train)[0], atol=1e-3)


class Lossy(InProcess):
    """Loses the answer of device 0 in round 2."""

    def local_steps(self, call: Call) -> Answers:
        answers = super().local_steps(call)
        kept = [i for i, k in enumerate(answers.answered) if (call.round_num, k) != (2, 0)]
        return Answers([answers.answered[i] for i in kept], take(answers.ups, kept), take(answers.infos, kept))


def test_a_personal_model_moves_only_with_a_receipt() -> None:
    fleet = small_fleet()
    ditto, spec = Ditto(eta=0.05, steps=4, penalty=0.5), FleetSpec(tuple("abc"), 3)
    backend = Lossy(ditto, spec, [fleet[name] for name in "abc"], seed=0)
    state, heard = RunState.initial(ditto, spec), [np.zeros(3)]
    for report in rounds(ditto, spec, backend, Schedule(rounds=4), state):
        state = report.state
        heard.append(state.server.theta)
    result = backend.finalize(state)
    for name, taken in (("a", (0, 2, 3)), ("b", (0, 1, 2, 3))):
        v = np.zeros(3)
        for c in taken:
            v = personal(v, heard[c], fleet[name], 0.05, 0.5, 4)
        np.testing.assert_allclose(result[name], v, rtol=1e-10)


def test_a_device_that_never_took_part_has_the_global_model() -> None:
    fleet = small_fleet()
    ours = fit(Ditto(), fleet, rounds=1, participation=0.67)
    others = [name for name in fleet if np.array_equal(ours.theta[name], ours.server.theta)]
    assert len(others) == 1
    assert np.abs(ours.server.theta).max() > 0


@pytest.mark.parametrize("power", [-500, -20, 10, 500])
def test_targets_in_other_units_give_the_same_coefficients(power: int) -> None:
    fleet = small_fleet()
    scaled = {name: (data.train.X, data.train.y * 2.0**power) for name, data in fleet.items()}
    one, other = fit(Ditto(), fleet, rounds=200), fit(Ditto(), scaled, rounds=200)
    assert one.outcome == other.outcome
    assert len(one.history) == len(other.history)
    for name in fleet:
        np.testing.assert_array_equal(other.theta[name], one.theta[name] * 2.0**power)


def test_steps_that_overflow_are_an_outcome() -> None:
    """A hostile global model makes the personal steps overflow: the device keeps what it had, and the server ends the run."""
    ditto, fleet = Ditto(batch=2), small_fleet()
    spec, datas = FleetSpec(tuple("abc"), 3), [fleet[name] for name in "abc"]
    server = ditto.init_server(spec)
    devices, rngs = ditto.init_devices(spec, datas), [device_rng(0, 1, name) for name in "abc"]
    hostile = [down._replace(theta=np.array([1.5e308, -1.5e308, 1.5e308])) for down in ditto.broadcasts(server, range(3))]
    moved, ups, _ = ditto.local_steps(hostile, devices, datas, rngs)
    assert all(np.isfinite(device.v).all() for device in moved)
    aggregated = ditto.aggregate(server, range(3), ups)
    outcome = ditto.status(aggregated.server)
    assert (outcome.name, outcome.ok) == ("diverged", False)
    assert equal(aggregated.server._replace(failed=False), server)


@settings(max_examples=80, deadline=None)
@given(
    penalty=st.one_of(st.just(0.0), st.floats(1e-300, 1e300)),
    eta=st.one_of(st.just("safe"), st.floats(1e-6, 1e2)),
    batch=st.sampled_from(["full", 1, 4]),
    gradient=st.sampled_from(["mean", "sum"]),
    personal_steps=st.one_of(st.just("steps"), st.integers(1, 500)),
    participation=st.floats(0.05, 1.0),
    C=st.integers(1, 40),
    scale=st.sampled_from([-150, -6, 0, 6, 100, 150]),
)
def test_any_penalty_is_stable(penalty, eta, batch, gradient, personal_steps, participation, C, scale) -> None:
    """Whatever the penalty, a rate that is stable without it is stable with it; and no result is larger than the targets allow."""
    fleet = {name: (data.train.X, 10.0**scale * data.train.y) for name, data in small_fleet(rows=(4, 9, 2, 15, 6)).items()}
    ditto = {"eta": eta, "batch": batch, "gradient": gradient, "personal_steps": personal_steps, "penalty": penalty}
    try:
        result = fit(Ditto(**ditto), fleet, rounds=C, participation=participation)
    except Misuse as refusal:
        if "is not stable" not in str(refusal):
            raise
        return
    assert result.outcome.ok
    assert all(np.abs(theta).max() < 10.0**scale * 1e6 for theta in result.theta.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"penalty": -1.0}, r"penalty is a number in \[0, inf\), got -1.0"),
        ({"penalty": float("inf")}, r"penalty is a number in \[0, inf\)"),
        ({"personal_steps": 0}, "personal_steps .unless .steps.. is a whole number from 1"),
        ({"personal_steps": "all"}, "personal_steps .unless .steps.. is a whole number from 1"),
        ({"weights": "n"}, "weights is one of rows, equal"),
    ],
)
def test_options_out_of_bounds(options: dict, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        Ditto(**options)
