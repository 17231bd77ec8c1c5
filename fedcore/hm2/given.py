"""The normal hierarchy at given values of log tau and log sigma^2: a device's likelihood, and its coefficients' posterior as a mixture."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from fedcore.compression import Compressed
from fedcore.gaussian import product
from fedcore.hm2.axis import log_likelihood, split
from fedcore.hm2.coefficients import Coefficients, Joint, Marginals
from fedcore.hm2.natural import NaturalParams, cholesky, solved
from fedcore.hm2.outer import Integrated, NoisePrior
from fedcore.hm2.quadrature import gauss_hermite
from fedcore.rows import Floats

DRAWS = 16
"""Nodes of the mixture: the theta of a node varies little from node to node beside its own spread."""

CHUNK, DEVICES = 512, 256
"""Values of phi, and devices, at a time, which bounds memory."""

NOISE_NODES, NOISE_WEIGHTS = gauss_hermite(15)


def log_factors(rows: Compressed, mean: Floats, log_tau: Floats, noise: Floats) -> Floats:
    """log N(y_k; X_k mu, X_k diag(tau) X_k' + noise I) of m devices, shape (m, S).

    Parameters
    ----------
    rows
        Of m devices.
    mean, log_tau
        Shapes (S, d), and (S, d) or (S, 1).
    noise
        Variances, shape (m, S).
    """
    m, d = rows.y.shape
    found = np.empty((m, len(mean)))
    for begin in range(0, len(mean), CHUNK):
        part = slice(begin, begin + CHUNK)
        tau, residual = np.exp(log_tau[part]), rows.y[:, None] - mean[part] @ rows.R.swapaxes(1, 2)
        S = residual.shape[1]
        tau = np.broadcast_to(tau, (S, d))
        V = (rows.R[:, None] * tau[:, None, :]) @ rows.R.swapaxes(1, 2)[:, None]
        V[:, :, np.arange(d), np.arange(d)] += noise[:, part, None]
        L, proper = cholesky(V.reshape(-1, d, d))
        half = solved(L, residual.reshape(-1, d))
        repeated = Compressed(*(np.repeat(np.asarray(field), S, axis=0) for field in rows))
        value = log_likelihood(repeated, np.ascontiguousarray(noise[:, part]).reshape(-1), L, half)
        found[:, part] = np.where(proper, value, -np.inf).reshape(m, S)
    return found


def without_own_noise(rows: Compressed, mean: Floats, log_tau: Floats, sd: float) -> Floats:
    """The same with a device's own noise variance integrated out, log sigma_k^2 ~ N(0, sd^2), shape (m, S)."""
    m, S = len(rows.y), len(mean)
    told = 0.5 * np.asarray(rows.freedom)
    precision = 1.0 / sd**2 + told
    guess = np.asarray(rows.rss) / np.maximum(np.asarray(rows.freedom), 1.0)
    centre = told * np.log(np.maximum(guess, np.finfo(float).tiny)) / precision
    scale = 1.5 / np.sqrt(precision)
    total = np.empty((len(NOISE_NODES), m, S))
    for j, (node, weight) in enumerate(zip(NOISE_NODES, NOISE_WEIGHTS, strict=True)):
        s = centre + scale * node
        log_weight = np.log(weight * scale / sd) + 0.5 * node**2 - 0.5 * (s / sd) ** 2
        total[j] = log_weight[:, None] + log_factors(rows, mean, log_tau, np.broadcast_to(np.exp(s)[:, None], (m, S)))
    return np.asarray(logsumexp(total, axis=0))


def coefficients(prior: NoisePrior, rows: Compressed, cavity: NaturalParams, found: Integrated, d: int, T: int) -> list[Coefficients]:
    """The coefficients' posterior of m devices: at nodes of (log tau, log sigma^2) that are spread as the tilted distribution is, each with
    its weight in it."""
    mixtures: list[Coefficients] = []
    for begin in range(0, len(rows.y), DEVICES):
        some = slice(begin, begin + DEVICES)
        part = Compressed(*(np.asarray(field)[some] for field in rows))
        given = NaturalParams(*(field[some] for field in cavity))
        own = NoisePrior(prior.kind, prior.mean[some], prior.variance[some])
        mixtures += _mixtures(own, part, given, found.mean[some, d:], found.covariance[some, d:, d:], d, T)
    return mixtures


def _mixtures(
    prior: NoisePrior, rows: Compressed, cavity: NaturalParams, mean: Floats, covariance: Floats, d: int, T: int
) -> list[Coefficients]:
    m, points = len(mean), _points(mean.shape[1])
    J = len(points)
    root, _ = cholesky(covariance)
    z = (mean[:, None] + points @ root.swapaxes(1, 2)).reshape(m * J, -1)
    log_weight = np.tile(0.5 * (points**2).sum(axis=1), m)
    t = z[:, :T]
    about, spread = (np.repeat(each, J) for each in prior[1:])
    s = about if prior.known else z[:, T]
    noise = np.exp(s)
    # The cavity of (mu, t) given s, node by node; then of mu given t.
    shift, precision = (np.repeat(part, J, axis=0) for part in cavity)
    if prior.kind == "shared":
        crossed = slice((d + T) * (d + T + 1) // 2, -1)
        shift, precision = shift[:, :-1] - precision[:, crossed] * s[:, None], precision[:, : crossed.start]
    if not prior.known:
        log_weight -= 0.5 * (s - about) ** 2 / spread
    parts, _ = split(NaturalParams(shift, precision), d)
    off = t - parts.mean_t
    log_weight -= 0.5 * (off * product(parts.precision, off)).sum(axis=1)
    prior_mean, prior_covariance = parts.mean_mu + product(parts.slope, off), parts.covariance.copy()
    prior_covariance[:, np.arange(d), np.arange(d)] += np.exp(t)
    own = Compressed(*(np.repeat(np.asarray(part), J, axis=0) for part in rows))
    V = own.R @ prior_covariance @ own.R.swapaxes(1, 2)
    V[:, np.arange(d), np.arange(d)] += noise[:, None]
    L, _ = cholesky(0.5 * (V + V.swapaxes(1, 2)))
    LR = solved(L, own.R)
    half = solved(L, own.y - product(own.R, prior_mean))
    log_weight += log_likelihood(own, noise, L, half)
    gain = prior_covariance @ LR.swapaxes(1, 2)
    theta = (prior_mean + product(gain, half)).reshape(m, J, d)
    within = (prior_covariance - gain @ gain.swapaxes(1, 2)).reshape(m, J, d, d)
    variance = np.maximum(np.diagonal(within, axis1=2, axis2=3), np.finfo(float).tiny)
    weight, noise = _weights(log_weight.reshape(m, J)), noise.reshape(m, J)
    wide, unbounded = np.repeat(weight[..., None], d, axis=2), np.full((J, d), np.inf)
    marginals = [Marginals(wide[k], theta[k], variance[k], unbounded) for k in range(m)]
    return [Coefficients(each, Joint(weight[k], theta[k], within[k], noise[k])) for k, each in enumerate(marginals)]


@cache
def _points(p: int) -> Floats:
    """Points spread evenly over the standard normal distribution of p dimensions, with exactly its mean and covariance, shape (J, p)."""
    drawn = ndtri(qmc.Sobol(p, rng=0).random(DRAWS // 2 if 2 * p < DRAWS else 1 << p.bit_length()))
    points = np.concatenate([drawn, -drawn])
    return solved(cholesky(points.T @ points / len(points))[0], points.T).T


def _weights(log_ratio: Floats) -> Floats:
    """Importance weights, shape (m, J), truncated at sqrt(n) times their mean, so that no node takes all (Ionides 2008)."""
    ratio = np.exp(log_ratio - log_ratio.max(axis=1, keepdims=True))
    ratio = np.minimum(ratio, np.sqrt(ratio.shape[1]) * ratio.mean(axis=1, keepdims=True))
    return ratio / ratio.sum(axis=1, keepdims=True)
