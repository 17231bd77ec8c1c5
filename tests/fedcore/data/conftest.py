"""Data sets small enough to read by eye."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fedcore.data import Contract, Dataset, create_dataset


class Demo:
    """Contracts and rows of the demo data set: features a (int64) and b, target y, a string column note."""

    @staticmethod
    def contract(**changes: Any) -> Contract:
        """The contract; `changes` replace whole fields."""
        fields: dict[str, Any] = {
            "device": "unit",
            "target": "y",
            "features": ["a", "b"],
            "columns": {"a": {"type": "int64"}, "b": {"type": "float64"}, "y": {"type": "float64"}, "note": {"type": "string"}},
        }
        return Contract.model_validate(fields | changes)

    @staticmethod
    def frame(n: int = 6, start: int = 0) -> pl.DataFrame:
        """n rows that keep the contract, all different; every number in y is above 7000, so that it is seen where it leaks."""
        rows = range(start, start + n)
        return pl.DataFrame(
            {"a": list(rows), "b": [0.5 * i for i in rows], "y": [7000.125 + i for i in rows], "note": ["train" for _ in rows]}
        )


@pytest.fixture(scope="session")
def demo() -> type[Demo]:
    return Demo


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Dataset]:
    """Creates data set `demo` of devices 1, 2 and 3 under `tmp_path`, with changes to the contract."""

    def create(**changes: Any) -> Dataset:
        frames = [(device, Demo.frame(start=10 * int(device))) for device in ("1", "2", "3")]
        return create_dataset(tmp_path, "demo", Demo.contract(**changes), frames)

    return create
