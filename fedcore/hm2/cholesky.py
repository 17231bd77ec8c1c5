"""Cholesky factors of many matrices at once, where one that has none must not stop the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.rows import Booleans, Floats


class Inverse(NamedTuple):
    """Inverses of symmetric matrices, shape (..., d, d), these matrices' Cholesky factors, shape (..., d, d), and whether each is finite
    and positive definite, shape (...). Where it is not, the identity stands for it."""

    matrix: Floats
    factor: Floats
    proper: Booleans

    @property
    def log_determinant(self) -> Floats:
        """Of the matrices that were inverted, shape (...)."""
        return log_determinant(self.factor)


def cholesky(matrices: Floats) -> tuple[Floats, Booleans]:
    """Lower triangular L, shape (..., d, d), with L L' = each matrix, and whether it has one, shape (...); else L is the identity."""
    finite = np.isfinite(matrices)
    if finite.all():
        sound, proper = matrices, np.ones(matrices.shape[:-2], dtype=bool)
    else:
        proper = np.asarray(finite.all(axis=(-1, -2)))
        sound = np.where(proper[..., None, None], matrices, np.eye(matrices.shape[-1]))
    try:
        return np.asarray(np.linalg.cholesky(sound), float), proper
    except np.linalg.LinAlgError:  # which of them, numpy does not say
        factors = np.empty_like(sound)
        for index in np.ndindex(proper.shape):
            try:
                factors[index] = np.linalg.cholesky(sound[index])
            except np.linalg.LinAlgError:
                factors[index], proper[index] = np.eye(matrices.shape[-1]), False
        return factors, proper


def log_determinant(factors: Floats) -> Floats:
    """Of L L', shape (...)."""
    # Contiguous: arithmetic on strides may round otherwise, and one device is to be the same alone and among others.
    return 2.0 * np.log(diagonal(factors)).sum(axis=-1)


def diagonal(matrices: Floats) -> Floats:
    """The diagonals, shape (..., d), contiguous."""
    return np.ascontiguousarray(np.diagonal(matrices, axis1=-2, axis2=-1))


def inverse(matrices: Floats) -> Inverse:
    """Inverses of symmetric matrices of which the lower triangle counts, shape (..., d, d)."""
    factors, proper = cholesky(matrices)
    root = np.linalg.inv(factors)
    return Inverse(root.swapaxes(-1, -2) @ root, factors, proper)
