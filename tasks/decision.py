"""Decisions about a data set's champion, as they are kept: who decided what, when, why and by which figures."""

from __future__ import annotations

import getpass
import json
import os
import socket
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

PROMOTED, KEPT, SKIPPED, ROLLED_BACK, SUPERSEDED = "promoted", "kept", "skipped", "rolled_back", "superseded"


class Decision(NamedTuple):
    """One decision; `decision.json` of a run and a tag of the model version that it is about.

    Attributes
    ----------
    run_id
        The run that decided: a retraining or a rollback.
    decision
        `promoted`: the challenger took the champion's place; `kept`: it did not; `skipped`: none was trained; `rolled_back`: a person
        moved the champion; `superseded`: it should have been promoted, but another champion had come meanwhile.
    who, when
        See `actor`; UTC, ISO 8601.
    why
        Part of a sentence.
    dataset, model
        Names of the data set and of the registered model.
    champion
        The version that was the champion before, None for none.
    version
        The version that it is about: the challenger's, or the one that was gone back to; None where there is none, or not yet.
    figures
        Finite numbers, names and None.
    """

    run_id: str
    decision: str
    who: str
    when: str
    why: str
    dataset: str
    model: str
    champion: int | None
    version: int | None
    figures: dict[str, Any]

    def text(self) -> str:
        """As JSON."""
        return json.dumps(self._asdict(), allow_nan=False)

    @classmethod
    def read(cls, text: str) -> Self:
        """From JSON.

        Raises
        ------
        ValueError, TypeError
            Where it is none.
        """
        return cls(**json.loads(text))


def actor() -> str:
    """Who decides: what `FEDLIN_ACTOR` names, else user@host."""
    if named := os.environ.get("FEDLIN_ACTOR"):
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user that the system has no name for, as in containers
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def now() -> str:
    """The time of a decision."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
