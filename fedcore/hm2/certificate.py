"""A check of the approximation against the exact posterior of phi, by importance sampling, and what it mends.

Draws are spread around q by a t distribution, which has heavier tails than q. Server and devices make the same ones from q and a seed that
is fixed, so that only q travels; a device answers log f_k at each. Their sum over devices and the prior give the exact posterior there, up
to a constant, and the draws' weights. The largest weights are replaced by quantiles of the generalised Pareto distribution fitted to them,
whose shape k tells how far the weights can be trusted: below 0.7 moments by the weights are reliable.

That is for small fleets. In large ones q itself is nearly exact, and the weights say less than it does.

Sources: Vehtari, Simpson, Gelman, Yao and Gabry (2024) for Pareto smoothing; Zhang and Stephens (2009) for the fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.hm2.cholesky import cholesky, log_determinant
from fedcore.hm2.natural import NaturalParams, moments
from fedcore.rows import Floats

DRAWS, FREEDOM, SEED = 4000, 8.0, 0
RELIABLE = 0.7

LEAST = -1e300
"""Stands for a log likelihood of minus infinity in messages."""


class Certificate(NamedTuple):
    """What the draws say of phi.

    Attributes
    ----------
    k
        Shape of the Pareto distribution of their largest weights; NaN where there are none.
    effective
        How many independent draws they are worth.
    mean, covariance
        Of phi by their weights, shapes (p,) and (p, p).
    points, weight
        The draws, shape (S, p), and their weights, shape (S,), for quantiles.
    """

    k: float
    effective: float
    mean: Floats
    covariance: Floats
    points: Floats
    weight: Floats

    @property
    def reliable(self) -> bool:
        """Whether moments by the weights are to be used."""
        return self.k < RELIABLE

    def quantiles(self, below: float) -> Floats:
        """Of each component of phi, shape (p,)."""
        order = np.argsort(self.points, axis=0)
        cumulated = np.cumsum(self.weight[order], axis=0)
        middle = cumulated - 0.5 * self.weight[order]
        points = np.take_along_axis(self.points, order, axis=0)
        return np.array([np.interp(below, middle[:, i], points[:, i]) for i in range(points.shape[1])])


def no_certificate(p: int) -> Certificate:
    """That of a run that asks for none."""
    return Certificate(np.nan, np.nan, np.zeros(p), np.zeros((p, p)), np.zeros((0, p)), np.zeros(0))


def draws(q: NaturalParams) -> Floats:
    """The draws around q, shape (S, p)."""
    return _spread(q)[0]


def _spread(q: NaturalParams) -> tuple[Floats, Floats]:
    """The draws and their log density."""
    found, rng, p = moments(q), np.random.default_rng(SEED), len(q.shift)
    root, _ = cholesky(found.covariance)
    normal, chi = rng.standard_normal((DRAWS // 2, p)), rng.chisquare(FREEDOM, DRAWS // 2)
    away = normal * np.sqrt(FREEDOM / chi)[:, None]
    away = np.concatenate([away, -away])
    # Constants of the t distribution cancel in the weights.
    log_density = -0.5 * (FREEDOM + p) * np.log1p((away**2).sum(axis=1) / FREEDOM) - 0.5 * log_determinant(root)
    return found.mean + away @ root.T, log_density


def certified(q: NaturalParams, log_posterior: Floats) -> Certificate:
    """The certificate from the exact posterior's log density at the draws, up to a constant, shape (S,)."""
    points, log_proposal = _spread(q)
    weight, k = smoothed(log_posterior - log_proposal)
    mean = weight @ points
    away = points - mean
    return Certificate(k, float(1.0 / (weight**2).sum()), mean, (away * weight[:, None]).T @ away, points, weight)


def smoothed(log_weight: Floats) -> tuple[Floats, float]:
    """Weights that sum to 1, the largest of them smoothed, and the shape k of their tail."""
    S = len(log_weight)
    ratio = np.exp(log_weight - log_weight.max())
    tail = int(min(0.2 * S, 3.0 * np.sqrt(S)))
    order = np.argsort(ratio)
    cutoff, largest = ratio[order[-tail - 1]], order[-tail:]
    above = ratio[largest] - cutoff
    if tail < 5 or above[-1] <= 0 or cutoff <= 0:
        return ratio / ratio.sum(), np.inf
    k, sigma = _pareto(above[above > 0])
    level = (np.arange(1, tail + 1) - 0.5) / tail
    quantile = cutoff + sigma * np.expm1(-k * np.log1p(-level)) / k
    ratio[largest] = np.minimum(quantile, 1.0)
    return ratio / ratio.sum(), k


def _pareto(above: Floats) -> tuple[float, float]:
    """Shape and scale of the generalised Pareto distribution, from values above 0, ascending; with a weak prior of the shape at 1/2."""
    n = len(above)
    count = 30 + int(np.sqrt(n))
    theta = 1.0 / above[-1] + (1.0 - np.sqrt(count / (np.arange(1, count + 1) - 0.5))) / (3.0 * above[(n + 2) // 4 - 1])
    shape = np.log1p(-theta[:, None] * above).mean(axis=1)
    log_likelihood = n * (np.log(-theta / shape) - shape - 1.0)
    weight = 1.0 / np.exp(log_likelihood - log_likelihood[:, None]).sum(axis=1)
    found = float((theta * weight).sum() / weight.sum())
    k = float(np.log1p(-found * above).mean())
    sigma = -k / found
    return (k * n + 0.5 * 10.0) / (n + 10.0), sigma
