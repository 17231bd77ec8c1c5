"""From a checked frame to the arrays that algorithms see: feature map, scaling, split."""

from __future__ import annotations

import numpy as np
import polars as pl

from fedcore.data.contract import Contract, PolynomialMap
from fedcore.data.splits import Mask, split_rows
from fedcore.errors import DataError
from fedcore.rows import DeviceData, Floats, Rows


def prepare(frame: pl.DataFrame, contract: Contract, where: str) -> DeviceData:
    """One device's rows as design and target, float64 and C-contiguous, in the order of the frame.

    Parameters
    ----------
    frame
        All rows of the device, as `checked_frame` returns them.
    where
        How errors call the device's data, such as "device=7".

    Returns
    -------
    DeviceData
        Design columns as `contract.design_names` names them; targets in the column's unit, or scaled as the contract says.

    Raises
    ------
    DataError
        Where nothing is left to train, a column to be scaled is constant, or a number overflows.
    """
    parts = split_rows(frame, contract.split, where)
    segment = ~parts.test
    # Overflow is looked for once, in the result.
    with np.errstate(over="ignore", invalid="ignore"):
        X = _design(frame, contract, segment, where)
        y = _target(frame, contract, segment, where)
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError(f"{where}: the design or the target overflows float64: change the units, [feature_map] or [scaling]")
    return DeviceData(*(Rows(X[part], y[part]) for part in parts))


def _design(frame: pl.DataFrame, contract: Contract, segment: Mask, where: str) -> Floats:
    columns = [np.ones(frame.height)] if contract.intercept else []
    for name in contract.features:
        x = frame[name].to_numpy().astype(np.float64)
        if isinstance(contract.feature_map, PolynomialMap) and name == contract.feature_map.feature:
            t = (x - contract.feature_map.origin) / contract.feature_map.scale
            columns += [t**power for power in range(1, contract.feature_map.degree + 1)]
        else:
            columns.append(_min_max(x, segment, name, where) if contract.scaling.features == "train" else x)
    return np.column_stack(columns)


def _target(frame: pl.DataFrame, contract: Contract, segment: Mask, where: str) -> Floats:
    y = frame[contract.target].to_numpy().astype(np.float64)
    match contract.scaling.target:
        case "none":
            return y
        case "train":
            return _min_max(y, segment, contract.target, where)
        case "own":
            scaled = _min_max(y, segment, contract.target, where)
            if not segment.all():
                scaled[~segment] = _min_max(y, ~segment, contract.target, where)[~segment]
            return scaled


def _min_max(values: Floats, over: Mask, name: str, where: str) -> Floats:
    low, high = values[over].min(), values[over].max()
    if low == high:
        count = np.count_nonzero(over)
        remedy = "turn its scaling off, or leave the device out"
        raise DataError(f"{where}: column {name!r} is constant over the {count} rows that set its range: {remedy}")
    return (values - low) / (high - low)
