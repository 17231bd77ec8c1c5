"""From a checked frame to the arrays that algorithms see: gaps, split, feature map, scaling, dummies, interactions."""

from __future__ import annotations

import numpy as np
import polars as pl

from fedcore.data.contract import Contract, PolynomialMap, UnknownLevels
from fedcore.data.fitted import Category, Fitted
from fedcore.data.missing import complete_rows
from fedcore.data.splits import Mask, split_rows
from fedcore.errors import DataError, Misuse
from fedcore.rows import DeviceData, Floats, Rows


def prepare(frame: pl.DataFrame, contract: Contract, where: str, fitted: Fitted | None = None) -> DeviceData:
    """One device's rows as design and target, float64 and C-contiguous, in the order of the frame.

    Parameters
    ----------
    frame
        All rows of the device, as `checked_frame` returns them.
    where
        How errors call the device's data, such as "device=7".
    fitted
        What the fleet has learned of its columns, where the contract needs it.

    Returns
    -------
    DeviceData
        Design columns as `fitted.design`, or else `contract.design_names`, names them; targets in the column's unit, or scaled as
        the contract says.

    Raises
    ------
    DataError
        Where nothing is left to train, a column to be scaled is constant, a category has a value that is no level of the fleet's
        and the contract refuses those, or a number overflows.
    Misuse
        Where `fitted` is missing.
    """
    if contract.needs_fit and fitted is None:
        raise Misuse("the design of this data set depends on the whole fleet: fit its preprocessing first, or use load_fleet")
    frame = complete_rows(frame, contract, where)
    parts = split_rows(frame, contract.split, where)
    segment = ~parts.test
    # Overflow is looked for once, in the result.
    with np.errstate(over="ignore", invalid="ignore"):
        X = _design(frame, contract, segment, where, fitted)
        y = _target(frame, contract, segment, where)
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError(f"{where}: the design or the target overflows float64: change the units, [feature_map] or [scaling]")
    return DeviceData(*(Rows(X[part], y[part]) for part in parts))


def _design(frame: pl.DataFrame, contract: Contract, segment: Mask, where: str, fitted: Fitted | None) -> Floats:
    columns = [np.ones(frame.height)] if contract.intercept else []
    linear: dict[str, Floats] = {}  # of each numeric feature, the column that its interactions multiply
    for name in contract.features:
        if fitted and name in fitted.categories:
            columns += _dummies(frame[name], fitted.categories[name], contract.category(name).unknown, where)
        else:
            x = _numbers(frame[name], fitted)
            if isinstance(contract.feature_map, PolynomialMap) and name == contract.feature_map.feature:
                linear[name] = t = (x - contract.feature_map.origin) / contract.feature_map.scale
                columns += [t**power for power in range(1, contract.feature_map.degree + 1)]
            else:
                linear[name] = _scaled(x, contract, segment, name, where, fitted)
                columns.append(linear[name])
        if fitted and name in fitted.marked:
            columns.append(frame[name].is_null().to_numpy().astype(np.float64))
    columns += [linear[first] * linear[second] for first, second in contract.interactions]
    if not columns:
        raise DataError(f"{where}: the design has no columns: every category has one level only; add an intercept or a feature")
    return np.column_stack(columns)


def _numbers(column: pl.Series, fitted: Fitted | None) -> Floats:
    if column.null_count():
        assert fitted is not None  # rows with gaps have gone otherwise
        column = column.cast(pl.Float64).fill_null(fitted.means[column.name])
    return column.to_numpy().astype(np.float64)


def _scaled(x: Floats, contract: Contract, segment: Mask, name: str, where: str, fitted: Fitted | None) -> Floats:
    match contract.scaling.features:
        case "none":
            return x
        case "train":
            return _min_max(x, segment, name, where)
        case "global":
            assert fitted is not None
            return (x - fitted.means[name]) / fitted.scales[name]


def _dummies(column: pl.Series, category: Category, unknown: UnknownLevels, where: str) -> list[Floats]:
    strange = (~column.is_in([category.reference, *category.levels])).fill_null(False).to_numpy()
    if unknown == "refuse" and strange.any():
        count = np.count_nonzero(strange)
        remedy = f"correct them, or set unknown in [categories.{column.name}]"
        raise DataError(f"{where}: column {column.name!r} has {count} values that no device's training rows have: {remedy}")
    levels = [(column == level).fill_null(False).to_numpy() for level in category.levels]
    return [mask.astype(np.float64) for mask in (*levels, *([strange] if unknown == "own" else []))]


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
