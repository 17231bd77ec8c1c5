"""The start of the normal hierarchy: rounds of federated EM, and sites by expected information.

All functions work on m devices at once, with a leading axis.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.compression import Compressed
from fedcore.gaussian import Expected, expected, product
from fedcore.hm2.natural import NaturalParams, natural
from fedcore.rows import Floats, Scalar

FLOOR = 1e-12
"""Least noise variance, as a share of the mean square of a device's targets."""

WIDE = 100.0
"""In the first round the variances between devices are taken for this many times their prior's, so that devices say what their rows do."""

NEWTON_STEPS, LONGEST_STEP = 20, 2.0

LEAST_FREEDOM = 5.0
"""Residual degrees of freedom of the fleet from which on least squares alone tell the shared noise."""


class Point(NamedTuple):
    """What EM knows of phi.

    Attributes
    ----------
    mean, log_tau
        Shapes (d,) and (T,), T being d, or 1 where all coefficients share one.
    noise
        sigma^2; 0 where devices have their own, and before the first round where it is not known.
    """

    mean: Floats
    log_tau: Floats
    noise: Scalar


class Sums(NamedTuple):
    """A device's part of EM's sums.

    Attributes
    ----------
    devices
        1.
    first, second
        E theta_k and E theta_k^2, shape (d,).
    residual, n
        E|y - X theta|^2, and rows.
    rss, freedom
        Of its own least squares.
    """

    devices: Scalar
    first: Floats
    second: Floats
    residual: Scalar
    n: Scalar
    rss: Scalar
    freedom: Scalar


def own_noise(rows: Compressed) -> Floats:
    """A noise variance from a device's rows alone: that of least squares, or half of all it has where that leaves nothing to tell by."""
    freedom = np.asarray(rows.freedom)
    enough = freedom > 2
    found = np.where(enough, np.asarray(rows.rss) / np.where(enough, freedom, 1.0), 0.5 * np.asarray(rows.power))
    return np.maximum(found, _least(rows))


def _least(rows: Compressed) -> Floats:
    return FLOOR * np.asarray(rows.power) + np.finfo(float).tiny


def own_noise_at(rows: Compressed, point: Point, steps: int = 3) -> Floats:
    """A noise variance for each device, by EM at a point."""
    noise = own_noise(rows)
    for _ in range(steps):
        noise = np.maximum(_expected(rows, point, noise).residual / np.asarray(rows.n), _least(rows))
    return noise


def sums(rows: Compressed, point: Point, noise: Floats, *, first_round: bool) -> Sums:
    """Each device's part; `noise` has shape (m,)."""
    if first_round:
        point = point._replace(log_tau=point.log_tau + np.log(WIDE))
    found = _expected(rows, point, noise)
    theta = point.mean + found.b
    second = theta**2 + np.ascontiguousarray(np.diagonal(found.covariance, axis1=1, axis2=2))
    return Sums(np.ones(len(theta)), theta, second, found.residual, rows.n, rows.rss, rows.freedom)


