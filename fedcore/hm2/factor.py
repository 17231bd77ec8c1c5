"""log f_k(phi), exactly: the density of a device's targets with theta_k ~ N(mu, diag tau) integrated out, and sigma^2 where it is the
device's own."""

from __future__ import annotations

import numpy as np

from fedcore.compression import Compressed
from fedcore.deadline import check_deadline
from fedcore.gaussian import product
from fedcore.hm2.conditional import explained
from fedcore.hm2.natural import LOG_2PI
from fedcore.rows import Booleans, Floats

NEWTON = 40
"""Steps of Newton's method to the mode of s = log sigma^2, each at most, and each at most 1."""

NEAR = 1e-3
"""Of the mode; nodes around it need not be centred better."""

STEPS = np.linspace(-1.0, 1.0, 81)
"""Nodes of the trapezoidal rule in u, with s = mode + scale sinh(reach u): close to one another near the mode, and far apart in the
tails, where there may be another mode."""

TAIL = 5.0
"""Prior standard deviations from the mode that nodes reach."""

CHUNK = 2**16
"""Numbers in an intermediate array, about: few enough to stay in a cache."""


def log_density(rows: Compressed, mu: Floats, tau: Floats, noise: Floats) -> Floats:
    """Of one device, given S values of mu and tau, shape (S, d), and of sigma^2, shape (S,): shape (S,); -inf where X diag(tau) X' +
    sigma^2 I is not positive definite up to rounding.

    `rows` has a leading axis of length 1.
    """
    d = mu.shape[1]
    size = max(CHUNK // d**2, 1)
    parts: list[Floats] = []
    with np.errstate(all="ignore"):
        for start in range(0, len(mu), size):
            check_deadline()
            part = slice(start, start + size)
            found = explained(rows, mu[part], tau[part, :, None] * np.eye(d), noise[part])
            parts.append(np.where(found.proper & np.isfinite(found.log_density), found.log_density, -np.inf))
    return np.concatenate(parts) if parts else np.zeros(0)


def log_density_own_noise(rows: Compressed, mu: Floats, tau: Floats, start: float, prior_mean: float, prior_variance: float) -> Floats:
    """The same, from mu and tau of shape (S, d), integrated over log sigma^2 with its normal prior; `start` is where it may be expected.

    In the eigenvectors of X diag(tau) X' the density is a product, whatever sigma^2 is.
    """
    d = mu.shape[1]
    size = max(CHUNK // (d * max(d, len(STEPS))), 1)
    parts: list[Floats] = []
    with np.errstate(all="ignore"):
        for first in range(0, len(mu), size):
            check_deadline()
            part = slice(first, first + size)
            _, mass, top = _over_noise(rows, mu[part], tau[part], start, prior_mean, prior_variance)
            total = top + np.log(mass.sum(axis=1))
            parts.append(np.where(np.isfinite(total), total, -np.inf))
    return np.concatenate(parts) if parts else np.zeros(0)


def own_noise(rows: Compressed, mu: Floats, tau: Floats, start: float, prior_mean: float, prior_variance: float, below: Floats) -> Floats:
    """log sigma^2 where its distribution, given rows and values of mu and tau as in `log_density_own_noise`, has a probability `below`,
    shape (S,), below it: shape (S,)."""
    size = max(CHUNK // (mu.shape[1] * max(mu.shape[1], len(STEPS))), 1)
    found = np.empty(len(mu))
    with np.errstate(all="ignore"):
        for first in range(0, len(mu), size):
            part = slice(first, first + size)
            s, mass, _ = _over_noise(rows, mu[part], tau[part], start, prior_mean, prior_variance)
            reached = np.cumsum(mass, axis=1) - 0.5 * mass
            reached /= mass.sum(axis=1, keepdims=True)
            found[part] = [np.interp(level, *each) for level, *each in zip(below[part], reached, s, strict=True)]
    return found


def _over_noise(
    rows: Compressed, mu: Floats, tau: Floats, start: float, prior_mean: float, prior_variance: float
) -> tuple[Floats, Floats, Floats]:
    """Nodes for log sigma^2, shape (S, 81), the integrand's mass at each, up to a factor, and the log of that, shape (S,), NaN where mu or
    tau is not finite."""
    root = rows.R * np.sqrt(tau)[:, None, :]
    finite: Booleans = np.asarray(np.isfinite(root).all(axis=(1, 2)) & np.isfinite(mu).all(axis=1))
    vectors, singular, _ = np.linalg.svd(np.where(finite[:, None, None], root, 0.0))
    values = singular**2
    squares = product(vectors.swapaxes(1, 2), rows.y - product(rows.R, np.where(finite[:, None], mu, 0.0))) ** 2
    missing, rss = rows.n - mu.shape[1], rows.rss

    def log_joint(s: Floats) -> Floats:
        total = values[:, :, None] + np.exp(s)[:, None, :]
        explained_by = (np.log(total) + squares[:, :, None] / total).sum(axis=1)
        likelihood = -0.5 * (explained_by + missing * s + rss * np.exp(-s) + rows.n * LOG_2PI)
        return likelihood - 0.5 * ((s - prior_mean) ** 2 / prior_variance + np.log(2.0 * np.pi * prior_variance))

    mode, precision = np.full(len(mu), start), np.full(len(mu), 1.0 / prior_variance)
    for _ in range(NEWTON):
        noise = np.exp(mode)[:, None]
        share = noise / (values + noise)
        weighted = squares / (values + noise) * share
        residual = rss * np.exp(-mode)
        slope = 0.5 * ((weighted - share).sum(axis=1) + residual - missing) - (mode - prior_mean) / prior_variance
        bend = 0.5 * ((share * (1.0 - share) + weighted * (2.0 * share - 1.0)).sum(axis=1) + residual)
        precision = np.maximum(bend, 0.0) + 1.0 / prior_variance
        step = np.clip(slope / precision, -1.0, 1.0)
        mode = mode + step
        if (np.abs(step) < NEAR).all():
            break
    scale = 1.0 / np.sqrt(precision)
    reach = np.arcsinh(TAIL * np.sqrt(prior_variance) / scale)
    u = reach[:, None] * STEPS
    s = mode[:, None] + scale[:, None] * np.sinh(u)
    value = log_joint(s) + np.log(np.cosh(u))
    top = value.max(axis=1)
    mass = np.exp(value - top[:, None]) * (scale * reach * (STEPS[1] - STEPS[0]))[:, None]
    return s, mass, np.where(finite, top, np.nan)
