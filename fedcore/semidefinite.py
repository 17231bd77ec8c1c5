"""Symmetric positive semi-definite matrices: packed for messages, factored and solved with where they are singular.

Both `factor` and `solve` first scale the matrix to a unit diagonal, so that the units of its rows and columns change nothing
but the units of the result.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedcore.rows import Floats

EPSILON = float(np.finfo(float).eps)


def packed(matrices: Floats) -> Floats:
    """The lower triangles of matrices of shape (..., d, d), row by row, shape (..., d (d + 1) / 2) and C-contiguous: in another order of
    memory sums over devices would round otherwise."""
    rows, columns = _triangle(matrices.shape[-1])
    return np.ascontiguousarray(matrices[..., rows, columns])


def triangular(triangles: Floats, d: int) -> Floats:
    """The lower triangular matrices that `packed` took these from, shape (..., d, d)."""
    matrices = np.zeros((*triangles.shape[:-1], d, d))
    rows, columns = _triangle(d)
    matrices[..., rows, columns] = triangles
    return matrices


def symmetric(triangles: Floats, d: int) -> Floats:
    """The symmetric matrices that `packed` took these from, shape (..., d, d)."""
    return np.take(triangles, _places(d), axis=-1)


@cache
def _triangle(d: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of a lower triangle."""
    return np.tril_indices(d)


@cache
def _places(d: int) -> NDArray[np.intp]:
    """Where in the packed triangle each entry of a symmetric matrix is, shape (d, d)."""
    places, (rows, columns) = np.empty((d, d), dtype=np.intp), _triangle(d)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    return places


def factor(matrix: Floats) -> Floats:
    """A lower triangular L, shape (d, d), with L L' = `matrix`, which may be singular; what rounding made negative counts as zero."""
    scale, values, vectors = _decomposed(matrix)
    root = scale[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))
    return np.ascontiguousarray(np.linalg.qr(root.T)[1].T)


def solve(matrix: Floats, vector: Floats) -> Floats:
    """The smallest solution of matrix x = vector, (d, d) and (d,), in units of a unit diagonal; directions in which the matrix is zero up
    to rounding are left out."""
    scale, values, vectors = _decomposed(matrix)
    kept = values > len(values) * EPSILON * max(values[-1], 1.0)
    inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
    return _divided(vectors @ (inverse * (vectors.T @ _divided(vector, scale))), scale)


def _decomposed(matrix: Floats) -> tuple[Floats, Floats, Floats]:
    """Square roots of the diagonal, and eigenvalues and eigenvectors of the matrix with a unit diagonal."""
    scale = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
    unit = _divided(_divided(matrix, scale).T, scale)
    values, vectors = np.linalg.eigh(unit)
    return scale, values, vectors


def _divided(array: Floats, scale: Floats) -> Floats:
    return np.where(scale > 0, array / np.where(scale > 0, scale, 1.0), 0.0)
