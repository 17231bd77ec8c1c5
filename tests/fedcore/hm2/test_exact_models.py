"""Federated expectation propagation on models small enough to know the answers: one conjugate, the others with one hyper-parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from fedcore import DeviceData, fit
from fedcore.algorithm import FleetSpec
from fedcore.fit import FitResult, InProcess
from fedcore.hm2.algorithm import ExpectationPropagation
from fedcore.hm2.coefficients import Coefficients, Joint, Marginals
from fedcore.hm2.hierarchy import Hierarchy, Tilted
from fedcore.hm2.natural import NaturalParams, log_density, log_partition, moments, natural
from fedcore.hm2.state import Current, Device, phi
from fedcore.rounds import RunState, Schedule, rounds
from fedcore.rows import Booleans, Floats
from fedcore.testing import check_algorithm, equal
from fedcore.trees import pack, unpack

Fleet = dict[str, tuple[np.ndarray, np.ndarray]]


class Grams(NamedTuple):
    """X'X, X'y, y'y and n of m devices."""

    gram: Floats
    moment: Floats
    power: Floats
    n: Floats


class Centre(NamedTuple):
    mean: Floats


def grams(datas: Sequence[DeviceData]) -> Grams:
    each = [(X.T @ X, X.T @ y, y @ y, float(len(y))) for X, y in (data.train for data in datas)]
    return Grams(*(np.array(column) for column in zip(*each, strict=True)))


def coefficients_of(mean: Floats, covariance: Floats, noise: float) -> Coefficients:
    """A single normal component."""
    marginals = Marginals(np.ones((1, len(mean))), mean[None], covariance.diagonal()[None], np.full((1, len(mean)), np.inf))
    return Coefficients(marginals, Joint(np.ones(1), mean[None], covariance[None], np.array([noise])))


@dataclass(frozen=True)
class Conjugate(Hierarchy[Grams, Centre, Grams]):
    """theta_k ~ N(phi, tau I), y ~ N(X theta, sigma^2 I), phi ~ N(0, spread I): every factor is normal in phi."""

    START: ClassVar[tuple[str, ...]] = ("pooled",)
    CAUTION: ClassVar[str] = ""
    POINTS: ClassVar[int] = 100

    tau: float = 0.5
    sigma2: float = 0.09
    spread: float = 9.0

    def blocks(self, d: int) -> dict[str, int]:
        return {"first": 1, "others": d - 1}

    def prior(self, d: int) -> NaturalParams:
        return natural(np.zeros(d), np.eye(d) / self.spread)

    def log_prior(self, phi: Floats) -> Floats:
        return log_density(self.prior(phi.shape[1]), phi)

    def prepare(self, datas: Sequence[DeviceData]) -> Grams:
        return grams(datas)

    def start(self, d: int) -> Centre:
        return Centre(np.zeros(d))

    def start_statistics(self, phase: str, point: Centre, private: Grams) -> Grams:
        return private

    def start_form(self, phase: str, d: int) -> Grams:
        return Grams(np.zeros((d, d)), np.zeros(d), np.zeros(()), np.zeros(()))

    def started(self, phase: str, point: Centre, total: Grams, devices: int, fleet: int) -> Centre:
        return Centre(np.linalg.solve(total.gram + np.eye(len(point.mean)), total.moment))

    def start_sites(self, point: Centre, private: Grams) -> NaturalParams:
        """Too sure of themselves, and at the wrong place: EP has to mend both."""
        return natural(np.broadcast_to(point.mean, private.moment.shape), 2.0 * self.factor(private)[0].matrix)

    def factor(self, private: Grams) -> tuple[NaturalParams, Floats]:
        """The natural parameters of f_k, and its constant."""
        P = private.gram / self.sigma2 + np.eye(private.moment.shape[1]) / self.tau
        GP = np.linalg.solve(P, private.gram).swapaxes(1, 2) / self.sigma2
        shift = (private.moment[..., None] - GP @ private.moment[..., None])[..., 0] / self.sigma2
        matrix = (private.gram - GP @ private.gram) / self.sigma2
        explained = (private.moment * np.linalg.solve(P, private.moment[..., None])[..., 0]).sum(axis=1) / self.sigma2
        logdet = private.n * np.log(2.0 * np.pi * self.sigma2) + np.linalg.slogdet(P * self.tau)[1]
        params = natural(np.zeros_like(shift), matrix)._replace(shift=shift)
        return params, -0.5 * (logdet + (private.power - explained) / self.sigma2)

    def tilted(self, private: Grams, q: NaturalParams, cavity: NaturalParams) -> tuple[Grams, Tilted]:
        params, constant = self.factor(private)
        found = moments(cavity.plus(params))
        evidence = constant + log_partition(cavity.plus(params)) - log_partition(cavity)
        return private, Tilted(found.mean, found.covariance, evidence, found.proper, self.loss(private))

    def loss(self, private: Grams) -> Floats:
        return private.power / private.n

    def log_factor(self, private: Grams, phi: Floats) -> Floats:
        params, constant = self.factor(private)
        return (params.shift[:, None] @ phi.T)[:, 0] - 0.5 * np.einsum("si,kij,sj->ks", phi, params.matrix, phi) + constant[:, None]

    def coefficients(self, private: Grams, q: NaturalParams, cavity: NaturalParams) -> list[Coefficients]:
        _, tilted = self.tilted(private, q, cavity)
        found: list[Coefficients] = []
        for gram, moment, mean, covariance in zip(private.gram, private.moment, tilted.mean, tilted.covariance, strict=True):
            C = np.linalg.inv(gram / self.sigma2 + np.eye(len(mean)) / self.tau)
            centre = C @ (moment / self.sigma2 + mean / self.tau)
            found.append(coefficients_of(centre, C + C @ covariance @ C / self.tau**2, self.sigma2))
        return found

    def coefficients_at(self, private: Grams, phi: Floats, log_weight: Floats) -> list[Coefficients]:
        raise NotImplementedError

    def doubtful(self, q: NaturalParams, devices: int) -> bool:
        return False

    def another_mode(self, q: NaturalParams) -> bool:
        return False


