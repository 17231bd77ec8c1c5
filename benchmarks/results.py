"""What the benchmarks found: parts with a table and bars each, kept as JSON, and the page that is rendered from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

Cell = str | int | float | None


class Bar(BaseModel):
    """A bound that a figure is held against; `limit` is the most that `value` may be."""

    model_config = ConfigDict(frozen=True)
    what: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether the figure is within the bound."""
        return self.value <= self.limit


class Part(BaseModel):
    """One question, and what was measured of it.

    Attributes
    ----------
    name, title
        For the command line, and for people.
    about
        What was done, on what data, with which stopping rule, in a few sentences.
    columns, rows
        The table: names with units, ratios first, and figures.
    bars
        What has to hold.
    notes
        What a reader has to know to judge the figures.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = ()


class Timing(NamedTuple):
    """Wall times of one program, in seconds."""

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.times)


def alternate(programs: Sequence[Callable[[], float]], repeats: int) -> list[Timing]:
    """Times of programs, each of which tells its own seconds, taken in turns, so that what else the machine does meets all of them."""
    times = [[program() for program in programs] for _ in range(repeats)]
    return [Timing(tuple(column)) for column in zip(*times, strict=True)]
