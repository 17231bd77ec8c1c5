"""Mixtures: their quantiles and intervals by their tails, and against scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from fedcore.hm2.mixture import Mixture
from fedcore.hm2.tilted_normal import TiltedNormal, tails, tilted_normal


def drawn(seed: int, *, decades: float, shape: tuple[int, ...] = (), C: int = 5, d: int = 3) -> tuple[np.ndarray, ...]:
    """Components of any kind, some of them normal."""
    rng = np.random.default_rng(seed)
    size = (*shape, C, d)
    weight = rng.dirichlet(np.ones(C), size=(*shape, d)).swapaxes(-1, -2)
    sd = 10.0 ** rng.uniform(-1, 1, size)
    mean = sd * rng.choice([-1.0, 1.0], size) * 10.0 ** rng.uniform(-decades, min(decades, 4.0), size)
    scale = np.where(rng.random(size) < 0.3, np.inf, sd * 10.0 ** rng.uniform(-decades, decades, size))
    return weight, mean, sd**2, scale


def unimodal(seed: int, C: int = 5) -> Mixture:
    """Components of one mode, which is zero for every other unknown, where the densities have a cusp."""
    rng = np.random.default_rng(seed)
    sd, scale = 10.0 ** rng.uniform(-1, 1, (C, 4)), 10.0 ** rng.uniform(-2, 3, (C, 4))
    mode = rng.standard_normal(4) * [1.0, 0.0, 0.1, 0.0]
    mean = np.where(mode == 0, rng.uniform(-1, 1, (C, 4)), np.sign(mode)) * sd**2 / scale + mode
    return Mixture.of(rng.dirichlet(np.ones(C), size=4).T, mean, sd**2, scale)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 2.0, 6.0]), st.floats(-8, -1))
def test_quantiles_invert_the_tails(seed: int, decades: float, log_tail: float) -> None:
    mixture, tail = Mixture.of(*drawn(seed, decades=decades)), 10.0**log_tail
    for p in (tail, 0.5, 1.0 - tail):
        t = mixture.quantiles(p)
        at = mixture.tails(t)
        found, target = (at.below, p) if p <= 0.5 else (at.above, 1.0 - p)
        spacing = 8 * np.spacing(np.abs(t)) * at.density  # what the next numbers that there are would give
        rounding = 1e-12 + 100 * np.spacing(np.abs(t) / mixture.components.sd.min(axis=1))
        assert (np.abs(found - target) <= rounding * target + spacing).all()


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.995))
def test_equal_tailed_intervals(seed: int, level: float) -> None:
    mixture = Mixture.of(*drawn(seed, decades=2.0))
    low, high = mixture.equal_tailed(level).T
    assert (low < high).all()
    np.testing.assert_allclose(mixture.tails(low).below, (1 - level) / 2, rtol=1e-10)
    np.testing.assert_allclose(mixture.tails(high).above, (1 - level) / 2, rtol=1e-10)
    np.testing.assert_array_equal(mixture.quantiles((1 - level) / 2), low)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.995))
def test_shortest_intervals(seed: int, level: float) -> None:
    mixture = unimodal(seed)
    shortest, equal = mixture.shortest(level), mixture.equal_tailed(level)
    length = shortest[:, 1] - shortest[:, 0]
    low, high = mixture.tails(shortest[:, 0]), mixture.tails(shortest[:, 1])
    np.testing.assert_allclose(high.below - low.below, level, rtol=1e-10)
    np.testing.assert_allclose(high.density, low.density, rtol=1e-6)
    assert (length <= (1 + 1e-12) * (equal[:, 1] - equal[:, 0])).all()
    for share in (0.01, 0.3, 0.7, 0.99):
        below = (1 - level) * share
        other = mixture.quantiles(below + level) - mixture.quantiles(below)
        assert (length <= (1 + 1e-9) * other).all()


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.995))
def test_shortest_intervals_with_several_modes(seed: int, level: float) -> None:
    mixture = Mixture.of(*drawn(seed, decades=6.0))
    shortest, equal = mixture.shortest(level), mixture.equal_tailed(level)
    assert (np.diff(shortest) <= np.diff(equal)).all()
    covered = mixture.tails(shortest[:, 1]).below - mixture.tails(shortest[:, 0]).below
    np.testing.assert_allclose(covered, level, atol=1e-10)


def test_against_integration() -> None:
    weight, mean, variance, scale = drawn(3, decades=0.5)
    mixture = Mixture.of(weight, mean, variance, scale)
    for j in range(3):
        law = tilted_normal(mean[:, j], variance[:, j], scale[:, j])
        reach = 40 * np.sqrt(variance[:, j].max()) + np.abs(mean[:, j]).max()

        def integral(
            power: int, center: float, high: float, law: TiltedNormal = law, weights: np.ndarray = weight[:, j], reach: float = reach
        ) -> float:
            def integrand(t: float) -> float:
                return (t - center) ** power * float(weights @ tails(law, np.array(t)).density)

            edges = np.unique(np.clip([-reach, 0.0, *law.mean, high], -reach, high))
            return sum(integrate.quad(integrand, *ends, limit=500, epsabs=1e-12)[0] for ends in itertools.pairwise(edges))

        assert integral(0, 0.0, reach) == pytest.approx(1.0, abs=1e-9)
        assert integral(1, 0.0, reach) == pytest.approx(mixture.mean[j], abs=1e-8)
        assert integral(2, mixture.mean[j], reach) == pytest.approx(mixture.variance[j], rel=1e-8)
        for p in (0.05, 0.6):
            assert integral(0, 0.0, mixture.quantiles(p)[j]) == pytest.approx(p, abs=1e-9)


def test_normal_mixtures_against_scipy() -> None:
    weight, mean, sd = np.array([0.2, 0.5, 0.3]), np.array([[-1.0], [0.0], [4.0]]), np.array([[0.1], [2.0], [1.0]])
    mixture = Mixture.normal(weight, mean, sd**2)
    law = stats.norm(mean[:, 0], sd[:, 0])
    for p in (1e-9, 0.05, 0.5, 0.95):
        expected = optimize.brentq(lambda t, p=p: weight @ law.cdf(t) - p, -40, 40, xtol=1e-13, rtol=1e-14)
        assert mixture.quantiles(p)[0] == pytest.approx(expected, rel=1e-9)
    assert mixture.mean[0] == pytest.approx(weight @ mean[:, 0])
    assert mixture.variance[0] == pytest.approx(weight @ (sd**2 + mean**2)[:, 0] - (weight @ mean[:, 0]) ** 2)


def test_components_far_apart() -> None:
    """Where the distribution function is flat over thousands of standard deviations Newton's method has nothing to go by."""
    mixture = Mixture.normal(np.array([0.05, 0.95]), np.array([[-1e4], [1e4]]), np.ones((2, 1)))
    assert mixture.quantiles(0.025)[0] == pytest.approx(-1e4)
    assert mixture.quantiles(0.0500001)[0] == pytest.approx(1e4 + stats.norm.ppf(1e-7 / 0.95), abs=1e-4)
    assert mixture.quantiles(0.5)[0] == pytest.approx(1e4 + stats.norm.ppf(0.45 / 0.95), rel=1e-14)
    assert abs(mixture.quantiles(0.05)[0]) < 1e4