class Estimates(NamedTuple):
    """Least squares estimates of one coefficient and their variances, and where the last quadrature found the mean."""

    estimate: Floats
    variance: Floats
    centre: Floats


@dataclass(frozen=True)
class Scalar(Hierarchy[Estimates, Centre, Centre]):
    """theta_k ~ N(0, e^phi), one coefficient, noise variance 1; tilted moments on a dense grid that covers all that matters."""

    START: ClassVar[tuple[str, ...]] = ()
    CAUTION: ClassVar[str] = ""
    POINTS: ClassVar[int] = 100

    at: float = 0.0
    precision: float = 1.0
    spread: float = 4.0
    stubborn: float = np.inf
    second: bool = False

    def blocks(self, d: int) -> dict[str, int]:
        return {"phi": 1}

    def prior(self, d: int) -> NaturalParams:
        return natural(np.zeros(1), np.eye(1) / self.spread)

    def log_prior(self, phi: Floats) -> Floats:
        return log_density(self.prior(1), phi)

    def prepare(self, datas: Sequence[DeviceData]) -> Estimates:
        found = grams(datas)
        return Estimates(found.moment[:, 0] / found.gram[:, 0, 0], 1.0 / found.gram[:, 0, 0], np.zeros(len(datas)))

    def start(self, d: int) -> Centre:
        return Centre(np.full(1, self.at))

    def start_statistics(self, phase: str, point: Centre, private: Estimates) -> Centre:
        raise NotImplementedError

    def started(self, phase: str, point: Centre, total: Centre, devices: int, fleet: int) -> Centre:
        raise NotImplementedError

    def start_sites(self, point: Centre, private: Estimates) -> NaturalParams:
        m = len(private.estimate)
        return natural(np.broadcast_to(point.mean, (m, 1)), np.full((m, 1, 1), self.precision))

    def log_factor(self, private: Estimates, phi: Floats) -> Floats:
        return norm.logpdf(private.estimate[:, None], 0.0, np.sqrt(np.exp(phi[:, 0]) + private.variance[:, None]))

    def tilted(self, private: Estimates, q: NaturalParams, cavity: NaturalParams) -> tuple[Estimates, Tilted]:
        grid = np.linspace(-25.0, 25.0, 5001)[:, None]
        logs = self.log_factor(private, grid) + cavity.shift * grid[:, 0] - 0.5 * cavity.precision * grid[:, 0] ** 2
        total = logsumexp(logs, axis=1)
        weights = np.exp(logs - total[:, None])
        mean = (weights * grid[:, 0]).sum(axis=1)
        variance = (weights * (grid[:, 0] - mean[:, None]) ** 2).sum(axis=1)
        evidence = total + np.log(0.01) - log_partition(cavity)
        proper: Booleans = private.estimate < self.stubborn
        mean = np.where(proper, mean, np.nan)
        return private._replace(centre=mean), Tilted(mean[:, None], variance[:, None, None], evidence, proper, self.loss(private))

    def loss(self, private: Estimates) -> Floats:
        return private.variance

    def coefficients(self, private: Estimates, q: NaturalParams, cavity: NaturalParams) -> list[Coefficients]:
        shrunk = private.estimate / (1.0 + private.variance * np.exp(-moments(q).mean[0]))
        return [coefficients_of(np.full(1, each), np.eye(1), 1.0) for each in shrunk]

    def coefficients_at(self, private: Estimates, phi: Floats, log_weight: Floats) -> list[Coefficients]:
        variance = np.exp(phi[:, 0])
        shrunk = private.estimate[:, None] / (1.0 + private.variance[:, None] / variance)
        weight = np.exp(log_weight - logsumexp(log_weight, axis=1, keepdims=True))
        return [coefficients_of(np.full(1, each), np.eye(1), 1.0) for each in (weight * shrunk).sum(axis=1)]

    def doubtful(self, q: NaturalParams, devices: int) -> bool:
        return True

    def another_mode(self, q: NaturalParams) -> bool:
        return self.second


