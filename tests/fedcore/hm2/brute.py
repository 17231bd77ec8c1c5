"""Tilted moments, and posteriors of coefficients, by tensor quadrature from the model's definition: no compressed rows, no axes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.rows import Rows


class Brute(NamedTuple):
    """Of one device: moments of (mu, t, s), log evidence, and the mean and covariance of its coefficients."""

    mean: np.ndarray
    covariance: np.ndarray
    log_evidence: float
    theta: np.ndarray
    theta_covariance: np.ndarray


def normal_log_density(residual: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Of residuals, shape (N, n), with covariances, shape (N, n, n)."""
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, residual[..., None])[..., 0]
    logdet = 2.0 * np.log(np.einsum("...ii->...i", root)).sum(axis=-1)
    return -0.5 * ((white**2).sum(axis=-1) + logdet + residual.shape[-1] * np.log(2.0 * np.pi))


def brute_force(
    rows: Rows, mean: np.ndarray, covariance: np.ndarray, each: np.ndarray, log_noise: float | None, nodes: int = 21, passes: int = 8
) -> Brute:
    """For a cavity of (mu, t), or of (mu, t, s) where `log_noise`, s, is None; `each` takes t to one value a coefficient.

    Gauss-Hermite rules in the coordinates of the last pass's covariance, until they stay where they are.
    """
    d, axes = each.shape
    free = len(mean) - d
    t_mean, t_covariance = mean[d:], covariance[d:, d:]
    slope = np.linalg.solve(t_covariance, covariance[d:, :d]).T
    C = covariance[:d, :d] - slope @ covariance[d:, :d]
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(*[x] * free, indexing="ij"), axis=-1).reshape(-1, free)
    log_w = np.log(np.stack(np.meshgrid(*[w] * free, indexing="ij"), axis=-1).reshape(-1, free)).sum(axis=1) + 0.5 * (grid**2).sum(axis=1)
    centre, root = t_mean, np.linalg.cholesky(t_covariance)
    if log_noise is None and rows.n > d:  # the rows say more of s than a wide cavity does
        freedom = rows.n - d
        guess, precision = np.log(np.linalg.lstsq(rows.X, rows.y)[1][0] / freedom), 1.0 / t_covariance[-1, -1]
        total = precision + freedom / 2.0
        centre, root = centre.copy(), root.copy()
        centre[-1], root[-1] = (precision * centre[-1] + freedom / 2.0 * guess) / total, 0.0
        root[-1, -1] = total**-0.5
    for _ in range(passes):
        values = centre + grid @ root.T
        s = values[:, -1] if log_noise is None else np.full(len(values), log_noise)
        a = mean[:d] + (values - t_mean) @ slope.T
        S = C + np.exp(values[:, :axes] @ each.T)[:, :, None] * np.eye(d)
        V = rows.X @ S @ rows.X.T + np.exp(s)[:, None, None] * np.eye(rows.n)
        residual = rows.y - a @ rows.X.T
        log_value = normal_log_density(residual, V)
        log_value += normal_log_density(values - t_mean, np.broadcast_to(t_covariance, (len(values), free, free)))
        log_value += log_w + np.log(np.abs(np.linalg.det(root)))
        weight = np.exp(log_value - log_value.max())
        total = weight.sum()
        weight /= total
        gain = np.linalg.solve(V, rows.X[None] @ C).swapaxes(1, 2)
        mu, mu_covariance = a + (gain @ residual[..., None])[..., 0], C - gain @ (rows.X @ C)
        full = np.concatenate([mu, values], axis=1)
        found = weight @ full
        spread = (full - found).T @ ((full - found) * weight[:, None])
        spread[:d, :d] += np.tensordot(weight, mu_covariance, 1)
        closer = np.linalg.cholesky(spread[d:, d:])
        # All weight on one node says that nodes are too far apart, and not by how much.
        centre, root = found[d:], closer if np.linalg.det(closer) > np.linalg.det(root) / 3.0**free else root / 2.0
    gain = np.linalg.solve(V, rows.X[None] @ S).swapaxes(1, 2)
    theta, theta_covariance = a + (gain @ residual[..., None])[..., 0], S - gain @ rows.X @ S
    theta_mean = weight @ theta
    deviation = theta - theta_mean
    theta_spread = np.tensordot(weight, theta_covariance, 1) + deviation.T @ (deviation * weight[:, None])
    return Brute(found, spread, float(np.log(total) + log_value.max()), theta_mean, theta_spread)
