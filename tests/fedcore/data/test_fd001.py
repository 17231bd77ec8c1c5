"""The real C-MAPSS file through the shipped contract, against numbers taken from the file by numpy alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.data import Dataset, Disclosure, import_file, open_dataset
from fedcore.data.disclosure import check_parameters, check_rows
from fedcore.errors import DataError

NAME = "cmapss-fd001"
SHIPPED = Path(__file__).parents[3] / "datasets" / NAME / "dataset.toml"


@pytest.fixture(scope="module")
def file(real_file: Callable[[str], Path]) -> Path:
    return real_file("train_FD001.txt")


@pytest.fixture(scope="module")
def dataset(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("datasets")
    (root / NAME).mkdir()
    shutil.copy(SHIPPED, root / NAME)
    return import_file(root, file, NAME)


@pytest.fixture(scope="module")
def raw(file: Path) -> np.ndarray:
    return np.loadtxt(file)


def test_every_engine_and_row_arrives(dataset: Dataset, raw: np.ndarray) -> None:
    cards = [dataset.card(device) for device in dataset.device_ids]
    assert sorted(int(card.device) for card in cards) == list(range(1, 101))
    for card in cards:
        n = int((raw[:, 0] == int(card.device)).sum())
        assert card.n_train + card.n_validation == int(np.round(0.6 * n))
        assert card.n_train + card.n_validation + card.n_test == n
        check_rows(card.n_train + card.n_validation, dataset.contract, card.device)
        check_parameters(5, card.n_train, dataset.contract, card.device)
    assert dataset.contract.disclosure == Disclosure(trajectories=True), "the rules are at their defaults, and courses are asked for"
    segment = sum(card.n_train + card.n_validation for card in cards)
    # Binomial: four standard deviations of a share over 12,000 rows are 0.015.
    assert sum(card.n_validation for card in cards) / segment == pytest.approx(0.2, abs=0.015)


@pytest.mark.parametrize("scaling", ["train", "own"])
@pytest.mark.parametrize("sensor", [2, 7])
def test_design_and_target_are_the_papers(dataset: Dataset, raw: np.ndarray, sensor: int, scaling: str) -> None:
    chosen = open_dataset(dataset.path.parent, NAME, target=f"sensor_{sensor}", target_scaling=scaling)
    for device in chosen.device_ids:
        rows = raw[raw[:, 0] == int(device)]
        X = ((rows[:, 1] - 1) / 299)[:, None] ** np.arange(5)
        y, first = rows[:, 4 + sensor], int(np.round(0.6 * len(rows)))
        low, high = y[:first].min(), y[:first].max()
        test_low, test_high = (low, high) if scaling == "train" else (y[first:].min(), y[first:].max())
        train, validation, test = chosen.load(device)
        for (X_is, y_is), X_due, y_due in (
            ((np.vstack([train.X, validation.X]), np.concatenate([train.y, validation.y])), X[:first], (y[:first] - low) / (high - low)),
            (test, X[first:], (y[first:] - test_low) / (test_high - test_low)),
        ):
            # Sums in another order: a few units in the last place.
            np.testing.assert_allclose(X_is.T @ X_is, X_due.T @ X_due, rtol=1e-12)
            np.testing.assert_allclose(X_is.T @ y_is, X_due.T @ y_due, rtol=1e-12)


def test_a_constant_sensor_is_refused_by_name(dataset: Dataset) -> None:
    chosen = open_dataset(dataset.path.parent, NAME, target="sensor_1")
    with pytest.raises(DataError, match=r"^device=1: column 'sensor_1' is constant over the 115 rows that set its range"):
        chosen.load("1")
