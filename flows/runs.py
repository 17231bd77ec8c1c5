"""What is known of the runs of a project from their folders alone, whatever server they ran on."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple

from fedcore.data.places import entries, is_file, is_folder, modified
from fedcore.errors import FedlinError, Misuse
from flows.workspace import Workspace
from tasks.checkpoint import Record, RunFolder

RunStatus = Literal["running", "ended", "interrupted", "damaged"]

OUTSIDE = "rollback"
"""The command that leaves a folder of a run with a decision alone, and no result."""

CHAMPION = "@champion"
"""What follows a data set's name where its champion is meant."""


class RunView(NamedTuple):
    """A run, seen from outside.

    Attributes
    ----------
    run_id, command, dataset
        The run, which command began it, and on what.
    algorithm
        Its algorithm, or those that it compares; empty where it takes the champion's.
    status
        `running`: a process holds the run's lock, which the system ends with the process; `ended`: it has left its result;
        `interrupted`: neither, so it can be resumed; `damaged`: its files cannot be read, and `message` says which.
    machine
        Where it is running.
    rounds, most
        How many rounds are done, and how many there are at most in the main phase (None for a run without rounds).
    outcome, message
        How it ended; empty where it has not.
    began, changed
        When it began, and when its last round or result was written.
    """

    run_id: str
    command: str
    dataset: str
    algorithm: str
    status: RunStatus
    machine: str | None
    rounds: int
    most: int | None
    outcome: str
    message: str
    began: datetime
    changed: datetime


def runs(workspace: Workspace) -> list[RunView]:
    """All runs of a project, the newest first; what is in the folder and is no run is passed over."""
    return sorted((view(each) for each in _folders(workspace)), key=lambda each: each.began, reverse=True)


def going_on(workspace: Workspace, dataset: str) -> list[str]:
    """Runs of a project that a process of this machine has in hand, of a data set or of none that can be told. (A claim of another machine
    may be that of a process that was killed there, which nobody here can know.)"""
    return [folder.run_id for folder in _folders(workspace) if folder.held_by() == platform.node() and _of_data(folder) in (dataset, None)]


def find_run(workspace: Workspace, run_id: str) -> RunFolder:
    """The folder of a run.

    Raises
    ------
    Misuse
        Where there is none of this name.
    """
    with suppress(Misuse):
        folder = RunFolder.named(workspace.runs, run_id)
        if is_file(folder.path / "config.json"):
            return folder
    raise Misuse(f"no run {run_id!r} in {workspace.runs}: fedlin status lists them")


def find_model(workspace: Workspace, named: str, target: str | None = None) -> RunFolder:
    """The folder of a training, which is named by its id or, as the champion of a data set (and one of its targets), by `DATASET@champion`.

    Raises
    ------
    Misuse
        Where there is no such run, data set, target or champion.
    """
    if not named.endswith(CHAMPION):
        return find_run(workspace, named)
    from flows.champions import open_registry  # MLflow takes a second to load

    dataset = named.removesuffix(CHAMPION)
    champion = open_registry(workspace, dataset, target).champion()
    if champion is None:
        raise Misuse(f"data set {dataset!r} has no champion: fedlin retrain {dataset} makes one")
    return find_run(workspace, champion.run_id)


def view(folder: RunFolder) -> RunView:
    """A run as its folder shows it now; one whose files cannot be read is `damaged`."""
    began = modified(folder.path / "config.json")
    nothing = RunView(folder.run_id, "", "", "", "damaged", None, 0, None, "", "", began, began)
    try:
        config = folder.read_json("config.json")
        given = config["given"]
        known = nothing._replace(
            command=config.get("command", "train"), dataset=given["dataset"], algorithm=_algorithm(given), most=_most(given)
        )
        return _of(folder, known)
    except (KeyError, TypeError, AttributeError):
        return nothing._replace(message=f"run {folder.run_id}: config.json or result.json is damaged: restore it, or start a new run")
    except FedlinError as error:
        return nothing._replace(message=str(error))


def last_rounds(folder: RunFolder, number: int) -> Sequence[Record]:
    """The records of a run's last rounds.

    Raises
    ------
    Misuse
        Where its checkpoint is damaged.
    """
    ledgers = [ledger for each in _parts(folder) if (ledger := each.ledger())]
    return ledgers[-1].history[-number:] if ledgers else ()


def _folders(workspace: Workspace) -> list[RunFolder]:
    try:
        found = [entry.name for entry in entries(workspace.runs) if entry.folder]
    except FileNotFoundError:
        return []
    return [RunFolder(workspace.runs / name) for name in found if is_file(workspace.runs / name / "config.json")]


def _of_data(folder: RunFolder) -> str | None:
    with suppress(Misuse, KeyError, TypeError):
        return folder.read_json("config.json")["given"]["dataset"]
    return None


def _of(folder: RunFolder, known: RunView) -> RunView:
    machine = folder.held_by()
    there = [name for name in ("result.json", "decision.json") if is_file(folder.path / name)]
    written = [each.path / "checkpoint.npz" for each in _parts(folder)] + [folder.path / name for name in there]
    known = known._replace(machine=machine, changed=max([known.began, *(modified(path) for path in written if is_file(path))]))
    if machine is None and "result.json" in there:
        result = folder.read_json("result.json")
        known = known._replace(status="ended", rounds=result["rounds"], outcome=result["outcome"], message=result["message"])
        return known._replace(algorithm=result.get("algorithm") or known.algorithm)
    if known.command == OUTSIDE and "decision.json" in there:
        decision = folder.read_json("decision.json")
        return known._replace(status="ended", outcome=decision["decision"], message=decision["why"])
    done = sum(len(ledger.history) for each in _parts(folder) if (ledger := each.ledger()))
    return known._replace(status="running" if machine else "interrupted", rounds=done)


def _parts(folder: RunFolder) -> list[RunFolder]:
    """The folders with a run's checkpoints, in order: its own, or those of its repeats."""
    if not is_folder(repeats := folder.path / "repeats"):
        return [folder]
    begun = [repeats / entry.name for entry in entries(repeats) if entry.folder]
    return [RunFolder(path) for path in sorted(begun, key=lambda path: int(path.name.rpartition("-")[2]))]


def _most(given: dict[str, Any]) -> int | None:
    return given["rounds"] * given.get("repeats", 1) if "rounds" in given else None


def _algorithm(given: dict[str, Any]) -> str:
    return given.get("algorithm") or ",".join(given.get("algorithms", ()))
