"""Federated preprocessing: against scikit-learn on the whole table, by policies, and for what it tells."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedcore.data import Contract, Dataset, Fitted, create_dataset, fit_fleet, fit_preprocessing, load_fleet, open_dataset, summarise
from fedcore.data.checks import checked_frame
from fedcore.data.design import prepare
from fedcore.errors import DataError, Misuse
from fedcore.messages import nbytes
from fedcore.rows import DeviceData, Floats

EXACT = {"rtol": 1e-10, "atol": 1e-10}
GLOBAL = {"scaling": {"features": "global"}}
WORD = "canary-8c1e"


def contract(**changes: Any) -> Contract:
    """Features age, dose (numbers) and drug (a category); target y."""
    kinds = {"age": "int64", "dose": "float64", "drug": "string", "y": "float64"}
    fields: dict[str, Any] = {"device": "clinic", "target": "y", "features": ["age", "drug", "dose"], "intercept": True}
    fields["disclosure"] = {"rows": 1, "level_rows": 1}
    return Contract.model_validate(fields | {"columns": {name: {"type": kind} for name, kind in kinds.items()}} | changes)


def table(devices: int = 7, rows: int = 60) -> dict[str, pl.DataFrame]:
    """Devices of different sizes and places; device 3 alone has level "z", on device 5 the dose is constant."""
    rng = np.random.default_rng(11)
    frames: dict[str, pl.DataFrame] = {}
    for k in range(devices):
        n = rows + 5 * k
        drug = rng.choice(["b", "Ä", "a"], n)
        drug[:4] = "z" if k == 3 else drug[:4]
        age = rng.integers(20 + k, 90, n)
        dose = np.full(n, 0.1) if k == 5 else 1e3 + 0.01 * rng.normal(k, 1, n)
        y = 0.02 * age + (drug == "a") - 2.0 * (drug == "z") + 3 * dose + rng.normal(size=n)
        frames[str(k)] = pl.DataFrame({"age": age, "dose": dose, "drug": drug, "y": y})
    return frames


def fitted_on(frames: dict[str, pl.DataFrame], agreed: Contract) -> Fitted:
    return fit_preprocessing(agreed, [summarise(checked_frame(frame, agreed, "here"), agreed, "here") for frame in frames.values()])


def prepared(frames: dict[str, pl.DataFrame], agreed: Contract) -> tuple[Fitted, dict[str, DeviceData]]:
    fitted = fitted_on(frames, agreed)
    return fitted, {name: prepare(checked_frame(frame, agreed, "here"), agreed, "here", fitted) for name, frame in frames.items()}


def pooled(datas: dict[str, DeviceData]) -> tuple[Floats, Floats]:
    return np.vstack([data.train.X for data in datas.values()]), np.concatenate([data.train.y for data in datas.values()])


def least_squares(datas: dict[str, DeviceData]) -> Floats:
    """From the devices' Gram statistics alone, as a server would."""
    gram = sum(data.train.X.T @ data.train.X for data in datas.values())
    return np.linalg.solve(gram, sum(data.train.X.T @ data.train.y for data in datas.values()))


def test_pooled_results_are_scikit_learns() -> None:
    frames = table()
    fitted, datas = prepared(frames, contract(**GLOBAL))
    whole = pl.concat(frames.values())
    scaler = StandardScaler().fit(whole.select("age", "dose").to_numpy())
    encoder = OneHotEncoder(drop="first", sparse_output=False).fit(whole.select("drug").to_numpy())
    age, dose = scaler.transform(whole.select("age", "dose").to_numpy()).T
    reference = np.column_stack([age, encoder.transform(whole.select("drug").to_numpy()), dose])

    assert fitted.design == ("intercept", "age", "drug=b", "drug=z", "drug=Ä", "dose")
    assert [fitted.categories["drug"].reference, *fitted.categories["drug"].levels] == encoder.categories_[0].tolist()
    np.testing.assert_allclose(list(fitted.means.values()), scaler.mean_, rtol=1e-10)
    np.testing.assert_allclose(list(fitted.scales.values()), scaler.scale_, rtol=1e-10)
    X, _ = pooled(datas)
    np.testing.assert_allclose(X[:, 1:], reference, **EXACT)
    assert not datas["0"].train.X[:, 3].any(), "a level that the device does not have is a column of zeros"
    regression = LinearRegression().fit(reference, whole["y"].to_numpy())
    np.testing.assert_allclose(least_squares(datas), [regression.intercept_, *regression.coef_], **EXACT)


