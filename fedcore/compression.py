"""A device's rows for Gaussian models, compressed to d + 1 of them without loss.

With X = Q R the likelihood of y given theta depends on the rows through R, Q'y, the sum of squares that no theta explains, and n
alone. Unlike X'X this does not square the design's condition number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedcore.errors import Misuse
from fedcore.rows import DeviceData, Floats, Rows, Scalar

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
    """Compress m devices' training rows, device by device.

    Raises
    ------
    Misuse
        Where a device has no training rows, or values so large that their squares overflow.
    """
    columns = zip(*(_compressed(data.train) for data in datas), strict=True)
    return Compressed(*(np.array(column) for column in columns))


def _compressed(rows: Rows) -> Compressed:
    X, y, d = rows.X, rows.y, rows.d
    if not rows.n:
        raise Misuse("a device without training rows cannot take part: leave it out, or change the split")
    with np.errstate(over="ignore", invalid="ignore"):
        squares, power = (X**2).sum(axis=0), float(y @ y) / rows.n
    if not (np.isfinite(squares).all() and np.isfinite(power)):
        raise Misuse("the squares of this device's values are not finite: scale features and target, and fill missing values")
    Q, R = np.linalg.qr(X)
    projected = Q.T @ y
    residual = y - Q @ projected
    padded, targets = np.zeros((d, d)), np.zeros(d)
    padded[: len(R)], targets[: len(R)] = R, projected
    length = np.sqrt(squares)
    singular = np.linalg.svd(R / np.where(length > 0, length, 1.0), compute_uv=False)
    rank = int((singular > RANK_TOLERANCE * singular[0]).sum())
    return Compressed(padded, targets, float(residual @ residual), float(rows.n), float(rows.n - rank), power)
