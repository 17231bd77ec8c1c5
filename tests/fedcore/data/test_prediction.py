"""New rows are prepared as the training rows were: against scikit-learn, against the training design, by policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures

from fedcore.data import Contract, Dataset, create_dataset, fit_fleet, load_fleet
from fedcore.data.design import Range, Ranges, device_ranges, predict
from fedcore.errors import DataError, Misuse
from fedcore.rows import Floats

KINDS = {"age": "int64", "dose": "float64", "drug": "string", "note": "string", "y": "float64"}
WORD = "canary-8c1e"
POWER = {"kind": "polynomial", "feature": "age", "degree": 3, "origin": 50, "scale": 30}


def contract(**changes: Any) -> Contract:
    fields: dict[str, Any] = {"device": "clinic", "target": "y", "features": ["age", "drug", "dose"], "intercept": True}
    return Contract.model_validate(fields | {"columns": {name: {"type": kind} for name, kind in KINDS.items()}} | changes)


def frame(k: int, n: int = 50, *, gaps: bool = False) -> pl.DataFrame:
    rng = np.random.default_rng(k)
    drug = rng.choice(["a", "b", "c"], n)
    dose = rng.normal(10 + k, 3, n)
    if gaps:
        dose[:7] = np.nan
    y = 0.1 * dose.clip(0) + (drug == "b") + rng.normal(size=n) + 100
    return pl.DataFrame({"age": rng.integers(20, 80, n), "dose": dose, "drug": drug, "note": [WORD] * n, "y": np.nan_to_num(y, nan=99.0)})


def create(root: Path, *, gaps: bool = False, **changes: Any) -> Dataset:
    frames = [(str(k), frame(k, gaps=gaps and k == 1)) for k in range(4)]
    dataset = create_dataset(root, "trial", contract(**changes), frames)
    return dataset.with_fitted(fit_fleet(dataset))


def least_squares(dataset: Dataset) -> Floats:
    datas = load_fleet(dataset).values()
    X, y = np.vstack([data.train.X for data in datas]), np.concatenate([data.train.y for data in datas])
    return np.linalg.lstsq(X, y, rcond=None)[0]


def test_predictions_are_scikit_learns(tmp_path: Path) -> None:
    """One pipeline on the pooled rows: the fleet's means for gaps and a mark, powers, dummies, products."""
    rules: dict[str, Any] = {"scaling": {"features": "global"}, "missing": {"policy": "mean"}, "feature_map": POWER}
    categories = {"drug": {"unknown": "reference"}}
    dataset = create(tmp_path, gaps=True, interactions=[["dose", "dose"]], categories=categories, **rules)
    pooled = pl.concat(frame(k, gaps=k == 1) for k in range(4)).to_pandas()
    filled = make_pipeline(SimpleImputer(add_indicator=True), PolynomialFeatures(2, include_bias=False))
    columns = make_column_transformer(
        (PolynomialFeatures(3, include_bias=False), ["age"]),
        (filled, ["dose"]),
        (OneHotEncoder(drop="first", handle_unknown="ignore", sparse_output=False), ["drug"]),
    )
    model = make_pipeline(columns, LinearRegression()).fit(pooled, pooled["y"])
    new = frame(9, gaps=True).with_columns(drug=pl.when(pl.int_range(pl.len()) == 3).then(pl.lit(WORD)).otherwise("drug"))
    theta = least_squares(dataset)
    with pytest.warns(UserWarning, match="unknown categories"):
        expected = model.predict(new.to_pandas())
    np.testing.assert_allclose(dataset.predict("2", theta, new), expected, rtol=1e-10)
    np.testing.assert_allclose(dataset.predict("0", theta, new.drop("y", "note")), expected, rtol=1e-10, err_msg="features are enough")


@pytest.mark.parametrize("scaling", [{"features": f, "target": t} for f in ("none", "train", "global") for t in ("none", "train", "own")])
def test_training_rows_predict_as_the_design_does(tmp_path: Path, scaling: dict[str, str]) -> None:
    split = {"kind": "time", "column": "age", "train": 0.6, "validation": 0.2}
    dataset = create(tmp_path, scaling=scaling, interactions=[["age", "dose"]], split=split)
    theta = np.random.default_rng(0).normal(size=len(dataset.design_names))
    for k, data in load_fleet(dataset).items():
        rows = frame(int(k))
        order = np.argsort(rows["age"].to_numpy(), kind="stable")
        first = rows["y"].to_numpy()[order[:30]]
        low, high = (0.0, 1.0) if scaling["target"] == "none" else (first.min(), first.max())
        predicted = dataset.predict(k, theta, rows)
        expected = low + (high - low) * np.concatenate([part.X @ theta for part in data])
        np.testing.assert_allclose(np.sort(predicted), np.sort(expected), rtol=1e-12)
        np.testing.assert_allclose(np.sort(predicted[order[30:]]), np.sort(low + (high - low) * (data.test.X @ theta)), rtol=1e-12)


