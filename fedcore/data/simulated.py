"""Simulated fleets as data sets."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from fedcore.data.contract import Column, ColumnSplit, Contract, Disclosure
from fedcore.data.creation import create_dataset
from fedcore.data.places import Place
from fedcore.data.store import Dataset
from fedcore.rows import Rows
from fedcore.simulate import Fleet


def create_simulated(root: Place, name: str, fleet: Fleet, description: str) -> Dataset:
    """Store a simulated fleet: features x1 to xd, target y, and a column `part` that says which rows train, validate and test. Its
    contract keeps nothing back.

    Raises
    ------
    Misuse
        Where the data set exists, or the folder cannot be written.
    """
    d = len(fleet.Theta)
    features = tuple(f"x{i + 1}" for i in range(d))
    columns = {column: Column(type="float64") for column in (*features, "y")} | {"part": Column(type="string")}
    # Invented rows are nobody's: no rule is to keep a device of a simulated fleet from taking part.
    open_to_all = Disclosure(rows=1, level_rows=1, parameters=d, devices=1)
    contract = Contract(
        description=description,
        device="device",
        target="y",
        features=features,
        columns=columns,
        disclosure=open_to_all,
        split=ColumnSplit(kind="column", column="part"),
    )
    return create_dataset(root, name, contract, _frames(fleet, features))


def _frames(fleet: Fleet, features: tuple[str, ...]) -> Iterator[tuple[str, pl.DataFrame]]:
    for device_id, data in fleet.devices.items():
        parts = [_frame(rows, features, part) for part, rows in data._asdict().items()]
        yield device_id, pl.concat(parts)


def _frame(rows: Rows, features: tuple[str, ...], part: str) -> pl.DataFrame:
    return pl.DataFrame(rows.X, schema=list(features)).with_columns(pl.Series("y", rows.y), pl.lit(part).alias("part"))
