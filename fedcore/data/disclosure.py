"""The disclosure gate: what has to hold before anything is told of a device's rows. It is asked on the device, of its own contract.

A figure over very few rows is close to the rows themselves. The rules and their limits are those of `Disclosure`; what they block
is named with the rule, so that whoever owns the data can decide.
"""

from __future__ import annotations

import polars as pl

from fedcore.data.contract import Contract
from fedcore.errors import DataError


def check_summary(segment: pl.DataFrame, contract: Contract, where: str) -> None:
    """Whether a device may summarise its training segment.

    Raises
    ------
    DataError
        On too few rows, a column that is not allowed, or levels in too few rows.
    """
    rules = contract.disclosure
    check_rows(segment.height, contract, where)
    for name in contract.features:
        if rules.columns is not None and name in (*contract.averaged, *contract.categorical) and name not in rules.columns:
            remedy = "add it there, or take it out of the features"
            raise DataError(f"{where}: column {name!r} is not among [disclosure] columns, so nothing is told of it: {remedy}")
    for name in contract.categorical:
        counts = segment[name].drop_nulls().value_counts(name="rows")["rows"]
        if rare := int((counts < rules.level_rows).sum()):
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


def check_fleet(devices: int, contract: Contract, where: str) -> None:
    """Whether the fleet is large enough for a device to take part.

    Raises
    ------
    DataError
        Where it is not.
    """
    if devices < contract.disclosure.devices:
        limit = f"[disclosure] devices = {contract.disclosure.devices}"
        raise DataError(f"{where}: the fleet's {devices} devices are fewer than {limit}: add devices, or lower it")
