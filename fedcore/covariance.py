"""The covariance Omega (K, K) between devices: as a matrix, or as rest I + factor' factor for fleets too large for one.

Both forms mean the same and give the same shrinkage; the second never holds K x K numbers. An update

    Omega <- (1 - alpha) Omega + (alpha / d) Theta' Theta

adds d rows to the factor, and an eigenvalue decomposition of its Gram matrix, (r + d) x (r + d), turns it so that its rows
are orthogonal. Rows too short to matter beside what the shrinkage adds to Omega are left out, so that r stays small where
Theta settles: 10 to 30 at d = 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dposv

from fedcore.rows import Floats, Scalar

EPSILON, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)

NEGLIGIBLE = 1e-10
"""What is left out of the factor, all rounds together, is at most this share of the least that a shrinkage adds to Omega."""

LARGEST_DENSE, DENSE_PER_COLUMN = 200, 50
"""Up to so many devices, or so many for each column of the design, the matrix is faster than the factor (measured for d from 2 to 40)."""


class LowRank(NamedTuple):
    """Omega = rest I + factor' factor.

    Attributes
    ----------
    factor
        Shape (r, K), 0 <= r <= K; a column a device.
    rest
        What every device has for itself, at least 0.
    """

    factor: Floats
    rest: float


Covariance = Floats | LowRank


def identity(K: int, d: int) -> Covariance:
    """I, in the form that is faster for K devices and d coefficients."""
    if max(LARGEST_DENSE, DENSE_PER_COLUMN * d) < K:
        return LowRank(np.empty((0, K)), 1.0)
    return np.eye(K)


def scaled(Omega: Covariance, unit: float) -> Covariance:
    """`unit` times Omega."""
    if isinstance(Omega, LowRank):
        return LowRank(np.sqrt(unit) * Omega.factor, unit * Omega.rest)
    return unit * Omega


def shrunk(V: Floats, Omega: Covariance, prior_rate: Floats, floor: float) -> Floats:
    """The proximal step V - V (Omega + floor I + 2 D)^-1 2 D.

    Parameters
    ----------
    V
        Coefficients, shape (d, K), finite.
    Omega
        Device covariance.
    prior_rate
        The diagonal of D, shape (K,).
    floor
        Added to Omega's diagonal.

    Returns
    -------
    ndarray
        Shape (d, K).
    """
    if isinstance(Omega, LowRank):
        return _shrunk_by_factor(V, Omega, prior_rate, floor)
    _, solved, _ = dposv(raised(Omega, floor + 2.0 * prior_rate + _rounding(Omega)), V.T, overwrite_a=1)
    return V - solved.T * (2.0 * prior_rate)


def _shrunk_by_factor(V: Floats, Omega: LowRank, prior_rate: Floats, floor: float) -> Floats:
    """With E = c I + 2 D, c = rest + floor, S = factor E^-1/2: V c E^-1 + V E^-1/2 S' (I + S S')^-1 S E^-1/2 2 D.

    That is Woodbury's formula without its difference, so nothing cancels however small c and D are beside the factor.
    """
    common = _common(Omega, floor)
    added = common + 2.0 * prior_rate
    kept = V * (common / added)
    if not len(Omega.factor):
        return kept
    root = np.sqrt(added)
    S = Omega.factor / root
    _, solved, _ = dposv(raised(S @ S.T, 1.0), S @ (V / root).T, overwrite_a=1)
    return kept + (solved.T @ S) * (2.0 * prior_rate / root)


def updated(Omega: Covariance, Theta: Floats, alpha: float, least: float) -> Covariance | None:
    """(1 - alpha) Omega + (alpha / d) Theta' Theta; None where that overflows.

    Parameters
    ----------
    Omega
        Device covariance.
    Theta
        Coefficients, shape (d, K).
    alpha
        Weight in (0, 1].
    least
        The least that a later shrinkage adds to Omega's diagonal: what is negligible is so beside it.
    """
    newest = np.sqrt(alpha / len(Theta)) * Theta
    if isinstance(Omega, LowRank):
        return _updated_factor(Omega, newest, alpha, least)
    moved = newest.T @ newest
    moved += (1.0 - alpha) * Omega
    return moved if np.isfinite(moved.trace()) else None


def _updated_factor(Omega: LowRank, newest: Floats, alpha: float, least: float) -> LowRank | None:
    factor, rest = np.concatenate([np.sqrt(1.0 - alpha) * Omega.factor, newest]), (1.0 - alpha) * Omega.rest
    gram = factor @ factor.T
    level = max(rest + least + EPSILON * float(gram.trace()), TINY)
    if not np.isfinite(level):
        return None
    # Without units, so that LAPACK rescales nothing and targets in other units give the same bits.
    factor = np.linalg.eigh(gram / level)[1].T @ factor
    # The squares of the rows themselves, which ascend: eigenvalues know the small ones only to the rounding of the largest. What a
    # round leaves out decays like the rest of Omega, so alpha times a share is that share in all rounds together.
    kept = np.vecdot(factor, factor) > alpha * NEGLIGIBLE * level
    return LowRank(factor[kept.argmax() :] if kept.any() else factor[:0], rest)


def extended(Omega: Covariance, places: Sequence[int | None]) -> Covariance:
    """Omega of a fleet that others join: block-diagonal, each of them with the mean of the old devices' variances. The form stays.

    Parameters
    ----------
    Omega
        Of the old fleet.
    places
        For each device of the new fleet its number in the old one, None for one that joins; every old device is among them.
    """
    stayed, before = [k for k, place in enumerate(places) if place is not None], [place for place in places if place is not None]
    joined = [k for k, place in enumerate(places) if place is None]
    variance = float(diagonal(Omega).mean())
    if isinstance(Omega, LowRank):
        factor = np.zeros((len(Omega.factor) + len(joined), len(places)))
        factor[: len(Omega.factor), stayed] = Omega.factor[:, before]
        factor[np.arange(len(Omega.factor), len(factor)), joined] = np.sqrt(max(variance - Omega.rest, 0.0))
        return LowRank(factor, Omega.rest)
    wider = np.diag(np.full(len(places), variance))
    wider[np.ix_(stayed, stayed)] = Omega[np.ix_(before, before)]
    return wider


def diagonal(Omega: Covariance) -> Floats:
    """The devices' variances, shape (K,)."""
    if isinstance(Omega, LowRank):
        return Omega.rest + np.einsum("rk,rk->k", Omega.factor, Omega.factor)
    return Omega.diagonal()


