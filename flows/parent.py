"""An ended run that another one goes on from, or that a device outside its fleet learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.algorithm import AnyAlgorithm, FleetSpec
from fedcore.data import Contract, Dataset, Fitted
from fedcore.data.places import read_file
from fedcore.errors import Misuse, PlaceAway
from fedcore.rounds import RunState
from fedcore.rows import Floats
from fedcore.trees import from_npz
from flows.config import TrainConfig
from flows.workspace import Workspace
from tasks.checkpoint import Checkpoint, RunFolder
from tasks.ground import Earlier, owner_of


@dataclass(frozen=True)
class Parent:
    """A run that has ended with a result to use.

    Attributes
    ----------
    folder, config
        Where it is, and what was trained.
    manifest
        On what.
    checkpoint
        How it ended.
    """

    folder: RunFolder
    config: TrainConfig
    manifest: dict[str, Any]
    checkpoint: Checkpoint

    @classmethod
    def open(cls, workspace: Workspace, run_id: str) -> Parent:
        """The run of this name.

        Raises
        ------
        Misuse
            Where there is none, it is damaged, it was no training, or it has not ended with a result to use.
        """
        folder = RunFolder.named(workspace.runs, run_id)
        config, manifest = TrainConfig.model_validate(folder.trained()["given"]), folder.manifest()
        config.build_algorithm()  # a checkpoint is read back only once the classes of its parts are known
        checkpoint = folder.load()
        if checkpoint is None or checkpoint.outcome is None:
            raise Misuse(f"run {run_id} has not ended: go on with fedlin train --resume {run_id} first")
        if not checkpoint.outcome.ok:
            raise Misuse(f"run {run_id} ended without a usable result ({checkpoint.outcome.name}): choose another run")
        return cls(folder, config, manifest, checkpoint)

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Its fleet, sorted."""
        return tuple(card["device"] for card in self.manifest["devices"])

    @property
    def coefficients(self) -> dict[str, Floats]:
        """What it found, by device: those that gave their result.

        Raises
        ------
        Misuse
            Where its results are missing or damaged.
        """
        try:
            found = from_npz(read_file(self.folder.results / "theta.npz"))
            return {str(device): theta for device, theta in zip(found["devices"], found["Theta"].T, strict=True)}
        except PlaceAway:
            raise
        except (Misuse, OSError, KeyError, ValueError):
            raise Misuse(f"run {self.folder.run_id}: results/theta.npz is missing or damaged: restore it, or start a new run") from None

    def prepared(self, dataset: Dataset) -> Dataset:
        """A data set whose devices prepare their rows as those of this run did.

        Raises
        ------
        Misuse
            Where its design or target is not this run's.
        """
        fitted = Fitted.model_validate(self.manifest["preprocessing"]) if self.manifest["preprocessing"] else None
        mine, its = (_of_design(contract) for contract in (dataset.contract, Contract.model_validate(self.manifest["contract"])))
        if mine != its:
            parts = ", ".join(name for name in mine if mine[name] != its[name])
            whose = f"the contract of data set {dataset.name!r} is not that of run {self.folder.run_id}"
            raise Misuse(f"{whose}, it differs in {parts}: use the run's own data set")
        return dataset.with_fitted(fitted)

    def earlier(self, device_ids: Sequence[str]) -> list[Earlier | None]:
        """Where each device keeps its state of this run, and what its server last took of it; None of those that were not in it."""
        # Older runs have no uuid, and those before there were cohorts no size of them.
        run_id, uuid, shared = self.folder.run_id, self.manifest.get("run_uuid", ""), self.manifest.get("devices_per_task", 1)
        return [
            None if k is None else Earlier(run_id, uuid, owner_of(device_id, k, shared), self.checkpoint.state.receipt(k))
            for device_id, k in zip(device_ids, self._places(device_ids), strict=True)
        ]

    def state(self, algorithm: AnyAlgorithm, spec: FleetSpec) -> RunState:
        """The state before the first round of a run that goes on from this one.

        Raises
        ------
        Misuse
            Where the algorithm cannot go on with another fleet.
        """
        server = algorithm.continued_server(self.checkpoint.state.server, self._places(spec.device_ids), spec)
        return RunState.initial(algorithm, spec)._replace(server=server)

    def broadcasts(self, device_ids: Sequence[str]) -> Sequence[Any]:
        """What its server would tell devices of its fleet now."""
        algorithm = self.config.build_algorithm()
        return algorithm.broadcasts(self.checkpoint.state.server, [k for k in self._places(device_ids) if k is not None])

    def _places(self, device_ids: Sequence[str]) -> list[int | None]:
        place = {device_id: k for k, device_id in enumerate(self.device_ids)}
        return [place.get(device_id) for device_id in device_ids]


def _of_design(contract: Contract) -> dict[str, Any]:
    """What makes a device's design rows and targets out of its columns."""
    return contract.model_dump(mode="json", exclude={"description", "source", "version", "device", "file", "disclosure", "split"})
