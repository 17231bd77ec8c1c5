"""Empirical Bayes against lme4, its limits, its likelihood, and what its intervals cover."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from fedcore import DeviceData, Eb, Misuse, coefficient_intervals, fit, prediction_intervals
from fedcore.algorithm import DeviceResult, FleetSpec
from fedcore.eb import Prior, Server
from fedcore.fit import InProcess
from fedcore.metrics import a_rmse, score
from fedcore.posterior import Posterior
from fedcore.rounds import Answers, Call, RunState, Schedule, rounds
from fedcore.semidefinite import factor, packed
from fedcore.simulate import simulate
from fedcore.testing import small_fleet

REFERENCE = Path(__file__).parents[1] / "reference"
Fleet = dict[str, tuple[np.ndarray, np.ndarray]]
COVARIANCES = ("full", "diagonal", "isotropic")


def pairs(fleet: dict[str, DeviceData]) -> Fleet:
    return {name: (data.train.X, data.train.y) for name, data in fleet.items()}


def drawn(seed: int, rows: Sequence[int], mu: np.ndarray, Sigma: np.ndarray, noise: float) -> tuple[Fleet, np.ndarray]:
    """A fleet from the model, its columns standard normal, and its coefficients, shape (K, d)."""
    rng = np.random.default_rng(seed)
    Theta = rng.multivariate_normal(mu, Sigma, len(rows))
    fleet = {}
    for k, n in enumerate(rows):
        X = rng.standard_normal((n, len(mu)))
        fleet[f"{k:03d}"] = (X, X @ Theta[k] + noise * rng.standard_normal(n))
    return fleet, Theta


def least_squares(fleet: Fleet) -> dict[str, np.ndarray]:
    return {name: np.linalg.lstsq(X, y)[0] for name, (X, y) in fleet.items()}


def pooled(fleet: Fleet) -> np.ndarray:
    return np.linalg.lstsq(np.concatenate([X for X, _ in fleet.values()]), np.concatenate([y for _, y in fleet.values()]))[0]


def likelihoods(history: Sequence[dict[str, float]]) -> np.ndarray:
    """Marginal log likelihood by round, without those of the start."""
    values = np.array([each["log_likelihood"] for each in history])
    return values[np.isfinite(values)]


def told(eb: Eb, X: np.ndarray, y: np.ndarray, mean: np.ndarray, Sigma: np.ndarray, noise: float) -> Posterior:
    """A device's posterior at given parameters."""
    data, d = DeviceData.of(X, y), len(mean)
    device = eb.init_device(FleetSpec(("a",), d), data)
    posterior = eb.finalize(Prior(mean, packed(factor(Sigma)), noise, mean, 0.0), device, data).posterior
    assert posterior is not None
    return posterior


@pytest.fixture(scope="module")
def sleepstudy() -> Fleet:
    table = pq.read_table(REFERENCE / "sleepstudy.parquet").to_pydict()
    device, days, y = np.array(table["device"]), np.array(table["days"], dtype=float), np.array(table["y"])
    found = {str(name): device == name for name in np.unique(device)}
    return {name: (np.column_stack([np.ones(chosen.sum()), days[chosen]]), y[chosen]) for name, chosen in found.items()}


