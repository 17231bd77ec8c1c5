"""The check by importance sampling: against integrals over dense grids, where the approximation itself is far off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.random import Generator
from scipy.special import log_ndtr, logsumexp

from fedcore import Hm2, fit
from fedcore.algorithm import FleetSpec
from fedcore.fit import FitResult, InProcess
from fedcore.hm2.certificate import (
    LOOKS,
    Certificate,
    Spread,
    certified,
    draws,
    first_spread,
    fitted,
    no_certificate,
    prior_spread,
)
from fedcore.hm2.natural import moments, natural
from fedcore.hm2.state import Check, phi
from fedcore.messages import take
from fedcore.rounds import Answers, Call, RunState, Schedule, rounds
from fedcore.rows import DeviceData, Floats

Fleet = dict[str, tuple[Floats, Floats]]


def one_column(sizes: Sequence[int], tau: float, sigma: float, rng: Generator) -> Fleet:
    """Devices with one coefficient each, around zero."""
    devices: Fleet = {}
    for k, n in enumerate(sizes):
        x = rng.standard_normal((n, 1))
        devices[f"{k:03d}"] = x, x[:, 0] * np.sqrt(tau) * rng.standard_normal() + sigma * rng.standard_normal(n)
    return devices


class Sums(NamedTuple):
    """Of the devices: x'x, x'y, y'y and n, shape (K,) each."""

    a: Floats
    b: Floats
    c: Floats
    n: Floats

    @classmethod
    def of(cls, devices: Fleet) -> Sums:
        each = [(float(x[:, 0] @ x[:, 0]), float(x[:, 0] @ y), float(y @ y), float(len(y))) for x, y in devices.values()]
        return cls(*(np.array(column) for column in zip(*each, strict=True)))


class Exact(NamedTuple):
    """Posterior means and standard deviations of phi and of the devices' coefficients, and the evidence."""

    mean: Floats
    sd: Floats
    theta: Floats
    theta_sd: Floats
    log_evidence: float


