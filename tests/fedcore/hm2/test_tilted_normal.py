"""Tilted normal distributions against numerical integration and scipy's normal distribution, over many decades."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedcore.hm2.laplace import laplace_tilt
from fedcore.hm2.tilted_normal import tails, tilted_normal

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def grid(rate: float, start: float = 0.0, end: float = np.inf) -> tuple[np.ndarray, np.ndarray, float]:
    """Nodes in x and weights of exp(-x^2 / 2 - c x - peak) over part of x > 0, and that peak."""
    mode, width = max(-rate, 0.0), 1.0 / max(rate, 1.0)
    edges = np.clip(mode + width * np.linspace(-40.0, 40.0, 401), start, end)
    half = 0.5 * np.diff(edges)[:, None]
    x = (edges[:-1, None] + half + half * NODES).ravel()
    peak = 0.5 * mode**2
    return x, (half * WEIGHTS).ravel() * np.exp(-0.5 * (x - mode) ** 2 - (rate + mode) * x), peak


def integrated(m: float, s: float, b: float) -> tuple[float, float, float, float]:
    """log mass, mean, variance and P(T > 0)."""
    a, u = s / b, m / s
    (x1, w1, p1), (x2, w2, p2) = grid(a - u), grid(a + u)
    top = max(p1, p2)
    w1, w2 = w1 * np.exp(p1 - top), w2 * np.exp(p2 - top)
    total = w1.sum() + w2.sum()
    mean = (w1 @ x1 - w2 @ x2) / total
    variance = (w1 @ (x1 - mean) ** 2 + w2 @ (x2 + mean) ** 2) / total
    offset = a * (0.5 * a - abs(u)) if top else -0.5 * u * u  # top - u^2 / 2
    return np.log(total) + offset - 0.5 * np.log(2 * np.pi), s * mean, s * s * variance, w1.sum() / total


@pytest.mark.parametrize("u", [0.0, 1e-6, 0.03, -0.7, 2.0, -5.0, 30.0, -400.0, 1e4])
@pytest.mark.parametrize("a", [1e-6, 1e-3, 0.1, 1.0, 3.9, 4.1, 30.0, 1e3, 1e6])
def test_against_integration(u: float, a: float) -> None:
    s = 0.3
    log_mass, mean, variance, positive = integrated(u * s, s, s / a)
    law = tilted_normal(np.array(u * s), np.array(s * s), np.array(s / a))
    found = laplace_tilt(np.array(u * s), np.array(s * s), np.array(s / a))
    sd = np.sqrt(variance)
    rounding = 1e-12 * (1.0 + abs(u) * s / sd)  # of m, in standard deviations
    assert found.log_normaliser + np.log(2 * s / a) == pytest.approx(log_mass, rel=1e-10, abs=1e-10)
    assert abs(found.mean - mean) < rounding * sd
    assert found.variance == pytest.approx(variance, rel=1e-11 + 4 * rounding)
    assert tails(law, np.array(0.0)).above == pytest.approx(positive, rel=1e-9, abs=1e-300)
    for k in (-3.0, -0.5, 0.1, 2.5):
        t = mean + k * sd
        _, w, _ = grid(a - u if t > 0 else a + u)
        _, part, _ = grid(a - u if t > 0 else a + u, start=abs(t) / s)
        tail = (positive if t > 0 else 1.0 - positive) * part.sum() / w.sum()
        at = tails(law, np.array(t))
        assert (at.above if t > 0 else at.below) == pytest.approx(tail, rel=1e-10 + 100 * rounding, abs=1e-15)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(-6, 6), st.floats(-4, 4), st.floats(-3, 3))
def test_tails(seed: int, log_pull: float, log_shift: float, log_sd: float) -> None:
    rng = np.random.default_rng(seed)
    s = 10.0**log_sd
    m, b = s * 10.0**log_shift * rng.choice([-1, 1]), s / 10.0**log_pull
    law = tilted_normal(np.array(m), np.array(s * s), np.array(b))
    found = laplace_tilt(np.array(m), np.array(s * s), np.array(b))
    assert 0 < found.variance <= s * s * (1 + 1e-12), "the tilt is log concave"
    t = np.sort(found.mean + np.sqrt(found.variance) * np.concatenate([rng.standard_normal(30) * 3, [-40.0, 40.0]]))
    at = tails(law, t)
    np.testing.assert_allclose(at.below + at.above, 1.0, rtol=1e-11)
    assert (np.diff(at.below) >= -1e-11 * at.below[1:]).all()
    assert (np.diff(at.above) <= 1e-11 * at.above[:-1]).all()
    mirrored = tails(tilted_normal(np.array(-m), np.array(s * s), np.array(b)), -t)
    np.testing.assert_array_equal(mirrored.density, at.density)
    np.testing.assert_allclose(mirrored.above, at.below, rtol=1e-13)


def test_without_tilt_it_is_the_normal_distribution() -> None:
    m, s = np.array([0.0, -1.0, 40.0]), np.array([1.0, 0.2, 2.0])
    law = tilted_normal(m, s**2, np.full(3, np.inf))
    found = laplace_tilt(m, s**2, np.full(3, np.inf))
    np.testing.assert_allclose(found.mean, m, rtol=1e-14)
    np.testing.assert_allclose(found.variance, s**2, rtol=1e-12)
    for k in (-30.0, -8.0, -1.0, 0.0, 0.5, 7.0, 30.0):
        at, expected = tails(law, m + k * s), stats.norm(m, s)
        np.testing.assert_allclose(at.below, expected.cdf(m + k * s), rtol=1e-11)
        np.testing.assert_allclose(at.above, expected.sf(m + k * s), rtol=1e-11)
        np.testing.assert_allclose(at.density, expected.pdf(m + k * s), rtol=1e-11)


def test_where_the_data_say_nothing_it_is_the_laplace_distribution() -> None:
    law, expected = tilted_normal(np.array(0.0), np.array(1e16), np.array(2.0)), stats.laplace(scale=2.0)
    assert laplace_tilt(np.array(0.0), np.array(1e16), np.array(2.0)).variance == pytest.approx(8.0, rel=1e-12)
    for t in (-50.0, -1.0, 1e-9, 3.0):
        at = tails(law, np.array(t))
        assert at.below == pytest.approx(expected.cdf(t), rel=1e-12)
        assert at.above == pytest.approx(expected.sf(t), rel=1e-12)
        assert at.density == pytest.approx(expected.pdf(t), rel=1e-12)