class TestAgainstLme4:
    def test_full(self, sleepstudy: Fleet) -> None:
        reference = json.loads((REFERENCE / "sleepstudy.json").read_text())["full"]
        result = fit(Eb(), sleepstudy, rounds=20)
        server = result.server
        np.testing.assert_allclose(server.mean, reference["mu"], rtol=1e-3)
        np.testing.assert_allclose(server.covariance.diagonal(), np.diag(reference["Sigma"]), rtol=0.01)
        correlation = server.covariance[0, 1] / np.sqrt(np.prod(server.covariance.diagonal()))
        assert correlation == pytest.approx(reference["corr"], abs=0.01)
        assert server.noise == pytest.approx(reference["sigma2"], rel=0.01)
        assert likelihoods(result.history)[-1] == pytest.approx(reference["loglik"], abs=0.01)
        assert result.outcome.name == "converged"
        # Half a per cent, of the fleet's mean where lme4's own slope is nearly zero (335: -0.13).
        for name, theta in reference["theta"].items():
            np.testing.assert_allclose(result.theta[name], theta, rtol=0.005, atol=0.005 * reference["mu"][1])

    def test_diagonal(self, sleepstudy: Fleet) -> None:
        reference = json.loads((REFERENCE / "sleepstudy.json").read_text())["diagonal"]
        result = fit(Eb(covariance="diagonal"), sleepstudy, rounds=20)
        server = result.server
        np.testing.assert_allclose(server.mean, reference["mu"], rtol=1e-3)
        np.testing.assert_allclose(server.covariance, np.diag(reference["Sigma_diag"]), rtol=0.01)
        assert server.noise == pytest.approx(reference["sigma2"], rel=0.01)
        assert likelihoods(result.history)[-1] == pytest.approx(reference["loglik"], abs=0.01)

    def test_with_part_of_the_fleet_a_round(self, sleepstudy: Fleet) -> None:
        """Incremental EM has the same fixed points."""
        reference = json.loads((REFERENCE / "sleepstudy.json").read_text())["full"]
        result = fit(Eb(), sleepstudy, rounds=300, participation=0.3)
        np.testing.assert_allclose(result.server.mean, reference["mu"], rtol=1e-3)
        np.testing.assert_allclose(result.server.covariance.diagonal(), np.diag(reference["Sigma"]), rtol=0.01)
        assert result.server.noise == pytest.approx(reference["sigma2"], rel=0.01)
        # Each device's part is at the parameters that it was last sent, and those stand still at the end.
        assert likelihoods(result.history)[-1] == pytest.approx(reference["loglik"], abs=0.01)


class TestPosterior:
    def test_is_the_textbook_one(self) -> None:
        rng = np.random.default_rng(0)
        A = rng.standard_normal((3, 3))
        for n in (2, 3, 9):
            X, y, mean, Sigma = rng.standard_normal((n, 3)), rng.standard_normal(n), rng.standard_normal(3), A @ A.T
            found = told(Eb(), X, y, mean, Sigma, 0.7)
            V = np.linalg.inv(X.T @ X / 0.7 + np.linalg.inv(Sigma))
            np.testing.assert_allclose(found.covariance, V, rtol=1e-9)
            np.testing.assert_allclose(found.mean, V @ (X.T @ y / 0.7 + np.linalg.solve(Sigma, mean)), rtol=1e-9)

    @pytest.mark.parametrize("rows", [(12, 7, 30), (2, 3, 1, 5), (9,)])
    @pytest.mark.parametrize("noise", ["shared", "own"])
    def test_marginal_likelihood(self, rows: tuple[int, ...], noise: str) -> None:
        """Of all rows at the last parameters sent, against the normal density of y."""
        fleet = pairs(small_fleet(rows=rows, d=3))
        eb, spec = Eb(noise=noise), FleetSpec(tuple(sorted(fleet)), 3)
        datas = [DeviceData.of(*fleet[name]) for name in spec.device_ids]
        devices, K = eb.init_devices(spec, datas), range(len(datas))
        Sigma = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.5]])
        server = eb.init_server(spec)._replace(mean=np.array([0.5, -1.0, 2.0]), covariance=Sigma, noise=0.4)
        _, ups, _ = eb.local_steps(eb.broadcasts(server, K), devices, datas, [])
        for device, up, data in zip(devices, ups, datas, strict=True):
            X, y = data.train
            variance = device.noise if noise == "own" else 0.4
            expected = multivariate_normal.logpdf(y, X @ server.mean, X @ Sigma @ X.T + variance * np.eye(len(y)))
            assert up.change.log_likelihood == pytest.approx(expected, rel=1e-10)

    def test_without_differences_it_is_the_mean_exactly(self) -> None:
        mean = np.array([1.0, -2.0, 0.5])
        found = told(Eb(), *pairs(small_fleet())["a"], mean, np.zeros((3, 3)), 0.3)
        np.testing.assert_array_equal(found.mean, mean)
        np.testing.assert_array_equal(found.covariance, 0.0)

    def test_with_large_differences_it_is_least_squares(self) -> None:
        X, y = pairs(small_fleet())["a"]
        found = told(Eb(), X, y, np.zeros(3), 1e10 * np.eye(3), 0.3)
        np.testing.assert_allclose(found.mean, np.linalg.lstsq(X, y)[0], rtol=1e-8)
        np.testing.assert_allclose(found.covariance, 0.3 * np.linalg.inv(X.T @ X), rtol=1e-6)


