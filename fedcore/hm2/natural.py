"""Normal distributions by their natural parameters: shift r = Q m and precision Q, for which products are sums.

A factor need not be a distribution, so Q may be indefinite, or zero. It is held as its packed lower triangle: were a full matrix sent and
added, its antisymmetric part, which is rounding alone, would grow from round to round.

All functions work on one set of parameters, or on any number of them with leading axes, and none depends on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import NamedTuple, TypeVar, cast

import numpy as np

from fedcore.hm2 import cholesky
from fedcore.rows import Booleans, Floats
from fedcore.semidefinite import packed, symmetric

LOG_2PI = float(np.log(2.0 * np.pi))

LARGEST = float(np.finfo(float).max)

KEPT = 8
"""How many results about single distributions are kept, of each kind."""

T = TypeVar("T")


class NaturalParams(NamedTuple):
    """exp(r'phi - phi'Q phi / 2), with phi of length m.

    Attributes
    ----------
    shift
        r, shape (..., m).
    precision
        Q, packed: shape (..., m (m + 1) / 2).
    """

    shift: Floats
    precision: Floats

    @property
    def matrix(self) -> Floats:
        """Q, shape (..., m, m)."""
        return symmetric(self.precision, self.shift.shape[-1])

    def plus(self, other: NaturalParams, times: float = 1.0) -> NaturalParams:
        """The product with another factor raised to the power `times`."""
        return NaturalParams(self.shift + times * other.shift, self.precision + times * other.precision)

    def minus(self, other: NaturalParams) -> NaturalParams:
        """The quotient by another factor."""
        return NaturalParams(self.shift - other.shift, self.precision - other.precision)

    def total(self) -> NaturalParams:
        """The product over the first axis."""
        return NaturalParams(self.shift.sum(axis=0), self.precision.sum(axis=0))


class Moments(NamedTuple):
    """Mean, shape (..., m), and covariance, shape (..., m, m), of normal distributions, and whether each is one, shape (...).

    Where `proper` is false the others are finite but mean nothing.
    """

    mean: Floats
    covariance: Floats
    proper: Booleans


def flat(m: int) -> NaturalParams:
    """The factor 1."""
    return NaturalParams(np.zeros(m), np.zeros(m * (m + 1) // 2))


def natural(mean: Floats, matrix: Floats) -> NaturalParams:
    """Of a mean, shape (..., m), and a precision matrix, shape (..., m, m), which is symmetrised."""
    symmetrised = 0.5 * (matrix + matrix.swapaxes(-1, -2))
    return NaturalParams((symmetrised @ mean[..., None])[..., 0], packed(symmetrised))


def _kept(function: Callable[[NaturalParams], T]) -> Callable[[NaturalParams], T]:
    """The function, with its last results about single distributions kept, read-only: the server and every device ask for the same q's."""

    @lru_cache(maxsize=KEPT)
    def of_one(shift: bytes, precision: bytes) -> T:
        found = function(NaturalParams(np.frombuffer(shift), np.frombuffer(precision)))
        _forbid_writing(found)
        return found

    @wraps(function)
    def of_any(params: NaturalParams) -> T:
        if params.shift.ndim > 1 or params.precision.ndim > 1:
            return function(params)
        return of_one(*(np.asarray(part, np.float64).tobytes() for part in params))

    return of_any


def _forbid_writing(found: object) -> None:
    arrays = cast("tuple[object, ...]", found) if isinstance(found, tuple) else (found,)
    for array in arrays:
        np.asarray(array).flags.writeable = False


@_kept
def moments(params: NaturalParams) -> Moments:
    """Mean and covariance, from Q with a unit diagonal."""
    covariance, proper = inverse(params.matrix)
    return Moments((covariance @ params.shift[..., None])[..., 0], covariance, proper)


def inverse(matrices: Floats) -> tuple[Floats, Booleans]:
    """Inverses of symmetric matrices, shape (..., m, m), and whether each is finite and positive definite, shape (...); where it is not,
    the identity stands for its inverse."""
    unit, scale = _scaled(matrices)
    found = cholesky.inverse(unit)
    return found.matrix * _products(np.where(found.proper[..., None], scale, 1.0)), found.proper


@_kept
def log_partition(params: NaturalParams) -> Floats:
    """log of the integral of exp(r'phi - phi'Q phi / 2), shape (...); NaN where Q is not positive definite."""
    unit, scale = _scaled(params.matrix)
    m = params.shift.shape[-1]
    # The factor of (Q r; r' c) ends with the row (L^-1 r, .), whatever c is: so one factorisation does without solving for it.
    bordered = np.full((*scale.shape[:-1], m + 1, m + 1), LARGEST)
    with np.errstate(invalid="ignore", over="ignore"):
        bordered[..., :m, :m], bordered[..., m, :m] = unit, params.shift * scale
    factors, proper = cholesky.cholesky(bordered)
    log_determinant = 2.0 * np.log(cholesky.diagonal(factors)[..., :m] / np.where(proper[..., None], scale, 1.0)).sum(axis=-1)
    value = 0.5 * ((factors[..., m, :m] ** 2).sum(axis=-1) - log_determinant + m * LOG_2PI)
    return np.where(proper, value, np.nan)


def _scaled(matrices: Floats) -> tuple[Floats, Floats]:
    """Matrices scaled to a unit diagonal, shape (..., m, m), and by what, shape (..., m); not finite where the diagonal is not positive."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = 1.0 / np.sqrt(cholesky.diagonal(matrices))
        return matrices * _products(scale), scale


def _products(scale: Floats) -> Floats:
    return scale[..., :, None] * scale[..., None, :]


def log_density(params: NaturalParams, phi: Floats) -> Floats:
    """log of a normal density at S points, shape (S, m): shape (S,)."""
    away = phi - moments(params).mean
    _, logdet = np.linalg.slogdet(params.matrix)
    return 0.5 * (logdet - ((away @ params.matrix) * away).sum(axis=1) - phi.shape[1] * LOG_2PI)


def divergence(ours: NaturalParams, theirs: NaturalParams) -> float:
    """The Kullback-Leibler divergence of one normal distribution from another, E log(ours / theirs) under ours, in nats; NaN where
    either is none."""
    mine, other = moments(ours), moments(theirs)
    if not (mine.proper and other.proper):
        return np.nan
    step, ratio = mine.mean - other.mean, theirs.matrix @ mine.covariance
    _, logdet = np.linalg.slogdet(ratio)
    # Of p near q the trace and the determinant cancel, and rounding may leave less than nothing.
    return max(0.5 * float(np.trace(ratio) - len(step) - logdet + step @ theirs.matrix @ step), 0.0)
