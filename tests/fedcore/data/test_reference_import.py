"""The reference cases go through the import as a user's own parquet files do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedcore import fit
from fedcore.data import import_file
from fedcore.separate import Separate

REFERENCE = Path(__file__).parents[2] / "reference"


@pytest.mark.parametrize("case", ["uq", "uq_k5", "case2_lasso", "hard_two_modes", "hard_homogeneous", "hard_n_less_d", "sleepstudy"])
def test_import_is_the_identity(case: str, tmp_path: Path) -> None:
    source = pl.read_parquet(REFERENCE / f"{case}.parquet")
    dataset = import_file(tmp_path, REFERENCE / f"{case}.parquet", case, device="device", target="y")
    features = [name for name in source.columns if name not in ("device", "y")]
    assert set(dataset.device_ids) == {str(device) for device in source["device"].unique()}
    for device_id in dataset.device_ids:
        rows = source.filter(pl.col("device").cast(pl.String) == device_id)
        data = dataset.load(device_id)
        np.testing.assert_array_equal(data.train.X, rows.select(features).to_numpy())
        np.testing.assert_array_equal(data.train.y, rows["y"].to_numpy())
        assert data.validation.n == data.test.n == 0


def test_devices_on_their_own_find_the_truth_of_uq(tmp_path: Path) -> None:
    """100 rows a device at noise sd 0.05: least squares is within 5 standard errors (0.005 each) of every true coefficient."""
    dataset = import_file(tmp_path, REFERENCE / "uq.parquet", "uq", device="device", target="y")
    truth = dict(zip(dataset.device_ids, json.loads((REFERENCE / "uq.json").read_text())["true_theta"], strict=True))
    result = fit(Separate(), {device_id: dataset.load(device_id) for device_id in dataset.device_ids}, rounds=30)
    for device_id, theta in result.theta.items():
        np.testing.assert_allclose(theta, truth[device_id], atol=0.03)