class TestLimits:
    def test_devices_that_differ_much_keep_their_least_squares(self) -> None:
        fleet, _ = drawn(1, (12,) * 20, np.zeros(3), 1e8 * np.eye(3), 0.1)
        result = fit(Eb(), fleet, rounds=20)
        for name, theta in least_squares(fleet).items():
            np.testing.assert_allclose(result.theta[name], theta, rtol=1e-6)

    @pytest.mark.parametrize(("covariance", "closer"), [("full", 0.05), ("diagonal", 1e-3), ("isotropic", 1e-3)])
    def test_devices_that_differ_less_than_noise_would_are_pooled(self, covariance: Any, closer: float) -> None:
        """The likelihood is largest at Sigma = 0: least squares varies less between these devices than their noise would make it.

        With a full Sigma plain EM comes near that as 1 / rounds.
        """
        rng = np.random.default_rng(2)
        X, theta, fleet = rng.standard_normal((12, 3)), np.array([1.0, -1.0, 2.0]), {}
        beside = np.linalg.svd(X)[0][:, 3:]
        for k in range(20):
            fleet[f"{k:02d}"] = (X, X @ (theta + 0.02 * rng.standard_normal(3)) + 0.5 * beside @ rng.standard_normal(9))
        together = pooled(fleet)
        own = max(np.abs(each - together).max() for each in least_squares(fleet).values())
        result = fit(Eb(covariance=covariance), fleet, rounds=100)
        assert max(np.abs(each - together).max() for each in result.theta.values()) < closer * own

    def test_isotropic_around_zero_is_ridge(self) -> None:
        fleet, _ = drawn(3, (6,) * 30, np.zeros(4), 0.5 * np.eye(4), 0.4)
        result = fit(Eb(covariance="isotropic", mean="zero"), fleet, rounds=100)
        np.testing.assert_array_equal(result.server.mean, 0.0)
        penalty = result.server.noise / result.server.covariance[0, 0]
        assert penalty == pytest.approx(0.4**2 / 0.5, rel=0.3)
        for name, (X, y) in fleet.items():
            np.testing.assert_allclose(result.theta[name], np.linalg.solve(X.T @ X + penalty * np.eye(4), X.T @ y), rtol=1e-9)

    def test_one_device_keeps_its_least_squares(self) -> None:
        fleet = {"a": pairs(small_fleet())["a"]}
        for covariance in COVARIANCES:
            theta = fit(Eb(covariance=covariance), fleet, rounds=50).theta["a"]
            np.testing.assert_allclose(theta, least_squares(fleet)["a"], rtol=1e-9)

    def test_a_column_of_zeros_tells_nothing(self) -> None:
        """On one device its coefficient is that of the others, in every respect; on all devices it is zero."""
        fleet, _ = drawn(4, (10,) * 12, np.array([1.0, 5.0]), np.eye(2), 0.3)
        X, y = fleet["000"]
        fleet["000"] = (X * [1.0, 0.0], y)
        result = fit(Eb(covariance="diagonal"), fleet, rounds=60)
        assert result.theta["000"][1] == pytest.approx(result.server.mean[1], rel=1e-9)
        assert result.posterior["000"].covariance[1, 1] == pytest.approx(result.server.covariance[1, 1], rel=1e-9)
        nowhere = {name: (X * [1.0, 0.0], y) for name, (X, y) in fleet.items()}
        for covariance in COVARIANCES:
            result = fit(Eb(covariance=covariance), nowhere, rounds=20)
            assert all(abs(theta[1]) < 1e-12 for theta in result.theta.values())

    def test_columns_that_repeat_share_the_coefficient(self) -> None:
        fleet, _ = drawn(5, (10,) * 12, np.array([2.0]), np.eye(1), 0.3)
        doubled = {name: (np.hstack([X, X]), y) for name, (X, y) in fleet.items()}
        result, single = fit(Eb(), doubled, rounds=60), fit(Eb(), fleet, rounds=60)
        for name in fleet:
            assert result.theta[name].sum() == pytest.approx(single.theta[name][0], rel=1e-3)

    @pytest.mark.parametrize("covariance", COVARIANCES)
    def test_rows_without_noise_are_an_outcome(self, covariance: Any) -> None:
        fleet, Theta = drawn(6, (9,) * 6, np.zeros(3), np.eye(3), 0.0)
        result = fit(Eb(covariance=covariance), fleet, rounds=200)
        assert (result.outcome.name, result.outcome.ok) == ("exact_fit", True)
        np.testing.assert_allclose(list(result.theta.values()), Theta, rtol=1e-6, atol=1e-9)

    def test_targets_of_zero(self) -> None:
        fleet = {name: (X, 0.0 * y) for name, (X, y) in pairs(small_fleet()).items()}
        result = fit(Eb(), fleet)
        assert result.outcome.name == "exact_fit"
        assert all((theta == 0.0).all() for theta in result.theta.values())
        with pytest.raises(Misuse, match="device a: all targets of this device are zero"):
            fit(Eb(noise="own"), fleet)

    def test_too_few_rows_for_a_full_covariance(self) -> None:
        """Five rows a device for eight coefficients: the fit is regular all the same, and finite."""
        fleet = pairs(small_fleet(rows=(5,) * 20, d=8))
        for covariance in COVARIANCES:
            result = fit(Eb(covariance=covariance), fleet, rounds=100)
            assert result.outcome.ok
            assert np.isfinite(list(result.theta.values())).all()


