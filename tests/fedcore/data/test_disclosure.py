from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from fedcore.data import Contract, summarise
from fedcore.data.disclosure import check_fleet, check_rows
from fedcore.errors import DataError

WORD = "canary-8c1e"
KINDS = {"age": "int64", "drug": "string", "y": "float64"}
FRAME = pl.DataFrame({"age": list(range(8)), "drug": ["a"] * 3 + ["b"] * 3 + [WORD] * 2, "y": [1.0] * 8})


def contract(**rules: Any) -> Contract:
    columns = {name: {"type": kind} for name, kind in KINDS.items()}
    fields = {"device": "clinic", "target": "y", "features": ["age", "drug"], "scaling": {"features": "global"}}
    return Contract.model_validate(fields | {"columns": columns, "disclosure": rules})


def refused(frame: pl.DataFrame, agreed: Contract) -> str:
    with pytest.raises(DataError) as caught:
        summarise(frame, agreed, "device=1")
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert WORD not in message
    return message


def test_few_rows_are_not_summarised() -> None:
    message = "device=1: 2 training rows are fewer than [disclosure] rows = 3: leave the device out, or lower it"
    assert refused(FRAME[:2], contract()) == message
    assert refused(FRAME[:7], contract(rows=8)) == message.replace("2 ", "7 ").replace("= 3", "= 8")


def test_rare_levels_are_not_told() -> None:
    message = "device=1: column 'drug' has 1 levels in fewer training rows than [disclosure] level_rows = 3: merge rare levels, or lower it"
    assert refused(FRAME, contract()) == message
    assert summarise(FRAME[:6], contract(), "device=1").levels == (("a", "b"),)
    assert summarise(FRAME, contract(level_rows=2), "device=1").levels == (("a", "b", WORD),)


def test_columns_that_are_not_allowed_are_not_summarised() -> None:
    message = "column 'age' is not among [disclosure] columns, so nothing is told of it: add it there, or take it out of the features"
    assert refused(FRAME[:6], contract(columns=["drug"])) == f"device=1: {message}"
    assert summarise(FRAME[:6], contract(columns=["drug", "age"]), "device=1").n == 6


def test_what_stays_with_the_rows_is_not_gated() -> None:
    assert summarise(FRAME[:1], contract(columns=[]), "device=1", gated=False).n == 1


def test_the_fleet_and_the_training_rows_are_counted() -> None:
    with pytest.raises(DataError, match=r"^device=1: the fleet's 1 devices are fewer than \[disclosure\] devices = 2: add devices"):
        check_fleet(1, contract(), "device=1")
    check_fleet(1, contract(devices=1), "device=1")
    with pytest.raises(DataError, match=r"^device=1: 2 training rows are fewer than \[disclosure\] rows = 3"):
        check_rows(2, contract(), "device=1")
    check_rows(3, contract(), "device=1")
