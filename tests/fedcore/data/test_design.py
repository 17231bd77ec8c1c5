from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from fedcore.data.checks import checked_frame
from fedcore.data.design import prepare
from fedcore.errors import DataError
from fedcore.rows import DeviceData

BY_NOTE = {"kind": "column", "column": "note"}


def rows(y: list[float], parts: list[str]) -> pl.DataFrame:
    a = list(range(1, len(y) + 1))
    return pl.DataFrame({"a": a, "b": [10.0 * i for i in a], "y": y, "note": parts})


def prepared(demo: Any, frame: pl.DataFrame, **changes: Any) -> DeviceData:
    contract = demo.contract(**changes)
    data = prepare(checked_frame(frame, contract, "here"), contract, "here")
    for part in data:
        assert part.X.shape == (part.n, len(contract.design_names))
        for array in part:
            assert array.dtype == np.float64
            assert array.flags.c_contiguous
    return data


def test_linear_features_enter_as_they_are_after_the_intercept(demo: Any) -> None:
    data = prepared(demo, rows([5.0, 6.0], ["train", "train"]), intercept=True, features=["b", "a"])
    assert data.train.X.tolist() == [[1, 10, 1], [1, 20, 2]]
    assert data.train.y.tolist() == [5, 6]
    assert (data.validation.n, data.test.n) == (0, 0)


def test_a_polynomial_takes_its_features_place(demo: Any) -> None:
    power = {"kind": "polynomial", "feature": "a", "degree": 3, "origin": 1, "scale": 2}
    data = prepared(demo, rows([5.0, 6.0], ["train", "train"]), feature_map=power)
    assert data.train.X.tolist() == [[0, 0, 0, 10], [0.5, 0.25, 0.125, 20]]


def test_parts_keep_the_order_of_the_frame(demo: Any) -> None:
    frame = rows([1.0, 2.0, 3.0, 4.0], ["test", "train", "validation", "train"])
    data = prepared(demo, frame, split=BY_NOTE)
    assert [part.y.tolist() for part in data] == [[2, 4], [3], [1]]
    assert data.train.X.tolist() == [[2, 20], [4, 40]]


@pytest.mark.parametrize(("scaling", "test"), [("none", [14.0, 6.0]), ("train", [3.0, 1.0]), ("own", [1.0, 0.0])])
def test_targets_scale_by_the_training_segment_and_own_by_the_test_rows(demo: Any, scaling: str, test: list[float]) -> None:
    frame = rows([2.0, 6.0, 4.0, 14.0, 6.0], ["train", "validation", "train", "test", "test"])
    data = prepared(demo, frame, split=BY_NOTE, scaling={"target": scaling})
    assert data.test.y.tolist() == test
    assert data.train.y.tolist() == ([2, 4] if scaling == "none" else [0, 0.5])
    assert data.validation.y.tolist() == ([6] if scaling == "none" else [1])


def test_own_scaling_does_without_test_rows(demo: Any) -> None:
    assert prepared(demo, rows([2.0, 6.0], ["train", "train"]), scaling={"target": "own"}).train.y.tolist() == [0, 1]


def test_features_scale_by_the_training_segment_except_a_polynomials(demo: Any) -> None:
    frame = rows([1.0, 2.0, 3.0], ["train", "validation", "test"])
    power = {"kind": "polynomial", "feature": "a", "degree": 1}
    data = prepared(demo, frame, split=BY_NOTE, scaling={"features": "train"}, feature_map=power, intercept=True)
    assert np.vstack([part.X for part in data]).tolist() == [[1, 1, 0], [1, 2, 1], [1, 3, 2]]


@pytest.mark.parametrize(
    ("y", "scaling", "message"),
    [
        ([7000.0, 7000.0, 7001.0, 7002.0], {"target": "train"}, "column 'y' is constant over the 2 rows that set its range"),
        ([7000.0, 7001.0, 7002.0, 7002.0], {"target": "own"}, "column 'y' is constant over the 2 rows that set its range"),
        ([-1e308, 1e308, 1.0, 2.0], {"target": "train"}, "the design or the target overflows float64"),
    ],
)
def test_what_cannot_be_scaled_is_refused(demo: Any, y: list[float], scaling: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=rf"^here: {message}"):
        prepared(demo, rows(y, ["train", "train", "test", "test"]), split=BY_NOTE, scaling=scaling)


def test_a_constant_feature_cannot_be_scaled(demo: Any) -> None:
    frame = rows([1.0, 2.0], ["train", "train"]).with_columns(b=pl.lit(3.0))
    with pytest.raises(DataError, match=r"^here: column 'b' is constant over the 2 rows"):
        prepared(demo, frame, scaling={"features": "train"})


def test_a_power_that_overflows_is_refused(demo: Any) -> None:
    frame = rows([1.0, 2.0], ["train", "train"]).with_columns(b=pl.lit(1e200))
    with pytest.raises(DataError, match=r"^here: the design or the target overflows float64"):
        prepared(demo, frame, feature_map={"kind": "polynomial", "feature": "b", "degree": 2})
