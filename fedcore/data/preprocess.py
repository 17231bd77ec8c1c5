"""Federated preprocessing: one exchange before training, of sums and names of levels, no rows.

Each device summarises its training segment, the server joins the summaries, and every device prepares its rows with what the
server found. With n_k values of mean m_k and sum of squared deviations M2_k on device k, the mean and variance of all are

    n = sum_k n_k,  m = sum_k n_k m_k / n,  v = (sum_k M2_k + sum_k n_k (m_k - m)^2) / n

the within and the between part, exact for any partition (Chan, Golub & LeVeque, The American Statistician 37, 1983). Sums over
devices are rounded once (`math.fsum`), so the order of devices changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from fedcore.data.contract import Contract
from fedcore.data.disclosure import check_summary
from fedcore.data.fitted import Category, Fitted
from fedcore.data.missing import complete_rows
from fedcore.errors import DataError
from fedcore.rows import Booleans, Floats

LONGEST_LEVEL = 100
"""Characters in the name of a level; what is longer is free text."""

_EPS = float(np.finfo(np.float64).eps)


class DeviceSummary(NamedTuple):
    """What a device tells of its training segment. Names of levels are the only text.

    Attributes
    ----------
    n
        Rows.
    present, mean, M2
        Of each feature whose moments are asked for (`Contract.averaged`), shape (p,): values that are there, their mean in the
        feature's unit, and their sum of squared deviations from it.
    missing
        Whether there are gaps in each feature, shape (number of features,).
    levels
        Of each category (`Contract.categorical`), its levels, sorted as text.
    """

    n: int
    present: Floats
    mean: Floats
    M2: Floats
    missing: Booleans
    levels: tuple[tuple[str, ...], ...]


def summarise(frame: pl.DataFrame, contract: Contract, where: str, *, gated: bool = True) -> DeviceSummary:
    """One device's summary.

    Parameters
    ----------
    frame
        All rows of the device, as `checked_frame` returns them.
    where
        How errors call the device's data, such as "device=7".
    gated
        False only where the summary stays with whoever holds the rows.

    Raises
    ------
    DataError
        Where nothing is left to train, the contract's disclosure rules forbid it, a category holds free text, or a sum overflows.
    """
    frame, parts = complete_rows(frame, contract, where)
    segment = frame.filter(~parts.test)
    for name in contract.categorical:
        _check_levels(segment[name], where)
    if gated:
        check_summary(segment, frame.filter(parts.train), contract, where)
    moments = np.array([_moments(segment[name], where) for name in contract.averaged]).reshape(-1, 3)
    missing = np.array([segment[name].has_nulls() for name in contract.features])
    levels = tuple(tuple(sorted(segment[name].drop_nulls().unique().to_list())) for name in contract.categorical)
    present, mean, M2 = moments.T.copy()
    return DeviceSummary(segment.height, present, mean, M2, missing, levels)


def fit_preprocessing(contract: Contract, summaries: Iterable[DeviceSummary]) -> Fitted:
    """What the fleet's summaries come to, whatever their order.

    Raises
    ------
    DataError
        Where a feature to be scaled is constant over the fleet, one has no value at all, a sum overflows, a reference level is no
        device's, or two design columns have one name.
    """
    told = list(summaries)
    means: dict[str, float] = {}
    scales: dict[str, float] = {}
    for i, name in enumerate(contract.averaged):
        parts = [(float(each.present[i]), float(each.mean[i]), float(each.M2[i])) for each in told]
        means[name], variance = _joined(parts, name)
        if name in contract.standardised:
            scales[name] = _scale(means[name], variance, sum(count for count, _, _ in parts), name)
    unions = zip(contract.categorical, zip(*(each.levels for each in told), strict=True), strict=True)
    categories = {name: _category(contract, name, levels) for name, levels in unions}
    gaps = np.any([each.missing for each in told], axis=0)
    marked = tuple(name for name, some in zip(contract.features, gaps, strict=True) if some)
    design = contract.named_design({name: category.dummies for name, category in categories.items()}, marked)
    if len(set(design)) < len(design):
        raise DataError("two columns of the design have the same name, one of them made of a category or a gap: rename a column")
    return Fitted(
        n=sum(each.n for each in told),
        means=means,
        scales=scales,
        categories=categories,
        marked=marked,
        design=design,
        intercept=contract.intercept,
        interactions={"*".join(pair): (contract.first_power(pair[0]), contract.first_power(pair[1])) for pair in contract.interactions},
    )


def _check_levels(column: pl.Series, where: str) -> None:
    if long := column.filter(column.str.len_chars() > LONGEST_LEVEL).n_unique():
        found = f"{long} levels of more than {LONGEST_LEVEL} characters, which are free text"
        raise DataError(f"{where}: column {column.name!r} has {found}: shorten them, or take it out of the features")


def _moments(column: pl.Series, where: str) -> tuple[float, float, float]:
    x = column.drop_nulls().to_numpy().astype(np.float64)
    if not len(x):
        return 0.0, 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(x.mean())
        deviations = x - mean
        # What rounding the mean has cost is zero otherwise.
        cost = float(deviations.sum())
        M2 = float(deviations @ deviations) - cost * cost / len(x)
    if not math.isfinite(mean + M2):
        raise DataError(f"{where}: the mean or variance of column {column.name!r} overflows float64: change its unit")
    return float(len(x)), mean, max(M2, 0.0)


def _joined(parts: Sequence[tuple[float, float, float]], name: str) -> tuple[float, float]:
    """Mean and population variance of all values, from each device's count, mean and M2."""
    n = math.fsum(count for count, _, _ in parts)
    if not n:
        raise DataError(f"column {name!r} has no value in any device's training rows: take it out of the features")
    try:
        # By shares and not by sums: large values do not overflow on the way.
        mean = math.fsum(count / n * mean for count, mean, _ in parts)
        variance = math.fsum([*(M2 / n for _, _, M2 in parts), *(count / n * (m - mean) * (m - mean) for count, m, _ in parts)])
    except OverflowError:
        variance = mean = math.inf
    if not math.isfinite(mean + variance):
        raise DataError(f"the fleet's mean or variance of column {name!r} overflows float64: change its unit")
    return mean, variance


def _scale(mean: float, variance: float, n: float, name: str) -> float:
    # What rounding alone leaves of a constant's variance is no variance.
    if variance <= n * _EPS * variance + (n * mean * _EPS) ** 2:
        raise DataError(f"column {name!r} is constant over all devices' training rows: take it out of the features")
    return math.sqrt(variance)


def _category(contract: Contract, name: str, told: Iterable[tuple[str, ...]]) -> Category:
    options = contract.category(name)
    union = sorted({level for levels in told for level in levels})
    if not union:
        raise DataError(f"column {name!r} has no value in any device's training rows: take it out of the features")
    reference = union[0] if options.reference is None else options.reference
    if reference not in union:
        raise DataError(f"categories.{name}.reference: {reference!r} is in no device's training rows: choose another level")
    levels = tuple(level for level in union if level != reference)
    own = (f"{name}=(unknown)",) if options.unknown == "own" else ()
    return Category(reference=reference, levels=levels, dummies=(*(f"{name}={level}" for level in levels), *own))
