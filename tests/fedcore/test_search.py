"""Grids and draws."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore import Misuse
from fedcore.algorithm import ALGORITHMS, algorithm_class
from fedcore.search import Range, Space, grid, sample


def test_the_last_option_of_a_grid_changes_fastest() -> None:
    assert grid({"a": [2, 1], "b": ["x", "y"]}) == [{"a": 2, "b": "x"}, {"a": 2, "b": "y"}, {"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
    assert grid({}) == sample({}, 3, 0) == [{}]


@given(st.integers(1, 30), st.integers(0, 5), st.booleans())
def test_draws_are_distinct_and_in_the_order_of_the_space(number: int, seed: int, first: bool) -> None:
    space: Space = {"a": [5, 3, 4], "b": Range(9, 1, whole=True)}
    every = [{"a": a, "b": b} for a in (5, 3, 4) for b in range(9, 0, -1)]
    drawn = sample(space, number, seed, first=first)
    places = [every.index(configuration) for configuration in drawn]
    assert len(drawn) == min(number, 27)
    assert places == sorted(set(places))
    assert drawn == sample(space, number, seed, first=first)
    assert not first or places[0] == 0


def test_a_range_is_drawn_on_a_logarithmic_scale() -> None:
    for ends in ((0.001, 1.0), (1.0, 0.001)):
        values = [configuration["a"] for configuration in sample({"a": Range(*ends)}, 1000, 3)]
        assert values == sorted(values, reverse=ends[0] > ends[1])
        assert 0.001 <= min(values) < 0.0012
        assert 0.9 < max(values) <= 1
        assert np.mean(np.array(values) < 10**-1.5) == pytest.approx(0.5, abs=0.05)


def test_whole_ranges_have_whole_values_up_to_their_ends() -> None:
    values = [configuration["a"] for configuration in sample({"a": Range(1, 4, whole=True), "b": Range(1, 2)}, 400, 0)]
    assert {type(value) for value in values} == {int}
    assert {value: values.count(value) > 20 for value in values} == {1: True, 2: True, 3: True, 4: True}


REFUSED: dict[str, tuple[Any, str]] = {
    "no value": (lambda: grid({"a": []}), "a has no value to try"),
    "no value to draw": (lambda: sample({"a": []}, 3, 0), "a has no value to try"),
    "a range in a grid": (lambda: grid({"a": Range(1, 2)}), "a is a range"),
    "too many": (lambda: grid({"a": range(40), "b": range(40)}), "1,600 configurations, more than 1,000"),
    "no draws": (lambda: sample({"a": [1, 2]}, 0, 0), "from 1 to 1,000, got 0"),
    "a range from zero": (lambda: Range(0, 1), "FIRST..LAST, got 0..1"),
    "a range without end": (lambda: Range(1, float("inf")), "two different numbers above 0"),
    "a range of one value": (lambda: Range(1, 1), "two different numbers above 0"),
    "whole values between others": (lambda: Range(1, 2.5, whole=True), "whole ends, got 1..2.5"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_misuse(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(Misuse, match=words):
        make()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_an_algorithm_would_have_tuned_is_valid(name: str) -> None:
    """Every configuration; the first one is the algorithm's own choice, and none changes the local budget."""
    kind = algorithm_class(name)
    options = {field.name for field in fields(kind)}  # pyright: ignore[reportArgumentType]
    assert set(kind.SEARCH) <= options - {"steps", "batch"}
    configurations = grid(kind.SEARCH)
    assert kind(**configurations[0]) == kind()
    assert len({kind(**configuration) for configuration in configurations}) == len(configurations)
