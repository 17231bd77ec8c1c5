"""What bounds a method from both sides: each device alone, and one that knows what has to be learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg.lapack import dposv

from fedcore.rows import Floats, Rows


def least_squares(rows: Sequence[Rows]) -> Floats:
    """Each device's own least squares, shape (K, d); of several solutions the one of the least norm."""
    return np.array([np.linalg.lstsq(part.X, part.y)[0] for part in rows], dtype=np.float64)


def oracle_bayes(rows: Sequence[Rows], Omega: Floats, noise: float) -> Floats:
    """The posterior mean of Theta ~ MN(0, I, Omega) where Omega and the noise are known: the least mean squared error that any estimator
    has on average.

    With theta = (Omega^1/2 x I) z the prior of z is N(0, I), and one symmetric positive definite system of K d equations
    gives its posterior mean; Omega is not inverted, and may be singular up to rounding.

    Parameters
    ----------
    rows
        Training rows of K devices.
    Omega
        Device covariance, shape (K, K).
    noise
        Standard deviation of the noise.

    Returns
    -------
    Floats
        Shape (K, d).
    """
    K, d = len(rows), rows[0].d
    values, vectors = np.linalg.eigh(Omega)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    gram = np.array([part.X.T @ part.X for part in rows]) / noise**2
    moment = np.array([part.X.T @ part.y for part in rows]) / noise**2
    precision = np.einsum("ka,kij,kb->aibj", root, gram, root, optimize=True).reshape(K * d, K * d)
    precision[np.diag_indices(K * d)] += 1.0
    _, z, failed = dposv(precision, (root.T @ moment).ravel(), overwrite_a=1)
    assert failed == 0, "the identity and a sum of squares are positive definite"
    return root @ z.reshape(K, d)