def test_a_spike_and_a_slab() -> None:
    weight, b = np.array([[0.9], [0.1]]), np.array([[1e-6], [np.inf]])
    mixture = Mixture.of(weight, np.zeros((2, 1)), np.ones((2, 1)), b)
    low, high = mixture.equal_tailed(0.9)[0]
    assert -low == pytest.approx(high, rel=1e-10)
    assert 0.9 * stats.laplace.sf(high, scale=1e-6) + 0.1 * stats.norm.sf(high) == pytest.approx(0.05, rel=1e-5)
    np.testing.assert_allclose(mixture.shortest(0.9)[0], [low, high], rtol=1e-6)


def test_without_spread() -> None:
    """Intervals close up on what is known, to rounding."""
    mixture = Mixture.normal(np.array([0.5, 0.5]), np.array([[3.0, 0.0], [3.0, 0.0]]), np.zeros((2, 2)))
    np.testing.assert_allclose(mixture.equal_tailed(0.9), [[3.0, 3.0], [0.0, 0.0]], rtol=1e-14, atol=1e-140)
    np.testing.assert_allclose(mixture.tails(0.0).above, [1.0, 0.5])


@pytest.mark.parametrize("what", ["equal_tailed", "shortest"])
def test_one_device_is_the_same_alone_and_among_others(what: str) -> None:
    parts = drawn(7, decades=2.0, shape=(600,), C=9)
    together = getattr(Mixture.of(*parts), what)(0.9)
    assert together.shape == (600, 3, 2)
    for k in (0, 1, 333, 599):
        np.testing.assert_array_equal(getattr(Mixture.of(*(part[k] for part in parts)), what)(0.9), together[k])


def test_axes_in_front() -> None:
    mixture = Mixture.of(*drawn(1, decades=1.0))
    p = np.array([[0.1], [0.5]])
    t = mixture.quantiles(p)
    assert t.shape == (2, 3)
    np.testing.assert_array_equal(t[1], mixture.quantiles(0.5))
    np.testing.assert_allclose(mixture.tails(t).below, np.broadcast_to(p, (2, 3)), rtol=1e-12)
