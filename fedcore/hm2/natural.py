"""Normal distributions by their natural parameters: shift r = Q m and precision Q, for which products are sums.

A factor need not be a distribution, so Q may be indefinite, or zero. It is held as its packed lower triangle: were a full matrix sent and
added, its antisymmetric part, which is rounding alone, would grow from round to round.

All functions work on one set of parameters, or on any number of them with leading axes, and none depends on the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.hm2 import cholesky
from fedcore.hm2.cholesky import Inverse, diagonal
from fedcore.rows import Booleans, Floats
from fedcore.semidefinite import packed, symmetric

LOG_2PI = float(np.log(2.0 * np.pi))


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
    """Of normal distributions.

    Attributes
    ----------
    mean, covariance
        Shapes (..., m) and (..., m, m); finite, but without meaning, where `proper` is false.
    log_partition
        log of the integral of exp(r'phi - phi'Q phi / 2), shape (...); NaN where `proper` is false.
    proper
        Whether Q is positive definite, shape (...).
    """

    mean: Floats
    covariance: Floats
    log_partition: Floats
    proper: Booleans


def flat(m: int) -> NaturalParams:
    """The factor 1."""
    return NaturalParams(np.zeros(m), np.zeros(m * (m + 1) // 2))


def natural(mean: Floats, matrix: Floats) -> NaturalParams:
    """Of a mean, shape (..., m), and a precision matrix, shape (..., m, m), which is symmetrised."""
    symmetrised = 0.5 * (matrix + matrix.swapaxes(-1, -2))
    return NaturalParams((symmetrised @ mean[..., None])[..., 0], packed(symmetrised))


def moments(params: NaturalParams) -> Moments:
    """Mean, covariance and integral, from Q with a unit diagonal."""
    found, shift = inverse(params.matrix), params.shift
    mean = (found.matrix @ shift[..., None])[..., 0]
    value = 0.5 * ((shift * mean).sum(axis=-1) - found.log_determinant + shift.shape[-1] * LOG_2PI)
    return Moments(mean, found.matrix, np.where(found.proper, value, np.nan), found.proper)


def inverse(matrices: Floats) -> Inverse:
    """As `cholesky.inverse`, of matrices first scaled to a unit diagonal."""
    sound = np.asarray(np.isfinite(matrices).all(axis=(-1, -2)) & (diagonal(matrices) > 0).all(axis=-1))
    if not sound.all():
        matrices = np.where(sound[..., None, None], matrices, np.eye(matrices.shape[-1]))
    scale = 1.0 / np.sqrt(diagonal(matrices))
    products = scale[..., :, None] * scale[..., None, :]
    unit = cholesky.inverse(matrices * products)
    scaled = np.where(unit.proper[..., None, None], unit.matrix * products, unit.matrix)
    log_determinant = unit.log_determinant - 2.0 * np.log(scale).sum(axis=-1)
    return Inverse(scaled, np.where(unit.proper, log_determinant, 0.0), sound & unit.proper)


def log_density(params: NaturalParams, phi: Floats) -> Floats:
    """log of a normal density at S points, shape (S, m): shape (S,)."""
    away = phi - moments(params).mean
    _, logdet = np.linalg.slogdet(params.matrix)
    return 0.5 * (logdet - ((away @ params.matrix) * away).sum(axis=1) - phi.shape[1] * LOG_2PI)


def log_partition(params: NaturalParams) -> Floats:
    """As in `Moments`."""
    return moments(params).log_partition


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