@given(st.permutations(range(8)), st.integers(0, 7))
def test_a_row_is_predicted_whatever_comes_with_it(order: list[int], count: int) -> None:
    """New rows teach nothing: no range, mean or level is taken from them."""
    agreed = contract(features=["age", "dose"], scaling={"features": "train", "target": "train"})
    ranges = device_ranges(frame(0), agreed, "here")
    theta, new = np.array([0.5, -1.0, 2.0]), frame(5, 8).select("age", "dose")
    alone = predict(new, theta, agreed, ranges, "here")
    some = order[:count]
    np.testing.assert_allclose(predict(new[some], theta, agreed, ranges, "here"), alone[some], rtol=1e-12)


def test_rows_with_gaps_have_no_prediction_where_the_contract_drops_them(tmp_path: Path) -> None:
    dataset = create(tmp_path, gaps=True, missing={"policy": "drop"}, scaling={"target": "train"})
    theta, new = least_squares(dataset), frame(9, gaps=True)
    predicted = dataset.predict("1", theta, new)
    assert np.isnan(predicted).tolist() == [True] * 7 + [False] * 43
    np.testing.assert_array_equal(predicted[7:], dataset.predict("1", theta, new[7:]))
    assert np.isnan(dataset.predict("1", theta, new[:7])).all()


def test_no_rows_have_no_predictions(tmp_path: Path) -> None:
    dataset = create(tmp_path)
    assert dataset.predict("1", least_squares(dataset), frame(9)[:0]).shape == (0,)


REFUSED: dict[str, tuple[pl.DataFrame, int, type[Exception], str]] = {
    "a missing feature": (frame(9).drop("drug"), 5, DataError, "device=1: new rows: column 'drug' is missing: give every feature"),
    "a gap": (frame(9, gaps=True), 5, DataError, "device=1: new rows: column 'dose' has 7 null or non-finite values"),
    "another type": (frame(9).with_columns(age=pl.lit("x")), 5, DataError, "device=1: new rows: column 'age' is string: the contract"),
    "an unknown level": (
        frame(9).with_columns(drug=pl.lit(WORD)),
        5,
        DataError,
        "device=1: new rows: column 'drug' has 50 values that no device's training rows have",
    ),
    "an overflow": (frame(9).with_columns(dose=pl.lit(1e200)), 5, DataError, "device=1: new rows: the design overflows float64"),
    "other coefficients": (frame(9), 4, Misuse, r"expected theta of shape (6,), one coefficient for each column of the design, got"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_predicted_is_refused(tmp_path: Path, case: str) -> None:
    new, d, kind, message = REFUSED[case]
    dataset = create(tmp_path, interactions=[["dose", "dose"]])
    with pytest.raises(kind) as caught:
        dataset.predict("1", np.zeros(d + (case != "other coefficients")), new)
    assert str(caught.value).startswith(message)
    assert WORD not in str(caught.value)


def test_predictions_need_the_fleets_preprocessing(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"^the design of this data set depends on the whole fleet"):
        create(tmp_path).with_fitted(None).predict("1", np.zeros(5), frame(9))


def test_a_range_and_its_inverse() -> None:
    values = np.array([3.0, 5.0, 11.0])
    assert Range(3, 7).scaled(values).tolist() == [0, 0.5, 2]
    assert Range(3, 7).original(Range(3, 7).scaled(values)).tolist() == values.tolist()
    assert device_ranges(frame(0), contract(features=["age"]), "here") == Ranges({}, None)


@pytest.mark.parametrize("theta", [np.array(["a"]), np.array([np.nan, 1.0]), np.array([1j, 1.0]), np.ones(3), None])
def test_coefficients_that_are_none_are_refused(make: Callable[..., Dataset], demo: Any, theta: Any) -> None:
    with pytest.raises(Misuse, match=r"^expected theta "):
        make().predict("1", theta, demo.frame())


@pytest.mark.parametrize("rows", [None, 3, "rows.csv"])
def test_what_is_no_table_is_refused(make: Callable[..., Dataset], rows: Any) -> None:
    with pytest.raises(Misuse, match=r"^device=1: new rows: expected an Arrow table or a Polars data frame, got "):
        make().predict("1", np.ones(2), rows)


def test_an_arrow_table_predicts_as_its_frame(make: Callable[..., Dataset], demo: Any) -> None:
    dataset, theta = make(), np.array([1.0, 2.0])
    np.testing.assert_array_equal(dataset.predict("1", theta, demo.frame().to_arrow()), dataset.predict("1", theta, demo.frame()))
