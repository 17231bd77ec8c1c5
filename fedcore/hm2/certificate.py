"""A check of the approximation against the exact posterior of phi, by importance sampling, and what it mends.

Draws come from a mixture of t distributions, which have heavier tails than normal ones: around each approximation that was found, and
around the prior, so that a mode that none of them has seen is met too, and that no weight is unbounded. Server and devices make the same
draws from the mixture's parameters, which are all that travels; a device answers log f_k at each. Their sum over devices and the prior give
the exact posterior there, up to a constant, and the draws' weights. While that gains much the mixture is fitted to the weighted draws, and
devices are asked again.

The largest weights are replaced by quantiles of the generalised Pareto distribution fitted to them, whose shape k tells how far the weights
can be trusted: below 0.7 moments by the weights are reliable.

Sources: Vehtari, Simpson, Gelman, Yao and Gabry (2024) for Pareto smoothing; Zhang and Stephens (2009) for the fit; Cappé, Douc, Guillin,
Marin and Robert (2008) for the mixture's; Owen and Zhou (2000) for the prior in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lgamma
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv, logsumexp, ndtri

from fedcore.hm2.cholesky import cholesky, log_determinant
from fedcore.hm2.natural import NaturalParams, moments
from fedcore.hm2.nodes import cube
from fedcore.rows import Floats

MOST_DRAWS, DRAWS_A_NUMBER, FREEDOM = 8000, 2000, 8.0
"""Draws of a look, and how many for each number in phi where that is fewer; and the degrees of freedom of the t distributions."""

RELIABLE, SOUND = 0.7, 0.5
"""Largest k of weights that can be used, and of those that leave nothing to wish for."""

ELSEWHERE_SHARE, KEPT_SHARE = 0.15, 0.1
"""Of the draws: from where else the posterior may be, a part that moves to where draws have weight, and from the prior all along."""

LOOKS, ENOUGH, GAIN = 8, 2500.0, 1.9
"""How often devices are asked at most; how many independent draws are enough; and the factor by which a look has to raise these, once the
draws are reliable, for there to be another: a second one of the same kind does, a third does not."""

LEAST_SHARE, OWN_WORTH = 0.05, 0.25
"""Of a part of the mixture; and how many independent draws for each number in its covariance that counts for when it is fitted."""

SLIM = 3.0
"""How many more strips than parts of a strip there are, where phi has two numbers."""

TINY = float(np.finfo(float).tiny)

LEAST, UNKNOWN = -1e290, 1e300
"""Stand in messages for a log likelihood of minus infinity, and for one that a device could not find. No fleet has so many of the first
that they would hide one of the second in the sum."""


class Spread(NamedTuple):
    """A mixture of C multivariate t distributions, the last of which is the prior's.

    Attributes
    ----------
    pairs
        How many draws come from each, in pairs of mirror images, shape (C,).
    mean, covariance
        Centres, shape (C, p), and covariances of the normal distributions that they spread, shape (C, p, p).
    """

    pairs: Floats
    mean: Floats
    covariance: Floats

    @property
    def size(self) -> int:
        """S, of all draws."""
        return 2 * int(self.pairs.sum())


class Certificate(NamedTuple):
    """What the draws say of phi.

    Attributes
    ----------
    k
        Shape of the Pareto distribution of their largest weights; NaN where there are none.
    effective
        How many independent draws they are worth; NaN where a device could not find its likelihood at some, and nothing is known.
    log_evidence
        log of the integral of the prior times all f_k.
    mean, covariance
        Of phi by their weights, shapes (p,) and (p, p).
    points, weight
        The draws, shape (S, p), and their weights, shape (S,).
    spread, log_posterior
        What they come from, and log of the prior's density times all f_k at each, shape (S,).
    """

    k: float
    effective: float
    log_evidence: float
    mean: Floats
    covariance: Floats
    points: Floats
    weight: Floats
    spread: Spread
    log_posterior: Floats

    @property
    def reliable(self) -> bool:
        """Whether moments by the weights are to be used."""
        return self.k < RELIABLE

    @property
    def tail(self) -> float:
        """k of the weights times the squared distance of a number in phi from its mean, the largest of all numbers: where moments by the
        weights can be used, this tells whether the standard deviations among them can."""
        away = (self.points - self.mean) / np.sqrt(np.diagonal(self.covariance))
        log_weight = np.log(np.maximum(self.weight, TINY))
        return max(smoothed(log_weight + np.log(np.maximum(each**2, TINY)))[1] for each in away.T)

    @property
    def sound(self) -> bool:
        """Whether there is no need for another look."""
        return self.k < SOUND and self.effective >= ENOUGH

    def gains(self, before: Certificate) -> bool:
        """Whether it is so much better than the one before, or still so bad, that another look is worth while."""
        return self.known and (not self.reliable or self.effective > GAIN * before.effective)

    @property
    def known(self) -> bool:
        """Whether every device could find its likelihood at every draw."""
        return not np.isnan(self.effective)

    def quantiles(self, below: float) -> Floats:
        """Of each component of phi, shape (p,)."""
        order = np.argsort(self.points, axis=0)
        cumulated = np.cumsum(self.weight[order], axis=0)
        middle = cumulated - 0.5 * self.weight[order]
        points = np.take_along_axis(self.points, order, axis=0)
        return np.array([np.interp(below, middle[:, i], points[:, i]) for i in range(points.shape[1])])

    def sample(self, count: int) -> Floats:
        """Values of equal weight that stand for phi in place of an approximation, shape (T, p), T near `count`; none, T = 0, if draws are
        not reliable."""
        if not self.reliable:
            return self.points[:0]
        away = (self.points - self.mean) / np.sqrt(np.diagonal(self.covariance))
        _, directions = np.linalg.eigh((away * self.weight[:, None]).T @ away)
        along = away @ directions[:, ::-1]
        order = np.argsort(along[:, 0])
        if along.shape[1] != 2:  # draws, evenly along the direction in which they differ most
            chosen = np.searchsorted(np.cumsum(self.weight[order]), (np.arange(count) + 0.5) / count)
            return self.points[order[np.minimum(chosen, len(order) - 1)]]
        # Means of draws, in strips across that direction, and in parts of each.
        strips = max(1, round(np.sqrt(SLIM * count)))
        parts = max(1, round(count / strips))
        means: list[Floats] = []
        for share in _equal_parts(self.weight[order], strips):
            some = np.flatnonzero(share)
            some = some[np.argsort(along[order[some], 1])]
            means += [part @ self.points[order[some]] / part.sum() for part in _equal_parts(share[some], parts)]
        return np.array(means)


def _equal_parts(weight: Floats, parts: int) -> Floats:
    """Weights cut into parts of the same sum, in this order, shape (parts, S); one that a cut goes through is in two."""
    upper = np.cumsum(weight)
    cuts = np.linspace(0.0, float(upper[-1]), parts + 1)[:, None]
    below = np.clip(cuts - (upper - weight), 0.0, weight)
    return np.asarray(np.diff(below, axis=0), float)


def no_certificate(p: int) -> Certificate:
    """That of a run that asks for none."""
    spread = Spread(np.zeros(0), np.zeros((0, p)), np.zeros((0, p, p)))
    return Certificate(np.nan, 0.0, np.nan, np.zeros(p), np.zeros((p, p)), np.zeros((0, p)), np.zeros(0), spread, np.zeros(0))


def prior_spread(prior: NaturalParams) -> Spread:
    """The prior's part alone."""
    of = moments(prior)
    return Spread(np.ones(1), of.mean[None], of.covariance[None])


