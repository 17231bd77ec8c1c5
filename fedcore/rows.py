"""The rows of one device, as arrays, split into the part that trains, the part that tunes and the part that scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import DataError

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Indices = NDArray[np.intp]
Scalar = float | Floats
"""One number; where it stands for m devices, one each, shape (m,)."""


class Rows(NamedTuple):
    """Design rows and their targets.

    Attributes
    ----------
    X
        Design matrix, shape (n, d); n may be 0.
    y
        Targets, shape (n,), in the (possibly scaled) units that the contract states.
    """

    X: Floats
    y: Floats

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.y)

    @property
    def d(self) -> int:
        """Number of columns of the design."""
        return self.X.shape[1]

    @classmethod
    def empty(cls, d: int) -> Rows:
        """No rows of a d-column design."""
        return cls(np.empty((0, d)), np.empty(0))


class DeviceData(NamedTuple):
    """All that one device holds. Training reads `train` only; `validation` tunes, `test` scores."""

    train: Rows
    validation: Rows
    test: Rows

    @classmethod
    def of(cls, X: object, y: object, *, X_test: object = None, y_test: object = None) -> DeviceData:
        """Device data from arrays: (n, d) and (n,), with optional test rows (m, d) and (m,).

        Raises
        ------
        DataError
            On shapes that do not fit together, an empty training part, or a null or non-finite value.
        """
        train = checked_rows(X, y, "training")
        test = Rows.empty(train.d) if X_test is None else checked_rows(X_test, y_test, "test")
        if test.d != train.d:
            raise DataError(f"test rows have {test.d} columns, training rows {train.d}: give both the same design")
        return cls(train, Rows.empty(train.d), test)


def checked_rows(X: object, y: object, part: str) -> Rows:
    """Arrays as Rows of float64, C-contiguous, refused where they cannot be one.

    Raises
    ------
    DataError
        Where X is not (n, d) with n, d >= 1, y is not (n,), or either holds a non-finite value.
    """
    design, targets = _numbers(X, f"X of the {part} rows"), _numbers(y, f"y of the {part} rows")
    if design.ndim != 2 or 0 in design.shape:
        raise DataError(f"{part} rows: expected X of shape (n, d) with n, d >= 1, got shape {design.shape}")
    if targets.shape != (len(design),):
        raise DataError(f"{part} rows: expected y of shape ({len(design)},) to go with X, got shape {targets.shape}")
    if bad := int((~np.isfinite(design)).sum() + (~np.isfinite(targets)).sum()):
        raise DataError(f"{part} rows: {bad} null or non-finite values: drop or fill them first")
    return Rows(design, targets)


def _numbers(values: object, what: str) -> Floats:
    try:
        array = np.asarray(values)
        if array.dtype.kind in "biuf":
            return np.ascontiguousarray(array, dtype=np.float64)
        kind = array.dtype.name
    except (TypeError, ValueError):  # what numpy says may quote a value
        kind = "rows of different length, or other objects"
    raise DataError(f"{what}: expected real numbers, got {kind}: encode categories, and make all rows one length")
