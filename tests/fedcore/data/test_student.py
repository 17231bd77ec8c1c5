"""The real student file through the shipped contract, by the commands' own functions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedcore import fit
from fedcore.data import Dataset, Disclosure, fit_fleet, import_file, load_fleet, read_contract
from fedcore.data.disclosure import check_parameters

NAME = "student-por"
SHIPPED = Path(__file__).parents[3] / "datasets" / NAME


def test_the_shipped_contract_has_29_predictors() -> None:
    contract = read_contract(SHIPPED)
    assert (contract.device, contract.target) == ("school", "G3")
    assert (len(contract.numeric), len(contract.categorical)) == (13, 16)
    assert contract.disclosure == Disclosure(), "the gate is at its default"
    assert not {"school", "G1", "G2", "G3"} & set(contract.features)


@pytest.fixture(scope="module")
def file(real_file: Callable[[str], Path]) -> Path:
    return real_file("student-por.csv")


@pytest.fixture(scope="module")
def dataset(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("datasets")
    shutil.copytree(SHIPPED, root / NAME, ignore=shutil.ignore_patterns("device=*"))
    return import_file(root, file, NAME)


def test_the_design_has_38_columns_beside_the_intercept(dataset: Dataset, file: Path) -> None:
    fitted, raw = fit_fleet(dataset), pl.read_csv(file, separator=";")
    assert fitted is not None
    assert len(fitted.design) == 39
    dummies = [f"{name}={level}" for name in dataset.contract.categorical for level in sorted(raw[name].unique())[1:]]
    assert sorted(fitted.design) == sorted(["intercept", *dataset.contract.numeric, *dummies])


def test_both_schools_train_on_their_pupils(dataset: Dataset, file: Path) -> None:
    devices, raw = load_fleet(dataset), pl.read_csv(file, separator=";")
    assert {name: sum(part.n for part in data) for name, data in devices.items()} == {"GP": 423, "MS": 226}
    # Binomial: four standard deviations of a share over 649 rows are 0.077.
    assert sum(data.train.n for data in devices.values()) / raw.height == pytest.approx(0.6, abs=0.077)
    everything = np.vstack([part.X for data in devices.values() for part in data])
    np.testing.assert_allclose(np.vstack([data.train.X for data in devices.values()])[:, 2].mean(), 0, atol=1e-12)
    assert everything.shape == (649, 39)
    for name, data in devices.items():
        check_parameters(data.train.d, data.train.n, dataset.contract, name)
    result = fit("hm1", devices, rounds=50)
    assert result.outcome.name == "completed"
