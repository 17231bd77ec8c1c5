"""The Gaussian hierarchy against NUTS, against quadrature from the model's definition, and against the score of its own factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import multivariate_normal

from fedcore import DeviceData, Misuse
from fedcore.hm2 import nodes
from fedcore.hm2.coefficients import Joint
from fedcore.hm2.gaussian import Gaussian
from fedcore.hm2.hierarchy import Tilted
from fedcore.hm2.isotropic import Isotropic
from fedcore.hm2.natural import NaturalParams, moments, natural
from fedcore.hm2.nodes import normal_rule
from fedcore.hm2.warm import Point
from tests.fedcore.hm2.brute import Brute, brute_force
from tests.fedcore.hm2.textbook import against, propagate, reference

NOISES: list[tuple[Any, Any]] = [(0.5, "shared"), ("unknown", "shared"), ("unknown", "device")]
MODELS = [cls(sigma=sigma, noise=noise) for cls in (Gaussian, Isotropic) for sigma, noise in NOISES]


def device(rng: np.random.Generator, n: int, d: int) -> DeviceData:
    X = rng.standard_normal((n, d))
    theta = rng.standard_normal(d) * (1.0 + np.exp(0.35 * rng.standard_normal(d)))
    return DeviceData.of(X, X @ theta + 0.5 * rng.standard_normal(n))


def awkward(seed: int, d: int) -> list[DeviceData]:
    """Devices with few rows, a column of zeros, a constant one, equal ones, large and small units, or targets of zero."""
    rng, datas = np.random.default_rng(seed), []
    for k in range(8):
        X = rng.standard_normal((int(rng.integers(1, 25)), d)) * 10.0 ** rng.integers(-3, 4)
        if k == 2:
            X[:, 0] = 0.0
        if k == 3:
            X[:, -1] = 1.0
        if k == 4:
            X[:] = X[:, :1]
        y = X @ rng.normal(0, 2, d) + rng.standard_normal(len(X))
        datas.append(DeviceData.of(X, 0.0 * y if k == 5 else y))
    return datas


def only(whole: Any, k: int) -> Any:
    """The k-th of what a method returned for many devices."""
    return type(whole)(*(only(part, k) if isinstance(part, tuple) else np.asarray(part)[k : k + 1] for part in whole))


def arrays(whole: Any) -> list[np.ndarray]:
    return [array for part in whole for array in (arrays(part) if isinstance(part, tuple) else [np.asarray(part)])]


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(arrays(one), arrays(other), strict=True))


def mixed(joint: Joint) -> tuple[np.ndarray, np.ndarray]:
    mean = joint.weight @ joint.mean
    deviation = joint.mean - mean
    return mean, np.tensordot(joint.weight, joint.covariance, 1) + deviation.T @ (deviation * joint.weight[:, None])


def site(model: Gaussian | Isotropic, d: int, n: int, seed: int, sharpness: float, nodes: int) -> tuple[Tilted, Joint, Brute]:
    """Tilted moments and coefficients of one device with a random cavity of correlated entries, and what they should be."""
    rng = np.random.default_rng(seed)
    data, p = device(rng, n, d), sum(model.blocks(d).values())
    root = rng.standard_normal((p, p + 3)) / np.sqrt((p + 3) * sharpness)
    mean, covariance = rng.standard_normal(p) / np.sqrt(sharpness), root @ root.T
    cavity, private = natural(mean[None], np.linalg.inv(covariance)[None]), model.prepare([data])
    q = NaturalParams(cavity.shift[0], cavity.precision[0])
    tilted = model.tilted(private, q, cavity)[1]
    if model.sigma == "unknown" and model.noise == "device":
        mean, old = np.append(mean, 0.0), covariance
        covariance = np.diag(np.full(p + 1, 9.0))
        covariance[:p, :p] = old
    log_noise = None if isinstance(model.sigma, str) else 2.0 * np.log(model.sigma)
    each = np.eye(d) if isinstance(model, Gaussian) else np.ones((d, 1))
    return tilted, model.coefficients(private, q, cavity)[0].joint, brute_force(data.train, mean, covariance, each, log_noise, nodes)


def distance(tilted: Tilted, brute: Brute) -> tuple[float, float, float]:
    """Errors of means, in sds, of sds, relative, and of log evidence."""
    p = tilted.mean.shape[1]
    sd = np.sqrt(brute.covariance.diagonal())[:p]
    error = np.abs((tilted.mean[0] - brute.mean[:p]) / sd).max()
    return (
        float(error),
        float(np.abs(np.sqrt(tilted.covariance[0].diagonal()) / sd - 1.0).max()),
        abs(tilted.log_evidence[0] - brute.log_evidence),
    )


@pytest.mark.parametrize(("sigma", "noise"), NOISES)
@pytest.mark.parametrize(("d", "n", "nodes"), [(1, 3, 31), (1, 20, 31), (2, 1, 15), (2, 12, 15), (3, 2, 9), (3, 8, 9)])
def test_a_site_among_many_has_its_moments(sigma: Any, noise: Any, d: int, n: int, nodes: int) -> None:
    # A cavity of some 30 devices: what the algorithm meets.
    for seed in range(2):
        tilted, joint, brute = site(Gaussian(sigma=sigma, noise=noise), d, n, seed, 30.0, nodes)
        mean, sd, evidence = distance(tilted, brute)
        assert tilted.proper[0]
        assert mean < 0.01
        assert sd < 0.01
        assert evidence < 0.03
        theta, covariance = mixed(joint)
        scale = np.sqrt(brute.theta_covariance.diagonal())
        assert np.abs((theta - brute.theta) / scale).max() < 0.01
        assert np.abs(np.sqrt(covariance.diagonal()) / scale - 1.0).max() < 0.01


@pytest.mark.parametrize(("sigma", "noise"), NOISES)
@pytest.mark.parametrize(("d", "n"), [(1, 3), (1, 20), (2, 1), (2, 12)])
def test_a_site_alone_has_its_moments_nearly(sigma: Any, noise: Any, d: int, n: int) -> None:
    # A cavity as wide as the prior: far from normal, and a rule along the axes sees no more than their neighbourhood.
    for seed in range(3):
        tilted, joint, brute = site(Gaussian(sigma=sigma, noise=noise), d, n, seed, 1.0, 31 if d == 1 else 15)
        mean, sd, evidence = distance(tilted, brute)
        assert tilted.proper[0]
        assert mean < 0.2
        assert sd < 0.12
        assert evidence < 0.1
        theta, _ = mixed(joint)
        assert np.abs((theta - brute.theta) / np.sqrt(brute.theta_covariance.diagonal())).max() < 0.03


def test_without_variance_in_tau_moments_are_those_of_linear_regression() -> None:
    rng = np.random.default_rng(0)
    data, tau = device(rng, 6, 3), np.array([0.5, 1.0, 2.0])
    cavity = natural(np.append(np.zeros(3), np.log(tau))[None], np.diag(np.append(np.ones(3), np.full(3, 1e12)))[None])
    model = Gaussian(sigma=0.5)
    found = model.tilted(model.prepare([data]), NaturalParams(cavity.shift[0], cavity.precision[0]), cavity)[1]
    X, y = data.train
    V = X @ np.diag(1.0 + tau) @ X.T + 0.25 * np.eye(6)
    assert np.allclose(found.mean[0, :3], X.T @ np.linalg.solve(V, y), rtol=1e-6)
    assert np.allclose(found.covariance[0, :3, :3], np.eye(3) - X.T @ np.linalg.solve(V, X), rtol=1e-6)
    assert found.log_evidence[0] == pytest.approx(multivariate_normal(np.zeros(6), V).logpdf(y), rel=1e-6)


@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_factor_is_the_density_of_the_rows(n: int) -> None:
    rng = np.random.default_rng(n)
    data = device(rng, n, 3)
    X, y = data.train
    for shared in (False, True):
        model = Gaussian() if shared else Gaussian(sigma=0.3)
        phi = rng.standard_normal((5, 7 if shared else 6))
        found = model.log_factor(model.prepare([data, data]), phi)
        for s, value in enumerate(phi):
            noise = np.exp(value[6]) if shared else 0.09
            V = X @ np.diag(np.exp(value[3:6])) @ X.T + noise * np.eye(n)
            assert found[1, s] == pytest.approx(multivariate_normal(X @ value[:3], V).logpdf(y), rel=1e-9)


@pytest.mark.parametrize("n", [1, 3, 12, 60])
def test_the_factor_with_noise_of_its_own_is_integrated_over_it(n: int) -> None:
    rng = np.random.default_rng(n)
    data, model = device(rng, n, 2), Gaussian(noise="device")
    X, y = data.train
    phi = rng.standard_normal((4, 4)) * 1.5
    found = model.log_factor(model.prepare([data]), phi)[0]
    for s, value in enumerate(phi):
        K = X @ np.diag(np.exp(value[2:])) @ X.T

        def joint(t: float, K: np.ndarray = K, mean: np.ndarray = X @ value[:2]) -> float:
            density = multivariate_normal.logpdf(y, mean, K + np.exp(t) * np.eye(n), allow_singular=True)
            return float(density) - t**2 / 18.0 - 0.5 * np.log(18.0 * np.pi)

        grid = np.linspace(-12.0, 15.0, 271)
        values = np.array([joint(t) for t in grid])
        inside, top = grid[values > values.max() - 35.0], values.max()
        peak = grid[values.argmax()]
        integral = quad(lambda t: np.exp(joint(t) - top), inside.min() - 0.1, inside.max() + 0.1, points=[peak], limit=200)[0]  # noqa: B023
        assert found[s] == pytest.approx(top + np.log(integral), abs=1e-3)


@pytest.mark.parametrize("model", MODELS[:2] + MODELS[3:5], ids=str)
def test_start_sites_are_score_and_information(model: Gaussian | Isotropic) -> None:
    # Over data drawn from the model at a point the score has mean zero, and its covariance is the information.
    rng, d, n, K = np.random.default_rng(0), 2, 4, 20_000
    X, point = rng.standard_normal((n, d)), Point(np.array([0.5, -1.0]), np.array([0.3, -0.6])[: model.axes(2)], np.log(0.25))
    theta = point.mu + np.exp(0.5 * point.log_tau) * rng.standard_normal((K, d))
    y = theta @ X.T + 0.5 * rng.standard_normal((K, n))
    private = model.prepare([DeviceData.of(X, each) for each in y])
    sites = model.start_sites(point, private)
    phi = np.concatenate([point.mu, point.log_tau, [np.log(0.25)] if model.sigma == "unknown" else []])
    assert np.ptp(sites.precision, axis=0).max() < 1e-9
    information = sites.matrix[0]
    score = sites.shift - information @ phi
    unit = np.linalg.cholesky(information)
    white = np.linalg.solve(unit, score.T)
    assert np.abs(white.mean(axis=1)).max() < 4.0 / np.sqrt(K)
    assert np.abs(np.cov(white) - np.eye(len(phi))).max() < 0.1
    step = 1e-5 * np.eye(len(phi))
    for k in range(2):
        up, down = (model.log_factor(only(private, k), phi + sign * step)[0] for sign in (1, -1))
        assert np.allclose((up - down) / 2e-5, score[k], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("d", [1, 2, 5, 9])
def test_a_device_is_the_same_alone_and_among_others(model: Gaussian | Isotropic, d: int) -> None:
    datas = awkward(d, d)
    private, prior, point = model.prepare(datas), model.prior(d), model.start(d)
    for phase in model.START:
        sums = model.start_statistics(phase, point, private)
        assert all(same(only(sums, k), model.start_statistics(phase, point, only(private, k))) for k in range(len(datas)))
        point = model.started(phase, point, type(sums)(*(part.sum(axis=0) for part in sums)), len(datas), len(datas))
    sites = model.start_sites(point, private)
    assert all(same(only(sites, k), model.start_sites(point, only(private, k))) for k in range(len(datas)))
    zero = NaturalParams(np.zeros_like(sites.shift), np.zeros_like(sites.precision))
    for start in (sites, zero):
        q = prior.plus(start.total())
        cavity = q.minus(start)
        kept, found = model.tilted(private, q, cavity)
        assert found.proper.any()
        for k in range(len(datas)):
            alone = model.tilted(only(private, k), q, only(cavity, k))
            assert same(only(kept, k), alone[0])
            assert same(only(found, k), alone[1])
        together = model.coefficients(private, q, cavity)
        assert same(together[3], model.coefficients(only(private, 3), q, only(cavity, 3))[0])
    phi = np.random.default_rng(0).standard_normal((3, len(prior.shift)))
    assert all(np.array_equal(row, model.log_factor(only(private, k), phi)[0]) for k, row in enumerate(model.log_factor(private, phi)))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_device_that_fails_says_so_and_leaves_the_others_alone(model: Gaussian | Isotropic) -> None:
    datas = awkward(1, 3)
    private, prior = model.prepare(datas), model.prior(3)
    cavity = NaturalParams(*(np.tile(part, (len(datas), 1)) for part in prior))
    expected = model.tilted(private, prior, cavity)[1]
    broken = NaturalParams(cavity.shift.copy(), cavity.precision.copy())
    broken.precision[0] *= -1.0
    broken.shift[1] = np.nan
    private.rows.R[2, 0, 0] = np.nan
    found = model.tilted(private, prior, broken)[1]
    assert not found.proper[:3].any()
    assert same(NaturalParams(found.mean[3:], found.covariance[3:]), NaturalParams(expected.mean[3:], expected.covariance[3:]))
    sites = model.start_sites(model.start(3), private)
    assert not sites.shift[2].any()
    assert np.isfinite(sites.precision).all()
    assert len(model.coefficients(private, prior, cavity)) == len(datas)


@given(st.integers(0, 10_000), st.sampled_from(MODELS), st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_nothing_escapes_whatever_the_devices(seed: int, model: Gaussian | Isotropic, d: int) -> None:
    rng = np.random.default_rng(seed)
    datas = [
        DeviceData.of(data.train.X * 10.0 ** rng.integers(-6, 7), data.train.y * 10.0 ** rng.integers(-6, 7)) for data in awkward(seed, d)
    ]
    private, prior, point = model.prepare(datas), model.prior(d), model.start(d)
    for phase in model.START:
        sums = model.start_statistics(phase, point, private)
        point = model.started(phase, point, type(sums)(*(part.sum(axis=0) for part in sums)), len(datas), len(datas))
    sites = model.start_sites(point, private)
    q = prior.plus(sites.total())
    cavity = q.minus(sites)
    found = model.tilted(private, q, cavity)[1]
    for k in np.flatnonzero(found.proper):
        assert np.isfinite(found.log_evidence[k])
        assert np.linalg.eigvalsh(found.covariance[k] / np.sqrt(np.outer(*[found.covariance[k].diagonal()] * 2)))[0] > -1e-9
    for each in model.coefficients(private, q, cavity):
        assert each.joint.weight.sum() == pytest.approx(1.0)
        assert (each.joint.weight > 0).all()


def test_rows_that_are_missing_change_nothing() -> None:
    # One row for three coefficients, or the same row told as two of half its weight each.
    rng = np.random.default_rng(0)
    X, y, model = rng.standard_normal((1, 3)), np.array([1.5]), Gaussian(sigma=0.7)
    prior = model.prior(3)
    cavity = NaturalParams(prior.shift[None], prior.precision[None])
    once = model.tilted(model.prepare([DeviceData.of(X, y)]), prior, cavity)[1]
    split = DeviceData.of(np.concatenate([X, X]) / np.sqrt(2.0), np.concatenate([y, y]) / np.sqrt(2.0))
    twice = model.tilted(model.prepare([split]), prior, cavity)[1]
    assert np.allclose(once.mean, twice.mean, rtol=1e-9)
    assert np.allclose(once.covariance, twice.covariance, rtol=1e-9)
    # The second row, 0 = 0 + e, has the density of one residual of zero.
    assert once.log_evidence[0] - 0.5 * np.log(2.0 * np.pi * 0.49) == pytest.approx(twice.log_evidence[0], rel=1e-9)


def test_a_column_of_zeros_leaves_its_tau_and_its_coefficient_to_the_prior() -> None:
    rng = np.random.default_rng(0)
    data = device(rng, 8, 3)
    data.train.X[:, 1] = 0.0
    model = Gaussian(sigma=0.5)
    prior = model.prior(3)
    cavity, private = NaturalParams(prior.shift[None], prior.precision[None]), model.prepare([data])
    found = model.tilted(private, prior, cavity)[1]
    expected = moments(prior)
    for i in (1, 4):
        assert found.mean[0, i] == pytest.approx(expected.mean[i], abs=1e-6)
        assert found.covariance[0, i, i] == pytest.approx(expected.covariance[i, i], rel=1e-6)
    mean, covariance = mixed(model.coefficients(private, prior, cavity)[0].joint)
    assert mean[1] == pytest.approx(0.0, abs=1e-9)
    assert covariance[1, 1] == pytest.approx(1.0 + np.exp(0.5), rel=0.01)


def test_known_coefficients_keep_their_precision() -> None:
    # sigma = 1e-6 with 100 rows: the prior's variance is 1e14 times the posterior's.
    rng = np.random.default_rng(0)
    X, theta = rng.standard_normal((100, 2)), np.array([1.0, -0.5])
    y = X @ theta + 1e-6 * rng.standard_normal(100)
    model = Gaussian(sigma=1e-6)
    prior, private = model.prior(2), model.prepare([DeviceData.of(X, y)])
    cavity = NaturalParams(prior.shift[None], prior.precision[None])
    mean, covariance = mixed(model.coefficients(private, prior, cavity)[0].joint)
    sd = 1e-6 * np.sqrt(np.linalg.inv(X.T @ X).diagonal())
    assert np.allclose(np.sqrt(covariance.diagonal()), sd, rtol=1e-3)
    assert np.abs((mean - np.linalg.lstsq(X, y)[0]) / sd).max() < 1e-3


@pytest.mark.parametrize("dimensions", [1, 3, 9, 40])
def test_the_rule_has_the_moments_of_a_normal_distribution(dimensions: int) -> None:
    points, log_weight = normal_rule(dimensions, 128)
    weight = np.exp(log_weight)
    assert weight.sum() == pytest.approx(1.0)
    assert np.abs(weight @ points).max() < 1e-12
    assert np.abs((points.T * weight) @ points - np.eye(dimensions)).max() < 1e-10
    assert 1.0 / (weight**2).sum() > 0.6 * len(weight)
    assert weight @ points[:, 0] ** 4 == pytest.approx(3.0, abs=0.2)


def test_many_devices_against_nuts() -> None:
    datas, expected = reference("uq")
    model = Gaussian(sigma=0.05)
    fit = propagate(model, datas)
    mean, sd = against(fit, expected["posterior"])
    assert fit.proper
    assert fit.rounds <= 5
    assert mean < 0.02
    assert 0.96 < sd.min() <= sd.max() < 1.02
    assert not model.another_mode(fit.q)
    for data, found in zip(datas, model.coefficients(fit.private, fit.q, fit.cavity), strict=True):
        # 100 rows with sd .05 leave 3e-5 of the prior's variance: near least squares, by less than .03 of an sd.
        inverse = np.linalg.inv(data.train.X.T @ data.train.X)
        least = inverse @ data.train.X.T @ data.train.y
        theta, covariance = mixed(found.joint)
        assert np.abs((theta - least) / np.sqrt(covariance.diagonal())).max() < 0.03
        assert np.abs(covariance - 0.0025 * inverse).max() < 0.0025 * inverse.max() * 1e-3


@pytest.mark.parametrize(
    ("name", "model", "warm", "error", "ratio"),
    [
        ("uq_k5", Gaussian(sigma=0.05), True, 0.05, 0.85),
        ("hard_two_modes", Gaussian(sigma=0.5), False, 0.06, 0.9),
        ("hard_homogeneous", Gaussian(log_tau_sd=3.0), True, 0.035, 0.87),
        ("hard_n_less_d", Gaussian(sigma=0.5), True, 0.19, 0.93),
    ],
)
def test_hard_cases_against_nuts(name: str, model: Gaussian, warm: bool, error: float, ratio: float) -> None:
    # Without the certificate: few devices, two modes, devices that are all alike, and fewer rows than coefficients.
    datas, expected = reference(name)
    fit = propagate(model, datas, warm=warm)
    mean, sd = against(fit, expected["posterior"])
    assert fit.proper
    assert mean < error
    assert ratio < sd.min() <= sd.max() < 1.02


def test_another_mode_is_suspected_where_there_is_one() -> None:
    datas, expected = reference("hard_two_modes")
    model = Gaussian(sigma=0.5)
    fit = propagate(model, datas)
    assert against(fit, expected["posterior"])[0] > 20.0
    assert model.another_mode(fit.q)


def test_noise_of_ones_own_leaves_phi_as_a_shared_one_does() -> None:
    datas, expected = reference("uq")
    fit = propagate(Gaussian(noise="device"), datas)
    mean, sd = against(fit, expected["posterior"])
    assert fit.proper
    assert mean < 0.05
    assert 0.95 < sd.min() <= sd.max() < 1.05


@pytest.mark.parametrize(
    "wrong",
    [{"sigma": 0.0}, {"sigma": "known"}, {"noise": "none"}, {"mu_sd": 0.0}, {"log_tau_sd": np.inf}, {"log_sigma2_mean": np.nan}],
)
def test_options_out_of_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(wrong))):
        Gaussian(**wrong)


def test_blocks_and_prior() -> None:
    assert Gaussian(sigma=1.0).blocks(3) == {"mu": 3, "log_tau": 3}
    assert Gaussian().blocks(3) == {"mu": 3, "log_tau": 3, "log_sigma2": 1}
    assert Gaussian(noise="device").blocks(3) == {"mu": 3, "log_tau": 3}
    assert Isotropic().blocks(3) == {"mu": 3, "log_tau": 1, "log_sigma2": 1}
    found = moments(Gaussian(mu_mean=1.0, mu_sd=2.0, log_tau_mean=-1.0).prior(2))
    assert np.allclose(found.mean, [1.0, 1.0, -1.0, -1.0, 0.0])
    assert np.allclose(found.covariance.diagonal(), [4.0, 4.0, 1.0, 1.0, 9.0])


def test_coefficients_in_blocks_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Gaussian()
    private, prior = model.prepare(awkward(0, 3)[:1]), model.prior(3)
    cavity = NaturalParams(prior.shift[None], prior.precision[None])
    (whole,) = model.coefficients(private, prior, cavity)
    monkeypatch.setattr(nodes, "BLOCK", 100)
    assert same(whole, model.coefficients(private, prior, cavity)[0])


def test_coefficients_of_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that are spread over t and s together, as there are more than 40 of t, agree with those that have a rule for s."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 45))
    y = X @ rng.standard_normal(45) + 0.5 * rng.standard_normal(80)
    model = Gaussian()
    private, prior = model.prepare([DeviceData.of(X, y)]), model.prior(45)
    cavity = NaturalParams(prior.shift[None], prior.precision[None])
    (found,) = model.coefficients(private, prior, cavity)
    assert len(found.joint.weight) < 200
    nodes.product_rule.cache_clear()
    monkeypatch.setattr(nodes, "MOST_AXES", 50)
    (expected,) = model.coefficients(private, prior, cavity)
    nodes.product_rule.cache_clear()
    assert len(expected.joint.weight) > 1000
    assert (np.abs(found.mean - expected.mean) < 0.1 * expected.sd).all()
    np.testing.assert_allclose(found.sd, expected.sd, rtol=0.1)
