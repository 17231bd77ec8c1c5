from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedcore.data import Dataset, create_dataset, describe_dataset
from fedcore.errors import DataError


def fleet(root: Path, demo: Any, rows: list[int], **changes: Any) -> Dataset:
    frames = [(f"d{k}", demo.frame(n, start=100 * k)) for k, n in enumerate(rows)]
    return create_dataset(root, "demo", demo.contract(**changes), frames)


def test_counts_and_ranges_of_device_means(demo: Any, tmp_path: Path) -> None:
    columns = {"a": {"type": "int64", "unit": "h"}, "b": {"type": "float64"}, "y": {"type": "float64"}, "note": {"type": "string"}}
    summary = describe_dataset(
        fleet(tmp_path, demo, [5, 7, 5, 9, 6, 5], columns=columns, split={"kind": "time", "column": "a", "train": 0.8})
    )
    assert summary[:4] == (6, 30, 0, 7)
    a, b, _, note = summary.columns
    means = [100 * k + (n - 1) / 2 for k, n in enumerate([5, 7, 5, 9, 6, 5])]
    assert a == ("a", "int64", "h", 0, *(float(f"{q:.3g}") for q in np.quantile(means, [0.05, 0.95])))
    assert (b.low, b.high) == tuple(float(f"{q / 2:.3g}") for q in np.quantile(means, [0.05, 0.95]))
    assert note == ("note", "string", "", 0, None, None)


@pytest.mark.parametrize("rows", [[5] * 4, [5, 5, 5, 5, 4], [1000, 4, 4, 4, 4, 4], [1] * 30])
def test_no_range_without_five_devices_of_five_rows(demo: Any, tmp_path: Path, rows: list[int]) -> None:
    assert all(column.low is column.high is None for column in describe_dataset(fleet(tmp_path, demo, rows)).columns)


def test_no_figure_is_the_value_of_a_row(demo: Any, tmp_path: Path) -> None:
    dataset = fleet(tmp_path, demo, [6] * 8)
    values = {value for device in dataset.device_ids for part in dataset.parts(device).values() for value in part["y"].to_list()}
    y = describe_dataset(dataset).columns[2]
    assert not {y.low, y.high} & values
    assert y.low is not None
    assert y.high is not None
    assert min(values) < y.low < y.high < max(values)


def test_means_of_large_values_do_not_overflow(demo: Any, tmp_path: Path) -> None:
    frames = [(f"d{k}", demo.frame().with_columns(b=1.7e308)) for k in range(5)]
    dataset = create_dataset(tmp_path, "demo", demo.contract(), frames)
    assert describe_dataset(dataset).columns[1][-2:] == (1.7e308, 1.7e308)


def test_gaps_are_counted_and_left_out_of_means(demo: Any, tmp_path: Path) -> None:
    frames = [(f"d{k}", demo.frame(6, start=100 * k).with_columns(b=pl.Series([None] + [float(k)] * 5))) for k in range(6)]
    for name, rules, b in (
        ("all", {}, (6, 0.25, 4.75)),
        ("few", {"level_rows": 7}, (None, 0.25, 4.75)),
        ("some", {"columns": ["a"]}, (None, None, None)),
    ):
        contract = demo.contract(missing={"policy": "drop"}, disclosure=rules)
        summary = describe_dataset(create_dataset(tmp_path, name, contract, frames))
        assert summary.columns[1] == ("b", "float64", "", *b)
        assert summary.columns[0].missing == 0


def test_a_broken_device_is_named(make: Callable[..., Dataset], tmp_path: Path) -> None:
    dataset = make()
    (tmp_path / "demo/device=2/part-0.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"^device=2/part-0.parquet: not a readable parquet file"):
        describe_dataset(dataset)
