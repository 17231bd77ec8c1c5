"""Tilted moments of a device under theta_k ~ N(mu, tau I), phi = (mu, t) with one t = log tau, for a known noise variance.

mu given t is integrated exactly, and t by a Gauss-Hermite rule: with one tau for all coefficients the covariance of y changes by more than
rank one from node to node, so each has a Cholesky factor of its own.
"""

from __future__ import annotations

import numpy as np

from fedcore.compression import Compressed
from fedcore.gaussian import product
from fedcore.hm2.axis import Split, TiltedMoments, log_likelihood
from fedcore.hm2.natural import cholesky, solved
from fedcore.hm2.quadrature import gauss_hermite
from fedcore.rows import Floats

NODES, WEIGHTS = gauss_hermite(7)


@np.errstate(all="ignore")  # what is not finite is found at the end
def line_moments(rows: Compressed, noise: Floats, cavity: Split, centre: Floats, scale: Floats) -> TiltedMoments:
    """Tilted moments by the rule on the line; see `fedcore.hm2.axis.axis_moments`, with T = 1."""
    B, d, J = *rows.y.shape, len(NODES)
    R, y, C, G = rows.R[:, None], rows.y[:, None], cavity.covariance[:, None], cavity.slope[:, None, :, 0]
    t = centre + scale * NODES
    off = t - cavity.mean_t
    start = cavity.mean_mu[:, None] + G * off[..., None]
    transposed = R.swapaxes(2, 3)
    V = R @ C @ transposed + np.exp(t)[:, :, None, None] * (R @ transposed)
    V[:, :, np.arange(d), np.arange(d)] += noise[:, None, None]
    L, proper = cholesky((0.5 * (V + V.swapaxes(2, 3))).reshape(B * J, d, d))
    residual = (y - product(R, start)).reshape(B * J, d)
    half = solved(L, residual)
    LR = solved(L, np.repeat(rows.R, J, axis=0))
    repeated = Compressed(*(np.repeat(np.asarray(part), J, axis=0) for part in rows))
    log_density = log_likelihood(repeated, np.repeat(noise, J), L, half).reshape(B, J) - 0.5 * cavity.precision[:, 0] * off**2
    relative = log_density + 0.5 * NODES**2
    highest = relative.max(axis=1, keepdims=True)
    weight = WEIGHTS * np.exp(relative - highest)
    mass = weight.sum(axis=1, keepdims=True)
    weight /= mass
    log_evidence = (highest + np.log(mass))[:, 0] + np.log(scale[:, 0]) + 0.5 * np.log(cavity.precision[:, 0, 0])

    mean_t = (weight * t).sum(axis=1)
    away_t = t - mean_t[:, None]
    v = (weight * away_t**2).sum(axis=1)
    transposed_LR = LR.swapaxes(1, 2)
    given = start + product(C, product(transposed_LR, half).reshape(B, J, d))
    mean_mu = (weight[:, None] @ given)[:, 0]
    away = given - mean_mu[:, None]
    W = ((weight[:, None] @ (transposed_LR @ LR).reshape(B, J, d * d))[:, 0]).reshape(B, d, d)
    covariance = np.empty((B, d + 1, d + 1))
    weighted = (away * weight[..., None]).swapaxes(1, 2)
    covariance[:, :d, :d] = cavity.covariance - cavity.covariance @ W @ cavity.covariance + weighted @ away
    covariance[:, :d, d] = covariance[:, d, :d] = product(weighted, away_t)
    covariance[:, d, d] = v
    covariance = 0.5 * (covariance + covariance.swapaxes(1, 2))
    mean, sd = np.column_stack([mean_mu, mean_t]), np.sqrt(v)[:, None]
    shift = np.maximum(np.abs(mean_t - centre[:, 0]) / scale[:, 0], np.abs(np.log(sd / scale))[:, 0])
    middle = slice(J // 2, None, J)
    error = noise[:, None] * solved(L[middle].swapaxes(1, 2), half[middle])
    finite = np.isfinite(mean).all(axis=1) & np.isfinite(covariance).all(axis=(1, 2)) & np.isfinite(log_evidence)
    return TiltedMoments(log_evidence, mean, covariance, sd, shift, error, finite & proper.reshape(B, J).all(axis=1) & (v > 0))
