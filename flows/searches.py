"""The configurations of a search over settings and of a comparison of algorithms, validated once, here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar, NamedTuple, get_args, get_type_hints

from pydantic import Field

from fedcore.algorithm import ALGORITHMS, AnyAlgorithm, algorithm_class
from fedcore.errors import Misuse
from fedcore.search import LIMIT, Configuration, Range, Space, grid, sample
from fedcore.selection import Rule
from flows.config import RunConfig, TrainConfig, algorithm_options, build_algorithm

BUDGET = "steps"
"""The option that is every algorithm's local budget, and so the same for all that are compared."""

REFERENCE = "separate"
"""The algorithm that the others are compared with."""

Values = dict[str, list[Any] | Range]


class Candidate(NamedTuple):
    """One configuration of one algorithm.

    Attributes
    ----------
    method
        Name of the algorithm.
    tried
        The options that it is tried with, every value as the algorithm takes it.
    algorithm
        With these and all other options.
    """

    method: str
    tried: Configuration
    algorithm: AnyAlgorithm

    @property
    def options(self) -> dict[str, Any]:
        """All options, defaults too."""
        return asdict(self.algorithm)  # pyright: ignore[reportArgumentType]


class TuneConfig(RunConfig):
    """One algorithm, trained with several settings, of which the best is chosen on validation rows.

    Attributes
    ----------
    algorithm, options
        As in `TrainConfig`; the options that stay as they are.
    grid
        By option, the values to try from the simplest one on, or a range to draw from; by default the algorithm's own `SEARCH`.
    draws
        How many configurations to draw at random from the grid; by default all are tried.
    rule
        See `fedcore.selection.select`.
    """

    COMMAND: ClassVar[str] = "tune"

    algorithm: str = Field(default="hm1", description="Name of an algorithm.")
    options: dict[str, Any] = Field(default_factory=dict, description="The options that stay as they are, by name.")
    grid: Values = Field(default_factory=dict, description="The values to try, by option; by default the algorithm's own.")
    draws: int | None = Field(default=None, ge=1, le=LIMIT, description="Draw so many configurations at random; by default all are tried.")
    rule: Rule = Field(default="best", description="The smallest error, or the simplest within one standard error of it.")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the rows that are needed to score on."""
        return ("validation",)

    def candidates(self) -> list[Candidate]:
        """What is tried, in the grid's order.

        Raises
        ------
        Misuse
            Where there is no such algorithm or option, a value is out of bounds, a configuration comes twice, or there is nothing to try.
        """
        space = _space(self.algorithm, self.grid, self.options)
        if not space:
            raise Misuse(f"{self.algorithm} has no values of its own to try: give some with --grid name=value,value")
        configurations = grid(space) if self.draws is None else sample(space, self.draws, self.seed)
        return _candidates(self.algorithm, self.options, configurations)

    def winner(self, candidate: Candidate) -> TrainConfig:
        """What trains a candidate alone as it was trained in the search, with every option written out."""
        shared = self.model_dump(include=set(RunConfig.model_fields))
        return TrainConfig(**shared, algorithm=candidate.method, options=candidate.options)

    def resolved(self) -> dict[str, Any]:
        """The configuration with the options of everything that is tried."""
        return self.model_dump(mode="json") | {"trials": [each.options for each in self.candidates()]}


class CompareConfig(RunConfig):
    """Several algorithms, each tuned on validation rows with the same budget, compared on test rows.

    Attributes
    ----------
    algorithms
        Their names, by default all; `separate`, with which the others are compared, always takes part.
    options
        For every algorithm that has them.
    grid
        By algorithm and option, the values to try; by default the algorithm's own `SEARCH`.
    budget
        The most configurations of each algorithm: the first of its grid, and others drawn at random.
    repeats
        How often all of it is done, each time with the next seed, also of the contract's split.
    """

    COMMAND: ClassVar[str] = "compare"

    algorithms: tuple[str, ...] = Field(default_factory=lambda: tuple(ALGORITHMS), description="Names of algorithms; all by default.")
    options: dict[str, Any] = Field(default_factory=dict, description="Options for every algorithm that has them.")
    grid: dict[str, Values] = Field(default_factory=dict, description="The values to try, by algorithm and option.")
    budget: int = Field(ge=1, le=LIMIT, default=10, description="The most configurations of each algorithm.")
    repeats: int = Field(default=1, ge=1, le=1000, description="How often, each time with the next seed.")

    def check(self) -> None:
        """See `DataConfig.check`."""
        super().check()
        self.candidates()

    @property
    def methods(self) -> tuple[str, ...]:
        """The algorithms, the reference first.

        Raises
        ------
        Misuse
            Where one comes twice.
        """
        if twice := [name for i, name in enumerate(self.algorithms) if name in self.algorithms[:i]]:
            raise Misuse(f"algorithm {twice[0]!r} comes twice: name it once")
        return (REFERENCE, *(name for name in self.algorithms if name != REFERENCE))

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the rows that are needed to score on; who has nothing to choose needs no rows to choose by."""
        return ("test",) if len(self.candidates()) == len(self.methods) else ("validation", "test")

    def candidates(self) -> list[Candidate]:
        """What is tried, method by method, each in its grid's order.

        Raises
        ------
        Misuse
            Where there is no such algorithm or option, a value is out of bounds, a configuration comes twice, or a grid would change an
            algorithm's local budget.
        """
        methods = self.methods
        known = {method: algorithm_options(method) for method in methods}
        if unknown := [option for option in self.options if not any(option in options for options in known.values())]:
            raise Misuse(f"none of {', '.join(methods)} has an option {unknown[0]!r}")
        if unknown := [method for method in self.grid if method not in methods]:
            raise Misuse(f"there is a grid for {unknown[0]!r}, which is not compared: add it to --algorithms")
        found: list[Candidate] = []
        for method in methods:
            if BUDGET in self.grid.get(method, {}):
                raise Misuse(f"{BUDGET} is the local budget that all algorithms share: set it for all with --set {BUDGET}=number")
            fixed = {name: value for name, value in self.options.items() if name in known[method]}
            space = _space(method, self.grid.get(method, {}), fixed)
            found += _candidates(method, fixed, sample(space, self.budget, self.seed, first=True))
        return found

    def resolved(self) -> dict[str, Any]:
        """The configuration with the options of everything that is tried."""
        trials = [{"algorithm": each.method, "options": each.options} for each in self.candidates()]
        return self.model_dump(mode="json") | {"trials": trials}


