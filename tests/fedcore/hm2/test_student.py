"""Grades of two schools by HM2's lasso, on splits of exactly 60 % of each school's rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedcore.fit import fit
from fedcore.hm2.hm2 import Hm2
from fedcore.rows import DeviceData

LEFT_OUT = ("school", "G1", "G2", "G3")


def design(table: pl.DataFrame) -> np.ndarray:
    """38 columns: numbers in units of their standard deviation, categories without their first level."""
    columns: list[np.ndarray] = []
    for name in (name for name in table.columns if name not in LEFT_OUT):
        values = table[name].to_numpy()
        if table[name].dtype.is_numeric():
            columns.append((values - values.mean()) / values.std(ddof=1))
        else:
            columns += [(values == level).astype(float) for level in sorted(set(values))[1:]]
    return np.column_stack(columns)


@pytest.mark.slow
@pytest.mark.parametrize(("dropped", "expected", "error"), [(True, 0.845, 0.006), (False, 0.920, 0.009)], ids=["no zeros", "all rows"])
def test_twenty_splits(dropped: bool, expected: float, error: float, real_file: Callable[[str], Path]) -> None:
    """Within four standard errors of what an independent program has on forty splits, with and without the 15 grades of 0."""
    table = pl.read_csv(real_file("student-por.csv"), separator=";", infer_schema_length=None)
    table = table.filter(pl.col("G3") > 0) if dropped else table
    assert len(table) == (634 if dropped else 649)
    X, y, school = design(table), table["G3"].to_numpy().astype(float), table["school"].to_numpy()
    assert X.shape[1] == 38
    y = (y - y.mean()) / y.std(ddof=1)
    reached: list[float] = []
    for seed in range(20):
        rng, devices = np.random.default_rng(seed), {}
        for name in ("GP", "MS"):
            rows = rng.permutation(np.flatnonzero(school == name))
            train, test = np.split(rows, [round(0.6 * len(rows))])
            devices[name] = DeviceData.of(X[train], y[train], X_test=X[test], y_test=y[test])
        theta = fit(Hm2(prior="lasso"), devices, rounds=30).theta
        errors = [data.test.y - data.test.X @ theta[name] for name, data in devices.items()]
        reached.append(float(np.mean([np.sqrt((each**2).mean()) for each in errors])))
    assert abs(np.mean(reached) - expected) <= 4 * error