@settings(max_examples=100, deadline=None)
@example(rows=[11, 3], d=2, seed=192, covariance="full", mean="zero", noise="own", alike=False, scale=0)  # a residual near zero by chance
@given(
    rows=st.lists(st.integers(1, 12), min_size=1, max_size=7),
    d=st.integers(1, 4),
    seed=st.integers(0, 1000),
    covariance=st.sampled_from(COVARIANCES),
    mean=st.sampled_from(["free", "zero"]),
    noise=st.sampled_from(["shared", "own"]),
    alike=st.booleans(),
    scale=st.sampled_from([0, 0, -8, 6]),
)
def test_the_likelihood_does_not_fall(rows, d, seed, covariance, mean, noise, alike, scale) -> None:
    rng = np.random.default_rng(seed)
    theta, fleet = rng.standard_normal(d), {}
    for k, n in enumerate(rows):
        X = rng.standard_normal((n, d))
        fleet[str(k)] = (X, 10.0**scale * (X @ (theta if alike else rng.standard_normal(d)) + 0.3 * rng.standard_normal(n)))
    result = fit(Eb(covariance=covariance, mean=mean, noise=noise), fleet, rounds=25)
    found = likelihoods(result.history)
    assert len(found) == len(result.history) - 1
    assert (np.diff(found) >= -1e-8 * (1.0 + np.abs(found[1:]))).all()
    assert np.isfinite(list(result.theta.values())).all()
    assert all(np.isfinite(each.covariance).all() and each.noise > 0 for each in result.posterior.values())


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_round_is_the_textbooks_step(covariance: Any) -> None:
    """EM from the devices' posteriors; then the deviations' factors by least squares over their means and spread."""
    fleet, _ = drawn(12, (12, 7, 30, 9), np.array([1.0, -2.0, 3.0]), np.diag([1.0, 0.1, 2.0]), 0.4)
    eb, spec, K = Eb(covariance=covariance), FleetSpec(tuple(sorted(fleet)), 3), range(4)
    datas = [DeviceData.of(*fleet[name]) for name in spec.device_ids]
    server, devices = eb.init_server(spec), eb.init_devices(spec, datas)
    for _ in range(2):
        before = server
        devices, ups, _ = eb.local_steps(eb.broadcasts(server, K), devices, datas, [])
        server = eb.aggregate(server, K, ups).server
    known = [told(eb, *data.train, before.mean, before.covariance, before.noise) for data in datas]
    b = np.array([each.mean for each in known]) - before.mean
    moved = b.mean(axis=0)
    Sigma = np.mean([each.covariance for each in known], axis=0) + np.cov(b.T, bias=True)
    Sigma = {"full": Sigma, "diagonal": np.diag(np.diag(Sigma)), "isotropic": np.eye(3) * np.trace(Sigma) / 3}[covariance]

    # Rows X (b + V^(1/2)) have the moments of X (theta - mu); each factor scales a column, or one factor all of them.
    columns, targets = [], []
    for (X, y), each in zip((data.train for data in datas), known, strict=True):
        spread = np.linalg.cholesky(each.covariance).T
        columns += [X * (each.mean - before.mean), *(X * direction for direction in spread)]
        targets += [y - X @ before.mean, *(np.zeros(len(y)) for _ in spread)]
    design, target = np.concatenate(columns), np.concatenate(targets)
    if covariance == "isotropic":
        design = design.sum(axis=1, keepdims=True)
    a = np.ones(3) if covariance == "full" else np.linalg.lstsq(design, target)[0]
    assert (a >= 0.5).all(), "no factor is at its bound"
    np.testing.assert_allclose(server.mean, before.mean + a * moved, rtol=1e-9)
    np.testing.assert_allclose(server.covariance, np.outer(a, a) * Sigma if len(a) > 1 else a**2 * Sigma, rtol=1e-9, atol=1e-12)
    left = target - design @ (a if covariance == "diagonal" else np.full(design.shape[1], a[0]))
    assert server.noise == pytest.approx(left @ left / sum(data.train.n for data in datas), rel=1e-9)


