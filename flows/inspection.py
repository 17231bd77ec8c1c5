"""Every device of a data set, read and held against the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedcore.data import Dataset, DeviceCard, fit_preprocessing
from fedcore.errors import DataError, Misuse

T = TypeVar("T")

SHOWN = 10
"""The most devices that are named."""


def inspect_devices(dataset: Dataset, say: Callable[[str], object]) -> tuple[Dataset, list[DeviceCard]]:
    """Read all devices of a data set, on its own machine; nobody else is told what they hold.

    Parameters
    ----------
    dataset
        The data set.
    say
        Told what is wrong with a device, in one line.

    Returns
    -------
    Dataset, list of DeviceCard
        The data set with its preprocessing, and what each device has.

    Raises
    ------
    Misuse
        Where devices break the contract; says how many.
    """
    if dataset.contract.needs_fit:
        # It stays here: an import or a check tells nobody, so the disclosure rules are for the run to hold.
        summaries = _of_all(dataset, lambda dataset, device_id: dataset.summary(device_id, gated=False), say)
        dataset = dataset.with_fitted(fit_preprocessing(dataset.contract, summaries))
    return dataset, _of_all(dataset, Dataset.card, say)


def rows_by_device(cards: list[DeviceCard]) -> dict[str, int]:
    """Number of rows by device id."""
    return {card.device: card.n_train + card.n_validation + card.n_test for card in cards}


def _of_all(dataset: Dataset, read: Callable[[Dataset, str], T], say: Callable[[str], object]) -> list[T]:
    found: list[T] = []
    failures: list[str] = []
    for device_id in dataset.device_ids:
        try:
            found.append(read(dataset, device_id))
        except DataError as error:
            failures.append(str(error))
    for failure in failures[:SHOWN]:
        say(failure)
    if failures:
        total = len(found) + len(failures)
        remedy = "correct them, and bring them again with fedlin data import"
        raise Misuse(f"data set {dataset.name!r}: {len(failures)} of {total} devices break the contract: {remedy}")
    return found
