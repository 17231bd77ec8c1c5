"""Integrals over t = log tau for theta ~ N(mu, diag tau), by rank-one quadrature along each axis of t.

A step along axis i of t changes V = R (C + diag tau) R' + sigma^2 I by a matrix of rank one, so with one Cholesky factorisation at the
centre the log density along all axes costs O(d^2). Five Gauss-Hermite nodes on each give the mean and variance of each t_i given that
the others are at the centre. Conditional variances are the diagonal of a precision matrix; its other entries are second derivatives at
the centre. Where the log density is quadratic all of it is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from fedcore.compression import Compressed
from fedcore.gaussian import product
from fedcore.hm2.cholesky import diagonal, inverse
from fedcore.hm2.conditional import Conditional, Integral, explained
from fedcore.rows import Floats

NODES, WEIGHTS = (each[:, None, None] for each in hermegauss(5))
LOG_WEIGHTS = np.log(WEIGHTS) + 0.5 * NODES**2
"""Of an integral over x, rather than one over the standard normal distribution. They come first: sums over them are then of arrays."""

NARROWEST = 1e-4
"""Least conditional standard deviation, in units of the nodes' scale: below it all weight is on one node, and nothing is resolved."""


@np.errstate(all="ignore")  # what is not finite is found below, device by device
def axis_integral(rows: Compressed, noise: Floats, cavity: Conditional, centre: Floats, scale: Floats) -> Integral:
    """Integrals for B pairs of a device and a noise variance.

    Parameters
    ----------
    rows, noise, cavity
        Of B pairs; sigma^2, shape (B,).
    centre, scale
        Where the nodes of each entry of t are, and how far apart, shape (B, d).
    """
    d, C, G = centre.shape[1], cavity.C, cavity.G
    tau, offset = np.exp(centre), centre - cavity.t
    prior_mean = cavity.mu + product(G, offset)
    _, W, u, proper = at_centre = explained(rows, prior_mean, C + tau[:, :, None] * np.eye(d), noise)
    WG = W @ G
    GWG = G.swapaxes(1, 2) @ WG
    pull = product(cavity.P, offset)  # of the cavity, back to its mean

    # Along axis i, as functions of the step, nodes first: growth of tau_i, (R'V^-1 residual)_i, and how much V^-1 shrinks along it.
    step = scale * NODES
    growth = tau * np.expm1(step)
    linear = u - diagonal(WG) * step
    shrink = 1.0 + growth * diagonal(W)
    ratio = growth / shrink
    moved = ratio * linear  # moves mu by -C W e_i of it
    log_ratio = (
        (product(G.swapaxes(1, 2), u) - pull) * step
        - 0.5 * (diagonal(GWG) + diagonal(cavity.P)) * step**2
        - 0.5 * np.log(shrink)
        + 0.5 * moved * linear
    )
    weighted = log_ratio + LOG_WEIGHTS
    top = weighted.max(axis=0)
    weight = np.exp(weighted - top)
    total = weight.sum(axis=0)
    weight /= total
    log_slice = top + np.log(total * scale)
    mean, moved_mean = (weight * step).sum(axis=0), (weight * moved).sum(axis=0)
    from_mean, from_moved = step - mean, moved - moved_mean
    weighted_step = weight * from_mean
    variance = np.maximum((weighted_step * from_mean).sum(axis=0), (NARROWEST * scale) ** 2)
    regression = (weighted_step * from_moved).sum(axis=0) / variance
    unexplained = np.maximum((weight * from_moved**2).sum(axis=0) - regression**2 * variance, 0.0)
    shrunk = (weight * ratio).sum(axis=0)

    # Precision of t: conditional variances on its diagonal, second derivatives at the centre elsewhere.
    along = -G.swapaxes(1, 2) @ (W * u[:, None, :]) * tau[:, None, :]
    curvature = tau[:, :, None] * tau[:, None, :] * (0.5 * W - u[:, :, None] * u[:, None, :]) * W
    precision = GWG + cavity.P - along - along.swapaxes(1, 2) - curvature
    axes = range(d)
    precision[:, axes, axes] = 1.0 / variance
    precision = 0.5 * (precision + precision.swapaxes(1, 2))
    spread = inverse(precision)
    shift = np.where(spread.proper[:, None], product(spread.matrix, mean / variance), mean)
    fit = (shift * mean / variance).sum(axis=1) - (mean**2 / variance).sum(axis=1) - np.log(variance).sum(axis=1)
    log_evidence = at_centre.log_density + cavity.log_density(offset) + log_slice.sum(axis=1) + 0.5 * (fit - spread.log_determinant)

    # Moments of mu by the law of total expectation: mu | t has mean a + C u(t) and covariance C - C W(t) C.
    CW = C @ W
    response = G - CW @ G
    total_response = response - CW * regression[:, None, :]
    mu = prior_mean + product(C, u) + product(response, shift) - product(CW, moved_mean + regression * (shift - mean))
    cross = total_response @ spread.matrix
    covariance = np.empty((len(mu), 2 * d, 2 * d))
    covariance[:, :d, :d] = (
        C - CW @ C + (CW * (shrunk + unexplained)[:, None, :]) @ CW.swapaxes(1, 2) + cross @ total_response.swapaxes(1, 2)
    )
    covariance[:, :d, d:], covariance[:, d:, :d], covariance[:, d:, d:] = cross, cross.swapaxes(1, 2), spread.matrix
    joint = np.concatenate([mu, centre + shift], axis=1)
    sound = proper & spread.proper & np.isfinite(log_evidence) & np.isfinite(joint).all(axis=1)
    return Integral(log_evidence, joint, covariance, np.sqrt(variance), sound & np.isfinite(covariance).all(axis=(1, 2)))