@pytest.mark.parametrize("noise", ["shared", "own"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_units_change_nothing_but_units(covariance: Any, noise: Any) -> None:
    fleet, _ = drawn(7, (12, 7, 30, 9, 3), np.array([1.0, -2.0, 3.0]), np.diag([1.0, 0.1, 2.0]), 0.4)
    eb = Eb(covariance=covariance, noise=noise, tolerance=0.0)
    base = fit(eb, fleet, rounds=25)
    for power in (-30, -7, 4, 40):
        other = fit(eb, {name: (X, 10.0**power * y) for name, (X, y) in fleet.items()}, rounds=25)
        for name in fleet:
            np.testing.assert_allclose(other.theta[name], 10.0**power * base.theta[name], rtol=1e-9)
            np.testing.assert_allclose(other.posterior[name].sd, 10.0**power * base.posterior[name].sd, rtol=1e-9)
    if covariance != "isotropic":
        units = np.array([1e-6, 1.0, 1e7])
        other = fit(eb, {name: (X / units, y) for name, (X, y) in fleet.items()}, rounds=25)
        for name in fleet:
            np.testing.assert_allclose(other.theta[name], units * base.theta[name], rtol=1e-8)


class TestMessages:
    def test_order_of_devices_and_of_memory(self) -> None:
        """To the bit, also in a fleet large enough for sums to be taken in blocks."""
        fleet, _ = drawn(8, (9,) * 40, np.zeros(9), np.eye(9), 0.5)
        shuffled = {name: fleet[name] for name in np.random.default_rng(0).permutation(sorted(fleet))}
        one, other = fit(Eb(), fleet, rounds=6), fit(Eb(), shuffled, rounds=6)
        for name in fleet:
            np.testing.assert_array_equal(one.theta[name], other.theta[name])

        spec = FleetSpec(tuple(sorted(fleet)), 9)
        for covariance in COVARIANCES:
            eb = Eb(covariance=covariance)
            datas = [DeviceData.of(*fleet[name]) for name in spec.device_ids]
            server, devices = eb.init_server(spec), eb.init_devices(spec, datas)
            for _ in range(3):
                downs = eb.broadcasts(server, range(40))
                states, ups, _ = eb.local_steps(downs, devices, datas, [])
                alone = [eb.local_step(downs[k], devices[k], datas[k], np.random.default_rng(0)) for k in range(40)]
                together, apart = (
                    eb.aggregate(server, range(40), ups).server,
                    eb.aggregate(server, range(40), [up for _, up, _ in alone]).server,
                )
                np.testing.assert_array_equal(together.mean, apart.mean)
                np.testing.assert_array_equal(together.covariance, apart.covariance)
                assert together.noise == apart.noise
                server, devices = together, states

    @pytest.mark.parametrize(("covariance", "expansion"), [("full", 0), ("diagonal", 5 + 15), ("isotropic", 2)])
    def test_sizes(self, covariance: Any, expansion: int) -> None:
        """Numbers of d alone: d = 5 gives 5 scalars and 5 + 15 numbers, and what the expansion takes, beside the loss."""
        for n in (10, 200):
            history = fit(Eb(covariance=covariance), small_fleet(rows=(n, n), d=5), rounds=3).history
            assert [each["uplink_bytes"] for each in history[1:]] == [2 * 8 * (5 + 20 + expansion + 1)] * 3

    def test_sums_are_those_of_the_devices_whatever_is_lost(self) -> None:
        """The server's sums are what the devices believe to have told, and of a device that was lost its last part."""
        fleet = small_fleet(rows=(12, 7, 30, 9))
        spec, datas = FleetSpec(tuple(sorted(fleet)), 3), [fleet[name] for name in sorted(fleet)]
        rng = np.random.default_rng(1)

        class Lossy(InProcess):
            def local_steps(self, call: Call) -> Answers:
                answers = super().local_steps(call)
                kept = [i for i in range(len(answers.answered)) if rng.random() < 0.6] or [0]
                return Answers([answers.answered[i] for i in kept], [answers.ups[i] for i in kept], [answers.infos[i] for i in kept])

        eb = Eb(tolerance=0.0)
        backend, state = Lossy(eb, spec, datas, 0), RunState.initial(eb, spec)
        for report in rounds(eb, spec, backend, Schedule(rounds=12, quorum=0.01), state):
            state = report.state
            backend.results(state)  # settles the receipts
            server: Server = state.server
            parts = [device.part for device in backend.accepted]
            for name, total in server.sums._asdict().items():
                np.testing.assert_allclose(sum(getattr(part, name) for part in parts), total, rtol=1e-9, atol=1e-9)
            started = sum(device.told * device.rows.n for device in backend.accepted)
            assert server.pooled.n == started, "a device that answers the start twice counts once"
        assert server.sums.devices == 4
        assert server.rounds > 1


class TestStart:
    def test_waits_for_ten_devices(self) -> None:
        fleet, _ = drawn(9, (8,) * 30, np.zeros(2), np.eye(2), 0.5)
        result = fit(Eb(), fleet, rounds=2, participation=0.1)
        heard = np.isnan([each["log_likelihood"] for each in result.history]).sum()
        assert 4 <= heard <= 10, "three devices a round, some of them twice"
        assert result.server.pooled.devices >= 10 or heard == 10
        assert result.outcome.message == "all 2 rounds were run"

    def test_one_device_a_round_gets_there(self) -> None:
        fleet = simulate("demo", 0)
        theta = fit(Eb(), fleet.devices, rounds=300, participation=0.01).theta
        assert error(theta, fleet) < 0.42

    def test_what_is_not_finite_is_an_outcome(self) -> None:
        eb, fleet = Eb(), small_fleet()
        spec, datas = FleetSpec(tuple(sorted(fleet)), 3), list(fleet.values())
        server, devices = eb.init_server(spec), eb.init_devices(spec, datas)
        _, ups, _ = eb.local_steps(eb.broadcasts(server, range(3)), devices, datas, [])
        spoiled = eb.aggregate(server, range(3), [up._replace(power=np.inf) for up in ups]).server
        outcome = eb.status(spoiled)
        assert (outcome.name, outcome.ok) == ("diverged", False)
        assert np.isfinite(eb.finalize(eb.broadcast(spoiled, 0), devices[0], datas[0]).theta).all()


def error(theta: dict[str, np.ndarray], fleet: Any) -> float:
    return a_rmse(score(DeviceResult(theta[name]), data.test) for name, data in fleet.devices.items())


@pytest.mark.slow
def test_demo_fleet() -> None:
    """Measured before this was written: full 0.386, diagonal 0.634, isotropic 0.674, least squares 0.735 (sd about 0.02)."""
    found: dict[str, list[float]] = {name: [] for name in (*COVARIANCES, "alone")}
    for seed in range(10):
        fleet = simulate("demo", seed)
        for covariance in COVARIANCES:
            found[covariance].append(error(fit(Eb(covariance=covariance), fleet.devices).theta, fleet))
        found["alone"].append(error(least_squares(pairs(fleet.devices)), fleet))
    mean = {name: np.mean(values) for name, values in found.items()}
    assert mean["full"] <= 0.42
    assert mean["full"] < min(mean["diagonal"], mean["isotropic"]) < max(mean["diagonal"], mean["isotropic"]) < mean["alone"]
    assert mean["alone"] == pytest.approx(0.735, abs=0.03)


@pytest.mark.parametrize(("noise", "reference"), [("shared", "normal"), ("own", "t")])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_intervals_cover(covariance: Any, noise: Any, reference: Any) -> None:
    """200 devices from the model; the standard error of a coverage is below 0.006."""
    mu, Sigma = np.array([1.0, 3.0, 0.5, 2.0]), np.diag([1.2, 0.3, 0.6, 0.1])
    if covariance == "full":
        Sigma[0, 1] = Sigma[1, 0] = 0.4
    rows = (12,) * 100 + (30,) * 100 if noise == "shared" else (12,) * 200
    covered: list[np.ndarray] = []
    predicted: list[np.ndarray] = []
    for seed in range(4):
        fleet, Theta = drawn(seed, rows, mu, Sigma, 0.7)
        rng = np.random.default_rng(100 + seed)
        posterior = fit(Eb(covariance=covariance, noise=noise), fleet, rounds=40).posterior
        for name, theta in zip(fleet, Theta, strict=True):
            low, high = coefficient_intervals(posterior[name], 0.9, reference=reference).T
            covered.append((low < theta) & (theta < high))
            X = rng.standard_normal((4, 4))
            y = X @ theta + 0.7 * rng.standard_normal(4)
            low, high = prediction_intervals(posterior[name], X, 0.9, reference=reference).T
            predicted.append((low < y) & (y < high))
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)
    assert np.mean(predicted) == pytest.approx(0.9, abs=0.02)


def test_devices_own_noise() -> None:
    """Two kinds of devices; and with noise of their own the fit is the likelier one."""
    quiet, _ = drawn(10, (40,) * 15, np.zeros(3), np.eye(3), 0.1)
    loud, _ = drawn(11, (40,) * 15, np.zeros(3), np.eye(3), 2.0)
    fleet = {f"q{name}": data for name, data in quiet.items()} | {f"l{name}": data for name, data in loud.items()}
    own, shared = fit(Eb(noise="own"), fleet, rounds=40), fit(Eb(), fleet, rounds=40)
    for name, posterior in own.posterior.items():
        assert posterior.noise == pytest.approx(0.01 if name[0] == "q" else 4.0, rel=0.8)
        assert posterior.freedom == 37
        X, y = fleet[name]
        around = [
            multivariate_normal.logpdf(y, X @ own.server.mean, X @ own.server.covariance @ X.T + share * posterior.noise * np.eye(40))
            for share in (0.99, 1.0, 1.01)
        ]
        assert max(around) == around[1], "it is the likeliest one"
    assert shared.posterior["q000"].freedom == 30 * 37
    assert likelihoods(own.history)[-1] > likelihoods(shared.history)[-1] + 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"covariance": "low-rank"}, "covariance is one of full, diagonal, isotropic, got 'low-rank'"),
        ({"mean": 0}, "mean is one of free, zero"),
        ({"noise": "common"}, "noise is one of shared, own"),
        ({"tolerance": -1.0}, r"tolerance is a number in \[0, inf\)"),
    ],
)
def test_options_out_of_bounds(options: dict, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        Eb(**options)