def parse_grid(texts: Iterable[str]) -> Values:
    """Values to try by option, from texts such as `eta=0.01,0.1,safe` and `alpha=0.001..1`.

    Raises
    ------
    Misuse
        Where one is not of that form, or an option comes twice.
    """
    found: Values = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        listed = [value.strip() for value in values.split(",")]
        if not (name and equals and all(listed)):
            raise Misuse(f"--grid takes name=value,value or name=FIRST..LAST, got {text!r}")
        if name in found:
            raise Misuse(f"--grid gives {name!r} twice: list all its values at once")
        found[name] = _range(text, listed[0]) if len(listed) == 1 and ".." in listed[0] else listed
    return found


def parse_grids(texts: Iterable[str]) -> dict[str, Values]:
    """Values to try by algorithm and option, from texts such as `hm1.alpha=0.1,0.5`.

    Raises
    ------
    Misuse
        Where one is not of that form, or an option comes twice.
    """
    found: dict[str, Values] = {}
    for name, values in parse_grid(texts).items():
        algorithm, point, option = name.partition(".")
        if not (algorithm and point and option):
            raise Misuse(f"--grid takes algorithm.name=value,value, got no algorithm for {name!r}")
        found.setdefault(algorithm, {})[option] = values
    return found


def _range(text: str, ends: str) -> Range:
    try:
        first, last = map(float, ends.split(".."))
    except ValueError:
        raise Misuse(f"--grid takes name=FIRST..LAST with two numbers, got {text!r}") from None
    return Range(first, last)


def _space(method: str, values: Mapping[str, Any], fixed: Mapping[str, Any]) -> Space:
    """What is given, or else the algorithm's own values of the options that are not fixed; ranges know whether their option is a whole
    number."""
    known = algorithm_options(method)
    kind = algorithm_class(method)
    if not values:
        return {name: own for name, own in kind.SEARCH.items() if name not in fixed}
    space: dict[str, Any] = {}
    for name, each in values.items():
        if name not in known:
            raise Misuse(f"{method} has no option {name!r}: choose from {', '.join(known)}")
        if name in fixed:
            raise Misuse(f"{name} of {method} is set and in the grid: leave one out")
        if isinstance(each, Range):
            hint = get_type_hints(kind)[name]
            types = (hint, *get_args(hint))
            if not {int, float} & set(types):
                raise Misuse(f"{name} is no number, so it has no range: list its values")
            each = replace(each, whole=float not in types)
        space[name] = each
    return space


def _candidates(method: str, fixed: Mapping[str, Any], configurations: list[Configuration]) -> list[Candidate]:
    found: list[Candidate] = []
    for configuration in configurations:
        algorithm = build_algorithm(method, {**fixed, **configuration})
        if any(algorithm == other.algorithm for other in found):
            same = ", ".join(f"{name}={value}" for name, value in configuration.items())
            raise Misuse(f"the grid of {method} has {same} twice: leave one out")
        found.append(Candidate(method, {name: getattr(algorithm, name) for name in configuration}, algorithm))
    return found
