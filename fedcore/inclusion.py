"""Which coefficients matter, on a device and across the fleet, and the refit on those that do.

A device includes a coefficient where its equal-tailed interval leaves out zero. So at level 0.9 it includes about one in ten of those that
are zero, unless the prior knows better: it is a choice device by device, not one for the fleet as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.compression import compress
from fedcore.errors import Misuse
from fedcore.pooled import solve
from fedcore.posterior import AnyPosterior, Reference, coefficient_summary
from fedcore.rows import Booleans, DeviceData, Floats, Rows

Counts = NDArray[np.int64]


class Inclusions(NamedTuple):
    """How a fleet's devices include each of the d coefficients.

    Attributes
    ----------
    positive, negative
        How many devices include it, as above and as below zero, each of shape (d,).
    devices
        How many devices were asked.
    """

    positive: Counts
    negative: Counts
    devices: int

    @property
    def share(self) -> Floats:
        """Share of the devices that include a coefficient, shape (d,)."""
        return (self.positive + self.negative) / self.devices

    @property
    def agreement(self) -> Floats:
        """Share of those that include a coefficient with its more frequent sign, shape (d,); NaN where none includes it."""
        total = self.positive + self.negative
        return np.where(total > 0, np.maximum(self.positive, self.negative) / np.maximum(total, 1), np.nan)


def included_signs(posterior: AnyPosterior, level: float = 0.9, *, reference: Reference = "normal") -> Counts:
    """A device's choice: 1 where the interval of a coefficient is above zero, -1 where it is below, 0 where it holds zero, shape (d,).

    Parameters
    ----------
    posterior
        Of the device.
    level, reference
        As for `coefficient_intervals`.

    Raises
    ------
    Misuse
        As `coefficient_intervals` does.
    """
    found = coefficient_summary(posterior, level, reference=reference)
    return (found.lower > 0).astype(np.int64) - (found.upper < 0)


def inclusions(signs: Sequence[Counts]) -> Inclusions:
    """The devices' choices together; all that a device needs to tell are its signs.

    Raises
    ------
    Misuse
        Without devices, or where they differ in the number of their coefficients.
    """
    if len({len(each) for each in signs}) != 1:
        raise Misuse(f"signs: expected those of one device or more, all of one length, got lengths {sorted({len(each) for each in signs})}")
    table = np.array(signs)
    return Inclusions((table > 0).sum(axis=0), (table < 0).sum(axis=0), len(table))


def refit(rows: Rows, included: Booleans) -> Floats:
    """Least squares of a device's rows on the included columns alone; its rows stay where they are.

    It undoes the shrinkage of what is included. Of several solutions, as for more columns than rows, it is the one of the least norm.

    Parameters
    ----------
    rows
        Of the device, such as `data.train`.
    included
        Shape (d,).

    Returns
    -------
    Floats
        Coefficients, shape (d,), zero for the columns left out.

    Raises
    ------
    Misuse
        Where `included` has another shape, there are no rows, or their values overflow.
    """
    chosen = np.asarray(included, dtype=bool)
    if chosen.shape != (rows.d,):
        raise Misuse(f"included: expected shape ({rows.d},), got {chosen.shape}")
    theta, none = np.zeros(rows.d), Rows.empty(rows.d)
    compressed = compress([DeviceData(rows, none, none)])
    if chosen.any():
        theta[chosen] = solve(np.column_stack([compressed.R[0][:, chosen], compressed.y[0]]), 0.0)[0]
    return theta
