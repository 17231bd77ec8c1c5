"""A variational approximation of coefficients whose prior is a mixture of normal distributions around zero, N(t; 0, s^2 kappa^2).

Given the widths s kappa_i, theta is normal; given theta, the widths are independent. The closest product of a normal distribution of theta
and distributions of the widths is found by turns, each of which raises a lower bound of the evidence. With it means are those of a ridge
regression with a penalty for each coefficient, so that however little the rows say they are no larger than least squares of the least norm
have them.

Source: Bishop (2006), "Pattern Recognition and Machine Learning", chapter 10.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcore.compression import Compressed
from fedcore.deadline import check_deadline
from fedcore.gaussian import product
from fedcore.hm2.inner import VAGUE, Inner
from fedcore.hm2.natural import LOG_2PI
from fedcore.rows import Floats

TURNS, TOLERANCE = 200, 1e-5
"""At most, and of the penalties, relative."""


def variational(rows: Compressed, noise: Floats, scale: Floats, log_kappa: Floats, log_shares: Floats) -> Inner:
    """Run to a fixed point.

    Parameters
    ----------
    rows
        Of m devices.
    noise, scale
        sigma^2 and s, shape (m, J).
    log_kappa, log_shares
        Of the mixture, shape (c,) each.
    """
    m, J = noise.shape
    d = rows.y.shape[1]
    sigma = np.sqrt(noise).reshape(-1, 1)
    root, target = np.repeat(rows.R, J, axis=0) / sigma[:, :, None], np.repeat(rows.y, J, axis=0) / sigma
    # In units of s, so that penalties are about 1.
    width = scale.reshape(-1, 1)
    root = root * width[:, :, None]
    penalty = np.ones((m * J, d))
    live: NDArray[np.intp] = np.arange(m * J, dtype=np.intp)
    for _ in range(TURNS):
        check_deadline()
        mean, covariance, _ = _given(root[live], target[live], penalty[live])
        new, _ = _penalties(mean**2 + _diagonal(covariance), log_kappa, log_shares)
        change = np.abs(new / penalty[live] - 1.0).max(axis=1)
        penalty[live] = new
        live = live[change > TOLERANCE]
        if not len(live):
            break
    mean, covariance, log_determinant = _given(root, target, penalty)
    square = mean**2 + _diagonal(covariance)
    _, log_mixture = _penalties(square, log_kappa, log_shares)
    error = target - product(root, mean)
    n, rss = np.repeat(np.asarray(rows.n), J), np.repeat(np.asarray(rows.rss), J)
    exponent = (error**2).sum(axis=1) + rss / sigma[:, 0] ** 2 + (penalty * mean**2).sum(axis=1)
    log_evidence = -0.5 * (n * (LOG_2PI + 2.0 * np.log(sigma[:, 0])) + exponent + log_determinant - d * LOG_2PI)
    log_evidence += (log_mixture + 0.5 * penalty * square).sum(axis=1)
    variance = _diagonal(covariance)
    left = np.maximum(1.0 - penalty * variance, 1.0 / VAGUE)
    return Inner(
        log_evidence.reshape(m, J),
        (width * mean).reshape(m, J, d),
        (width[:, :, None] ** 2 * covariance).reshape(m, J, d, d),
        (width * mean / left).reshape(m, J, d),
        (width**2 * np.minimum(variance / left, VAGUE)).reshape(m, J, d),
    )


def _given(root: Floats, target: Floats, penalty: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, covariance, and log determinant of the precision, of theta given penalties."""
    d = penalty.shape[1]
    Q, T = np.linalg.qr(np.concatenate([root, np.sqrt(penalty)[:, :, None] * np.eye(d)], axis=1))
    inverse = np.linalg.inv(T)
    mean = product(inverse, product(np.ascontiguousarray(Q[:, :d].swapaxes(1, 2)), target))
    return mean, inverse @ inverse.swapaxes(1, 2), 2.0 * np.log(np.abs(_diagonal(T))).sum(axis=1)


def _penalties(square: Floats, log_kappa: Floats, log_shares: Floats) -> tuple[Floats, Floats]:
    """E kappa^-2 given E theta^2, and log of the sum of shares times normal densities' exponential means."""
    inverse = np.exp(-2.0 * log_kappa)
    log_weight = log_shares - log_kappa - 0.5 * square[..., None] * inverse
    top = log_weight.max(axis=-1)
    weight = np.exp(log_weight - top[..., None])
    total = weight.sum(axis=-1)
    return (weight * inverse).sum(axis=-1) / total, top + np.log(total) - 0.5 * LOG_2PI


def _diagonal(matrices: Floats) -> Floats:
    return np.ascontiguousarray(np.diagonal(matrices, axis1=1, axis2=2))
