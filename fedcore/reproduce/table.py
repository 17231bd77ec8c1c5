"""A table of the paper beside ours: cells with verdicts, what follows from them, and curves by round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedcore.reproduce.published import Published
from fedcore.reproduce.verdict import Estimate, Reached, Verdict, Word, judge
from fedcore.rows import Floats

QUANTILES = (0.1, 0.9)


class Cell(NamedTuple):
    """One method in one row of the paper's table.

    Attributes
    ----------
    part
        The row, such as "Case I".
    method
        The method's label.
    published
        The paper's figure, None where it has none.
    ours
        Ours.
    verdict
        Whether it is reproduced, and why.
    chosen
        How often the validation rows chose each setting; empty where there was no choice.
    """

    part: str
    method: str
    published: Published | None
    ours: Estimate
    verdict: Verdict
    chosen: Mapping[str, int]

    @classmethod
    def of(cls, part: str, method: str, published: Published | None, reached: Sequence[Reached], oracle: Estimate | None = None) -> Cell:
        """The cell of some runs; see `judge`."""
        ours = Estimate.of(reached)
        failure = next((each.failure for each in reached if each.failure), "")
        settings = Counter(each.chosen for each in reached if each.chosen)
        return cls(part, method, published, ours, judge(published, ours, failure=failure, oracle=oracle), dict(settings.most_common()))


class Table(NamedTuple):
    """Cells under one title, in the order of the paper's rows."""

    title: str
    cells: tuple[Cell, ...]

    def means(self) -> dict[str, dict[str, float]]:
        """Our means by part and method; NaN where every run diverged."""
        found: dict[str, dict[str, float]] = {}
        for cell in self.cells:
            found.setdefault(cell.part, {})[cell.method] = cell.ours.mean
        return found


class Curve(NamedTuple):
    """A figure by round over runs: mean and the quantiles of `QUANTILES`, shape (rounds,) each; it ends before the first round in which a
    run diverged. One value where the figure has no rounds."""

    mean: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, runs: Sequence[Sequence[float]]) -> Curve:
        """The curve of some runs."""
        length = min(map(len, runs))
        values = np.array([each[:length] for each in runs])
        return cls(values.mean(axis=0), *np.quantile(values, QUANTILES, axis=0))


class Intervals(NamedTuple):
    """Unknowns of one run with their truth, in the order of a figure.

    Attributes
    ----------
    labels
        Names.
    truth, mean, lower, upper
        Shape (u,), u being the number of labels.
    """

    labels: tuple[str, ...]
    truth: Floats
    mean: Floats
    lower: Floats
    upper: Floats

    @property
    def covered(self) -> Floats:
        """1 where the interval holds the truth, else 0."""
        return ((self.lower <= self.truth) & (self.truth <= self.upper)).astype(np.float64)


@dataclass(frozen=True)
class Reproduction:
    """All that a reproduction found.

    Attributes
    ----------
    name, title
        What the command and its folder are called, and what of the paper it is.
    runs, seed
        How many runs a cell has, and the root of their random numbers.
    conventions
        What was run, in sentences.
    tables
        The cells.
    findings
        What follows for the paper's claims, in sentences.
    curves
        By part and method, the error by round.
    intervals
        By part, those of one run.
    """

    name: str
    title: str
    runs: int
    seed: int
    conventions: tuple[str, ...]
    tables: tuple[Table, ...]
    findings: tuple[str, ...]
    curves: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict[str, Mapping[str, Curve]])
    intervals: Mapping[str, Intervals] = field(default_factory=dict[str, Intervals])

    @property
    def judged(self) -> list[Cell]:
        """The cells that the paper has a figure for."""
        return [cell for table in self.tables for cell in table.cells if cell.published is not None]

    def count(self, word: Word) -> int:
        """How many of these have this verdict."""
        return sum(cell.verdict.word is word for cell in self.judged)