def first_spread(prior: Spread, found: Sequence[NaturalParams], elsewhere: NaturalParams | None) -> Spread:
    """The mixture that a check begins with, from the prior's part, approximations, and where else the posterior may be: by default anywhere
    that the prior is."""
    parts = [moments(each) for each in found]
    last = moments(elsewhere) if elsewhere else None
    share = np.array([*[(1.0 - ELSEWHERE_SHARE - KEPT_SHARE) / len(found)] * len(found), ELSEWHERE_SHARE, KEPT_SHARE])
    mean, covariance = (last.mean, last.covariance) if last else (prior.mean[0], prior.covariance[0])
    means = np.array([*(part.mean for part in parts), mean, prior.mean[0]])
    covariances = np.array([*(part.covariance for part in parts), covariance, prior.covariance[0]])
    return _spread(share, means, covariances)


def _spread(share: Floats, mean: Floats, covariance: Floats) -> Spread:
    count = min(MOST_DRAWS, DRAWS_A_NUMBER * mean.shape[1])
    return Spread(np.rint(0.5 * count * share), mean, covariance)


def draws(spread: Spread) -> Floats:
    """The draws, shape (S, p): points that fill each part of the mixture evenly, and their mirror images."""
    p = spread.mean.shape[1]
    roots, _ = cholesky(spread.covariance)
    drawn: list[Floats] = []
    for pairs, mean, root in zip(spread.pairs.astype(int).tolist(), spread.mean, roots, strict=True):
        even = cube(pairs, p + 1)
        away = ndtri(even[:, :p]) * np.sqrt(0.5 * FREEDOM / gammaincinv(0.5 * FREEDOM, even[:, p]))[:, None]
        drawn += [mean + away @ root.T, mean - away @ root.T]
    return np.concatenate(drawn)


