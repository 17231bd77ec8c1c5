"""Where expectation propagation starts: hyper-parameters by federated EM, then each device's site from its score and Fisher information.

From sites of zero the first round would have every device move phi by all that its own factor says, as if none of the others did; from
these sites full steps converge in a few rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.compression import Compressed
from fedcore.gaussian import expected, product
from fedcore.hm2.cholesky import cholesky, diagonal
from fedcore.hm2.natural import NaturalParams
from fedcore.rows import Floats, Scalar
from fedcore.semidefinite import packed

NEWTON = 30
"""Steps of Newton's method for log tau, each at most 2: enough from anywhere within exp(60) of the solution."""

CLOSE = 1e-8
"""The longest last step: another one would be about as long as its square."""

LEAST_SQUARE = 1e-12
"""Least mean square of theta - mu, in units of its prior's: where coefficients are all alike, log tau is not minus infinity."""


class Point(NamedTuple):
    """What the server knows of phi: mu, shape (d,), log tau, shape (a,), and log sigma^2, which means nothing where it is not shared."""

    mu: Floats
    log_tau: Floats
    log_sigma2: Scalar


class Statistics(NamedTuple):
    """From a device: E(theta_k - mu) and E(theta_k - mu)^2, shape (d,), with mu as it was sent; E|y - X theta|^2, and its rows."""

    first: Floats
    second: Floats
    residual: Scalar
    n: Scalar


class Hyperprior(NamedTuple):
    """Means and standard deviations of mu, shape (d,), and log tau, shape (a,)."""

    mu_mean: Floats
    mu_sd: Floats
    log_tau_mean: Floats
    log_tau_sd: Floats


def spread(d: int, axes: int) -> Floats:
    """The matrix, shape (d, axes), that takes log tau to one value for each coefficient: each its own, or all the same."""
    return np.eye(d) if axes == d else np.ones((d, axes))


@np.errstate(all="ignore")  # what is not finite is found on the server
def statistics(rows: Compressed, mu: Floats, tau: Floats, noise: Floats) -> Statistics:
    """Of m devices, given mu, shape (d,), tau, shape (m, d), and noise variances sigma^2, shape (m,)."""
    m, d = tau.shape
    found = expected(rows, np.broadcast_to(mu, (m, d)), np.sqrt(tau)[:, :, None] * np.eye(d), noise)
    return Statistics(found.b, found.b**2 + diagonal(found.covariance), found.residual, np.asarray(rows.n))


@np.errstate(all="ignore")  # a point that is not finite makes all sites flat
def maximised(point: Point, total: Statistics, devices: int, prior: Hyperprior) -> Point:
    """mu, tau and sigma^2 that maximise the expected log density of all, given sums over so many devices."""
    d, axes = len(point.mu), len(point.log_tau)
    each = spread(d, axes)
    tau, mu_precision = np.exp(each @ point.log_tau), 1.0 / prior.mu_sd**2
    step = (total.first / tau + mu_precision * (prior.mu_mean - point.mu)) / (devices / tau + mu_precision)
    least = devices * LEAST_SQUARE * np.exp(each @ prior.log_tau_mean)
    squares = np.maximum(total.second - 2.0 * step * total.first + devices * step**2, least)
    counts = devices * each.sum(axis=0)
    log_tau = _log_tau(each.T @ squares, counts, prior)
    noise = float(total.residual / total.n)
    return Point(point.mu + step, log_tau, np.log(noise) if noise > 0 else point.log_sigma2)


def _log_tau(squares: Floats, counts: Floats, prior: Hyperprior) -> Floats:
    """Maximises -counts t / 2 - squares exp(-t) / 2 and the prior's log density, which is concave."""
    t, precision = np.log(squares / counts), 1.0 / prior.log_tau_sd**2
    for _ in range(NEWTON):
        pull = 0.5 * squares * np.exp(-t)
        step = np.clip((pull - 0.5 * counts - precision * (t - prior.log_tau_mean)) / (pull + precision), -2.0, 2.0)
        t += step
        if not np.abs(step).max() > CLOSE:
            break
    return t


@np.errstate(all="ignore")  # what is not finite makes the site flat
def fisher_sites(rows: Compressed, point: Point, noise: Floats, *, shared: bool) -> NaturalParams:
    """Sites of m devices: log f_k to second order at a point of phi, its curvature taken in expectation, so that it is never negative.

    Parameters
    ----------
    rows, noise
        Of m devices; sigma^2, shape (m,).
    point
        Of phi.
    shared
        Whether phi ends with log sigma^2.
    """
    d, axes, m = len(point.mu), len(point.log_tau), len(noise)
    each = spread(d, axes)
    tau, p = np.exp(each @ point.log_tau), d + axes + shared
    L, proper = cholesky((rows.R * tau) @ rows.R.swapaxes(1, 2) + noise[:, None, None] * np.eye(d))
    residual = rows.y - product(rows.R, np.broadcast_to(point.mu, (m, d)))
    white = np.linalg.solve(L, np.concatenate([rows.R, residual[:, :, None], np.broadcast_to(np.eye(d), L.shape)], axis=2))
    design, target, root = (np.asarray(white[:, :, part].copy(), float) for part in (slice(d), d, slice(d + 1, None)))
    W, u = design.swapaxes(1, 2) @ design, product(design.swapaxes(1, 2), target)
    precision, score = np.zeros((m, p, p)), np.zeros((m, p))
    mu, t = slice(0, d), slice(d, d + axes)
    precision[:, mu, mu], score[:, mu] = W, u
    precision[:, t, t] = each.T @ (0.5 * tau[:, None] * tau * W**2) @ each
    score[:, t] = product(each.T, 0.5 * tau * (u**2 - diagonal(W)))
    where = np.concatenate([point.mu, point.log_tau])
    if shared:
        inverse = root.swapaxes(1, 2) @ root
        # A missing row, of zeros, counts 1 in both traces, which n - d takes off again.
        scaled, squared = noise[:, None, None] * inverse, inverse @ rows.R
        precision[:, -1, -1] = 0.5 * ((scaled**2).reshape(m, -1).sum(axis=1) + rows.n - d)
        W2 = diagonal(squared.swapaxes(1, 2) @ squared)
        precision[:, t, -1] = precision[:, -1, t] = product(each.T, 0.5 * tau * noise[:, None] * W2)
        explained = (product(root.swapaxes(1, 2), target) ** 2).sum(axis=1)
        score[:, -1] = 0.5 * (noise * explained + rows.rss / noise - diagonal(scaled).sum(axis=1) - (rows.n - d))
        where = np.append(where, point.log_sigma2)
    shift = product(precision, np.broadcast_to(where, (m, p))) + score
    proper &= np.isfinite(shift).all(axis=1) & np.isfinite(precision).all(axis=(1, 2))
    return NaturalParams(np.where(proper[:, None], shift, 0.0), packed(np.where(proper[:, None, None], precision, 0.0)))
