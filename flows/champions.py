"""The champion of a data set: who it is, which decisions made it so, and how one is carried out."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from fedcore.data import open_dataset
from fedcore.data.places import is_file
from fedcore.errors import Misuse
from flows.logs import log
from flows.metrics import show_champion
from flows.running import new_run_id
from flows.workspace import Workspace
from tasks.checkpoint import RunFolder
from tasks.decision import PROMOTED, ROLLED_BACK, SUPERSEDED, Decision, actor, now
from tasks.tracking.registry import Registry, model_name

FILE = "decision.json"


class Trained(NamedTuple):
    """A run that is to be a version of a model: its id, its id in MLflow, and what its version is to say of it, by name."""

    run_id: str
    mlflow_run_id: str
    figures: Mapping[str, Any]


def open_registry(workspace: Workspace, dataset: str, target: str | None = None) -> Registry:
    """The registered model of a data set.

    Parameters
    ----------
    workspace, dataset
        Where it is, and its name.
    target
        One of its targets; each has a champion of its own.

    Raises
    ------
    Misuse
        Where there is no such data set or target, or the store cannot be used.
    """
    own = open_dataset(workspace.datasets, dataset).contract.target
    if target is not None:
        open_dataset(workspace.datasets, dataset, target=target)
    return Registry.open(model_name(dataset, None if target == own else target), default_store=workspace.mlflow_store)


def decided(folder: RunFolder) -> Decision | None:
    """What a run has decided, None where it has not."""
    if not is_file(folder.path / FILE):
        return None
    return Decision.read(json.dumps(folder.read_json(FILE)))


def decide(folder: RunFolder, decision: Decision) -> Decision:
    """Write down what a run has decided, before anything is done about it."""
    folder.write_json(FILE, decision._asdict())
    return decision


def carry_out(registry: Registry, folder: RunFolder, decision: Decision, trained: Trained | None) -> Decision:
    """Do what a run has decided, the champion last; what was done before is not done again.

    Parameters
    ----------
    registry, folder
        Where it is done, and where it was decided.
    decision
        What.
    trained
        The challenger, where it is to be a version.

    Returns
    -------
    Decision
        With the version that it is about; `superseded` where the champion is neither the one that it was when this was decided, nor the
        one that it is to be.

    Raises
    ------
    Misuse
        Where the store cannot be used. The champion is the one that it was then, and this may be called again.
    """
    if trained:
        tags = {f"fedlin.{name}": str(value) for name, value in trained.figures.items() if value is not None}
        decision = decision._replace(version=registry.register(trained.run_id, trained.mlflow_run_id, tags).number)
    moves = decision.decision in (PROMOTED, ROLLED_BACK)
    current = registry.champion()
    number = current.number if current else None
    if moves and number not in (decision.champion, decision.version):
        why = f"version {number} became the champion after it was compared with version {decision.champion}"
        decision, moves = decision._replace(decision=SUPERSEDED, why=why), False
    about = decision.champion if decision.version is None else decision.version
    if about is not None:
        registry.note(about, decision)
    if moves and decision.version is not None:
        registry.promote(decision.version)
    figures = {name: getattr(decision, name) for name in ("decision", "model", "version", "champion", "who")}
    log(logging.INFO, "decided", decision.why, **figures)
    return decide(folder, decision)


def show_metrics(workspace: Workspace, registry: Registry) -> None:
    """Tell Prometheus who is the champion, and since which decision; where the store is away, what was told before stays."""
    try:
        current, decisions = registry.champion(), registry.decisions()
    except Misuse:
        return
    moves = [each.when for each in decisions if each.decision in (PROMOTED, ROLLED_BACK)]
    if current and moves:
        show_champion(workspace.metrics, registry.name, current.number, datetime.fromisoformat(moves[-1]).timestamp())


def rollback(workspace: Workspace, dataset: str, target: str | None = None, to: int | None = None) -> Decision:
    """Make an earlier version the champion again.

    Parameters
    ----------
    workspace, dataset, target
        As for `open_registry`.
    to
        The version, any that there is; by default the one whose place the champion took when it was promoted.

    Raises
    ------
    Misuse
        Where there is no champion, no such version, nothing before it, or the store cannot be used.
    """
    registry = open_registry(workspace, dataset, target)
    champion = registry.champion()
    if champion is None and to is None:
        raise Misuse(f"{registry.name} has no champion to go back from: fedlin retrain {dataset} makes one")
    before = champion.number if champion else None
    if to is None:
        promoted = [each for each in registry.decisions() if (each.decision, each.version) == (PROMOTED, before)]
        to = promoted[-1].champion if promoted else None
        if to is None:
            raise Misuse(f"no decision says which version was the champion before version {before}: name one with --to")
    if to == before:
        raise Misuse(f"version {to} is the champion of {registry.name} already: name another one")
    run_id, version = new_run_id(), registry.version(to)
    why = f"a person went {'back' if to < before else 'on'} from version {before}" if before else "a person chose it"
    decision = Decision(
        run_id, ROLLED_BACK, actor(), now(), why, dataset, registry.name, before, version.number, {"run_id": version.run_id}
    )
    folder = RunFolder(workspace.runs / run_id)
    folder.create({"command": "rollback", "given": {"dataset": dataset, "target": target, "to": to}}, {"dataset": dataset, "devices": []})
    done = carry_out(registry, folder, decide(folder, decision), None)
    show_metrics(workspace, registry)
    return done
