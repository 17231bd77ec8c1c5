"""Search spaces: which values each option is to be tried with, and the configurations that a search tries.

A list of values starts with the simplest one, and so does a range. Configurations come in that order: the last option changes fastest, so
that of two configurations the earlier one is taken for the simpler. `fedcore.selection` prefers it where both are as good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from numpy.random import Generator, default_rng

from fedcore.errors import Misuse

LIMIT = 1000
"""The most configurations of one search: a round carries a message of each."""


@dataclass(frozen=True)
class Range:
    """Values between two ends, drawn evenly on a logarithmic scale.

    Attributes
    ----------
    first, last
        The ends, above 0; the simpler one comes first, whether it is the smaller or not.
    whole
        Whether values are whole numbers.
    """

    first: float
    last: float
    whole: bool = False

    def __post_init__(self) -> None:
        """Raises Misuse on ends that are not positive, finite and different, or not whole where values are to be."""
        if not (0 < self.first < math.inf and 0 < self.last < math.inf and self.first != self.last):
            raise Misuse(f"a range is two different numbers above 0, FIRST..LAST, got {self.first:g}..{self.last:g}")
        if self.whole and not (float(self.first).is_integer() and float(self.last).is_integer()):
            raise Misuse(f"a range of whole numbers has whole ends, got {self.first:g}..{self.last:g}")

    def draw(self, rng: Generator) -> float | int:
        """A value, both ends among them where values are whole."""
        low, high = sorted((self.first, self.last))
        if self.whole:
            value = math.exp(rng.uniform(math.log(low - 0.5), math.log(high + 0.5)))
            return int(min(max(round(value), low), high))
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    def position(self, value: float) -> float:
        """How far a value is from the first end, 0 to 1."""
        return math.log(value / self.first) / math.log(self.last / self.first)


Space = Mapping[str, Sequence[Any] | Range]
"""By option, the values to try."""

Configuration = dict[str, Any]
"""One value for each option of a space."""


def grid(space: Space) -> list[Configuration]:
    """Every configuration of a space, in its order; of the empty space the one without any option.

    Raises
    ------
    Misuse
        Where an option has no value or is a range, or there are more than `LIMIT`.
    """
    lists = {name: _listed(name, values) for name, values in space.items()}
    if (size := math.prod(map(len, lists.values()))) > LIMIT:
        raise Misuse(f"the grid has {size:,} configurations, more than {LIMIT:,}: give fewer values, or draw some at random")
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def sample(space: Space, number: int, seed: int, *, first: bool = False) -> list[Configuration]:
    """Configurations of a space drawn at random, no two alike, in the space's order; all where it has no more.

    Parameters
    ----------
    space
        Values are drawn evenly from lists, and on a logarithmic scale from ranges.
    number
        How many.
    seed
        Root of the draws.
    first
        Whether the first configuration of the space is always among them.

    Raises
    ------
    Misuse
        Where `number` is not from 1 to `LIMIT`, or an option has no value.
    """
    if not 1 <= number <= LIMIT:
        raise Misuse(f"the number of configurations to draw is from 1 to {LIMIT:,}, got {number:,}")
    sizes = {name: _size(name, values) for name, values in space.items()}
    size, rng = math.prod(sizes.values()), default_rng(seed)
    if size <= number:
        return grid({name: _all(values) if isinstance(values, Range) else values for name, values in space.items()})
    drawn: dict[tuple[float, ...], Configuration] = {}
    if first:
        drawn[(0.0,) * len(space)] = {name: values.first if isinstance(values, Range) else values[0] for name, values in space.items()}
    while len(drawn) < number:
        places, configuration = zip(*(_draw(values, rng) for values in space.values()), strict=True)
        drawn[places] = dict(zip(space, configuration, strict=True))
    return [drawn[places] for places in sorted(drawn)]


def _listed(name: str, values: Sequence[Any] | Range) -> Sequence[Any]:
    if isinstance(values, Range):
        raise Misuse(f"{name} is a range, and a grid has no end of values in it: list values, or draw configurations at random")
    if not values:
        raise Misuse(f"{name} has no value to try: give at least one")
    return values


def _size(name: str, values: Sequence[Any] | Range) -> float:
    if isinstance(values, Range):
        return abs(values.last - values.first) + 1 if values.whole else math.inf
    return len(_listed(name, values))


def _all(values: Range) -> list[int]:
    low, high = sorted((int(values.first), int(values.last)))
    return sorted(range(low, high + 1), reverse=values.first > values.last)


def _draw(values: Sequence[Any] | Range, rng: Generator) -> tuple[float, Any]:
    if isinstance(values, Range):
        value = values.draw(rng)
        return values.position(value), value
    index = int(rng.integers(len(values)))
    return float(index), values[index]
