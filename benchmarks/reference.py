"""The reference cases of the tests, as fleets in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fedcore import DeviceData

FOLDER = Path(__file__).parents[1] / "tests/reference"


def told(name: str) -> Any:
    """What is known of a case."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def fleet(name: str, *, intercept: bool = False) -> dict[str, DeviceData]:
    """A case's devices, each with its rows in order; the intercept, if it has one, comes first."""
    table = pq.read_table(FOLDER / f"{name}.parquet").to_pydict()
    device, y = np.array(table.pop("device")), np.array(table.pop("y"), dtype=float)
    X = np.column_stack([np.ones(len(y))] * intercept + [np.array(column, dtype=float) for column in table.values()])
    return {str(name): DeviceData.of(X[device == name], y[device == name]) for name in np.unique(device)}