def block(Omega: Covariance, rows: Sequence[int], columns: Sequence[int]) -> Floats:
    """Omega's entries for some devices, without the others.

    Parameters
    ----------
    Omega
        A server state's covariance, in either form.
    rows, columns
        Device numbers: positions among the sorted ids.

    Returns
    -------
    ndarray
        Shape (len(rows), len(columns)).
    """
    i, j = np.asarray(rows, dtype=np.intp), np.asarray(columns, dtype=np.intp)
    if isinstance(Omega, LowRank):
        return Omega.factor[:, i].T @ Omega.factor[:, j] + Omega.rest * (i[:, None] == j)
    return Omega[np.ix_(i, j)]


def correlations(Omega: Covariance, devices: Sequence[int]) -> Floats:
    """Correlations between some devices' coefficients, shape (m, m), in [-1, 1] and 1 on the diagonal; parameters as for
    `block`."""
    chosen = block(Omega, devices, devices)
    root = np.sqrt(chosen.diagonal())
    found = np.clip(chosen / root / root[:, None], -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return found


def raised(matrix: Floats, added: Scalar) -> Floats:
    """A copy of a symmetric matrix (K, K) with `added`, one number or K, on its diagonal, in the column-major order that LAPACK works
    on in place."""
    system = matrix.copy()
    system.ravel()[:: len(system) + 1] += added
    return system.T


def _common(Omega: LowRank, floor: float) -> float:
    """What is added to factor' factor on the whole diagonal, and never zero."""
    return max(Omega.rest + floor + _rounding(Omega), TINY)


def _rounding(Omega: Covariance) -> float:
    """Omega is positive semi-definite up to rounding: what keeps a factorisation so at any scale of the targets."""
    variances = diagonal(Omega)
    return len(variances) * EPSILON * float(variances.max())
