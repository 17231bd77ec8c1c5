from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedcore.data import Contract, Disclosure, summarise
from fedcore.data.disclosure import check_cohort, check_fleet, check_parameters, check_rows, check_summary, laxer, scored_rows, told_count
from fedcore.errors import DataError
from fedcore.rows import Rows

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
    with pytest.raises(
        DataError, match=r"^device=1: the round's 1 devices are fewer than \[disclosure\] devices = 2: raise the participation"
    ):
        check_cohort(1, contract(), "device=1")
    check_cohort(2, contract(), "device=1")


def test_parameters_are_a_share_of_the_rows() -> None:
    with pytest.raises(DataError) as caught:
        check_parameters(8, 24, contract(), "device=1")
    limit = "[disclosure] parameters = 0.33 of its 24 rows that train"
    assert str(caught.value) == f"device=1: 8 design columns are more than {limit}: use fewer features, leave the device out, or raise it"
    check_parameters(8, 25, contract(), "device=1")
    check_parameters(33, 100, contract(), "device=1")
    check_parameters(8, 4, contract(parameters=2), "device=1")
    with pytest.raises(ValidationError):
        contract(parameters=0)


@pytest.mark.parametrize("present", [1, 2])
def test_a_mean_of_very_few_values_is_not_told(present: int) -> None:
    """Nor is their number. Where there is no value, nothing is told of any."""
    agreed = Contract.model_validate(contract().model_dump() | {"missing": {"policy": "mean"}})
    few = FRAME[:6].with_columns(age=pl.Series([7, 8, 9, 10, 11, 12][:present] + [None] * (6 - present), dtype=pl.Int64))
    found = "column 'age' has values in some training rows, but in fewer than [disclosure] rows = 3"
    assert refused(few, agreed) == f"device=1: {found}: fill them, leave the device out, or lower it"
    assert summarise(few, agreed, "device=1", gated=False).present.tolist() == [present]
    empty = summarise(FRAME[:6].with_columns(age=pl.lit(None, dtype=pl.Int64)), agreed, "device=1")
    assert (empty.present.tolist(), empty.mean.tolist(), empty.M2.tolist()) == ([0], [0], [0])


@given(st.integers(1, 20), st.integers(0, 50), st.integers(1, 50))
def test_no_small_count_is_told(limit: int, gaps: int, n: int) -> None:
    gaps = min(gaps, n)
    told = told_count(gaps, n, contract(level_rows=limit))
    if told is None:
        assert 0 < gaps < limit or 0 < n - gaps < limit
    else:
        assert told == gaps
        assert gaps == 0 or (gaps >= limit and (n - gaps == 0 or n - gaps >= limit))


def test_a_score_over_too_few_rows_is_not_told(demo: Any) -> None:
    rules = demo.contract(disclosure={"rows": 3})
    for n, told in ((0, 0), (1, 0), (2, 0), (3, 3), (7, 7)):
        rows = Rows(np.ones((n, 2)), np.ones(n))
        assert scored_rows(rows, rules).n == told


def test_the_mark_of_few_gaps_is_refused(demo: Any) -> None:
    rules = demo.contract(missing={"policy": "mean"})
    frame = demo.frame(n=8)
    for gaps, fine in ((0, True), (1, False), (2, False), (3, True), (5, True), (6, False)):
        told = frame.with_columns(b=pl.when(pl.int_range(8) < gaps).then(None).otherwise(pl.col("b")))
        with nullcontext() if fine else pytest.raises(DataError, match=r"^here: column 'b' has (gaps, or values, in fewer|values in some)"):
            check_summary(told, told, rules, "here")


def test_levels_and_rows_are_counted_where_coefficients_come_from(demo: Any) -> None:
    rules = demo.contract(features=["a", "note"])
    segment = demo.frame(n=8).with_columns(note=pl.Series(["u"] * 5 + ["v"] * 3))
    check_summary(segment, segment, rules, "here")
    with pytest.raises(DataError, match=r"^here: column 'note' has 1 levels in fewer training rows"):
        check_summary(segment, segment[:6], rules, "here")
    with pytest.raises(DataError, match=r"^here: 2 training rows are fewer than"):
        check_summary(segment, segment[:2], rules, "here")


@pytest.mark.parametrize(
    ("rules", "least", "said"),
    [
        ({}, {}, ""),
        ({"rows": 5, "parameters": 0.1, "columns": ["age"]}, {}, ""),
        ({"rows": 2}, {}, "rows = 2 is below 3"),
        ({"level_rows": 1}, {}, "level_rows = 1 is below 3"),
        ({"devices": 2}, {"devices": 3}, "devices = 2 is below 3"),
        ({"parameters": 0.5}, {}, "parameters = 0.5 is above 0.33"),
        ({"columns": ["age"]}, {"columns": ["age", "drug"]}, ""),
        ({"columns": ["drug"]}, {"columns": ["age"]}, "columns has others than those allowed"),
        ({}, {"columns": ["age"]}, "columns has others than those allowed"),
    ],
)
def test_which_rules_are_laxer_than_others(rules: dict[str, Any], least: dict[str, Any], said: str) -> None:
    assert laxer(Disclosure.model_validate(rules), Disclosure.model_validate(least)) == said


def test_the_digest_is_of_all_but_what_a_run_may_choose() -> None:
    agreed = contract()
    chosen = agreed.model_copy(update={"target": "age", "scaling": agreed.scaling.model_copy(update={"target": "own"})})
    assert chosen.digest == agreed.digest
    assert agreed.model_copy(update={"description": "Imported from south.csv."}).digest == agreed.digest
    assert contract(rows=4).digest != agreed.digest
    assert agreed.model_copy(update={"scaling": agreed.scaling.model_copy(update={"features": "train"})}).digest != agreed.digest
