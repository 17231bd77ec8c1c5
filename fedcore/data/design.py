"""From a checked frame to the arrays that algorithms see: gaps, split, feature map, scaling, dummies, interactions.

What a device learns from its own training segment (`Ranges`) is apart from what is done with it, so that new rows become the same design.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from fedcore.data.contract import Contract, PolynomialMap, UnknownLevels
from fedcore.data.fitted import Category, Fitted
from fedcore.data.missing import complete_rows
from fedcore.errors import DataError, Misuse
from fedcore.rows import Booleans, DeviceData, Floats, Rows


class Range(NamedTuple):
    """The smallest and the largest value of a column on one device: two rows' own values, which stay there."""

    low: float
    high: float

    def scaled(self, values: Floats) -> Floats:
        """Values in the column's unit, of any shape, mapped to [0, 1] where they are in the range."""
        return (values - self.low) / (self.high - self.low)

    def original(self, scaled: Floats) -> Floats:
        """Scaled values, of any shape, in the column's unit again."""
        return self.low + (self.high - self.low) * scaled


class Ranges(NamedTuple):
    """What scaling takes from a device's own training segment.

    Attributes
    ----------
    features
        By feature of "train" scaling.
    target
        None where the target is not scaled.
    """

    features: dict[str, Range]
    target: Range | None


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
    _check_fitted(contract, fitted)
    frame, parts = complete_rows(frame, contract, where)
    # Overflow is looked for once, in the result.
    with np.errstate(over="ignore", invalid="ignore"):
        ranges = _ranges(frame, ~parts.test, contract, where, fitted)
        X = _design(frame, contract, ranges, where, fitted)
        y = frame[contract.target].to_numpy().astype(np.float64)
        if ranges.target:
            own = contract.scaling.target == "own" and parts.test.any()
            test = _range(y[parts.test], contract.target, where) if own else ranges.target
            y = np.where(parts.test, test.scaled(y), ranges.target.scaled(y))
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError(f"{where}: the design or the target overflows float64: change the units, [feature_map] or [scaling]")
    return DeviceData(*(Rows(X[part], y[part]) for part in parts))


def device_ranges(frame: pl.DataFrame, contract: Contract, where: str, fitted: Fitted | None = None) -> Ranges:
    """What `prepare` scales this device's rows by; parameters and errors as there."""
    _check_fitted(contract, fitted)
    frame, parts = complete_rows(frame, contract, where)
    return _ranges(frame, ~parts.test, contract, where, fitted)


def predict(frame: pl.DataFrame, theta: Floats, contract: Contract, ranges: Ranges, where: str, fitted: Fitted | None = None) -> Floats:
    """Predictions for new rows of a device, which become a design as its training rows did.

    Parameters
    ----------
    frame
        Features of n rows, as `checked_features` returns them.
    theta
        The device's coefficients, shape (d,).
    ranges
        The device's own, see `device_ranges`.
    where, fitted
        As for `prepare`.

    Returns
    -------
    Floats
        Shape (n,), in the target's unit; NaN for rows with a gap where the contract drops those.

    Raises
    ------
    DataError
        On a value that is no level of the fleet's where the contract refuses those, or a number that overflows.
    Misuse
        Where `fitted` is missing, or `theta` has another shape.
    """
    X, kept = new_design(frame, contract, ranges, where, fitted)
    if theta.shape != X.shape[1:]:
        raise Misuse(f"expected theta of shape {X.shape[1:]}, one coefficient for each column of the design, got shape {theta.shape}")
    predicted = np.full(frame.height, np.nan)
    predicted[kept] = X @ theta
    return ranges.target.original(predicted) if ranges.target else predicted


def new_design(
    frame: pl.DataFrame, contract: Contract, ranges: Ranges, where: str, fitted: Fitted | None = None
) -> tuple[Floats, Booleans]:
    """The design of rows to predict for, shape (m, d), and which of the n rows these m are; parameters as for `predict`.

    Raises
    ------
    DataError
        As `predict` does, and where the design overflows.
    """
    _check_fitted(contract, fitted)
    # Where the contract drops rows, none that has a gap has a prediction; elsewhere the design has no gaps.
    dropped = frame.select(pl.any_horizontal(pl.all().is_null())).to_series().to_numpy() & (contract.missing.policy == "drop")
    with np.errstate(over="ignore", invalid="ignore"):
        X = _design(frame.filter(~dropped), contract, ranges, where, fitted)
    if not np.isfinite(X).all():
        raise DataError(f"{where}: the design overflows float64: correct the rows")
    return X, ~dropped


