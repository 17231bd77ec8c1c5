"""The normal hierarchy at given values of log tau and log sigma^2: a device's likelihood, and its coefficients' posterior as a mixture."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from fedcore.compression import Compressed
from fedcore.gaussian import product
from fedcore.hm2.axis import log_likelihood, split
from fedcore.hm2.coefficients import Coefficients, Joint, Marginals
from fedcore.hm2.natural import NaturalParams, cholesky
from fedcore.hm2.outer import Integrated, NoisePrior
from fedcore.rows import Floats

DRAWS = 32
"""Nodes of the mixture: the theta of a node varies little from node to node beside its own spread."""

CHUNK = 512
"""Values of phi at a time, which bounds memory."""

NOISE_NODES, NOISE_WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
NOISE_WEIGHTS = NOISE_WEIGHTS / NOISE_WEIGHTS.sum()


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
        half = np.linalg.solve(L, residual.reshape(-1, d, 1))[..., 0]
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
    """The coefficients' posterior of m devices: at nodes of (log tau, log sigma^2) spread as the tilted distribution is, and weighed by it."""
    mixtures: list[Coefficients] = []
    for k in range(len(rows.y)):
        one = Compressed(*(np.asarray(part)[k] for part in rows))
        own = NaturalParams(cavity.shift[k], cavity.precision[k])
        mixtures.append(_mixture(prior, k, one, own, found.mean[k, d:], found.covariance[k, d:, d:], d, T))
    return mixtures


def _mixture(
    prior: NoisePrior, k: int, rows: Compressed, cavity: NaturalParams, mean: Floats, covariance: Floats, d: int, T: int
) -> Coefficients:
    z, log_proposal = _nodes(mean, covariance)
    t = z[:, :T]
    s = z[:, T] if not prior.known else np.broadcast_to(prior.mean[k], len(z))
    noise = np.exp(s)
    # The cavity of (mu, t) given s, node by node; then of mu given t.
    shift, precision = (np.repeat(part[None], len(z), axis=0) for part in cavity)
    log_density = np.zeros(len(z))
    if prior.kind == "shared":
        crossed = slice((d + T) * (d + T + 1) // 2, -1)
        shift, precision = shift[:, :-1] - precision[:, crossed] * s[:, None], precision[:, : crossed.start]
    if not prior.known:
        log_density -= 0.5 * (s - prior.mean[k]) ** 2 / prior.variance[k]
    parts, _ = split(NaturalParams(shift, precision), d)
    off = t - parts.mean_t
    log_density -= 0.5 * (off * product(parts.precision, off)).sum(axis=1)
    prior_mean = parts.mean_mu + product(parts.slope, off)
    prior_covariance = parts.covariance + np.exp(np.broadcast_to(t, (len(z), d)))[:, :, None] * np.eye(d)
    V = rows.R @ prior_covariance @ rows.R.T
    V[:, np.arange(d), np.arange(d)] += noise[:, None]
    L, _ = cholesky(0.5 * (V + V.swapaxes(1, 2)))
    LR = np.linalg.solve(L, np.broadcast_to(rows.R, V.shape))
    half = np.linalg.solve(L, (rows.y - prior_mean @ rows.R.T)[..., None])[..., 0]
    repeated = Compressed(*(np.repeat(np.asarray(part)[None], len(z), axis=0) for part in rows))
    log_density += log_likelihood(repeated, noise, L, half)
    gain = prior_covariance @ LR.swapaxes(1, 2)
    theta = prior_mean + product(gain, half)
    spread = prior_covariance - gain @ gain.swapaxes(1, 2)
    weight = _weights(log_density - log_proposal)
    variance = np.maximum(np.diagonal(spread, axis1=1, axis2=2), np.finfo(float).tiny)
    wide = np.broadcast_to(weight[:, None], theta.shape)
    marginals = Marginals(wide.copy(), theta, np.ascontiguousarray(variance), np.full_like(theta, np.inf))
    return Coefficients(marginals, Joint(weight, theta, spread, noise))


def _nodes(mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Points spread evenly over a normal distribution, with exactly its mean and covariance, and its log density there up to a constant."""
    p = len(mean)
    points = ndtri(qmc.Sobol(p, rng=0).random(DRAWS // 2))
    points = np.concatenate([points, -points])
    if len(points) > 2 * p:  # else they span too little
        points = np.linalg.solve(np.linalg.cholesky(points.T @ points / len(points)), points.T).T
    root = np.linalg.cholesky(covariance)
    return mean + points @ root.T, -0.5 * (points**2).sum(axis=1)


def _weights(log_ratio: Floats) -> Floats:
    """Importance weights, truncated at sqrt(n) times their mean, so that no node takes all (Ionides 2008)."""
    ratio = np.exp(log_ratio - log_ratio.max())
    ratio = np.minimum(ratio, np.sqrt(len(ratio)) * ratio.mean())
    return ratio / ratio.sum()
