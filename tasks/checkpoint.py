"""A run's folder: its configuration, its ledger, and what it found. This is the truth of a run; the engines' records
are copies.

`runs/<run_id>/` holds `config.json` and `manifest.json`, written once before the first round; `checkpoint.npz`,
replaced whole after every round; `results/`, and last `result.json`, after the end.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from fedcore.algorithm import Outcome
from fedcore.data.names import checked_run_id
from fedcore.data.places import Place, is_file, is_folder, make_folder, read_file, sync_folder, write_durably
from fedcore.data.staging import claimed, holder
from fedcore.errors import FedlinError, Misuse, PlaceAway
from fedcore.rounds import RoundReport, RunState
from fedcore.trees import Arrays, from_npz, npz, pack, unpack

T = TypeVar("T")

Record = dict[str, Any]
"""A round's scalars by name, None where one is not finite, with the ids of its silent devices, and of those whose answer was not taken the
reason."""


class Ledger(NamedTuple):
    """What is known of a run's rounds.

    Attributes
    ----------
    history
        One record a round.
    outcome
        Set once the run has ended.
    """

    history: tuple[Record, ...]
    outcome: Outcome | None


class Checkpoint(NamedTuple):
    """All that a run needs to go on after any round.

    Attributes
    ----------
    state
        Round numbers, server state, and what was last taken of each device.
    history
        One record a round.
    outcome
        Set once the run has ended.
    """

    state: RunState
    history: tuple[Record, ...]
    outcome: Outcome | None


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run.

    Attributes
    ----------
    path
        `<runs>/<run_id>`.
    """

    path: Place

    @classmethod
    def named(cls, runs: Place, run_id: str | None) -> RunFolder:
        """The folder of the run that somebody names: below `runs`, whatever the name.

        Raises
        ------
        Misuse
            Where no run can have that name, or none is given.
        """
        if not run_id:
            what = 'give config, such as {"dataset": NAME}, or the run_id of one to go on with'
            raise Misuse(f"neither a configuration nor a run is given: {what}")
        return cls(runs / checked_run_id(run_id))

    @property
    def run_id(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def results(self) -> Place:
        """Folder of what the run found."""
        return self.path / "results"

    @property
    def exists(self) -> bool:
        """Whether the run has begun."""
        return is_folder(self.path)

    def refuse_existing(self) -> None:
        """Raises Misuse where a run of this name has begun: it is the one that the name stands for."""
        if self.exists:
            raise Misuse(f"there is a run {self.run_id} already: resume it, or choose another id")

    def create(self, config: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        """Make the folder of a new run.

        Raises
        ------
        Misuse
            Where the runs folder cannot be written.
        """
        try:
            make_folder(self.path)
        except OSError as error:
            raise Misuse(f"the runs folder {self.path.parent} cannot be written ({error.strerror}): give it write permission") from None
        self.write_json("manifest.json", manifest)
        self.write_json("config.json", config)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from going on with this run at the same time.

        Raises
        ------
        Misuse
            Where one does already.
        """
        with claimed(self.path / "run.lock", f"run {self.run_id}"):
            yield

    def config(self, command: str) -> dict[str, Any]:
        """The configuration that the run began with: as given, and with every default written out.

        Raises
        ------
        Misuse
            Where there is no such run, the file is damaged, or another command has begun the run.
        """
        config, by = self._begun()
        if by != command:
            raise Misuse(f"run {self.run_id} was begun by fedlin {by}: go on with fedlin {by} --resume {self.run_id}")
        return config

    def trained(self) -> dict[str, Any]:
        """The configuration of a training, for those who want what it has learned.

        Raises
        ------
        Misuse
            Where there is no such run, the file is damaged, or the run is none of `fedlin train`.
        """
        config, by = self._begun()
        if by != "train":
            instead = f"its challenger is run {self.run_id}-challenger" if by == "retrain" else "name a run of fedlin train"
            raise Misuse(f"run {self.run_id} was begun by fedlin {by} and is no training itself: {instead}")
        return config

    def _begun(self) -> tuple[dict[str, Any], str]:
        """The configuration, and the command that the run was begun by."""
        if not is_file(self.path / "config.json"):
            raise Misuse(f"no run {self.run_id!r} in {self.path.parent}: fedlin status lists them")
        config = self.read_json("config.json")
        if not isinstance(config.get("given"), dict):
            raise Misuse(f"run {self.run_id}: config.json is missing or damaged: restore it, or start a new run")
        return config, config.get("command", "train")

    def manifest(self) -> dict[str, Any]:
        """What the run is trained on: names, counts and hashes.

        Raises
        ------
        Misuse
            Where the file is missing or damaged.
        """
        return self.read_json("manifest.json")

    def read_json(self, name: str) -> dict[str, Any]:
        """One of the folder's JSON files.

        Raises
        ------
        Misuse
            Where it is missing or damaged.
        """
        found = None
        try:
            found = json.loads(read_file(self.path / name))
        except PlaceAway:
            raise
        except (OSError, ValueError):
            pass
        if not isinstance(found, dict):
            raise Misuse(f"run {self.run_id}: {name} is missing or damaged: restore it, or start a new run")
        return cast("dict[str, Any]", found)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace one of the folder's JSON files, atomically.

        Raises
        ------
        FedlinError
            Where the folder cannot be written.
        """
        self._write(name, json.dumps(content, indent=1, allow_nan=False).encode())

    def _write(self, name: str, content: bytes) -> None:
        try:
            write_durably(self.path / name, content)
        except OSError as error:
            reason = error.strerror
        else:
            return
        raise FedlinError(f"run {self.run_id}: {name} cannot be written ({reason}): make room or give permission, then resume the run")

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint: the old one or the new one is there, whatever happens.

        Raises
        ------
        FedlinError
            Where the folder cannot be written; the old one is there then.
        """
        ledger = {
            "config": self._config_digest(),
            "history": checkpoint.history,
            "outcome": asdict(checkpoint.outcome) if checkpoint.outcome else None,
        }
        arrays = {"ledger": np.array(json.dumps(ledger, allow_nan=False)), **pack(checkpoint.state)}
        self._write("checkpoint.npz", npz(arrays))
        sync_folder(self.path)

    def load(self) -> Checkpoint | None:
        """The last checkpoint, None before the first round's.

        Raises
        ------
        Misuse
            Where it is damaged, or belongs to another configuration.
        """
        return self._stored(lambda arrays, ledger: Checkpoint(unpack(arrays), *ledger))

    def ledger(self) -> Ledger | None:
        """What the last checkpoint says of the rounds, whatever state it holds; None before the first round's.

        Raises
        ------
        Misuse
            Where it is damaged, or belongs to another configuration.
        """
        return self._stored(lambda _, ledger: ledger)

    def held_by(self) -> str | None:
        """The machine where a process has the run in hand (see `held`), None where none has."""
        return holder(self.path / "run.lock")

    def _stored(self, take: Callable[[Arrays, Ledger], T]) -> T | None:
        try:
            arrays = from_npz(read_file(self.path / "checkpoint.npz"))
            ledger = json.loads(str(arrays["ledger"]))
            outcome = Outcome(**ledger["outcome"]) if ledger["outcome"] else None
            config, found = str(ledger["config"]), take(arrays, Ledger(tuple(ledger["history"]), outcome))
        except FileNotFoundError:
            return None
        except PlaceAway:
            raise
        except (Misuse, OSError, KeyError, TypeError, ValueError):
            raise Misuse(f"run {self.run_id}: checkpoint.npz is damaged or unreadable: restore it, or start a new run") from None
        if config != self._config_digest():
            raise Misuse(f"run {self.run_id}: config.json is not the one that the run began with: restore it, or start a new run")
        return found

    def _config_digest(self) -> str:
        return hashlib.sha256(read_file(self.path / "config.json")).hexdigest()


def record(report: RoundReport, device_ids: Sequence[str], seconds: float) -> Record:
    """A round for the ledger, with its wall time in seconds."""
    finite = {name: value if math.isfinite(value) else None for name, value in report.metrics().items()}
    devices = {"silent": [device_ids[k] for k in report.silent], "reasons": report.reasons(device_ids)}
    return {"round_num": report.round_num, "phase": report.phase, **finite, "seconds": seconds, **devices}
