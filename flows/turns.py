"""One deployed run at a time on a data set: a second waits, and while it waits further ones that ask for the same are turned away."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from filelock import Timeout
from prefect.client.schemas.objects import State
from prefect.runtime import deployment
from prefect.states import Cancelled

from fedcore.data.names import checked_dataset_name
from fedcore.errors import Misuse
from flows.config import DataConfig
from flows.workspace import Workspace
from flows.wrapping import with_parameters_of
from tasks.checkpoint import RunFolder
from tasks.lock import alone

F = TypeVar("F", bound=Callable[..., Any])


class TurnedAway(Misuse):
    """A run that is not needed: one that asks for the same waits already, and will read the same rows."""


def in_turn(function: F) -> F:
    """Make a flow's function wait for its data set's turn where a deployment runs it; put it below `@flow`.

    The function takes `config`, which names the data set, and `run_id`. What `config` itself forbids is refused before. What a person
    starts on the command line takes no turn. A run that is turned away ends as Cancelled, and says why.
    """

    @functools.wraps(function)
    def waiting(config: DataConfig | None = None, run_id: str | None = None) -> State[None]:
        if not deployment.id:
            return function(config, run_id)
        workspace = Workspace.find()
        if config:
            config.check()
        name = config.dataset if config else RunFolder.named(workspace.runs, run_id).read_json("config.json")["given"]["dataset"]
        asked = json.dumps([config.model_dump(mode="json") if config else None, run_id], sort_keys=True)
        try:
            with turn(workspace.turns, name, function.__name__, asked):
                return function(config, run_id)
        except TurnedAway as reason:
            return Cancelled(message=str(reason))

    return with_parameters_of(function, waiting)


@contextmanager
def turn(folder: Path, name: str, kind: str, asked: str) -> Generator[None]:
    """Hold a data set, after whoever of this machine holds it now. The system lets go for a process that is killed.

    Parameters
    ----------
    folder
        Where the locks are.
    name
        The data set.
    kind
        What waits, such as ``"retrain"``.
    asked
        Its parameters as text: of a kind one with the same parameters waits.

    Raises
    ------
    TurnedAway
        Where one of this kind with these parameters waits already.
    Misuse
        Where no data set can have that name.
    """
    checked_dataset_name(name)
    digest = hashlib.sha256(asked.encode()).hexdigest()[:16]
    with ExitStack() as holding:
        with ExitStack() as queueing:
            try:
                queueing.enter_context(alone(folder / name / f"{kind}-{digest}-waits.lock", timeout=0))
            except Timeout:
                reason = f"a {kind} of data set {name!r} with the same parameters waits already, and will read the same rows: nothing to do"
                raise TurnedAway(reason) from None
            holding.enter_context(alone(folder / name / "turn.lock", timeout=-1))
        yield