def exact_isotropic(devices: Fleet) -> Exact:
    """phi = (mu, log tau, log sigma^2), over a grid of which the neglected part is a millionth."""
    axes = [np.linspace(-5, 5, 51), np.linspace(-6, 9, 76), np.linspace(-13, 15, 141)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    mu, tau, noise, s = grid[:, 0], np.exp(grid[:, 1]), np.exp(grid[:, 2]), Sums.of(devices)
    log = -0.5 * (grid**2 / np.array([1.0, 1.0, 9.0]) + np.log(2.0 * np.pi * np.array([1.0, 1.0, 9.0]))).sum(axis=1)
    given: list[tuple[Floats, Floats]] = []
    for a, b, c, n in zip(*s, strict=True):
        squares, product = c - 2.0 * mu * b + mu**2 * a, b - mu * a
        quadratic = (squares - tau * product**2 / (noise + tau * a)) / noise
        log = log - 0.5 * (n * np.log(2.0 * np.pi * noise) + np.log1p(tau * a / noise) + quadratic)
        variance = 1.0 / (a / noise + 1.0 / tau)
        given.append((variance * (b / noise + mu / tau), variance))
    weight = np.exp(log - logsumexp(log))
    mean = weight @ grid
    theta = np.array([weight @ each for each, _ in given])
    theta_sd = np.array([np.sqrt(weight @ (v + (each - m) ** 2)) for (each, v), m in zip(given, theta, strict=True)])
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    return Exact(mean, np.sqrt(weight @ (grid - mean) ** 2), theta, theta_sd, float(logsumexp(log) + np.log(cell)))


def exact_lasso(devices: Fleet) -> Exact:
    """phi = (log lambda, log sigma^2); the coefficient's integral over a Laplace prior is known."""
    ll, ls = (axis.ravel() for axis in np.meshgrid(np.linspace(-8, 14, 221), np.linspace(-8, 10, 181), indexing="ij"))
    noise, scale, s = np.exp(ls), np.exp(0.5 * ls - ll), Sums.of(devices)
    log = -0.5 * ((ll / 3.0) ** 2 + (ls / 3.0) ** 2) - np.log(18.0 * np.pi)
    for a, b, c, n in zip(*s, strict=True):
        m, v = b / a, noise / a
        sd = np.sqrt(v)
        up = -m / scale + log_ndtr((m - v / scale) / sd)
        down = m / scale + log_ndtr(-(m + v / scale) / sd)
        likelihood = -0.5 * (n * np.log(2.0 * np.pi * noise) + (c - b**2 / a) / noise) + 0.5 * np.log(2.0 * np.pi * v)
        log = log + likelihood - np.log(2.0 * scale) + 0.5 * v / scale**2 + np.logaddexp(up, down)
    weight = np.exp(log - logsumexp(log))
    grid = np.column_stack([ll, ls])
    mean = weight @ grid
    nothing = np.zeros(0)
    return Exact(mean, np.sqrt(weight @ (grid - mean) ** 2), nothing, nothing, float(logsumexp(log) + 2.0 * np.log(0.1)))


def of_phi(result: FitResult, algorithm: Hm2) -> tuple[Floats, Floats]:
    found = phi(result.server, algorithm.hierarchy.blocks(1), algorithm.hierarchy.prior(1)).values()
    mean, sd = (np.concatenate([block[name] for block in found]) for name in ("mean", "sd"))
    return mean, sd


def of_theta(result: FitResult) -> tuple[Floats, Floats]:
    mean = np.array([theta[0] for theta in result.theta.values()])
    return mean, np.array([posterior.sd[0] for posterior in result.posterior.values() if posterior is not None])


@pytest.mark.parametrize(("sizes", "seed"), [((2, 1, 3), 22), ((3, 2), 3), ((2, 1), 6), ((3, 1, 2), 18)])
def test_a_fleet_whose_noise_may_be_what_its_spread_is(sizes: tuple[int, ...], seed: int) -> None:
    """Coefficients of several units and few rows: these differ, or the noise is large. Expectation propagation keeps to one of the two."""
    devices = one_column(sizes, 30.0, 0.3, np.random.default_rng(seed))
    exact, algorithm = exact_isotropic(devices), Hm2(prior="isotropic")
    result = fit(algorithm, devices, rounds=100)
    assert result.outcome.name == "converged"
    assert result.server.certificate.reliable
    mean, sd = of_phi(result, algorithm)
    assert np.abs((mean - exact.mean) / exact.sd).max() < 0.05
    assert np.abs(np.log(sd / exact.sd)).max() < 0.05
    assert result.server.log_evidence == pytest.approx(exact.log_evidence, abs=0.05)
    theta, theta_sd = of_theta(result)
    assert np.abs((theta - exact.theta) / exact.theta_sd).max() < 0.05
    assert np.abs(np.log(theta_sd / exact.theta_sd)).max() < 0.08
    _, alone = of_phi(fit(replace(algorithm, certificate="off"), devices, rounds=100), algorithm)
    assert (alone < 0.6 * exact.sd).any()


@pytest.mark.parametrize(("K", "n", "tau", "seed"), [(100, 3, 0.1, 3), (40, 3, 0.2, 7), (20, 5, 0.5, 1)])
def test_a_lasso_with_weak_coefficients(K: int, n: int, tau: float, seed: int) -> None:
    """lambda may be anything large, which a normal approximation does not say."""
    devices = one_column([n] * K, tau, 1.0, np.random.default_rng(seed))
    exact, algorithm = exact_lasso(devices), Hm2(prior="lasso")
    result = fit(algorithm, devices, rounds=100)
    assert result.outcome.name == "converged"
    mean, sd = of_phi(result, algorithm)
    assert np.abs((mean - exact.mean) / exact.sd).max() < 0.06
    assert np.abs(np.log(sd / exact.sd)).max() < 0.06
    _, alone = of_phi(fit(replace(algorithm, certificate="off"), devices, rounds=100), algorithm)
    assert (alone < 0.7 * exact.sd).any()


def test_where_there_is_enough_to_know_nothing_is_checked_unasked() -> None:
    rng = np.random.default_rng(0)
    lasso = {f"{k:03d}": (X := rng.standard_normal((20, 8)), X[:, 0] + rng.standard_normal(20)) for k in range(50)}
    normal = {
        f"{k:03d}": (X := rng.standard_normal((9, 1)), X[:, 0] * rng.standard_normal() + 0.5 * rng.standard_normal(9)) for k in range(60)
    }
    assert np.isnan(fit(Hm2(prior="lasso"), lasso).server.certificate.k)
    assert np.isnan(fit(Hm2(), normal).server.certificate.k)
    assert fit(Hm2(certificate="on"), normal).server.certificate.reliable


@pytest.mark.parametrize(
    "options", [{}, {"prior": "isotropic"}, {"noise": "device"}, {"sigma": 0.5}, {"prior": "ridge"}, {"prior": "lasso"}]
)
def test_coefficients_by_draws_are_those_by_quadrature_where_both_hold(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    devices: Fleet = {}
    for k in range(24):
        X = rng.standard_normal((12, 2))
        devices[f"{k:03d}"] = X, X @ (np.array([0.5, -0.3]) + 0.6 * rng.standard_normal(2)) + 0.5 * rng.standard_normal(12)
    by_draws, by_quadrature = (fit(Hm2(certificate=each, **options), devices, rounds=60) for each in ("on", "off"))
    assert by_draws.server.certificate.reliable
    for name, theta in by_draws.theta.items():
        ours, theirs = by_draws.posterior[name], by_quadrature.posterior[name]
        assert ours is not None
        assert theirs is not None
        assert np.abs((theta - by_quadrature.theta[name]) / theirs.sd).max() < 0.05
        assert np.abs(np.log(ours.sd / theirs.sd)).max() < 0.05


@pytest.mark.parametrize("options", [{"prior": "isotropic"}, {"prior": "isotropic", "noise": "device"}, {"prior": "ridge"}], ids=str)
def test_a_newcomer_gets_what_a_fleet_with_it_gives(options: dict[str, Any]) -> None:
    """Its rows change the weights of the others' draws."""
    devices = one_column([3, 2, 4, 3, 2, 4], 4.0, 0.5, np.random.default_rng(1))
    others = {name: rows for name, rows in devices.items() if name != "002"}
    algorithm = Hm2(certificate="on", **options)
    result, whole = fit(algorithm, others, rounds=100), fit(algorithm, devices, rounds=100)
    data = DeviceData.of(*devices["002"])
    spec = FleetSpec((*others, "002"), 1)
    down = algorithm.newcomer(result.server)
    assert len(down.draws) > 0
    found = algorithm.finalize(down, algorithm.init_device(spec, data), data)
    posterior = whole.posterior["002"]
    assert posterior is not None
    assert found.posterior is not None
    assert np.abs((found.theta - whole.theta["002"]) / posterior.sd).max() < 0.06
    assert np.abs(np.log(found.posterior.sd / posterior.sd)).max() < 0.1


class Target(NamedTuple):
    """A normal distribution, or two."""

    means: Floats
    sd: Floats
    shares: Floats

    def log_density(self, points: Floats) -> Floats:
        away = (points[:, None] - self.means) / self.sd
        each = np.log(self.shares) - 0.5 * (away**2).sum(axis=2) - np.log(self.sd * np.sqrt(2.0 * np.pi)).sum()
        return logsumexp(each, axis=1)


def looked(target: Target, spread: Spread) -> Certificate:
    """As server and devices go on."""
    found = no_certificate(spread.mean.shape[1])
    for _ in range(LOOKS):
        before = found
        found = certified(before, spread, target.log_density(draws(spread)))
        if found.sound or not found.gains(before):
            break
        spread = fitted(spread, found)
    return found


def begun(p: int, prior_sd: float, mean: Floats, sd: Floats) -> Spread:
    return first_spread(prior_spread(natural(np.zeros(p), np.eye(p) / prior_sd**2)), [natural(mean, np.diag(sd**-2.0))], None)


@pytest.mark.parametrize("p", [2, 5, 12])
def test_draws_are_of_the_mixture(p: int) -> None:
    spread = begun(p, 3.0, np.full(p, 2.0), np.full(p, 0.5))
    points = draws(spread)
    assert len(points) == spread.size
    share = spread.pairs / spread.pairs.sum()
    mean = share[0] * 2.0
    # A t distribution with 8 degrees of freedom has 8 / 6 times the variance of its normal one.
    variance = share @ (8.0 / 6.0 * np.array([0.25, 9.0, 9.0]) + (np.array([2.0, 0.0, 0.0]) - mean) ** 2)
    np.testing.assert_allclose(points.mean(axis=0), mean, rtol=1e-3)
    np.testing.assert_allclose(points.var(axis=0), variance, rtol=0.15)  # of 400 to 1600 from the prior, with heavy tails
    assert np.array_equal(points, draws(spread)), "server and devices make the same"


@pytest.mark.parametrize("p", [2, 5, 12])
def test_an_approximation_that_is_off_is_mended(p: int) -> None:
    """By two standard deviations, and with half the width."""
    target = Target(np.ones((1, p)), np.full(p, 0.4), np.ones(1))
    found = looked(target, begun(p, 3.0, np.full(p, 1.0 - 0.8 / np.sqrt(p)), np.full(p, 0.25)))
    assert found.reliable
    assert np.abs(found.mean - 1.0).max() < 0.05 * 0.4
    np.testing.assert_allclose(np.sqrt(found.covariance.diagonal()), 0.4, rtol=0.05)
    assert found.log_evidence == pytest.approx(0.0, abs=0.08)
    sample = found.sample(600)
    assert np.abs(sample.mean(axis=0) - 1.0).max() < 0.1 * 0.4
    np.testing.assert_allclose(sample.std(axis=0), 0.4, rtol=0.12)


@pytest.mark.parametrize("p", [2, 5])
def test_a_mode_that_the_approximation_does_not_know_is_found(p: int) -> None:
    target = Target(np.array([np.full(p, 2.0), np.full(p, -1.0)]), np.full(p, 0.5), np.array([0.6, 0.4]))
    found = looked(target, begun(p, 1.5, np.full(p, 2.0), np.full(p, 0.5)))
    assert found.reliable
    np.testing.assert_allclose(found.mean, 0.8, atol=0.05)
    np.testing.assert_allclose(np.sqrt(found.covariance.diagonal()), np.sqrt(0.25 + 0.24 * 9.0), rtol=0.04)
    assert (found.sample(600)[:, 0] > 0.5).mean() == pytest.approx(0.6, abs=0.02)


def test_weights_that_cannot_be_trusted_are_not_used() -> None:
    """A narrow target far outside of all that is drawn from."""
    target = Target(np.full((1, 8), 9.0), np.full(8, 0.01), np.ones(1))
    found = certified(
        no_certificate(8), begun(8, 1.0, np.zeros(8), np.ones(8)), target.log_density(draws(begun(8, 1.0, np.zeros(8), np.ones(8))))
    )
    assert not found.reliable
    assert found.sample(600).shape == (0, 8)


def test_a_likelihood_that_cannot_be_found_is_said() -> None:
    """A lasso with fewer rows than columns: with hardly any noise inner propagation ends with more than any evidence can be."""
    rng = np.random.default_rng(0)
    devices = {f"{k}": (X := rng.standard_normal((2, 3)), X @ rng.standard_normal(3) + rng.standard_normal(2)) for k in range(6)}
    result = fit(Hm2(prior="lasso", certificate="on"), devices, rounds=100)
    assert result.outcome.name == "converged"
    assert not result.server.certificate.reliable
    assert "could not find its likelihood at some values" in result.outcome.message


class Silent(InProcess):
    """Device 0 does not answer where it is asked for a certificate."""

    def local_steps(self, call: Call) -> Answers:
        found = super().local_steps(call)
        if isinstance(call.downs[0], Check):
            return Answers(found.answered[1:], take(found.ups, range(1, len(found.answered))), found.infos[1:])
        return found


def test_a_check_that_did_not_come_about_is_said() -> None:
    devices = {name: DeviceData.of(*rows) for name, rows in one_column([4] * 6, 1.0, 0.5, np.random.default_rng(0)).items()}
    algorithm, spec, schedule = Hm2(prior="isotropic"), FleetSpec(tuple(devices), 1), Schedule(rounds=60)
    backend = Silent(algorithm, spec, list(devices.values()), 0)
    *_, last = rounds(algorithm, spec, backend, schedule, RunState.initial(algorithm, spec))
    assert last.outcome is not None
    assert last.outcome.name == "converged"
    assert "not checked by importance sampling, since not every device answered" in algorithm.caution(last.state.server)


def test_a_run_of_which_no_round_was_whole_says_that_it_may_not_have_settled() -> None:
    devices = one_column([4] * 10, 1.0, 0.5, np.random.default_rng(0))
    result = fit(Hm2(prior="isotropic"), devices, rounds=10, participation=0.5)
    assert result.outcome.name == "completed"
    assert "only rounds that every device answers tell whether phi has settled" in result.outcome.message


def test_devices_that_were_never_heard_are_counted() -> None:
    devices = one_column([4] * 10, 1.0, 0.5, np.random.default_rng(0))
    result = fit(Hm2(prior="isotropic"), devices, rounds=2, participation=0.2)
    assert "devices have not been heard in a main round" in result.outcome.message
    everyone = fit(Hm2(prior="isotropic"), devices, rounds=2)
    assert "have not been heard" not in everyone.outcome.message


def test_rows_that_tell_little_are_reason_for_a_check_in_larger_fleets_too() -> None:
    """One row of four columns from each of 60 devices; without the check phi is off by more than a tenth of a standard deviation."""
    rng = np.random.default_rng(5)
    devices: Fleet = {}
    for k in range(60):
        X = rng.standard_normal((1, 4))
        devices[f"{k:02d}"] = X, X @ (np.array([1.0, -1.0, 0.5, 2.0]) + 0.5 * rng.standard_normal(4)) + 0.1 * rng.standard_normal(1)
    checked, alone = (fit(Hm2(sigma=0.1, certificate=each), devices, rounds=60).server for each in ("auto", "off"))
    assert checked.certificate.reliable
    q, sd = moments(alone.approximation.q), np.sqrt(np.diagonal(checked.certificate.covariance))
    assert np.abs((q.mean - checked.certificate.mean) / sd).max() > 0.1


def test_long_tails_that_few_draws_reach_are_said() -> None:
    """Five devices with the same rows say little of tau, and mu's tails are as long as tau may be large. Exact sums over a grid show that
    standard deviations by draws are too small, which k of the weights alone does not tell."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((20, 4))
    y = X @ np.array([1.0, -0.5, 0.3, 0.8]) + 0.05 * rng.standard_normal(20)
    result = fit(Hm2(sigma=0.05), {f"{k}": (X, y) for k in range(5)}, rounds=60)
    assert result.server.certificate.reliable
    assert "standard deviations may be too small" in result.outcome.message
    theta, own = np.linalg.lstsq(X, y, rcond=None)[0], 0.05**2 * np.diag(np.linalg.inv(X.T @ X))
    log_tau, away = np.linspace(-13, 6, 800)[:, None], np.sinh(np.linspace(-9, 9, 1601)) / np.sinh(9) * 6
    ratios = []
    for j in range(4):  # X'X is nearly diagonal beside tau
        variance, mu = np.exp(log_tau) + own[j], theta[j] + away
        log_density = -2.5 * np.log(variance) - 2.5 * away**2 / variance - 0.5 * mu**2 - 0.5 * log_tau**2
        mass = (np.exp(log_density - log_density.max()) * np.gradient(away)).sum(axis=0)
        mean = (mass @ mu) / mass.sum()
        ratios.append(np.sqrt(result.server.certificate.covariance[j, j] / (mass @ (mu - mean) ** 2 / mass.sum())))
    assert min(ratios) < 0.95


def test_a_newcomer_far_from_the_fleet_is_not_left_to_a_few_draws() -> None:
    """Where hardly a draw has weight the approximation stands for phi; a few draws would make it too sure, here by up to 36 %."""
    rng = np.random.default_rng(3)
    devices: Fleet = {}
    for k in range(5):
        X = rng.standard_normal((20, 3))
        devices[f"{k}"] = X, X @ (np.ones(3) + 0.3 * rng.standard_normal(3)) + 0.05 * rng.standard_normal(20)
    X = rng.standard_normal((2, 3))
    data, spec = DeviceData.of(X, X @ np.array([4.0, -2.0, 4.0]) + 0.05 * rng.standard_normal(2)), FleetSpec((*devices, "new"), 3)
    found = []
    for certificate in ("on", "off"):
        algorithm = Hm2(sigma=0.05, certificate=certificate)
        result = fit(algorithm, devices, rounds=60)
        found.append(algorithm.finalize(algorithm.newcomer(result.server), algorithm.init_device(spec, data), data))
    by_draws, by_approximation = (each.posterior for each in found)
    assert by_draws is not None
    assert by_approximation is not None
    np.testing.assert_allclose(by_draws.sd, by_approximation.sd, rtol=0.05)
