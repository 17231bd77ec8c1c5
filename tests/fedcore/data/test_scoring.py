"""Predictions of a fleet model: as on the device, with the posterior's intervals, and of devices that were not in the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedcore import Posterior, prediction_intervals
from fedcore.data import Contract, Dataset, create_dataset, fit_fleet
from fedcore.data.scoring import fleet_model
from fedcore.errors import DataError, Misuse

KINDS = {"age": "int64", "drug": "string", "y": "float64"}


def frame(k: int, n: int = 30) -> pl.DataFrame:
    rng = np.random.default_rng(k)
    return pl.DataFrame({"age": rng.integers(20, 80, n), "drug": rng.choice(["a", "b"], n), "y": rng.standard_normal(n)})


def dataset(root: Path, **changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "device": "clinic",
        "target": "y",
        "features": ["age", "drug"],
        "intercept": True,
        "scaling": {"features": "global"},
    }
    whole = fields | {"columns": {name: {"type": kind} for name, kind in KINDS.items()}} | changes
    made = create_dataset(root, "trial", Contract.model_validate(whole), [(str(k), frame(k)) for k in range(3)])
    return made.with_fitted(fit_fleet(made))


def posterior(seed: int) -> Posterior:
    root = np.random.default_rng(seed).standard_normal((3, 5))
    return Posterior(root[:, 0], root @ root.T, 0.5, 0.0)


def test_means_are_those_on_the_device_and_intervals_those_of_the_posterior(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    posteriors = {"0": posterior(0), "2": posterior(2)}
    model = fleet_model(data.contract, data.fitted, {name: each.mean for name, each in posteriors.items()}, posteriors, posterior(9))
    new = frame(7, 12).drop("y").with_columns(device=pl.Series(["2", "0", "stranger"] * 4))
    found = model.predict(new)
    assert found.columns == ["device", "mean", "lower", "upper"]
    assert found["device"].to_list() == new["device"].to_list()
    for device, known in {**posteriors, "stranger": posterior(9)}.items():
        own = (new["device"] == device).to_numpy()
        rows = new.filter(own).drop("device")
        np.testing.assert_allclose(found["mean"].to_numpy()[own], data.predict("1", known.mean, rows), rtol=1e-12)
        X = np.stack([data.predict("1", column, rows) for column in np.eye(3)], axis=1)
        ends = np.stack([found["lower"].to_numpy()[own], found["upper"].to_numpy()[own]], axis=1)
        np.testing.assert_allclose(ends, prediction_intervals(known, X, 0.9), rtol=1e-10)


def test_without_posteriors_there_is_no_interval_and_without_a_prior_no_stranger(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    model = fleet_model(data.contract, data.fitted, {"0": np.ones(3)}, {}, None)
    new = frame(1, 4).with_columns(device=pl.lit("0"))
    found = model.predict(new)
    assert found["mean"].is_finite().all()
    assert found["lower"].is_nan().all()
    with pytest.raises(Misuse, match="device 1 was not in the fleet, and the run has learned nothing of others"):
        model.predict(new.with_columns(device=pl.lit("1")))


def test_rows_with_gaps_have_no_prediction_where_the_contract_drops_them(tmp_path: Path) -> None:
    data = dataset(tmp_path, missing={"policy": "drop"})
    model = fleet_model(data.contract, data.fitted, {}, {}, posterior(0))
    new = frame(1, 4).with_columns(device=pl.lit("0"), age=pl.Series([30, None, 50, 60], dtype=pl.Int64))
    assert np.isnan(model.predict(new).drop("device").to_numpy()).all(axis=1).tolist() == [False, True, False, False]


def test_what_is_wrong_is_named_without_values(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    model = fleet_model(data.contract, data.fitted, {}, {}, posterior(0))
    new = frame(1, 4).with_columns(device=pl.lit("0"))
    with pytest.raises(DataError, match="column 'device' is missing"):
        model.predict(new.drop("device"))
    with pytest.raises(DataError, match=r"column 'device' is Int\d+ with 0 gaps"):
        model.predict(new.with_columns(device=pl.lit(1)))
    with pytest.raises(DataError, match="'age'"):
        model.predict(new.drop("age"))


def test_ranges_of_devices_are_not_stored(tmp_path: Path) -> None:
    data = dataset(tmp_path, scaling={"features": "train", "target": "train"})
    with pytest.raises(Misuse, match="scales its features and target by each device's own range, which no run stores"):
        fleet_model(data.contract, data.fitted, {}, {}, None)