@dataclass(frozen=True)
class TwoModes(Scalar):
    """Every device says: phi is near -1 with probability `low`, or else near 3. Its rows move both a little."""

    low: float = 0.8
    second: bool = True

    def log_factor(self, private: Estimates, phi: Floats) -> Floats:
        away = phi[:, 0] - 0.1 * np.tanh(private.estimate[:, None])
        return np.logaddexp(np.log(self.low) + norm.logpdf(away, -1.0, 0.5), np.log1p(-self.low) + norm.logpdf(away, 3.0, 0.5))


@dataclass(frozen=True)
class Ep(ExpectationPropagation):
    """EP for a given model."""

    given: Any = Conjugate()

    @property
    def hierarchy(self) -> Any:
        return self.given


def fleet(K: int, n: int = 6, d: int = 3, seed: int = 0, tau: float = 0.5, sigma: float = 0.3) -> Fleet:
    rng = np.random.default_rng(seed)
    found: Fleet = {}
    for k in range(K):
        X = rng.standard_normal((n, d))
        found[f"{k:03d}"] = (X, X @ (1.0 + np.sqrt(tau) * rng.standard_normal(d)) + sigma * rng.standard_normal(n))
    return found


def scalars(K: int, seed: int = 0) -> Fleet:
    """Devices of one coefficient with mean 0 and sd e^.5, two rows with noise 1."""
    rng = np.random.default_rng(seed)
    return {f"{k:03d}": (np.ones((2, 1)), np.exp(0.5) * rng.standard_normal() + rng.standard_normal(2)) for k in range(K)}


def grid_posterior(model: Scalar, devices: Fleet) -> tuple[float, float, float]:
    """Mean, sd and log evidence on a grid."""
    grid = np.linspace(-25.0, 25.0, 200_001)[:, None]
    private = model.prepare([DeviceData.of(X, y) for X, y in devices.values()])
    logs = sum(model.log_factor(Estimates(*(np.array([value]) for value in each)), grid)[0] for each in zip(*private, strict=True))
    logs = logs + norm.logpdf(grid[:, 0], 0.0, np.sqrt(model.spread))
    total = logsumexp(logs)
    weights = np.exp(logs - total)
    mean = float(weights @ grid[:, 0])
    return mean, float(np.sqrt(weights @ (grid[:, 0] - mean) ** 2)), float(total + np.log(grid[1, 0] - grid[0, 0]))


def marginal(model: Conjugate, devices: Fleet) -> tuple[np.ndarray, np.ndarray, float]:
    """phi's posterior mean and covariance and log p(y), from all rows as one normal distribution."""
    X, y = np.concatenate([X for X, _ in devices.values()]), np.concatenate([y for _, y in devices.values()])
    sizes = np.repeat(np.arange(len(devices)), [len(y) for _, y in devices.values()])
    V = (sizes[:, None] == sizes) * (model.tau * X @ X.T) + model.sigma2 * np.eye(len(y))
    covariance = np.linalg.inv(np.eye(X.shape[1]) / model.spread + X.T @ np.linalg.solve(V, X))
    evidence = multivariate_normal(np.zeros(len(y)), V + model.spread * X @ X.T).logpdf(y)
    return covariance @ X.T @ np.linalg.solve(V, y), covariance, float(evidence)


