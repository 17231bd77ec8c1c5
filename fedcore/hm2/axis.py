"""Tilted moments of a device under theta_k ~ N(mu, diag tau), phi = (mu, t) with t = log tau, for a known noise variance.

With theta_k and mu integrated out exactly, what is left is a density of t, of d dimensions. It is integrated along each axis by a
Gauss-Hermite rule, on which tau_i moves alone: a change of rank one to the covariance of y, so that one Cholesky factor serves all nodes.
A slice gives the mean e_i and the variance v_i that t_i has given the others. With the curvature between axes at the centre, these
make up a precision matrix, 1 / v_i on its diagonal, and a mean: exact where the density is normal.

All functions work on B devices, or on devices and nodes of an outer rule, at once, with a leading axis.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.compression import Compressed
from fedcore.gaussian import product
from fedcore.hm2.natural import LOG_2PI, NaturalParams, cholesky, inverse, logdet, solved
from fedcore.hm2.quadrature import gauss_hermite
from fedcore.rows import Booleans, Floats, Indices

NODES, WEIGHTS = gauss_hermite(5)


class Split(NamedTuple):
    """A normal distribution of phi = (mu, t) as mu given t, N(mean_mu + slope (t - mean_t), covariance), and t, N(mean_t, precision^-1).

    Attributes
    ----------
    mean_mu, mean_t
        Shapes (B, d) and (B, T), T the length of t.
    covariance, slope, precision
        Shapes (B, d, d), (B, d, T) and (B, T, T).
    """

    mean_mu: Floats
    mean_t: Floats
    covariance: Floats
    slope: Floats
    precision: Floats


class TiltedMoments(NamedTuple):
    """Moments of the tilted distribution of (mu, t).

    Attributes
    ----------
    log_evidence
        Shape (B,).
    mean, covariance
        Shapes (B, d + T) and (B, d + T, d + T).
    sd
        Standard deviations of t, shape (B, T): the scale that the next rule takes.
    shift
        How far the rule's centre or scale was off, shape (B,): the largest |mean - centre| / scale or log of a ratio of scales.
    error
        y - R theta at the centre, rotated as the rows are, shape (B, d).
    proper
        Whether all of it is finite and the covariance positive definite, shape (B,).
    """

    log_evidence: Floats
    mean: Floats
    covariance: Floats
    sd: Floats
    shift: Floats
    error: Floats
    proper: Booleans


def split(params: NaturalParams, d: int) -> tuple[Split, Booleans]:
    """Split B distributions of (mu, t), mu of length d, and tell which of them are distributions; of others the parts mean nothing."""
    matrix = params.matrix
    covariance, proper = inverse(matrix[..., :d, :d])
    slope = -covariance @ matrix[..., :d, d:]
    precision = matrix[..., d:, d:] + matrix[..., d:, :d] @ slope
    precision = 0.5 * (precision + precision.swapaxes(-1, -2))
    spread, also = inverse(precision)
    mean_t = product(spread, params.shift[..., d:] + product(slope.swapaxes(-1, -2), params.shift[..., :d]))
    mean_mu = product(covariance, params.shift[..., :d]) + product(slope, mean_t)
    return Split(mean_mu, mean_t, covariance, slope, precision), proper & also


@np.errstate(all="ignore")  # what is not finite is found at the end
def axis_moments(rows: Compressed, noise: Floats, cavity: Split, centre: Floats, scale: Floats) -> TiltedMoments:
    """Tilted moments by the rule along each axis.

    Parameters
    ----------
    rows
        Of B devices.
    noise
        Variances, shape (B,).
    cavity
        B of them.
    centre, scale
        Of the rule, in t, shape (B, d) each.
    """
    R, d = rows.R, cavity.mean_mu.shape[1]
    transposed = R.swapaxes(1, 2)
    axes: Indices = np.arange(d, dtype=np.intp)
    C, G, tau, off = cavity.covariance, cavity.slope, np.exp(centre), centre - cavity.mean_t
    start = cavity.mean_mu + product(G, off)
    V = R @ C @ transposed + (R * tau[:, None, :]) @ transposed
    V[:, axes, axes] += noise[:, None]
    L, proper = cholesky(0.5 * (V + V.swapaxes(1, 2)))
    residual = rows.y - product(R, start)
    half, LR = solved(L, residual), solved(L, R)
    W = LR.swapaxes(1, 2) @ LR
    u = product(LR.swapaxes(1, 2), half)
    WG, pull = W @ G, product(cavity.precision, off)
    uG, GWG = product(G.swapaxes(1, 2), u), (G * WG).sum(axis=1)

    # Along axis i: step delta in t_i changes V by rank one, D = tau_i (e^delta - 1), and the residual through mu's regression on t_i.
    delta = scale[..., None] * NODES
    D = tau[..., None] * np.expm1(delta)
    along = u[..., None] - WG[:, axes, axes][..., None] * delta
    shrink = 1.0 + D * W[:, axes, axes][..., None]
    log_density = uG[..., None] * delta - 0.5 * GWG[..., None] * delta**2 - 0.5 * np.log(shrink) + 0.5 * D * along**2 / shrink
    log_density -= pull[..., None] * delta + 0.5 * cavity.precision[:, axes, axes][..., None] * delta**2
    relative = log_density + 0.5 * NODES**2
    highest = relative.max(axis=2, keepdims=True)
    weight = WEIGHTS * np.exp(relative - highest)
    mass = weight.sum(axis=2, keepdims=True)
    weight /= mass
    log_slice = (highest + np.log(mass))[..., 0] + np.log(scale) + 0.5 * LOG_2PI
    e = (weight * delta).sum(axis=2)
    v = (weight * delta**2).sum(axis=2) - e**2

    # Between axes: minus the second derivatives of the log density at the centre.
    mixed = tau[:, :, None] * tau[:, None, :] * (0.5 * W**2 - u[:, :, None] * u[:, None, :] * W)
    crossed = G.swapaxes(1, 2) @ (-(W * u[:, None, :]) * tau[:, None, :])
    precision = -(mixed + crossed + crossed.swapaxes(1, 2) - G.swapaxes(1, 2) @ WG - cavity.precision)
    precision = 0.5 * (precision + precision.swapaxes(1, 2))
    precision[:, axes, axes] = 1.0 / v
    covariance_t, positive = inverse(precision)
    moved = product(covariance_t, e / v)

    # mu: its mean given t is linear in t and in s_i = D along / shrink, its covariance changes by rank one.
    s = D * along / shrink
    mean_s = (weight * s).sum(axis=2)
    slope_s = ((weight * delta * s).sum(axis=2) - e * mean_s) / v
    rest_s = np.maximum((weight * s**2).sum(axis=2) - mean_s**2 - slope_s**2 * v, 0.0)
    CW = C @ W
    given_t = (G - CW @ G) - CW * slope_s[:, None, :]
    mean_mu = start + product(C, u) + product(G - CW @ G, moved) - product(CW, mean_s + slope_s * (moved - e))
    with_t = given_t @ covariance_t
    gain = (weight * D / shrink).sum(axis=2)
    covariance_mu = C - CW @ C.swapaxes(1, 2) + (CW * (gain + rest_s)[:, None, :]) @ CW.swapaxes(1, 2) + with_t @ given_t.swapaxes(1, 2)

    covariance = np.empty((len(R), 2 * d, 2 * d))
    covariance[:, :d, :d], covariance[:, :d, d:] = 0.5 * (covariance_mu + covariance_mu.swapaxes(1, 2)), with_t
    covariance[:, d:, :d], covariance[:, d:, d:] = with_t.swapaxes(1, 2), covariance_t
    mean = np.concatenate([mean_mu, centre + moved], axis=1)
    log_evidence = log_likelihood(rows, noise, L, half) - 0.5 * (off * pull).sum(axis=1) + 0.5 * logdet(cavity.precision)
    log_evidence += log_slice.sum(axis=1) - 0.5 * d * LOG_2PI - 0.5 * logdet(precision) - 0.5 * np.log(v).sum(axis=1)
    log_evidence += 0.5 * ((moved * e / v).sum(axis=1) - (e**2 / v).sum(axis=1))
    sd = np.sqrt(np.diagonal(covariance_t, axis1=1, axis2=2))
    shift = np.maximum(np.abs(moved) / scale, np.abs(np.log(sd / scale))).max(axis=1)
    error = noise[:, None] * solved(L.swapaxes(1, 2), half)
    finite = np.isfinite(mean).all(axis=1) & np.isfinite(covariance).all(axis=(1, 2)) & np.isfinite(log_evidence)
    return TiltedMoments(log_evidence, mean, covariance, sd, shift, error, proper & positive & finite & (v > 0).all(axis=1))


def log_likelihood(rows: Compressed, noise: Floats, L: Floats, half: Floats) -> Floats:
    """log N(y; ., V) of all n rows, where V has the factor L on the d rows of the compression and is the noise on the others. With fewer
    rows than d the compression has rows of zeros, whose noise this takes off again."""
    d = L.shape[-1]
    diagonal = np.ascontiguousarray(np.diagonal(L, axis1=1, axis2=2))
    explained = -np.log(diagonal).sum(axis=1) - 0.5 * (half**2).sum(axis=1)
    return explained - 0.5 * (rows.n - d) * np.log(noise) - 0.5 * rows.rss / noise - 0.5 * rows.n * LOG_2PI
