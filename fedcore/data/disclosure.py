"""The disclosure gate: what has to hold before anything is told of a device's rows. It is asked on the device, of its own contract.

A figure over very few rows is close to the rows themselves. The rules and their limits are those of `Disclosure`; what they block
is named with the rule, so that whoever owns the data can decide.
"""

from __future__ import annotations

import polars as pl

from fedcore.data.contract import Contract, Disclosure
from fedcore.errors import DataError
from fedcore.rows import Rows


def laxer(rules: Disclosure, least: Disclosure) -> str:
    """The first of some rules that is laxer than what is asked for at least, and both limits; empty where none is."""
    for name in ("rows", "level_rows", "devices"):
        if getattr(rules, name) < getattr(least, name):
            return f"{name} = {getattr(rules, name)} is below {getattr(least, name)}"
    if rules.parameters > least.parameters:
        return f"parameters = {rules.parameters:g} is above {least.parameters:g}"
    if least.columns is not None and (rules.columns is None or not set(rules.columns) <= set(least.columns)):
        return "columns has others than those allowed"
    return ""


def check_summary(segment: pl.DataFrame, train: pl.DataFrame, contract: Contract, where: str) -> None:
    """Whether a device may summarise its training segment.

    Parameters
    ----------
    segment
        Training and validation rows, which moments are of.
    train
        The rows that train, which coefficients come from.

    Raises
    ------
    DataError
        On too few rows, a column that is not allowed, or values, levels or marked gaps in too few rows.
    """
    rules = contract.disclosure
    check_rows(train.height, contract, where)
    for name in contract.features:
        if name in (*contract.averaged, *contract.categorical) and not may_tell(name, contract):
            remedy = "add it there, or take it out of the features"
            raise DataError(f"{where}: column {name!r} is not among [disclosure] columns, so nothing is told of it: {remedy}")
    for name in contract.averaged:
        # Without any value there is no mean to tell.
        if 0 < segment[name].count() < rules.rows:
            limit = f"[disclosure] rows = {rules.rows}"
            remedy = "fill them, leave the device out, or lower it"
            raise DataError(f"{where}: column {name!r} has values in some training rows, but in fewer than {limit}: {remedy}")
    for name in contract.features if contract.missing.policy == "mean" else ():
        # The mark of a gap is a column of the design as a level's is.
        gaps = train[name].null_count()
        if 0 < gaps < rules.level_rows or 0 < train.height - gaps < rules.level_rows:
            limit = f"[disclosure] level_rows = {rules.level_rows}"
            remedy = "fill them, take the column out of the features, or lower it"
            raise DataError(f"{where}: column {name!r} has gaps, or values, in fewer training rows than {limit}: {remedy}")
    for name in contract.categorical:
        counts = train[name].drop_nulls().value_counts(name="rows")
        common = counts.filter(counts["rows"] >= rules.level_rows)[name]
        if rare := segment[name].drop_nulls().n_unique() - len(common):
            remedy = "merge rare levels, or lower it"
            limit = f"[disclosure] level_rows = {rules.level_rows}"
            raise DataError(f"{where}: column {name!r} has {rare} levels in fewer training rows than {limit}: {remedy}")


def check_rows(n: int, contract: Contract, where: str) -> None:
    """Whether a device has enough rows in its training segment to take part.

    Raises
    ------
    DataError
        Where it has not.
    """
    if n < contract.disclosure.rows:
        limit = f"[disclosure] rows = {contract.disclosure.rows}"
        raise DataError(f"{where}: {n} training rows are fewer than {limit}: leave the device out, or lower it")


def check_parameters(d: int, n: int, contract: Contract, where: str) -> None:
    """Whether a device trains on enough rows for the width of the design.

    Raises
    ------
    DataError
        Where d design columns are too large a share of n rows.
    """
    share = contract.disclosure.parameters
    if d > share * n:
        limit = f"[disclosure] parameters = {share:g} of its {n} rows that train"
        raise DataError(f"{where}: {d} design columns are more than {limit}: use fewer features, leave the device out, or raise it")


def check_fleet(devices: int, contract: Contract, where: str) -> None:
    """Whether the fleet is large enough for a device to take part.

    Raises
    ------
    DataError
        Where it is not.
    """
    _check_devices("the fleet's", devices, contract, where, "add devices")


def check_cohort(devices: int, contract: Contract, where: str) -> None:
    """Whether a round was drawn with enough devices for a device to take part in it.

    Raises
    ------
    DataError
        Where it was not.
    """
    _check_devices("the round's", devices, contract, where, "raise the participation")


def may_score(n: int, contract: Contract) -> bool:
    """Whether a score over n rows of a part may be told: with a device's coefficients its error over one or two rows gives away their
    targets."""
    return n >= contract.disclosure.rows


def scored_rows(rows: Rows, contract: Contract) -> Rows:
    """The rows that a score may be told of: all of a part, or none; see `may_score`."""
    return rows if may_score(rows.n, contract) else Rows.empty(rows.X.shape[1])


def may_tell(column: str, contract: Contract) -> bool:
    """Whether a column may be summarised at all."""
    return contract.disclosure.columns is None or column in contract.disclosure.columns


def told_gaps(frame: pl.DataFrame, contract: Contract) -> dict[str, int | None]:
    """The number of gaps by column, for the columns that have any and may be summarised; see `told_count`."""
    gaps = {name: frame[name].null_count() for name in contract.columns if may_tell(name, contract)}
    return {name: told_count(count, frame.height, contract) for name, count in gaps.items() if count}


def told_count(gaps: int, n: int, contract: Contract) -> int | None:
    """A number of gaps in n rows, or None where it may not be told: where there are gaps in fewer than `[disclosure] level_rows` rows,
    or values in fewer."""
    limit = contract.disclosure.level_rows
    return None if gaps and (gaps < limit or 0 < n - gaps < limit) else gaps


def _check_devices(whose: str, devices: int, contract: Contract, where: str, remedy: str) -> None:
    if devices < contract.disclosure.devices:
        limit = f"[disclosure] devices = {contract.disclosure.devices}"
        raise DataError(f"{where}: {whose} {devices} devices are fewer than {limit}: {remedy}, or lower it")