def q_of(result: FitResult) -> tuple[np.ndarray, np.ndarray]:
    found = moments(result.server.kept.q)
    return found.mean, np.sqrt(found.covariance.diagonal())


class TestConjugate:
    def test_conformance(self) -> None:
        for start in ("warm", "zero"):
            check_algorithm(lambda start=start: Ep(start=start))
        check_algorithm(lambda: Ep(damping=0.7, certificate="off"))

    @pytest.mark.parametrize("K", [1, 2, 30])
    @pytest.mark.parametrize("start", ["warm", "zero"])
    def test_one_round_is_exact(self, K: int, start: Any) -> None:
        """The first round that is applied in full finds every factor; the next sees that there is nothing left to change. From the start
        that is the first one; from the prior it may be too far for one round."""
        devices = fleet(K)
        result = fit(Ep(start=start, certificate="off"), devices)
        mean, covariance, evidence = marginal(Conjugate(), devices)
        q = moments(result.server.kept.q)
        np.testing.assert_allclose(q.mean, mean, rtol=1e-10)
        np.testing.assert_allclose(q.covariance, covariance, rtol=1e-10, atol=1e-10 * covariance.max())
        main = [each for each in result.history if np.isfinite(each["log_evidence"])]
        # The evidence is that of the approximation that a round begins with.
        np.testing.assert_allclose(main[-1]["log_evidence"], evidence, rtol=1e-10)
        assert [each["damping"] for each in main[-2:]] == [1.0, 1.0]
        assert (main[-1]["change"] < 1e-9, result.outcome.name) == (True, "converged")
        if start == "warm" or K < 30:
            assert (len(main), len(result.history)) == (2, 4 if start == "warm" else 2)

    def test_coefficients(self) -> None:
        """Those of all rows together, by the joint normal distribution of coefficients and rows."""
        devices, model = fleet(4), Conjugate()
        result = fit(Ep(), devices)
        X, y = np.concatenate([X for X, _ in devices.values()]), np.concatenate([y for _, y in devices.values()])
        sizes = np.repeat(np.arange(4), 6)
        shared = model.spread * X
        V = (sizes[:, None] == sizes) * (model.tau * X @ X.T) + model.spread * X @ X.T + model.sigma2 * np.eye(len(y))
        for k, (name, theta) in enumerate(result.theta.items()):
            cross = shared + model.tau * X * (sizes == k)[:, None]
            np.testing.assert_allclose(theta, cross.T @ np.linalg.solve(V, y), rtol=1e-9)
            covariance = (model.spread + model.tau) * np.eye(3) - cross.T @ np.linalg.solve(V, cross)
            posterior = result.posterior[name]
            assert isinstance(posterior, Coefficients)
            np.testing.assert_allclose(posterior.joint.covariance[0], covariance, rtol=1e-8, atol=1e-10)

    def test_damping_goes_to_the_same_place(self) -> None:
        """And does not pass for convergence: a tenth of what is left would be below this tolerance ten times sooner."""
        devices = fleet(8)
        result = fit(Ep(damping=0.1, certificate="off", tolerance=0.01), devices, rounds=500)
        mean, covariance, evidence = marginal(Conjugate(), devices)
        found, sd = q_of(result)
        assert np.abs((found - mean) / np.sqrt(covariance.diagonal())).max() < 0.01
        assert np.abs(np.log(sd**2 / covariance.diagonal())).max() < 0.02
        assert result.server.kept.log_evidence == pytest.approx(evidence, abs=1e-3)
        assert {each["damping"] for each in result.history if np.isfinite(each["change"])} == {0.1}

    def test_phi_by_block(self) -> None:
        devices = fleet(20)
        result = fit(Ep(certificate="off"), devices)
        mean, covariance, _ = marginal(Conjugate(), devices)
        sd = np.sqrt(covariance.diagonal())
        found = phi(result.server, Conjugate().blocks(3), Conjugate().prior(3))
        assert {name: len(columns["mean"]) for name, columns in found.items()} == {"first": 1, "others": 2}
        np.testing.assert_allclose(found["others"]["mean"], mean[1:], rtol=1e-9)
        np.testing.assert_allclose(found["first"]["sd"], sd[:1], rtol=1e-9)
        np.testing.assert_allclose(found["others"]["lower"], (mean - 1.6448536 * sd)[1:], rtol=1e-6)
        np.testing.assert_allclose(found["others"]["upper"], (mean + 1.6448536 * sd)[1:], rtol=1e-6)


