"""Predictions with intervals for rows of any device, from what a run has found: no device's own rows are needed, and none is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from fedcore.data.checks import checked_features
from fedcore.data.contract import Contract
from fedcore.data.design import Ranges, new_design
from fedcore.data.fitted import Fitted
from fedcore.data.parquet import from_table
from fedcore.errors import DataError, Misuse
from fedcore.posterior import Posterior, prediction_intervals
from fedcore.rows import Floats

DEVICE = "device"
"""The column that names each row's device."""

LEVEL = 0.9


class FleetModel(NamedTuple):
    """What a fleet has learned, as a model of new rows.

    Attributes
    ----------
    contract, fitted
        How rows become a design.
    estimates
        Coefficients by device, each of shape (d,).
    posteriors
        Posteriors by device, where the algorithm has them.
    prior
        What a device that is not among them is taken for: coefficients, of shape (d,), or a posterior; None where the fleet has
        learned nothing of others.
    """

    contract: Contract
    fitted: Fitted | None
    estimates: Mapping[str, Floats]
    posteriors: Mapping[str, Posterior]
    prior: Floats | Posterior | None

    def predict(self, frame: object) -> pl.DataFrame:
        """Predictions for rows of any devices.

        Parameters
        ----------
        frame
            A table of Polars or Arrow: n rows with the column `device` and every feature of the contract, in its units.

        Returns
        -------
        pl.DataFrame
            `device`, `mean`, `lower` and `upper` (the interval at 90 %, noise included), n rows in this order, in the target's own unit.
            NaN where there is no interval, and in all three for rows with a gap where the contract drops such rows.

        Raises
        ------
        Misuse
            Where `frame` is no table, or the fleet has learned nothing of a device that was not in it.
        DataError
            Where the rows break the contract.
        """
        given = from_table(frame, "new rows")[0]
        if DEVICE not in given.columns:
            raise DataError(f"new rows: column {DEVICE!r} is missing: it names each row's device")
        devices = given[DEVICE]
        if devices.dtype != pl.String or devices.null_count():
            raise DataError(
                f"new rows: column {DEVICE!r} is {devices.dtype} with {devices.null_count()} gaps: give every row an id as text"
            )
        if nameless := int((devices == "").sum()):
            raise DataError(f"new rows: column {DEVICE!r} is empty in {nameless} of {given.height} rows: give every row an id")
        rows = checked_features(given.drop(DEVICE), self.contract, "new rows")
        X, kept = new_design(rows, self.contract, Ranges({}, None), "new rows", self.fitted)
        asked, told = devices.to_numpy()[kept], np.full((3, given.height), np.nan)
        found = np.full((3, len(X)), np.nan)
        with np.errstate(over="ignore", invalid="ignore"):
            for device in dict.fromkeys(asked.tolist()):
                own = asked == device
                found[:, own] = self._of(device, X[own])
        if overflown := int((~np.isfinite(found[0]) | np.isinf(found).any(axis=0)).sum()):
            raise DataError(f"new rows: predictions of {overflown} rows are not finite: their features are far too large, check the units")
        told[:, kept] = found
        return pl.DataFrame({DEVICE: devices, "mean": told[0], "lower": told[1], "upper": told[2]})

    def _of(self, device: str, X: Floats) -> Floats:
        """Mean and interval of one device's rows, shape (3, m)."""
        known: Any = self.posteriors.get(device, self.estimates.get(device, self.prior))
        if known is None:
            remedy = "fedlin adapt takes it into the fleet, and hm2, eb, fedavg and pooled learn of others too"
            raise Misuse(f"device {device} was not in the fleet, and the run has learned nothing of others: {remedy}")
        if not isinstance(known, Posterior):
            mean = X @ known
            return np.stack([mean, np.full(len(X), np.nan), np.full(len(X), np.nan)])
        low, high = prediction_intervals(known, X, LEVEL).T
        return np.stack([X @ known.mean, low, high])


def fleet_model(
    contract: Contract,
    fitted: Fitted | None,
    estimates: Mapping[str, Floats],
    posteriors: Mapping[str, Posterior],
    prior: Floats | Posterior | None,
) -> FleetModel:
    """The model of a run; parameters as for `FleetModel`, coefficients of shape (d,).

    Raises
    ------
    Misuse
        Where the contract scales by each device's own range, which is two rows' values and stored nowhere.
    """
    scaled = [part for part in ("features", "target") if getattr(contract.scaling, part) in ("train", "own")]
    if scaled:
        what = f"the contract scales its {' and '.join(scaled)} by each device's own range, which no run stores"
        raise Misuse(f"{what}: predict on the device (fedcore.data.Dataset.predict), or scale by the fleet")
    return FleetModel(contract, fitted, estimates, posteriors, prior)