def updated(point: Point, total: Sums, share: float, prior_mean: Floats, prior_sd: Floats, *, first_round: bool, noise: str) -> Point:
    """The maximum of EM's objective with phi's prior; for mu at the old tau, and for tau at the new mu.

    Parameters
    ----------
    point
        The one that the sums are taken at.
    total
        Sums over the devices that answered.
    share
        Which part of the fleet they are: they stand for all.
    prior_mean, prior_sd
        Of (mu, log tau), independent, shape (d + T,).
    first_round
        Whether the sums are those of the first round.
    noise
        "known", "shared" or "device".
    """
    d, T = len(point.mean), len(point.log_tau)
    K, first, second = (np.asarray(part) / share for part in (total.devices, total.first, total.second))
    tau = np.exp(np.broadcast_to(point.log_tau, (d,)))
    weight = 1.0 / prior_sd[:d] ** 2
    mean = (first / tau + weight * prior_mean[:d]) / (K / tau + weight)
    squares = np.maximum(second - 2.0 * mean * first + K * mean**2, FLOOR)
    count = K * d / T
    squares = squares if d == T else squares.sum(keepdims=True)
    log_tau = np.log(squares / count)
    for _ in range(NEWTON_STEPS):
        pulled = (log_tau - prior_mean[d:]) / prior_sd[d:] ** 2
        slope = -0.5 * count + 0.5 * squares * np.exp(-log_tau) - pulled
        curvature = 0.5 * squares * np.exp(-log_tau) + 1.0 / prior_sd[d:] ** 2
        log_tau = log_tau + np.clip(slope / curvature, -LONGEST_STEP, LONGEST_STEP)
    if noise != "shared":
        return Point(mean, log_tau, point.noise)
    if first_round and total.freedom > LEAST_FREEDOM:
        return Point(mean, log_tau, float(total.rss / total.freedom) or float(total.residual / total.n))
    return Point(mean, log_tau, float(total.residual / total.n))


def _expected(rows: Compressed, point: Point, noise: Floats) -> Expected:
    m, d = rows.y.shape
    factor = np.diag(np.exp(0.5 * np.broadcast_to(point.log_tau, (d,))))
    return expected(rows, np.broadcast_to(point.mean, (m, d)), np.broadcast_to(factor, (m, d, d)), noise)


def information_sites(rows: Compressed, point: Point, noise: Floats, *, with_noise: bool) -> NaturalParams:
    """Sites that have the slope of log f_k at the point and the expected information there, which is positive semi-definite.

    Of (mu, t), and with `with_noise` of log sigma^2 too.
    """
    m, d = rows.y.shape
    tau, R = np.exp(np.broadcast_to(point.log_tau, (d,))), rows.R
    V = (R * tau) @ R.swapaxes(1, 2)
    V[:, np.arange(d), np.arange(d)] += noise[:, None]
    inverse = np.linalg.inv(V)
    inverse = 0.5 * (inverse + inverse.swapaxes(1, 2))
    v = product(inverse, rows.y - product(R, np.broadcast_to(point.mean, (m, d))))
    RV = R.swapaxes(1, 2) @ inverse
    W, u = RV @ R, product(R.swapaxes(1, 2), v)
    p = 2 * d + with_noise
    information, slope = np.zeros((m, p, p)), np.zeros((m, p))
    information[:, :d, :d] = W
    information[:, d : 2 * d, d : 2 * d] = 0.5 * np.outer(tau, tau) * W**2
    slope[:, :d] = u
    slope[:, d : 2 * d] = 0.5 * tau * (u**2 - np.diagonal(W, axis1=1, axis2=2))
    at = [*point.mean, *point.log_tau]
    if with_noise:
        others = np.asarray(rows.n) - d  # rows that the compression leaves out; rows of zeros that it adds count less than none
        crossed = 0.5 * tau * noise[:, None] * (RV**2).sum(axis=2)
        information[:, d : 2 * d, -1] = information[:, -1, d : 2 * d] = crossed
        information[:, -1, -1] = 0.5 * noise**2 * (inverse**2).sum(axis=(1, 2)) + 0.5 * others
        trace = np.diagonal(inverse, axis1=1, axis2=2).sum(axis=1)
        slope[:, -1] = 0.5 * noise * ((v**2).sum(axis=1) - trace) + 0.5 * (np.asarray(rows.rss) / noise - others)
        at.append(float(np.log(point.noise)))
    if len(point.log_tau) < d:  # one tau for all: derivatives along the diagonal of the log tau are sums
        shared = np.zeros((p, d + 1 + with_noise))
        shared[:d, :d], shared[d : 2 * d, d] = np.eye(d), 1.0
        if with_noise:
            shared[-1, -1] = 1.0
        information, slope = shared.T @ information @ shared, slope @ shared
    site = natural(np.broadcast_to(np.array(at), slope.shape), information)
    return site._replace(shift=site.shift + slope)