class TestScalar:
    @pytest.mark.parametrize(("K", "shift", "spread"), [(5, 0.1, 0.06), (40, 0.02, 0.02)])
    def test_against_a_grid(self, K: int, shift: float, spread: float) -> None:
        """Bounds of EP itself: of order 1 / K."""
        devices = scalars(K)
        mean, sd, evidence = grid_posterior(Scalar(), devices)
        result = fit(Ep(given=Scalar(), certificate="off"), devices)
        found, width = q_of(result)
        assert result.outcome.name == "converged"
        assert abs(found[0] - mean) / sd < shift
        assert abs(np.log(width[0] / sd)) < spread
        assert result.server.kept.log_evidence == pytest.approx(evidence, abs=0.02)

    def test_at_the_fixed_point_sites_give_the_tilted_moments(self) -> None:
        devices = {**scalars(12), "odd": (np.full((1, 1), 1 / 3), np.full(1, 3.0))}  # far out, and hardly known
        state, backend = run_of(Ep(given=Scalar(), tolerance=1e-9, certificate="off"), devices)
        q, model = state.server.kept.q, Scalar()
        precisions = []
        for k, device in settled(backend, state).items():
            site = NaturalParams(*(part[0] for part in device.sites))
            precisions.append(site.precision[0])
            cavity = NaturalParams((q.shift - site.shift)[None], (q.precision - site.precision)[None])
            _, tilted = model.tilted(model.prepare([backend.datas[k]]), q, cavity)
            found = moments(q)
            np.testing.assert_allclose(tilted.mean[0], found.mean, atol=1e-8 * np.sqrt(found.covariance[0, 0]))
            np.testing.assert_allclose(tilted.covariance[0], found.covariance, rtol=1e-7)
        assert min(precisions) < 0 < max(precisions), "indefinite sites are part of the answer"

    def test_from_zero_sites_the_guard_keeps_q_a_distribution(self) -> None:
        """Estimates far out and hardly known, which a prior near tau = 1 makes nothing of: tilted distributions are wider than cavities."""
        devices = {f"{k:03d}": (np.full((1, 1), 1 / 3), np.full(1, 3.0 * (-1) ** k)) for k in range(60)}
        warm = fit(Ep(given=Scalar(at=4.0), certificate="off"), devices, rounds=100)
        zero = fit(Ep(given=Scalar(), start="zero", certificate="off"), devices, rounds=100)
        assert zero.outcome.name == warm.outcome.name == "converged"
        assert min(each["damping"] for each in zero.history) < 0.5
        np.testing.assert_allclose(q_of(zero)[0], q_of(warm)[0], atol=0.01 * q_of(warm)[1][0])

    def test_a_device_without_a_step_is_left_out(self) -> None:
        devices = scalars(12)
        largest = max(y.mean() for _, y in devices.values())
        result = fit(Ep(given=Scalar(stubborn=largest), start="zero", certificate="off"), devices)
        rest = {name: pair for name, pair in devices.items() if pair[1].mean() < largest}
        assert len(rest) == 11
        alone = fit(Ep(given=Scalar(), start="zero", certificate="off"), rest)
        np.testing.assert_allclose(q_of(result)[0], q_of(alone)[0], atol=2e-3 * q_of(alone)[1][0])
        assert result.server.kept.log_evidence == pytest.approx(alone.server.kept.log_evidence, abs=1e-3)
        assert {each["skipped"] for each in result.history[1:]} == {1.0}
        assert "1 of 12 devices had no proposal in it" in result.outcome.message

    def test_a_run_in_which_no_device_can_step_has_not_converged(self) -> None:
        outcome = fit(Ep(given=Scalar(stubborn=-np.inf), start="zero"), scalars(4)).outcome
        assert (outcome.name, outcome.ok) == ("diverged", False)
        assert outcome.message.startswith("4 of 4 devices have nothing to propose")

    def test_a_cavity_that_is_no_distribution_is_a_skipped_step(self) -> None:
        """Its result comes from a part of the site."""
        ep, data = Ep(given=Scalar()), DeviceData.of(np.ones((2, 1)), np.ones(2))
        [device] = ep.init_devices(FleetSpec(("a",), 1), [data])
        device = device._replace(sites=NaturalParams(np.zeros((2, 1)), np.full((2, 1), 3.0)))
        down = Current(NaturalParams(np.zeros(1), np.ones(1)), 0.0, (), np.zeros((0, 1)), 1.0)
        [state], [up], _ = ep.local_steps([down], [device], [data], [np.random.default_rng()])
        assert (up.skipped, up.term) == (1.0, 0.0)
        assert equal(up.site, NaturalParams(np.zeros(1), np.zeros(1)))
        assert equal(state.sites, device.sites)
        assert np.isfinite(ep.finalize(down, device, data).theta).all()