def _check_fitted(contract: Contract, fitted: Fitted | None) -> None:
    if contract.needs_fit and fitted is None:
        raise Misuse("the design of this data set depends on the whole fleet: fit its preprocessing first, or use load_fleet")


def _ranges(frame: pl.DataFrame, segment: Booleans, contract: Contract, where: str, fitted: Fitted | None) -> Ranges:
    """Of the rows in the segment; only columns that are scaled by them are looked at."""
    scaled = [name for name in contract.numeric if not _power(contract, name)] if contract.scaling.features == "train" else []
    features = {name: _range(_numbers(frame[name], fitted)[segment], name, where) for name in scaled}
    if contract.scaling.target == "none":
        return Ranges(features, None)
    return Ranges(features, _range(frame[contract.target].to_numpy().astype(np.float64)[segment], contract.target, where))


def _range(values: Floats, name: str, where: str) -> Range:
    low, high = float(values.min()), float(values.max())
    if low == high:
        remedy = "turn its scaling off, or leave the device out"
        raise DataError(f"{where}: column {name!r} is constant over the {len(values)} rows that set its range: {remedy}")
    return Range(low, high)


def _design(frame: pl.DataFrame, contract: Contract, ranges: Ranges, where: str, fitted: Fitted | None) -> Floats:
    columns = [np.ones(frame.height)] if contract.intercept else []
    linear: dict[str, Floats] = {}  # of each numeric feature, the column that its interactions multiply
    for name in contract.features:
        if fitted and name in fitted.categories:
            columns += _dummies(frame[name], fitted.categories[name], contract.category(name).unknown, where)
        else:
            x = _numbers(frame[name], fitted)
            if power := _power(contract, name):
                linear[name] = t = (x - power.origin) / power.scale
                columns += [t**exponent for exponent in range(1, power.degree + 1)]
            else:
                linear[name] = _scaled(x, name, ranges, fitted)
                columns.append(linear[name])
        if fitted and name in fitted.marked:
            columns.append(frame[name].is_null().to_numpy().astype(np.float64))
    columns += [linear[first] * linear[second] for first, second in contract.interactions]
    if not columns:
        raise DataError(f"{where}: the design has no columns: every category has one level only; add an intercept or a feature")
    return np.column_stack(columns)


def _power(contract: Contract, name: str) -> PolynomialMap | None:
    """The polynomial that a feature becomes, if it does."""
    shape = contract.feature_map
    return shape if isinstance(shape, PolynomialMap) and name == shape.feature else None


def _numbers(column: pl.Series, fitted: Fitted | None) -> Floats:
    if column.null_count():
        assert fitted is not None  # rows with gaps have gone otherwise
        column = column.cast(pl.Float64).fill_null(fitted.means[column.name])
    return column.to_numpy().astype(np.float64)


def _scaled(x: Floats, name: str, ranges: Ranges, fitted: Fitted | None) -> Floats:
    if name in ranges.features:
        return ranges.features[name].scaled(x)
    if fitted and name in fitted.scales:
        return (x - fitted.means[name]) / fitted.scales[name]
    return x


def _dummies(column: pl.Series, category: Category, unknown: UnknownLevels, where: str) -> list[Floats]:
    strange = (~column.is_in([category.reference, *category.levels])).fill_null(False).to_numpy()
    if unknown == "refuse" and strange.any():
        count = np.count_nonzero(strange)
        remedy = f"correct them, or set unknown in [categories.{column.name}]"
        raise DataError(f"{where}: column {column.name!r} has {count} values that no device's training rows have: {remedy}")
    levels = [(column == level).fill_null(False).to_numpy() for level in category.levels]
    return [mask.astype(np.float64) for mask in (*levels, *([strange] if unknown == "own" else []))]
