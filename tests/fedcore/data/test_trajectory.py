"""What a device tells of its target over time: means of enough rows, and no more of them than the rules allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedcore.data import Contract
from fedcore.data.trajectory import FEWEST, MOST, Trajectory, block_rows, trajectory

THETA = np.array([0.5, 2.0])
TIME = {"kind": "time", "column": "hour", "train": 0.6}


def contract(split: dict[str, Any] = TIME, **rules: Any) -> Contract:
    fields = {"device": "pump", "target": "y", "features": ["hour"], "intercept": True, "split": split}
    columns = {"hour": {"type": "int64"}, "y": {"type": "float64"}}
    return Contract.model_validate(fields | {"columns": columns, "disclosure": {"trajectories": True} | rules})


def frame(n: int, seed: int = 0) -> pl.DataFrame:
    """n rows, each with a time and a target of its own, in no order."""
    rng = np.random.default_rng(seed)
    hours = rng.permutation(n)
    return pl.DataFrame({"hour": hours, "y": 3.0 * hours + rng.standard_normal(n)})


def told(rows: pl.DataFrame, agreed: Contract) -> Trajectory | None:
    return trajectory(rows, THETA, agreed, "device=1")


def test_blocks_are_means_in_order_of_time() -> None:
    rows = frame(32).sample(fraction=1, shuffle=True, seed=1)
    found = told(rows, contract(rows=4))
    assert found is not None
    assert found.rows == 8  # eight blocks of 4 and two coefficients are more than a third of 19 rows
    ordered = rows.sort("hour")
    np.testing.assert_allclose(found.time, ordered["hour"].to_numpy().reshape(-1, 8).mean(axis=1))
    np.testing.assert_allclose(found.observed, ordered["y"].to_numpy().reshape(-1, 8).mean(axis=1))
    np.testing.assert_allclose(found.predicted, 0.5 + 2.0 * found.time)
    assert found.tested.tolist() == [False, False, False, True]  # the third has training rows too


@given(
    n=st.integers(1, 400),
    share=st.floats(0.1, 1.0),
    validation=st.floats(0.0, 0.5),
    rows=st.integers(1, 40),
    parameters=st.floats(0.01, 3.0),
    seed=st.integers(0, 9),
)
def test_no_block_has_fewer_rows_than_the_rule(n: int, share: float, validation: float, rows: int, parameters: float, seed: int) -> None:
    """Nor are there more numbers than the rule allows. Blocks are told apart by their means of time, which no other set of rows has."""
    agreed = contract({**TIME, "train": share, "validation": validation}, rows=rows, parameters=parameters)
    data = frame(n, seed)
    try:
        found = told(data, agreed)
    except ValueError:
        return  # no row is left to train
    if found is None:
        return
    assert found.rows >= max(rows, FEWEST)
    for k, (time, seen) in enumerate(zip(found.time, found.observed, strict=True)):
        block = data.filter(pl.col("hour").is_between(k * found.rows, (k + 1) * found.rows - 1))
        assert block.height == found.rows
        assert time == pytest.approx(block["hour"].mean())
        assert seen == pytest.approx(block["y"].mean())
    assert 1 <= len(found.time) <= MOST
    assert len(found.time) + len(THETA) <= parameters * n


@given(n=st.integers(12, 200), more=st.integers(1, 200), rows=st.integers(1, 10))
def test_later_rows_give_no_difference_away(n: int, more: int, rows: int) -> None:
    """Two answers, between which rows came, are both sums of the same smallest blocks."""
    before, after = (block_rows(m, m, 2, contract(rows=rows)) for m in (n, n + more))
    smallest = max(rows, FEWEST)
    for size in (before, after):
        assert size % smallest == 0
        assert (size // smallest).bit_count() <= 1
    if before and after:
        assert max(before, after) % min(before, after) == 0


def test_nothing_is_told_that_the_contract_does_not_let_tell() -> None:
    rows = frame(60)
    assert told(rows, contract()) is not None
    assert told(rows, contract(trajectories=False)) is None
    assert told(rows, contract(columns=["hour"])) is None
    assert told(rows, contract(columns=["y"])) is None
    assert told(rows, contract(columns=["hour", "y"])) is not None
    assert told(rows, contract(rows=61)) is None
    assert told(rows, contract(parameters=0.05)) is None  # two coefficients are all that 36 rows may tell
    assert trajectory(rows, np.array([1e308, 1e308]), contract(), "device=1") is None


def test_it_takes_a_column_that_orders_the_rows() -> None:
    assert not Contract.model_validate(contract().model_dump() | {"disclosure": {}}).disclosure.trajectories
    with pytest.raises(ValidationError, match=r"disclosure\.trajectories: no column orders the rows: set it to false, or split them by"):
        contract({"kind": "random", "train": 0.6})
