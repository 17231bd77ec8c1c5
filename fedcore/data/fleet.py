"""A whole data set in this process: for notebooks, tests, and checks before a run."""

from __future__ import annotations

from fedcore.data.fitted import Fitted
from fedcore.data.preprocess import fit_preprocessing
from fedcore.data.store import Dataset
from fedcore.rows import DeviceData


def fit_fleet(dataset: Dataset) -> Fitted | None:
    """The preprocessing of a data set, None where its contract needs none.

    Raises
    ------
    DataError
        Where a device's partition breaks the contract, or the fleet's columns do not suit it; see `fit_preprocessing`.
    """
    if not dataset.contract.needs_fit:
        return None
    return fit_preprocessing(dataset.contract, map(dataset.summary, dataset.device_ids))


def load_fleet(dataset: Dataset) -> dict[str, DeviceData]:
    """All devices' rows by id, prepared as a run would prepare them; `fedcore.fit` takes them as they are.

    Raises
    ------
    DataError
        As `fit_fleet` does, or where a device cannot be prepared.
    """
    prepared = dataset.with_fitted(fit_fleet(dataset))
    return {device_id: prepared.load(device_id) for device_id in dataset.device_ids}
