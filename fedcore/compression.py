"""A device's rows for Gaussian models, compressed to d + 1 of them without loss.

With X = Q R the likelihood of y given theta depends on the rows through R, Q'y, the sum of squares that no theta explains, and n
alone; all of it is in the triangular factor of (X y). Unlike X'X this does not square the design's condition number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import Misuse
from fedcore.rows import DeviceData, Floats, Scalar

AT_ONCE = 2**16
"""How many numbers are factorised in one call, unless a device alone has more."""

RANK_TOLERANCE = 1e-10
"""Singular values of the design with columns of length 1 below this share of the largest count as zero."""


class Compressed(NamedTuple):
    """One device's training rows; with a leading axis m where it stands for m devices.

    Attributes
    ----------
    R
        Upper triangular factor of X = Q R, shape (d, d); its last d - n rows are zero where n < d.
    y
        Q'y, shape (d,), with zeros in the same rows.
    rss
        |y - Q Q'y|^2: the residual sum of squares of least squares, where X has full rank.
    n
        Number of rows.
    freedom
        n - rank(X), the device's own residual degrees of freedom.
    power
        y'y / n.
    """

    R: Floats
    y: Floats
    rss: Scalar
    n: Scalar
    freedom: Scalar
    power: Scalar


def compress(datas: Sequence[DeviceData]) -> Compressed:
    """Compress m devices' training rows, each independent of the others to the last bit.

    Raises
    ------
    Misuse
        Where a device has no training rows, or values so large that their squares overflow.
    """
    m, d = len(datas), datas[0].train.d
    R, y = np.zeros((m, d, d)), np.zeros((m, d))
    rss, rank, power = np.zeros(m), np.zeros(m), np.zeros(m)
    n = np.array([data.train.n for data in datas])
    if not n.all():
        raise Misuse("a device without training rows cannot take part: leave it out, or change the split")
    for together in _alike(n, d + 1):
        rows = [datas[int(k)].train for k in together]
        tables = np.empty((len(rows), rows[0].n, d + 1))
        np.stack([each.X for each in rows], out=tables[:, :, :d])
        np.stack([each.y for each in rows], out=tables[:, :, d])
        # What is left of y below the first d rows of the factor of (X y) is what X does not explain.
        factors: Floats = np.asarray(np.linalg.qr(tables, mode="r"))
        with np.errstate(over="ignore", invalid="ignore"):
            squares = (factors**2).sum(axis=1)
        if not np.isfinite(squares).all():
            raise Misuse("the squares of this device's values are not finite: scale features and target, and fill missing values")
        some = min(d, factors.shape[1])
        R[together, :some], y[together, :some] = factors[:, :d, :d], factors[:, :d, d]
        rss[together] = (factors[:, d:, d] ** 2).sum(axis=1)
        power[together] = squares[:, d] / n[together]
        length = np.sqrt(squares[:, None, :d])
        rank[together] = _ranks(factors[:, :d, :d] / np.where(length > 0, length, 1.0))
    return Compressed(R, y, rss, n.astype(float), n - rank, power)


def _ranks(factors: Floats) -> Floats:
    """Ranks of m triangular factors of designs with columns of length 1, or 0, shape (m, min(n, d), d).

    Their d squared singular values sum up to at most d, so that whatever the other ones are, the least is at least exp(-1/2) times the
    product of all, the determinant, and the largest is at most sqrt(d): a determinant that is large enough tells the rank without them.
    """
    n, d = factors.shape[1:]
    full = np.abs(np.diagonal(factors, axis1=1, axis2=2).prod(axis=1)) > RANK_TOLERANCE * np.sqrt(np.e * d)
    if n == d and full.all():
        return np.full(len(factors), float(d))
    singular = np.linalg.svd(factors, compute_uv=False)
    return (singular > RANK_TOLERANCE * singular[:, :1]).sum(axis=1)


def _alike(n: NDArray[np.intp], width: int) -> Iterator[NDArray[np.intp]]:
    """Devices of equal numbers of rows, as many at once as fit the processor's cache."""
    order = np.argsort(n, kind="stable")
    for devices in np.split(order, np.flatnonzero(np.diff(n[order])) + 1):
        most = max(1, AT_ONCE // (int(n[devices[0]]) * width))
        yield from (devices[start : start + most] for start in range(0, len(devices), most))
