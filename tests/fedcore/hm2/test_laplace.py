"""Moments of a normal distribution times a Laplace prior, against quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.integrate import quad

from fedcore.hm2.laplace import elastic_net_tilt, laplace_tilt

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def quadrature(mean: float, variance: float, scale: float) -> tuple[float, float, float]:
    """log Z, mean / sd and variance, by Gauss-Legendre on panels that resolve either side of zero: sums of positive terms, the variance
    around the mean."""
    sd = np.sqrt(variance)
    u, a = mean / sd, sd / scale
    z, mass, height = [], [], []
    for sign in (1.0, -1.0):
        alpha = sign * u - a
        peak = max(alpha, 0.0)
        edges = np.linspace(-min(peak, 40.0), 40.0 / max(1.0, -alpha), 301)
        half = np.diff(edges) / 2.0
        points = (edges[:-1] + half)[:, None] + half[:, None] * NODES  # from the peak
        z.append(sign * (peak + points.ravel()))
        mass.append((half[:, None] * WEIGHTS * np.exp(-0.5 * points**2 + (alpha - peak) * points)).ravel())
        height.append(a * (0.5 * a - sign * u) if alpha > 0 else -0.5 * u**2)  # alpha^2 / 2 - u^2 / 2, without its rounding
    top = max(height)
    weights = np.concatenate([each * np.exp(high - top) for each, high in zip(mass, height, strict=True)])
    points, total = np.concatenate(z), weights.sum()
    centre = weights @ points / total
    log_normaliser = top + np.log(total) - 0.5 * np.log(2.0 * np.pi) - np.log(2.0 * scale)
    return log_normaliser, centre, variance * (weights @ (points - centre) ** 2) / total


decades = st.floats(-5.0, 4.0)


@given(decades, st.floats(-6.0, 4.0), st.sampled_from([-1.0, 1.0]), st.floats(-3.0, 2.0))
@example(4.0, 4.0, 1.0, 0.0)
@example(4.0, -6.0, 1.0, 0.0)
@example(0.0, 1e-9, -1.0, 0.0)
@example(0.9030899, -6.0, 1.0, 0.0)  # at the border of the continued fraction
@example(0.9030900, -6.0, 1.0, 0.0)
def test_against_quadrature(ratio: float, away: float, sign: float, unit: float) -> None:
    scale = 10.0**unit
    sd = scale * 10.0**ratio
    mean = sign * sd * 10.0**away
    log_normaliser, centre, variance = quadrature(mean, sd**2, scale)
    found = laplace_tilt(np.array(mean), np.array(sd**2), np.array(scale))
    assert found.log_normaliser == pytest.approx(log_normaliser, rel=1e-12, abs=1e-12)
    # Rounding of the mean itself is all that may be seen far from zero.
    assert found.mean / sd == pytest.approx(centre, rel=1e-12, abs=1e-12 * np.sqrt(variance) / sd)
    assert found.variance == pytest.approx(variance, rel=1e-11)


def test_without_rows_it_is_the_prior() -> None:
    found = laplace_tilt(np.zeros(1), np.full(1, 1e8), np.ones(1))
    assert found.mean == 0.0
    assert found.variance == pytest.approx(2.0, rel=1e-7)


def test_mirrored() -> None:
    mean, variance = np.random.default_rng(0).normal(size=(2, 100)) * 5.0
    one = laplace_tilt(mean, variance**2, np.ones(100))
    other = laplace_tilt(-mean, variance**2, np.ones(100))
    assert np.array_equal(one.mean, -other.mean)
    assert np.array_equal(one.variance, other.variance)
    assert np.array_equal(one.log_normaliser, other.log_normaliser)


@pytest.mark.parametrize(("mean", "variance", "scale", "width"), [(1.0, 0.5, 0.3, 2.0), (-3.0, 2.0, 5.0, 0.1), (0.1, 1e-2, 1e-2, 1.0)])
def test_elastic_net(mean: float, variance: float, scale: float, width: float) -> None:
    def integral(power: int, *, normal: bool = True) -> float:
        def density(t: float) -> float:
            prior = t**power * np.exp(-abs(t) / scale - 0.5 * t**2 / width)
            return prior * np.exp(-0.5 * (t - mean) ** 2 / variance) / np.sqrt(2.0 * np.pi * variance) if normal else prior

        reach = 10.0 * np.sqrt(variance if normal else width) + abs(mean)
        return quad(density, -reach, reach, points=[0.0, mean], epsabs=0.0, epsrel=1e-11, limit=500)[0]

    mass, first, second = (integral(power) for power in range(3))
    found = elastic_net_tilt(*(np.array(each) for each in (mean, variance, scale, width)))
    assert found.log_normaliser == pytest.approx(np.log(mass / integral(0, normal=False)), abs=1e-9)
    assert found.mean == pytest.approx(first / mass, rel=1e-9)
    assert found.variance == pytest.approx(second / mass - (first / mass) ** 2, rel=1e-8)
