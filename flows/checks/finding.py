"""What a check has found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from flows.workspace import Workspace

Level = Literal["ok", "warning", "error"]


class Finding(NamedTuple):
    """One line of a report.

    Attributes
    ----------
    level
        `error` where runs cannot go on as it is, `warning` where they can.
    check
        What was looked at.
    text
        What was found, and after a colon what to do.
    """

    level: Level
    check: str
    text: str


Check = Callable[[Workspace], Iterable[Finding]]
