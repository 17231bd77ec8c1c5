"""What may be told of a data set without telling a row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from fedcore.data.contract import ColumnType
from fedcore.data.disclosure import may_tell, told_count
from fedcore.data.splits import split_rows
from fedcore.data.store import PREFIX, Dataset
from fedcore.rows import Floats

# A range is told of the means of devices with at least so many rows, and only where there are so many devices.
MIN_ROWS = 5
MIN_DEVICES = 5
SHARE = 0.05
_DIGITS = 3


class ColumnSummary(NamedTuple):
    """What may be told of one column.

    Attributes
    ----------
    name, type, unit
        As the contract has them.
    missing
        Number of missing values over all rows, None where it may not be told: see `fedcore.data.disclosure`.
    low, high
        The 0.05 and 0.95 quantiles of the devices' means, to 3 significant digits; None where they may not be told.
    """

    name: str
    type: ColumnType
    unit: str
    missing: int | None
    low: float | None
    high: float | None


class Summary(NamedTuple):
    """What may be told of a data set.

    Attributes
    ----------
    devices
        Number of devices.
    n_train, n_validation, n_test
        Rows in each part, over all devices.
    columns
        One summary a column.
    """

    devices: int
    n_train: int
    n_validation: int
    n_test: int
    columns: tuple[ColumnSummary, ...]


def describe_dataset(dataset: Dataset) -> Summary:
    """Counts of devices and rows, and how far the devices' means of each numeric column range.

    No figure belongs to one row, nor to a handful: a minimum or maximum would be somebody's value, so a range goes from the 0.05 to
    the 0.95 quantile, and not of the rows, among which one device may be most or one row the extreme, but of device means over at least
    5 values each, interpolated and rounded to 3 significant digits. With fewer than 5 such devices no range is told; the
    contract's disclosure rules may ask for more of either. Levels of text are
    not told at all, nor is anything of a column that the contract's disclosure rules leave out. Devices are read one after the other.

    Raises
    ------
    DataError
        Where a device breaks the contract.
    """
    contract = dataset.contract
    counts = np.zeros(3, dtype=np.int64)
    missing = dict.fromkeys(contract.columns, 0)
    means: dict[str, list[float]] = {name: [] for name, column in contract.columns.items() if column.type != "string"}
    for device_id in dataset.device_ids:
        frame = pl.concat(dataset.parts(device_id).values())
        counts += [np.count_nonzero(part) for part in split_rows(frame, contract.split, f"{PREFIX}{device_id}")]
        for name in missing:
            missing[name] += frame[name].null_count()
        for name, values in means.items():
            present = frame[name].drop_nulls()
            if len(present) >= max(MIN_ROWS, contract.disclosure.rows):
                values.append(_mean(present.to_numpy().astype(np.float64)))
    columns: list[ColumnSummary] = []
    for name, column in contract.columns.items():
        allowed = may_tell(name, contract)
        low, high = _range(means.get(name, []), max(MIN_DEVICES, contract.disclosure.devices)) if allowed else (None, None)
        gaps = told_count(missing[name], int(counts.sum()), contract) if allowed else None
        columns.append(ColumnSummary(name, column.type, column.unit, gaps, low, high))
    n_train, n_validation, n_test = counts.tolist()
    return Summary(len(dataset.device_ids), n_train, n_validation, n_test, tuple(columns))


def _mean(values: Floats) -> float:
    # Divided first: the sum of values that are representable need not be.
    return float(np.sum(values / len(values)))


def _range(means: list[float], devices: int) -> tuple[float | None, float | None]:
    if len(means) < devices:
        return None, None
    low, high = np.quantile(means, [SHARE, 1 - SHARE])
    return _rounded(low), _rounded(high)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
