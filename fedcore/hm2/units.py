"""Units that a hyper-prior is stated in: those of the data themselves, which the fleet sums up, or what they happen to be.

With units of the fleet's own, results follow the targets' and the columns' units: y in grams for kilograms gives coefficients a thousand
times larger, and the same posterior otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.compression import Compressed
from fedcore.rows import Floats, Scalar


class Units(NamedTuple):
    """Root mean squares over the fleet's rows, above 0: of the target, and of each column of the design, shape (d,)."""

    target: Scalar
    columns: Floats

    @property
    def coefficients(self) -> Floats:
        """Size of a coefficient whose column could explain the target alone, shape (d,)."""
        return self.target / self.columns

    @property
    def coefficient(self) -> float:
        """One size for all of them, their geometric mean."""
        return float(np.exp(np.log(self.coefficients).mean()))


class Squares(NamedTuple):
    """From a device: y'y, the columns' sums of squares, shape (d,), and its number of rows."""

    target: Scalar
    columns: Floats
    n: Scalar


def squares(rows: Compressed) -> Squares:
    """Of m devices, with a leading axis."""
    return Squares(np.asarray(rows.power) * rows.n, (rows.R**2).sum(axis=1), rows.n)


def units_of(total: Squares) -> Units:
    """From sums over devices. What is zero everywhere has the unit 1."""
    target, columns = float(total.target), np.asarray(total.columns)
    target, columns = target if target > 0 else float(total.n), np.where(columns > 0, columns, total.n)
    return Units(np.sqrt(target / total.n), np.sqrt(columns / total.n))