def certified(before: Certificate, spread: Spread, log_posterior: Floats) -> Certificate:
    """The certificate after another look.

    Parameters
    ----------
    before
        What it adds to.
    spread, log_posterior
        What its draws came from, and log of the prior's density times all f_k at each, shape (S,).
    """
    # All draws together are one sample of one mixture, whoever came first: what an early look missed gets no weight by that.
    whole = Spread(*(np.concatenate(parts) for parts in zip(before.spread, spread, strict=True)))
    points, values = np.concatenate([before.points, draws(spread)]), np.concatenate([before.log_posterior, log_posterior])
    if (values > 0.5 * UNKNOWN).any():
        return before._replace(k=np.inf, effective=np.nan)
    log_weight = values - logsumexp(_log_joint(whole, points), axis=1)
    weight, k = smoothed(log_weight)
    top, mean = log_weight.max(), weight @ points
    away = points - mean
    evidence = float(top + np.log(np.exp(log_weight - top).mean()))
    covariance = (away * weight[:, None]).T @ away
    return Certificate(k, float(1.0 / (weight**2).sum()), evidence, mean, covariance, points, weight, whole, values)


def fitted(spread: Spread, found: Certificate) -> Spread:
    """The mixture of the last look after a step of expectation maximisation, on weighted draws; the prior's part stays."""
    points, weight, p = found.points, found.weight, spread.mean.shape[1]
    log_joint = _log_joint(spread, points)
    whose = np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True))[:, :-1] * weight[:, None]
    near = whose * (FREEDOM + p) / (FREEDOM + _distances(spread, points)[:, :-1])
    means, covariances = spread.mean.copy(), spread.covariance.copy()
    for c in range(whose.shape[1]):
        # What few draws speak of would collapse onto these, had it no weight of its own.
        worth = whose[:, c].sum() ** 2 / max((whose[:, c] ** 2).sum(), TINY)
        own = OWN_WORTH * p**2 / (OWN_WORTH * p**2 + worth)
        if near[:, c].sum() > TINY:
            means[c] = near[:, c] @ points / near[:, c].sum()
            away = points - means[c]
            covariances[c] = own * covariances[c] + (1.0 - own) * (away * near[:, c, None]).T @ away / whose[:, c].sum()
    share = np.maximum(whose.sum(axis=0), LEAST_SHARE)
    return _spread(np.append(share * (1.0 - KEPT_SHARE) / share.sum(), KEPT_SHARE), means, covariances)


def _distances(spread: Spread, points: Floats) -> Floats:
    """Squared, of S points from each centre, by its covariance: shape (S, C)."""
    roots, _ = cholesky(spread.covariance)
    found = np.empty((len(points), len(roots)))
    for c, (root, mean) in enumerate(zip(roots, spread.mean, strict=True)):
        white: Floats = np.asarray(np.linalg.solve(root, (points - mean).T), float)
        found[:, c] = (white**2).sum(axis=0)
    return found


def _log_joint(spread: Spread, points: Floats) -> Floats:
    """log density of each part of the mixture, times its share, at S points, shape (S, C)."""
    p, (roots, _) = points.shape[1], cholesky(spread.covariance)
    constant = lgamma(0.5 * (FREEDOM + p)) - lgamma(0.5 * FREEDOM) - 0.5 * p * np.log(np.pi * FREEDOM)
    constants = constant - 0.5 * log_determinant(roots) + np.log(spread.pairs / spread.pairs.sum())
    return constants - 0.5 * (FREEDOM + p) * np.log1p(_distances(spread, points) / FREEDOM)


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


@np.errstate(over="ignore")  # a shape that is far less likely than another has no weight
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
