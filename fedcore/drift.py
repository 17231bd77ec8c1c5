"""How far a device's rows have moved away from a model that was trained before: figures that are computed on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.special import fdtrc

from fedcore.compression import compress
from fedcore.rows import DeviceData, Floats, Rows

CHANCE = 0.01
"""The probability with which some device of a fleet may seem to have drifted by chance alone, with few rows."""

FEWEST = 5
"""The fewest devices of which a median says something of the fleet."""


class Drift(NamedTuple):
    """What a device tells.

    Attributes
    ----------
    n
        Number of held-out rows; 0 where there are too few to tell of.
    mean, rms
        Of the standardised residuals of these rows: what the model leaves of them, in standard deviations of the device's own noise. A
        model that still holds has a mean about 0 and an rms about 1, or a little above as coefficients are estimates. NaN without rows,
        and without a noise.
    freedom
        The residual degrees of freedom that this noise is known by.
    move
        See `Algorithm.moved`; NaN where there is none.
    """

    n: int
    mean: float
    rms: float
    freedom: float
    move: float

    def exceeds(self, rms: float, move: float, devices: int) -> bool:
        """Whether the device has drifted.

        Parameters
        ----------
        rms
            The limit of `rms`. It has to be exceeded by more than chance explains too, by the F test of rms^2 at the level `CHANCE` over
            all devices; for coefficients that are known exactly, so that the limit has to leave room for how well they are known.
        move
            The limit of `move`, in nats.
        devices
            How many devices are looked at.
        """
        sure = self.rms > rms and float(fdtrc(self.n, self.freedom, self.rms**2)) * devices < CHANCE
        return sure or self.move > move


def median_rms(drifts: Iterable[Drift]) -> float:
    """Of the devices that have one, NaN where these are fewer than `FEWEST`: devices with few rows may each be within chance while all
    of them drift."""
    known = [drift.rms for drift in drifts if np.isfinite(drift.rms)]
    return float(np.median(known)) if len(known) >= FEWEST else np.nan


def residual_drift(theta: Floats, data: DeviceData, rows: Rows, move: float | None = None) -> Drift:
    """A device's drift from coefficients.

    The noise is that of the device's own least squares on its training rows of now, so that what changes alike in all its rows counts
    in full, and what changes within the training rows counts less.

    Parameters
    ----------
    theta
        Of the model, shape (d,).
    data
        The device's rows of now.
    rows
        Those of them that may be told of.
    move
        How far they would move what the fleet has learned.
    """
    own, moved = compress([data]), np.nan if move is None else move
    freedom, rss = float(np.asarray(own.freedom)[0]), float(np.asarray(own.rss)[0])
    if not rows.n or freedom <= 0 or rss <= 0:
        return Drift(rows.n, np.nan, np.nan, freedom, moved)
    with np.errstate(over="ignore", invalid="ignore"):
        residual = (rows.y - rows.X @ theta) / np.sqrt(rss / freedom)
        return Drift(rows.n, float(residual.mean()), float(np.sqrt(residual @ residual / rows.n)), freedom, moved)