class TestTwoStarts:
    def test_the_larger_evidence_is_kept(self) -> None:
        devices = scalars(6)
        model = TwoModes(at=3.0, precision=4.0)
        _, _, evidence = grid_posterior(model, devices)
        both = fit(Ep(given=model, certificate="off"), devices)
        first, second = (each.log_evidence for each in both.server.approximations)
        # A mode has 6 factors of 0.8 or 0.2, and the prior's sd of 2.
        assert second - first == pytest.approx(6 * np.log(4.0) + (9.0 - 1.0) / 8.0, abs=0.3)
        assert both.server.which == 1
        assert second == pytest.approx(evidence, abs=0.02)
        assert abs(q_of(both)[0][0] + 1.0) < 0.2
        assert "of two modes the one from the prior has the larger evidence" in both.outcome.message
        warm = fit(replace(Ep(given=model, certificate="off"), start="warm"), devices)
        assert equal(warm.server.kept.q, both.server.approximations[0].q)
        zero = fit(replace(Ep(given=model, certificate="off"), start="zero"), devices)
        assert equal(zero.server.kept.q, both.server.kept.q)
        assert zero.theta == both.theta

    def test_the_last_main_round_may_be_the_one_that_converges(self) -> None:
        """What comes after it is no main round, and is run in any case."""
        devices, ep = scalars(6), Ep(given=TwoModes(at=3.0, precision=4.0))
        free = fit(ep, devices)
        count = len(free.server.trace.shift) - free.server.second_rounds
        bound = fit(ep, devices, rounds=count)
        assert equal(free.server, bound.server)
        assert bound.outcome.name == "converged"
        assert fit(ep, devices, rounds=count - 1).outcome.name == "completed"

    def test_the_first_is_kept_where_it_has_more(self) -> None:
        """A narrow prior draws the second to the lesser mode."""
        devices = scalars(6)
        model = TwoModes(at=3.0, precision=4.0, low=0.28, spread=1.0)
        both = fit(Ep(given=model, certificate="off"), devices)
        first, second = (each.log_evidence for each in both.server.approximations)
        assert first > second + 1.0
        assert both.server.which == 0
        assert abs(q_of(both)[0][0] - 3.0) < 0.3
        assert both.theta == fit(replace(Ep(given=model, certificate="off"), start="warm"), devices).theta

    def test_resumed(self) -> None:
        check_resumed(lambda: Ep(given=TwoModes(at=3.0, precision=4.0)))


def check_resumed(make: Any) -> None:
    """A run that is stored and resumed after every round, in all phases, to the bit."""
    devices = {name: DeviceData.of(X, y) for name, (X, y) in scalars(6).items()}
    spec = FleetSpec(tuple(devices), 1)
    schedule = Schedule(rounds=60)
    straight, backend = InProcess(make(), spec, list(devices.values()), 0), InProcess(make(), spec, list(devices.values()), 0)
    state = other = RunState.initial(make(), spec)
    phases = []
    for report in rounds(make(), spec, straight, schedule, state):
        state = report.state
        phases.append(report.phase)
    while report := next(rounds(make(), spec, backend, schedule, unpack(pack(other))), None):
        other = report.state
    assert list(dict.fromkeys(phases)) == ["sites", "main", "second", "certificate"]
    assert equal(state, other)
    mine, theirs = straight.results(state), backend.results(other)
    assert all(equal(mine[name], theirs[name]) for name in devices)


def run_of(ep: Ep, devices: Fleet, make: type[InProcess] = InProcess, **schedule: Any) -> tuple[RunState, InProcess]:
    spec = FleetSpec(tuple(sorted(devices)), next(iter(devices.values()))[0].shape[1])
    backend = make(ep, spec, [DeviceData.of(*devices[name]) for name in spec.device_ids], 0)
    state = RunState.initial(ep, spec)
    for report in rounds(ep, spec, backend, Schedule(quorum=1e-9, **schedule), state):
        state = report.state
    return state, backend


def settled(backend: InProcess, state: RunState) -> dict[int, Device]:
    """The devices as they stand after their last receipts."""
    backend.results(state)
    return dict(enumerate(backend.accepted))