def test_the_order_of_devices_changes_nothing() -> None:
    frames, agreed = table(), contract(**GLOBAL, missing={"policy": "mean"})
    expected = fitted_on(frames, agreed)
    for seed in range(5):
        shuffled = list(frames.items())
        random.Random(seed).shuffle(shuffled)
        assert fitted_on(dict(shuffled), agreed) == expected


@pytest.mark.parametrize("far", [0.0, 1e8, 1e300])
def test_moments_are_the_same_however_rows_are_split(far: float) -> None:
    """Exact in the mathematics; in numbers to the rounding of the values themselves."""
    dose = far + max(far, 1.0) * 1e-3 * np.arange(24.0)
    whole = pl.DataFrame({"age": np.arange(24), "dose": dose, "drug": ["a"] * 24, "y": np.zeros(24)})
    scale = float(np.std(dose / max(far, 1.0)))
    for cuts in ([], [1], [3, 4, 20], list(range(1, 24))):
        bounds = [0, *cuts, 24]
        frames = {str(start): whole[start:end] for start, end in pairwise(bounds)}
        if far == 1e300:
            with pytest.raises(DataError, match=r"column 'dose' overflows float64"):
                fitted_on(frames, contract(**GLOBAL))
            continue
        fitted = fitted_on(frames, contract(**GLOBAL))
        assert fitted.means["dose"] == pytest.approx(dose.mean(), rel=1e-14)
        assert fitted.scales["dose"] == pytest.approx(scale * max(far, 1.0), rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9 / 3, 1e-30])
def test_a_feature_that_is_constant_over_the_fleet_is_refused(value: float) -> None:
    frames = {name: frame.with_columns(dose=pl.lit(value)) for name, frame in table().items()}
    with pytest.raises(DataError, match=r"^column 'dose' is constant over all devices' training rows: take it out of the features$"):
        fitted_on(frames, contract(**GLOBAL))


def test_only_the_training_segment_counts() -> None:
    agreed = contract(**GLOBAL, split={"kind": "time", "column": "age", "train": 0.5})
    frame = pl.DataFrame({"age": [1, 2, 3, 4], "dose": [1.0, 3.0, 900.0, 900.0], "drug": ["a", "b", "a", "b"], "y": [0.0] * 4})
    fitted, datas = prepared({"1": frame}, agreed)
    assert (fitted.n, fitted.means, fitted.scales) == (2, {"age": 1.5, "dose": 2.0}, {"age": 0.5, "dose": 1.0})
    assert datas["1"].test.X.tolist() == [[1, 3, 0, 898], [1, 5, 1, 898]]


# Levels


def clinics(drugs: list[str | None]) -> pl.DataFrame:
    """Two rows that train, and the others, which test."""
    n = len(drugs)
    return pl.DataFrame({"age": list(range(n)), "dose": [1.0 + i for i in range(n)], "drug": drugs, "y": [7.0] * n})


BY_AGE = {"split": {"kind": "time", "column": "age", "train": 0.5}, "features": ["drug"], "intercept": False}


@pytest.mark.parametrize(("unknown", "expected"), [("reference", [[0], [0]]), ("own", [[0, 1], [0, 0]])])
def test_unknown_levels(unknown: str, expected: list[list[float]]) -> None:
    agreed = contract(**BY_AGE, categories={"drug": {"unknown": unknown}})
    fitted, datas = prepared({"1": clinics(["a", "b", WORD, "a"])}, agreed)
    assert fitted.design == ("drug=b", "drug=(unknown)")[: len(expected[0])]
    assert datas["1"].test.X.tolist() == expected


def test_unknown_levels_are_refused_by_default_and_not_shown() -> None:
    with pytest.raises(DataError) as caught:
        prepared({"1": clinics(["a", "b", WORD, WORD])}, contract(**BY_AGE))
    remedy = "correct them, or set unknown in [categories.drug]"
    assert str(caught.value) == f"here: column 'drug' has 2 values that no device's training rows have: {remedy}"


def test_a_chosen_reference_has_no_column() -> None:
    agreed = contract(**BY_AGE, categories={"drug": {"reference": "b"}})
    assert fitted_on({"1": clinics(["a", "b", "a", "a"])}, agreed).design == ("drug=a",)
    with pytest.raises(DataError, match=r"^categories.drug.reference: 'b' is in no device's training rows"):
        fitted_on({"1": clinics(["a", "c", "a", "a"])}, agreed)


