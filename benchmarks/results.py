"""What the benchmarks found: parts with a table and bars each, and under what circumstances; it is kept as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median

from pydantic import BaseModel, ConfigDict

Cell = str | int | float | None

KEPT = 5
"""Of how many whole runs the bars are kept."""


class Bar(BaseModel):
    """A bound that a figure is held against; `limit` is the most that `value` may be. It is None where it could not be measured."""

    model_config = ConfigDict(frozen=True)
    what: str
    value: float | None
    limit: float

    @property
    def met(self) -> bool:
        """Whether the figure is there and within the bound."""
        return self.value is not None and self.value <= self.limit

    @property
    def verdict(self) -> str:
        """The same for people."""
        return "not measured" if self.value is None else "met" if self.met else "**not met**"


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
    runs
        By program or step, the seconds that a median is of, in the order in which they were measured; of `growth` what each size took.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = ()
    runs: Mapping[str, Sequence[float]] = {}


class Machine(BaseModel):
    """What was measured on, and with: by library its version, `peers` those of the peers' own environment and of R."""

    model_config = ConfigDict(frozen=True)
    cpu: str
    cores: int
    memory_gb: float
    system: str
    blas: str
    versions: dict[str, str]
    peers: dict[str, str]


class Entry(BaseModel):
    """A part as it was found.

    Attributes
    ----------
    name
        Of the part.
    date, commit
        When it was measured, and on which commit.
    quick
        Whether with the small sizes.
    seconds
        How long the measuring took.
    pace
        Milliseconds that Python took for a dictionary of 50,000 entries to JSON and back before and after it, the median; None where that
        was not looked at.
    machine
        On what.
    part
        What was found; None where the part could not be measured.
    left_out
        Why not.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    date: str
    commit: str
    quick: bool
    seconds: float
    pace: float | None = None
    machine: Machine
    part: Part | None = None
    left_out: str = ""


class Whole(BaseModel):
    """A run of all parts: figures of one tell of a machine and an hour, and those of several how far they depend on these.

    Attributes
    ----------
    date, commit
        When its last part was measured, and on which commit.
    cpu
        On what.
    pace
        The median of its parts', None where it is not known of one.
    met, bars
        How many bars it met, and of how many.
    found
        What it found of each bar, by part and `Bar.what`.
    """

    model_config = ConfigDict(frozen=True)
    date: str
    commit: str
    cpu: str
    pace: float | None
    met: int
    bars: int
    found: dict[str, dict[str, float | None]]

    @staticmethod
    def of(entries: Sequence[Entry]) -> Whole:
        """A run with these parts."""
        measured = {entry.name: entry.part.bars for entry in entries if entry.part}
        bars = [bar for each in measured.values() for bar in each]
        last, paces = entries[-1], [entry.pace for entry in entries if entry.pace is not None]
        return Whole(
            date=last.date,
            commit=last.commit,
            cpu=last.machine.cpu,
            pace=median(paces) if len(paces) == len(entries) else None,
            met=sum(bar.met for bar in bars),
            bars=len(bars),
            found={name: {bar.what: bar.value for bar in each} for name, each in measured.items()},
        )


def verdicts(entries: Sequence[Entry]) -> str:
    """How many bars are met, and which are not, a line each."""
    bars = [(entry.name, bar) for entry in entries if entry.part for bar in entry.part.bars]
    missed = [f"  {name}: {bar.what}" for name, bar in bars if not bar.met]
    return "\n".join([f"{len(bars) - len(missed)} of {len(bars)} bars are met{'; not met:' if missed else ''}", *missed])


class Results(BaseModel):
    """Everything that is known, by part in the order of measuring, and the last whole runs, oldest first."""

    model_config = ConfigDict(frozen=True)
    entries: tuple[Entry, ...] = ()
    runs: tuple[Whole, ...] = ()

    @staticmethod
    def read(file: Path) -> Results:
        """What a file keeps; nothing where there is none."""
        return Results.model_validate_json(file.read_text()) if file.exists() else Results()

    def updated(self, entry: Entry, order: Sequence[str]) -> Results:
        """With this entry in place of an earlier one of its part, in an order of parts; those that are not in it are dropped."""
        known = {each.name: each for each in self.entries} | {entry.name: entry}
        return Results(entries=tuple(known[name] for name in order if name in known), runs=self.runs)

    def after(self, run: Whole) -> Results:
        """With another whole run."""
        return Results(entries=self.entries, runs=(*self.runs, run)[-KEPT:])

    def found(self, part: str, bar: str) -> list[float | None]:
        """What the whole runs found of a bar."""
        return [run.found.get(part, {}).get(bar) for run in self.runs]

    def machines(self) -> list[tuple[Machine, list[str]]]:
        """Each machine with the parts that were measured on it."""
        found: list[tuple[Machine, list[str]]] = []
        for entry in self.entries:
            parts = next((parts for machine, parts in found if machine == entry.machine), None)
            if parts is None:
                found.append((entry.machine, parts := []))
            parts.append(entry.name)
        return found


class LeftOut(Exception):
    """Something cannot be measured here, and the text says why."""


class Medians(dict[str, float]):
    """Programs' median times in seconds, by name.

    Attributes
    ----------
    runs
        The times that they are of.
    """

    def __init__(self, runs: Mapping[str, Sequence[float]]) -> None:
        super().__init__({name: median(each) for name, each in runs.items()})
        self.runs = runs


def medians(programs: Mapping[str, Callable[[], float]], repeats: int) -> Medians:
    """The median of each program's times; each program tells its own seconds.

    They take turns, so that what else the machine does meets all of them, and the order of every turn is drawn, so that nobody always
    comes after the same program: what one leaves behind (cold caches, memory handed back) the next one pays for.
    """
    draw, names = Random(0), list(programs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in draw.sample(names, len(names)):
            times[name].append(programs[name]())
    return Medians(times)


def ratio(ours: float, theirs: float | None) -> float | None:
    """How much of their time ours is; None where theirs is not known."""
    return None if theirs is None else ours / theirs
