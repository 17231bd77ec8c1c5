"""The posterior of a device's coefficients as a mixture over values of (t, s), t = log tau and s = log sigma^2, in their tilted
distribution.

The values come from a rule for the normal distribution with the tilted moments, reweighted by how that differs from the tilted density,
which is known. The rule has points that fill the cube evenly and their mirror images, mapped so that mean and covariance are exact: where
the tilted distribution is normal, functions of up to third order are averaged without error. Unlike Gauss-Hermite rules it can have any
number of points in any number of dimensions, all with positive weights.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import stdtrit

from fedcore.compression import Compressed
from fedcore.gaussian import expected, product
from fedcore.hm2.cholesky import cholesky
from fedcore.hm2.coefficients import Coefficients, Joint, Marginals
from fedcore.hm2.conditional import Cavity
from fedcore.rows import Booleans, Floats

COMPONENTS = 128
"""Of a mixture where sigma is known, and there are at most 51 values to integrate over."""

NOISE_NODES, NOISE_WEIGHTS = hermegauss(15)
"""Where sigma is not known, a quarter of these at each node of a rule for s: few rows leave s a heavy tail, which points that are spread
over all dimensions do not fill."""

MOST_AXES = 40
"""Of t, up to which s has a rule of its own: the points that fill so many dimensions, at each of its nodes, would be too many."""

BLOCK = 2**22
"""Largest number of entries of matrices that components are found for at once."""

LEAST_WEIGHT = 1e-6
"""Components with less are left out."""


def cube(count: int, dimensions: int) -> Floats:
    """Points that fill the unit cube evenly, shape (count, dimensions)."""
    # An additive recurrence; its steps are powers of the root of x^(dimensions + 1) = x + 1, which is the golden ratio for one.
    root = 2.0
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    return (0.5 + np.arange(1, count + 1)[:, None] * root ** -np.arange(1.0, dimensions + 1)) % 1.0


@cache
def normal_rule(dimensions: int, components: int) -> tuple[Floats, Floats]:
    """Points, shape (J, dimensions), and log weights, shape (J,), of a rule for the standard normal distribution; J is `components`,
    or more where so few would not fill so many dimensions.

    Points are spread by Student's t, less heavily the more dimensions there are to be unlucky in: variances are exponentials of t and s, so
    expectations of coefficients' squares lean on the tails.
    """
    even = cube(max(components // 2, dimensions + dimensions // 4), dimensions)
    freedom = 3.0 + dimensions
    points: Floats = np.asarray(stdtrit(freedom, even), float)
    log_weight = (0.5 * (freedom + 1.0) * np.log1p(points**2 / freedom) - 0.5 * points**2).sum(axis=1)
    points, log_weight = np.concatenate([points, -points]), np.concatenate([log_weight, log_weight])
    log_weight -= np.log(np.exp(log_weight).sum())
    second: Floats = np.asarray((points.T * np.exp(log_weight)) @ points, float)
    factor = np.linalg.cholesky(second)
    points = np.ascontiguousarray(np.linalg.solve(factor, points.T).T, float)
    points.flags.writeable = log_weight.flags.writeable = False
    return points, log_weight


@cache
def product_rule(axes: int) -> tuple[Floats, Floats]:
    """Nodes, shape (q, axes + 1), and logs of weights, shape (q,), of a Gauss-Hermite rule in the first dimension, and the rule above in
    all others; in many dimensions the rule above in all."""
    if axes > MOST_AXES:
        return normal_rule(axes + 1, COMPONENTS)
    points, log_weight = normal_rule(axes, COMPONENTS // 4)
    repeated = np.repeat(np.column_stack([NOISE_NODES, np.log(NOISE_WEIGHTS / NOISE_WEIGHTS.sum())]), len(points), axis=0)
    J = len(NOISE_NODES)
    return np.column_stack([repeated[:, 0], np.tile(points, (J, 1))]), repeated[:, 1] + np.tile(log_weight, J)


@np.errstate(all="ignore")  # components of which something is not finite have no weight
def mixture(rows: Compressed, cavity: Cavity, mean: Floats, covariance: Floats, each: Floats, *, known: bool) -> Coefficients:
    """Of one device.

    Parameters
    ----------
    rows, cavity
        Of one device, with a leading axis of length 1.
    mean, covariance
        Tilted moments of (t, s), shapes (a + 1,) and (a + 1, a + 1); of t only, then s, where s is known: its row is not read.
    each
        The matrix, shape (d, a), that takes t to one value for each coefficient.
    known
        Whether s is known, and `mean` ends with it.
    """
    d, axes = each.shape
    points, log_weight = normal_rule(axes, COMPONENTS) if known else product_rule(axes)
    # s first, so that its rule is on s alone.
    order = [*range(axes)] if known else [axes, *range(axes)]
    factor, _ = cholesky(covariance[None][:, order][:, :, order])
    values = np.broadcast_to(mean, (len(points), axes + 1)).copy()
    values[:, order] += points @ factor[0].T
    t, s = np.ascontiguousarray(values[:, :axes]), values[:, axes].copy()

    size = max(1, BLOCK // d**2)
    blocks = (slice(start, start + size) for start in range(0, len(s), size))
    parts = zip(*(_components(rows, cavity, t[block], s[block], each) for block in blocks), strict=True)
    log_density, centre, spread = (np.concatenate(part) for part in parts)
    log_weight = log_weight + log_density + 0.5 * (points**2).sum(axis=1)
    if not known:
        log_weight -= 0.5 * (s - cavity.noise_mean) ** 2 / cavity.noise_variance
    return _coefficients(log_weight, centre, spread, s)


@np.errstate(all="ignore")  # as above
def mixture_at(rows: Compressed, mu: Floats, tau: Floats, noise: Floats, log_weight: Floats) -> Coefficients:
    """Of one device, given J values of phi and sigma^2.

    Parameters
    ----------
    rows
        Of one device, with a leading axis of length 1.
    mu, tau
        Of the device's coefficients, shape (J, d).
    noise
        sigma^2, shape (J,).
    log_weight
        Of the values, shape (J,).
    """
    size = max(1, BLOCK // mu.shape[1] ** 2)
    blocks = (slice(start, start + size) for start in range(0, len(mu), size))
    found = [expected(rows, mu[block], np.sqrt(tau[block])[:, :, None] * np.eye(mu.shape[1]), noise[block]) for block in blocks]
    centre, spread = mu + np.concatenate([each.b for each in found]), np.concatenate([each.covariance for each in found])
    return _coefficients(log_weight, centre, spread, np.log(noise))


def _coefficients(log_weight: Floats, centre: Floats, spread: Floats, s: Floats) -> Coefficients:
    """From J components, of which those that are not finite have no weight."""
    sound = _finite(centre) & _finite(spread.reshape(len(s), -1)) & np.isfinite(log_weight)
    log_weight = np.where(sound, log_weight, -np.inf) if sound.any() else np.zeros(len(s))
    weight = np.exp(log_weight - log_weight.max())
    kept = weight > LEAST_WEIGHT * weight.sum()
    weight, centre, spread, s = weight[kept] / weight[kept].sum(), centre[kept], spread[kept], s[kept]
    variance = np.ascontiguousarray(np.diagonal(spread, axis1=1, axis2=2))
    shape = centre.shape
    marginals = Marginals(np.broadcast_to(weight[:, None], shape).copy(), centre, variance, np.full(shape, np.inf))
    return Coefficients(marginals, Joint(weight, centre, spread, np.exp(s)))


def _components(rows: Compressed, cavity: Cavity, t: Floats, s: Floats, each: Floats) -> tuple[Floats, Floats, Floats]:
    """log density of rows and t, and mean and covariance of the coefficients, at each of J values; NaN where there is none."""
    d = len(each)
    given = cavity.given(s[None], d)
    offset = t - given.t
    root, sound = cholesky(given.C + np.exp(t @ each.T)[:, :, None] * np.eye(d))
    prior_mean = given.mu + product(given.G, offset)
    found = expected(rows, prior_mean, root, np.exp(s))
    log_density = found.log_likelihood + given.log_density(offset)
    return np.where(sound, log_density, np.nan), prior_mean + found.b, found.covariance


def _finite(array: Floats) -> Booleans:
    return np.asarray(np.isfinite(array).all(axis=1))
