"""One device's coefficients as draws from a normal distribution: their posterior given its rows, and how likely the rows are.

All functions work on m devices at once, with a leading device axis, and no device's result depends on the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.compression import Compressed
from fedcore.rows import Floats


class Expected(NamedTuple):
    """The posterior of theta = mean + b, b ~ N(0, A A'), given y = X theta + e, e ~ N(0, noise I).

    Attributes
    ----------
    b, covariance
        Posterior mean of b, shape (m, d), and covariance, shape (m, d, d).
    error
        Q'y - R (mean + b), shape (m, d).
    residual
        E|y - X theta|^2, shape (m,).
    log_likelihood
        log N(y; X mean, X A A' X' + noise I), shape (m,).
    """

    b: Floats
    covariance: Floats
    error: Floats
    residual: Floats
    log_likelihood: Floats


def expected(rows: Compressed, mean: Floats, factor: Floats, noise: Floats) -> Expected:
    """The posterior of m devices.

    With b = A u, B = R A and sigma^2 the noise, u has precision M = I + B'B / sigma^2, which is regular whatever A is. The QR
    decomposition (B / sigma; I) = (Q1; Q2) T gives M = T'T and T^-1 = Q2, so that M is neither formed, which would square its
    condition number, nor solved with: E u = Q2 Q1'r / sigma with r = Q'y - R mean, and Cov u = Q2 Q2'.

    Parameters
    ----------
    rows
        Of m devices.
    mean
        Shape (m, d).
    factor
        A, shape (m, d, d).
    noise
        Noise variances, above 0, shape (m,).
    """
    d, (Q, T, start) = mean.shape[1], _decomposed(rows, mean, factor, noise)
    Q1, Q2 = Q[:, :d], Q[:, d:]
    u = product(Q2, product(Q1.swapaxes(1, 2), start)) / np.sqrt(noise)[:, None]
    b = product(factor, u)
    error = start - product(rows.R, b)
    W = factor @ Q2
    spread = ((rows.R @ W) ** 2).reshape(len(W), -1).sum(axis=1)
    residual = (error**2).sum(axis=1) + rows.rss + spread
    # Contiguous: arithmetic on strides may round otherwise, and one device is to be the same alone and among others.
    determinant = 2.0 * np.log(np.abs(np.ascontiguousarray(np.diagonal(T, axis1=1, axis2=2)))).sum(axis=1)
    # The least of |r - B u|^2 / sigma^2 + |u|^2, and so insensitive to the rounding of u, however small the noise.
    quadratic = ((error**2).sum(axis=1) + rows.rss) / noise + (u**2).sum(axis=1)
    log_likelihood = -0.5 * (rows.n * np.log(2.0 * np.pi * noise) + determinant + quadratic)
    return Expected(b, W @ W.swapaxes(1, 2), error, residual, log_likelihood)


def unexplained(rows: Compressed, mean: Floats, factor: Floats, noise: Floats) -> Floats:
    """`Expected.error` of m devices alone, shape (m, d): r - Q1 Q1'r."""
    d, (Q, _, start) = mean.shape[1], _decomposed(rows, mean, factor, noise)
    Q1 = Q[:, :d]
    return start - product(Q1, product(Q1.swapaxes(1, 2), start))


def _decomposed(rows: Compressed, mean: Floats, factor: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
    """(Q1; Q2), shape (m, 2 d, d), T, shape (m, d, d), and r, shape (m, d), as `expected` has them."""
    d = mean.shape[1]
    table = np.empty((len(mean), 2 * d, d))
    table[:, :d], table[:, d:] = (rows.R @ factor) / np.sqrt(noise)[:, None, None], np.eye(d)
    Q, T = np.linalg.qr(table)
    return Q, T, rows.y - product(rows.R, mean)


def product(matrices: Floats, vectors: Floats) -> Floats:
    """Matrix times vector, device by device: (m, p, d) and (m, d) to (m, p)."""
    return (matrices @ vectors[..., None])[..., 0]
