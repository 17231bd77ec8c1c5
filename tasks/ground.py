"""Where device tasks work, and for what; it travels to every task of a run. (Plain classes: Prefect looks into tuples and dataclasses
for futures, task by task.)"""

from __future__ import annotations

from typing import NamedTuple

from fedcore.algorithm import AnyAlgorithm, FleetSpec
from fedcore.data import Dataset
from fedcore.data.places import Place
from fedcore.messages import Receipt

Owner = str | int
"""Whose files are meant: a device's own, by its id, or those of a cohort of devices, by its number in the run."""


def owner_of(device_id: str, place: int, devices_per_task: int) -> Owner:
    """Whose files hold what the device at this place of a run's fleet keeps."""
    return device_id if devices_per_task == 1 else place // devices_per_task


def kept_as(run_id: str, run_uuid: str) -> str:
    """What a run's states and rows are called on devices: people name runs, and two may have one name."""
    return f"{run_id}.{run_uuid}" if run_uuid else run_id


class Ground:
    """Where all device tasks of a run work.

    Attributes
    ----------
    run_id
        The run's name.
    run_uuid
        What tells the run from others of its name, of another project folder or before it: 32 hex digits; empty for runs from before they
        had one.
    dataset
        The way to the devices' partitions.
    devices
        How many take part.
    """

    def __init__(self, run_id: str, run_uuid: str, dataset: Dataset, devices: int) -> None:
        self.run_id = run_id
        self.run_uuid = run_uuid
        self.dataset = dataset
        self.devices = devices

    @property
    def kept_as(self) -> str:
        """What the run's states and rows are called on devices."""
        return kept_as(self.run_id, self.run_uuid)

    def state_folder(self, device_id: str) -> Place:
        """Where a device keeps its own things, below its partition's folder."""
        return self.dataset.path / f"device={device_id}/.fedlin"


class Station(Ground):
    """What all device tasks that train share.

    Attributes
    ----------
    algorithm, spec, seed
        What is run.
    deadline
        Seconds that a device's work in a round may take, None for no limit.
    """

    def __init__(
        self,
        run_id: str,
        run_uuid: str,
        dataset: Dataset,
        algorithm: AnyAlgorithm,
        spec: FleetSpec,
        seed: int,
        deadline: float | None = None,
    ) -> None:
        super().__init__(run_id, run_uuid, dataset, len(spec.device_ids))
        self.algorithm = algorithm
        self.spec = spec
        self.seed = seed
        self.deadline = deadline


class Earlier(NamedTuple):
    """A run that a device has taken part in, whose files hold its state, and what its server last took of the device."""

    run_id: str
    run_uuid: str
    owner: Owner
    receipt: Receipt | None