def test_a_design_without_columns_is_refused() -> None:
    with pytest.raises(DataError, match=r"^here: the design has no columns"):
        prepared({"1": clinics(["a", "a", "a", "a"])}, contract(**BY_AGE))


def test_names_that_collide_are_refused() -> None:
    columns = {"drug": {"type": "string"}, "drug=b": {"type": "float64"}, "y": {"type": "float64"}}
    frame = pl.DataFrame({"drug": ["a", "b"], "drug=b": [1.0, 2.0], "y": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"^two columns of the design have the same name, one of them made of a category"):
        fitted_on({"1": frame}, contract(features=["drug", "drug=b"], columns=columns))


def test_free_text_is_no_level() -> None:
    """Also where the summary stays with the rows: an import finds it."""
    long = WORD + "x" * 100
    frame = clinics(["a", long, long, "a"])
    for gated in (True, False):
        with pytest.raises(DataError) as caught:
            summarise(frame, contract(), "here", gated=gated)
        found = "column 'drug' has 1 levels of more than 100 characters, which are free text"
        assert str(caught.value) == f"here: {found}: shorten them, or take it out of the features"
    assert summarise(clinics(["Ä" * 100, "a"]), contract(), "here").levels == (("a", "Ä" * 100),)


# Gaps

GAPS = pl.DataFrame(
    {"age": [1, None, 3, 4], "dose": [1.0, float("nan"), 5.0, None], "drug": ["a", "b", None, "a"], "y": [1.0, 2.0, 3.0, 4.0]}
)
WHOLE = pl.DataFrame({"age": [2, 4], "dose": [3.0, 3.0], "drug": ["b", "b"], "y": [5.0, 6.0]})


def test_gaps_are_refused_by_default() -> None:
    with pytest.raises(DataError, match=r"^here: column 'age' has 1 null or non-finite values: fill them, or see \[missing\]$"):
        prepared({"1": GAPS}, contract())


def test_rows_with_gaps_are_dropped_after_the_split() -> None:
    """A quarter of four rows trains, though two are left: a further feature with gaps moves no row."""
    agreed = contract(features=["age", "dose"], missing={"policy": "drop"}, split={"kind": "time", "column": "y", "train": 0.25})
    assert not agreed.needs_fit
    data = prepare(checked_frame(GAPS, agreed, "here"), agreed, "here")
    assert [part.X.tolist() for part in data] == [[[1, 1, 1]], [], [[1, 3, 5]]]
    with pytest.raises(DataError, match=r"^here: 1 of 2 rows have gaps in features or target, and none is left to train"):
        prepare(
            checked_frame(GAPS[1:3], agreed, "here"),
            agreed.model_copy(update={"split": agreed.split.model_copy(update={"train": 0.5})}),
            "here",
        )


def test_a_gap_in_the_target_drops_its_row_or_is_refused() -> None:
    frame = WHOLE.with_columns(y=pl.Series([5.0, None]))
    agreed = contract(features=["age"], missing={"policy": "drop"})
    assert prepare(checked_frame(frame, agreed, "here"), agreed, "here").train.y.tolist() == [5]
    with pytest.raises(DataError, match=r"^here: column 'y' has 1 null or non-finite values"):
        checked_frame(frame, contract(features=["age"], missing={"policy": "mean"}), "here")


def test_gaps_get_the_fleets_mean_and_a_mark() -> None:
    fitted, datas = prepared({"1": GAPS, "2": WHOLE}, contract(missing={"policy": "mean"}))
    assert fitted.design == ("intercept", "age", "age:missing", "drug=b", "drug:missing", "dose", "dose:missing")
    age, dose = 14 / 5, 3.0
    assert datas["1"].train.X.tolist() == [
        [1, 1, 0, 0, 0, 1, 0],
        [1, age, 1, 1, 0, dose, 1],
        [1, 3, 0, 0, 1, 5, 0],
        [1, 4, 0, 0, 0, dose, 1],
    ]
    assert datas["2"].train.X.tolist() == [[1, 2, 0, 1, 0, 3, 0], [1, 4, 0, 1, 0, 3, 0]]


def test_a_scaled_gap_is_zero_as_scikit_learn_has_it() -> None:
    fitted, datas = prepared({"1": GAPS, "2": WHOLE}, contract(features=["age", "dose"], missing={"policy": "mean"}, **GLOBAL))
    whole = pl.concat([GAPS, WHOLE]).select("age", "dose").cast(pl.Float64).fill_null(float("nan")).to_numpy()
    expected = np.nan_to_num(StandardScaler().fit_transform(whole))
    np.testing.assert_allclose(np.vstack([datas[k].train.X for k in "12"])[:, [1, 3]], expected, **EXACT)
    assert fitted.marked == ("age", "dose")


def test_a_device_without_any_value_of_a_feature_takes_part() -> None:
    empty = WHOLE.with_columns(dose=pl.lit(None, dtype=pl.Float64))
    agreed = contract(features=["dose"], missing={"policy": "mean"})
    _, datas = prepared({"1": GAPS, "2": empty}, agreed)
    assert datas["2"].train.X.tolist() == [[1, 3, 1], [1, 3, 1]]
    with pytest.raises(DataError, match=r"^column 'dose' has no value in any device's training rows"):
        fitted_on({"2": empty}, agreed)


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_infinite_values_are_no_gaps(value: float) -> None:
    frame = WHOLE.with_columns(dose=pl.lit(value))
    with pytest.raises(DataError, match=r"^here: column 'dose' has 2 infinite values"):
        checked_frame(frame, contract(missing={"policy": "mean"}), "here")


def test_rows_with_gaps_keep_their_draw() -> None:
    agreed = contract(missing={"policy": "mean"}, split={"kind": "random", "train": 0.5})
    frame = pl.concat([GAPS.with_columns(y=pl.col("y") + 10 * i) for i in range(8)])
    fitted = fitted_on({"1": frame}, agreed)
    data = prepare(checked_frame(frame, agreed, "here"), agreed, "here", fitted)
    other = prepare(checked_frame(frame.reverse().fill_nan(None), agreed, "here"), agreed, "here", fitted)
    assert 0 < data.train.n < frame.height
    assert sorted(data.train.y) == sorted(other.train.y)


# Interactions and units


def test_interactions_multiply_scaled_features() -> None:
    _, datas = prepared(table(), contract(**GLOBAL, interactions=[["dose", "age"]]))
    X = datas["2"].train.X
    assert np.array_equal(X[:, -1], X[:, -2] * X[:, 1])


def test_interactions_alone_need_no_exchange() -> None:
    power = {"kind": "polynomial", "feature": "age", "degree": 2, "origin": 1, "scale": 2}
    agreed = contract(features=["age", "dose"], interactions=[["age", "dose"]], feature_map=power)
    assert agreed.design_names == ("intercept", "age^1", "age^2", "dose", "age*dose")
    assert not agreed.needs_fit
    data = prepare(checked_frame(WHOLE, agreed, "here"), agreed, "here")
    assert data.train.X.tolist() == [[1, 0.5, 0.25, 3, 1.5], [1, 1.5, 2.25, 3, 4.5]]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("power", [False, True])
def test_original_units_predict_the_same(intercept: bool, power: bool) -> None:
    shape: dict[str, Any] = {"intercept": intercept, "interactions": [["age", "dose"], ["dose", "dose"]], "missing": {"policy": "mean"}}
    if power:
        shape["feature_map"] = {"kind": "polynomial", "feature": "age", "degree": 3, "origin": 50, "scale": 30}
    frames = table() | {"gaps": GAPS}
    fitted, datas = prepared(frames, contract(**GLOBAL, **shape))
    raw_fitted, raw = prepared(frames, contract(**shape | {"intercept": True}))
    assert fitted.original_design == raw_fitted.design
    Theta = np.random.default_rng(3).normal(size=(len(fitted.design), 2))
    for name in frames:
        np.testing.assert_allclose(raw[name].train.X @ fitted.original(Theta), datas[name].train.X @ Theta, rtol=1e-7, atol=1e-7)
    assert fitted.original(Theta[:, 0]).shape == (len(fitted.original_design),)
    assert np.array_equal(raw_fitted.original(raw_fitted.original(np.eye(len(raw_fitted.design)))), np.eye(len(raw_fitted.design)))


def test_original_units_are_the_regressions_own() -> None:
    frames = table()
    fitted, datas = prepared(frames, contract(**GLOBAL))
    _, raw = prepared(frames, contract())
    X, y = pooled(raw)
    regression = LinearRegression(fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(fitted.original(least_squares(datas)), regression.coef_, rtol=1e-8, atol=1e-8)


# Storage, privacy, data sets


def test_what_was_fitted_is_stored_to_the_bit() -> None:
    fitted = fitted_on(table(), contract(**GLOBAL, missing={"policy": "mean"}, interactions=[["age", "dose"]]))
    assert Fitted.model_validate(json.loads(json.dumps(fitted.model_dump(mode="json"), allow_nan=False))) == fitted


def test_a_summary_holds_no_row() -> None:
    frames, agreed = table(), contract(**GLOBAL)
    for frame in frames.values():
        told = summarise(frame, agreed, "here")
        assert told.levels == (tuple(sorted(set(frame["drug"]))),)
        numbers = np.concatenate([np.ravel(part) for part in told[:-1]])
        assert len(numbers) == 1 + 3 * 2 + 3, "as many numbers, whatever the rows"
        assert [part.dtype for part in told[1:-1]] == [np.float64, np.float64, np.float64, np.bool_]
        assert nbytes(told) == 8 + 3 * 2 * 8 + 3 + sum(len(level.encode()) for level in told.levels[0])


def test_moments_are_told_only_where_they_are_asked_for() -> None:
    told = summarise(table()["0"], contract(), "here")
    assert (told.present.size, told.mean.size, told.M2.size) == (0, 0, 0)


def create(root: Path, **changes: Any) -> Dataset:
    return create_dataset(root, "trial", contract(**changes), table().items())


def test_a_data_set_is_loaded_as_a_fleet(tmp_path: Path) -> None:
    create(tmp_path, **GLOBAL)
    dataset = open_dataset(tmp_path, "trial")
    with pytest.raises(Misuse, match=r"^the design of data set 'trial' depends on the whole fleet"):
        dataset.design_names  # noqa: B018
    with pytest.raises(Misuse, match=r"^the design of this data set depends on the whole fleet"):
        dataset.load("0")
    fitted, expected = prepared(table(), contract(**GLOBAL))
    assert fit_fleet(dataset) == fitted
    assert dataset.with_fitted(fitted).design_names == fitted.design
    for name, data in load_fleet(dataset).items():
        np.testing.assert_array_equal(data.train.X, expected[name].train.X)


def test_a_data_set_that_needs_none_is_loaded_as_before(tmp_path: Path) -> None:
    dataset = create(tmp_path, features=["age", "dose"])
    assert fit_fleet(dataset) is None
    for name, data in load_fleet(dataset).items():
        np.testing.assert_array_equal(data.train.X, dataset.load(name).train.X)


def test_a_data_set_that_cannot_be_prepared_is_not_created(tmp_path: Path) -> None:
    frames = [("1", clinics(["a", "b", "a", "a"])), ("2", clinics(["a", "b", WORD, "a"]))]
    with pytest.raises(DataError, match=r"^device=2: column 'drug' has 1 values that no device's training rows have"):
        create_dataset(tmp_path, "trial", contract(**BY_AGE), frames)
    assert list(tmp_path.iterdir()) == []


def test_gaps_are_counted_on_the_card(tmp_path: Path) -> None:
    agreed = contract(features=["age", "dose"], missing={"policy": "drop"})
    dataset = create_dataset(tmp_path, "trial", agreed, [("1", GAPS), ("2", WHOLE)])
    assert dataset.card("1").gaps == {"age": 1, "dose": 2, "drug": 1}
    assert (dataset.card("1").n_train, dataset.card("2").gaps) == (2, {})


def test_small_counts_of_gaps_are_not_told(tmp_path: Path) -> None:
    """Neither of gaps nor of values beside them; none at all, and all of them, are told."""
    n = 8
    counts = {"age": 2, "dose": n - 2, "drug": 3, "y": 0}
    values: dict[str, Any] = {"age": 1, "dose": 1.0, "drug": "a", "y": 1.0}
    frame = pl.DataFrame({name: [None] * count + [values[name]] * (n - count) for name, count in counts.items()})
    agreed = contract(features=["y"], target="z", columns=contract().model_dump()["columns"] | {"z": {"type": "float64"}})
    frames = [("1", frame.with_columns(z=pl.lit(1.0))), ("2", frame.with_columns(z=pl.lit(1.0), dose=pl.lit(None, dtype=pl.Float64)))]
    for limit, expected in ((3, {"age": None, "dose": None, "drug": 3}), (1, {"age": 2, "dose": 6, "drug": 3})):
        rules = {"missing": {"policy": "drop"}, "disclosure": {"level_rows": limit}}
        dataset = create_dataset(tmp_path, f"trial-{limit}", Contract.model_validate(agreed.model_dump() | rules), frames)
        assert dataset.card("1").gaps == expected
        assert dataset.card("2").gaps == expected | {"dose": n}
