"""The contract of a data set: what `datasets/<name>/dataset.toml` says about columns, target, features, scaling and split.

It is read once, checked as a whole, and trusted from there on. A contract holds no rows, so its own words may appear in errors.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal, Self

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedcore.data.places import Place, read_file, write_durably
from fedcore.errors import DataError, Misuse, PlaceAway

CONTRACT_FILE = "dataset.toml"

ColumnType = Literal["float64", "int64", "string"]
FeatureScaling = Literal["none", "train", "global"]
TargetScaling = Literal["none", "train", "own"]
UnknownLevels = Literal["refuse", "reference", "own"]
MissingPolicy = Literal["refuse", "drop", "mean"]


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("column names are one line of printable characters")
    return name


ColumnName = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]
Share = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Unit = Annotated[str, Field(max_length=100)]
Version = Annotated[int, Field(ge=1, lt=2**31)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Column(_Part):
    """One column of a partition.

    Attributes
    ----------
    type
        What its cells are.
    unit
        Its unit, where it has one. Numbers in another unit are converted, see `fedcore.data.units`.
    unstated_unit
        The unit in part files that state none: those from before the contract had one.
    since
        The contract's version from which on part files hold the column. Older ones have gaps there.
    aliases
        Its names in older part files, and in source files.
    """

    type: ColumnType
    unit: Unit = ""
    unstated_unit: Unit = ""
    since: Version = 1
    aliases: tuple[ColumnName, ...] = ()


class SourceFile(_Part):
    """How the source file is read. Parquet needs none of this.

    Attributes
    ----------
    separator
        One character, or "whitespace" for any run of spaces and tabs.
    header
        True where the first line names the columns; else the names themselves, in the file's order.
    decimal
        The mark between a number's whole and its fraction, a point or a comma. The other of the two is in no number.
    units
        By column, the unit in which source files bring it; by default the contract's. This is said of parquet too.
    """

    separator: str = ","
    header: Literal[True] | tuple[ColumnName, ...] = True
    decimal: Literal[".", ","] = "."
    units: dict[ColumnName, Unit] = Field(default_factory=dict[str, str])

    @field_validator("separator")
    @classmethod
    def _one_character(cls, separator: str) -> str:
        single = len(separator) == 1 and separator.isascii() and separator not in '"\r\n'
        if not (single or separator == "whitespace"):
            raise ValueError('expected one ASCII character other than a quote or a line end, or "whitespace"')
        return separator

    @model_validator(mode="after")
    def _two_marks(self) -> Self:
        if self.decimal == self.separator:
            raise ValueError(f"decimal: {self.decimal!r} is the separator too: numbers could not be told apart, change one of the two")
        return self


class LinearMap(_Part):
    """Features enter the design as they are."""

    kind: Literal["linear"] = "linear"


class PolynomialMap(_Part):
    """One feature enters as the powers 1..degree of (x - origin) / scale, in its place; the others as they are."""

    kind: Literal["polynomial"]
    feature: ColumnName
    degree: int = Field(ge=1)
    origin: float = 0.0
    scale: float = Field(default=1.0, gt=0)


class Scaling(_Part):
    """Scaling on the device: by its own ranges, or by the fleet's means and variances.

    Attributes
    ----------
    features
        "train" maps each numeric feature to [0, 1] over the device's training segment (training and validation rows). "global"
        subtracts the fleet's mean and divides by its standard deviation (population variance), both over all devices'
        training segments. The feature of a polynomial map keeps the origin and scale that the map states.
    target
        "train" scales by the range of the training segment. "own" does too, but scales the test rows by the test rows' own
        range: it looks at the targets it is scored on, so the scores leak. It is there to repeat published figures.
    """

    features: FeatureScaling = "none"
    target: TargetScaling = "none"


class Category(_Part):
    """How a string feature becomes dummy columns, one for each of the fleet's levels but the reference.

    Attributes
    ----------
    reference
        The level without a column; by default the smallest of the fleet's levels as text.
    unknown
        What becomes of a value that no device's training segment has: "refuse" the device, take it for the "reference", or
        give it a column of its "own".
    """

    reference: str | None = None
    unknown: UnknownLevels = "refuse"


class Missing(_Part):
    """What becomes of gaps (null or NaN). Columns that are not used may have them too, unless they are refused.

    Attributes
    ----------
    policy
        "refuse" the device; "drop" rows with a gap in a feature or the target, before the split; or fill a numeric feature with
        the "mean" of the fleet's training segments, and mark the row in a column of its own where any training segment has
        gaps in that feature. A gap in a category is then marked the same way, with no dummy column set.
    """

    policy: MissingPolicy = "refuse"


class Disclosure(_Part):
    """What has to hold before a device tells anything of its rows; see `fedcore.data.disclosure`.

    Attributes
    ----------
    rows
        The fewest rows in a device's training segment, and the fewest values there of a column whose mean is told.
    level_rows
        The fewest rows there of each level of a category that the device has; and the smallest count of gaps, or of values beside
        them, that is told.
    parameters
        The most design columns, as a share of the rows that a device trains on. From 1 on what is told of them may give them away.
    devices
        The fewest devices in the fleet, drawn for a round, and answering in one.
    columns
        The columns that may be summarised or have their gaps counted; by default all.
    trajectories
        Whether a device tells means of its target over time, see `fedcore.data.trajectory`; only where rows are split by time.
    """

    rows: int = Field(default=3, ge=1)
    level_rows: int = Field(default=3, ge=1)
    parameters: float = Field(default=0.33, gt=0)
    devices: int = Field(default=2, ge=1)
    columns: tuple[ColumnName, ...] | None = None
    trajectories: bool = False


class TimeSplit(_Part):
    """The first rows by `column` train, the later ones test.

    Attributes
    ----------
    column
        Numeric; rows of equal time keep the order of the file.
    train
        Share of the rows in the training segment; the count is rounded, half to even.
    validation
        Share of the training segment that validates, drawn by a keyed hash of each row's content.
    seed
        Key of that hash.
    """

    kind: Literal["time"]
    column: ColumnName
    train: float = Field(gt=0, le=1)
    validation: Share = 0.0
    seed: Seed = 0


class RandomSplit(_Part):
    """Every row is drawn on its own, by a keyed hash of its content: rows that arrive later move no earlier one.

    Shares hold on average; equal rows go to the same part.

    Attributes
    ----------
    train
        Share of the rows in the training segment; the others test.
    validation
        Share of the training segment that validates.
    seed
        Key of the hash.
    """

    kind: Literal["random"]
    train: float = Field(gt=0, le=1)
    validation: Share = 0.0
    seed: Seed = 0


class ColumnSplit(_Part):
    """A string column says "train", "validation" or "test" for each row."""

    kind: Literal["column"]
    column: ColumnName


class NoSplit(_Part):
    """All rows train."""

    kind: Literal["none"] = "none"


FeatureMap = Annotated[LinearMap | PolynomialMap, Field(discriminator="kind")]
Split = Annotated[TimeSplit | RandomSplit | ColumnSplit | NoSplit, Field(discriminator="kind")]


class Contract(_Part):
    """What a data set promises, and how its rows become a design.

    Attributes
    ----------
    description, source
        What the data are, and where to get the source file.
    version
        Raised with each change of the columns. Part files say under which version they were written, see `fedcore.data.evolution`.
    device
        The source file's device column. A partition does not hold it: its folder's name does, always as a string.
    target
        The target by default.
    targets
        The columns that may be the target; by default `target` only.
    features
        The columns that enter the design, in order. A string column is a category: see `Category`.
    intercept
        Whether the design starts with a column of ones.
    interactions
        Pairs of numeric features whose products end the design: products of the scaled features; of the feature of a
        polynomial, its first power.
    columns
        Every column of a partition.
    file, feature_map, scaling, missing, categories, disclosure, split
        See `SourceFile`, `LinearMap`, `PolynomialMap`, `Scaling`, `Missing`, `Category` (by column), `Disclosure` and the four
        splits.
    """

    description: str = ""
    source: str = ""
    version: Version = 1
    device: ColumnName
    target: ColumnName
    targets: tuple[ColumnName, ...] = Field(default_factory=lambda data: (data["target"],))
    features: tuple[ColumnName, ...] = Field(min_length=1)
    intercept: bool = False
    interactions: tuple[tuple[ColumnName, ColumnName], ...] = ()
    file: SourceFile = SourceFile()
    feature_map: FeatureMap = LinearMap()
    scaling: Scaling = Scaling()
    missing: Missing = Missing()
    categories: dict[ColumnName, Category] = Field(default_factory=dict[str, Category])
    disclosure: Disclosure = Disclosure()
    split: Split = NoSplit()
    columns: dict[ColumnName, Column]

    @property
    def numeric(self) -> tuple[str, ...]:
        """The features that are numbers, in order."""
        return tuple(name for name in self.features if self.columns[name].type != "string")

    @property
    def categorical(self) -> tuple[str, ...]:
        """The features that are categories, in order."""
        return tuple(name for name in self.features if self.columns[name].type == "string")

    @property
    def standardised(self) -> tuple[str, ...]:
        """The features that are scaled by the fleet's mean and variance, in order."""
        return tuple(name for name in self.numeric if not self._powers(name)) if self.scaling.features == "global" else ()

    @property
    def averaged(self) -> tuple[str, ...]:
        """The features whose moments over the fleet are asked for, in order."""
        return self.numeric if self.missing.policy == "mean" else self.standardised

    @property
    def present_names(self) -> dict[str, str]:
        """The present name of a column, by each name that it has or had."""
        return {known: name for name, column in self.columns.items() for known in (name, *column.aliases)}

    @property
    def digest(self) -> str:
        """Hex digest of all that the contract says but for its description and what a run may choose, the target and its scaling: of two
        machines, whether they have the same one."""
        told = self.model_dump(mode="json", exclude={"description": True, "target": True, "scaling": {"target"}})
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def source_file(self, units: Mapping[str, str]) -> SourceFile:
        """How a source file is read that brings some columns in units of its own.

        Raises
        ------
        Misuse
            Where one of them is no column with a unit.
        """
        if problem := self._unit_problem(units):
            raise Misuse(f"option unit: {problem}")
        return self.file.model_copy(update={"units": self.file.units | dict(units)})

    def category(self, name: str) -> Category:
        """How a category is encoded."""
        return self.categories.get(name, Category())

    @property
    def needs_fit(self) -> bool:
        """Whether the design depends on the whole fleet, so that devices first have to say something of their rows."""
        return bool(self.categorical or self.averaged)

    @property
    def gaps_in(self) -> frozenset[str]:
        """The columns of a partition that may have gaps."""
        match self.missing.policy:
            case "refuse":
                allowed = ()
            case "drop":
                allowed = self.columns
            case "mean":
                allowed = self.columns.keys() - set(self.targets)
        return frozenset(allowed) - {getattr(self.split, "column", None)}

    @property
    def design_names(self) -> tuple[str, ...]:
        """Names of the d design columns, such as ("intercept", "cycle^1", "cycle^2"), where they do not depend on the fleet."""
        return self.named_design({}, ())

    def named_design(self, dummies: Mapping[str, Sequence[str]], marked: Collection[str]) -> tuple[str, ...]:
        """Names of the d design columns.

        Parameters
        ----------
        dummies
            By category, the names of its dummy columns.
        marked
            The features that have a column which marks their gaps.
        """
        names = ["intercept"] if self.intercept else []
        for feature in self.features:
            names += dummies.get(feature, ()) if feature in self.categorical else self._powers(feature) or (feature,)
            names += [f"{feature}:missing"] if feature in marked else []
        return (*names, *map("*".join, self.interactions))

    def first_power(self, feature: str) -> str:
        """Name of the design column that is linear in a numeric feature."""
        return (self._powers(feature) or (feature,))[0]

    def _powers(self, feature: str) -> tuple[str, ...]:
        """Names of a polynomial's columns, none where the feature enters as it is."""
        if not (isinstance(self.feature_map, PolynomialMap) and feature == self.feature_map.feature):
            return ()
        return tuple(f"{feature}^{power}" for power in range(1, self.feature_map.degree + 1))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.device in self.columns:
            raise ValueError(f"device: {self.device!r} is under [columns] too: take it out there, folders name the devices")
        if self.target not in self.targets:
            raise ValueError(f"target: {self.target!r} is not among the targets: add it there")
        for name in self.targets:
            self._need_numeric("targets", name)
        for name in self.features:
            self._type_of("features", name)
        if both := set(self.targets) & set(self.features):
            raise ValueError(f"features: {min(both)!r} is a target too: keep it in one of the two lists")
        if isinstance(self.feature_map, PolynomialMap) and self.feature_map.feature not in self.features:
            raise ValueError(f"feature_map.feature: {self.feature_map.feature!r} is not among the features: add it there")
        if isinstance(self.feature_map, PolynomialMap):
            self._need_numeric("feature_map.feature", self.feature_map.feature)
        for name in (name for pair in self.interactions for name in pair):
            if name not in self.numeric:
                raise ValueError(f"interactions: {name!r} is not a numeric feature: name two of them in each pair")
        if len({frozenset(pair) for pair in self.interactions}) < len(self.interactions):
            raise ValueError("interactions: a pair comes twice: list it once, in either order")
        if others := set(self.categories) - set(self.categorical):
            raise ValueError(f"categories: {min(others)!r} is not a string column among the features: take it out, or add it there")
        if len(set(self.design_names)) < len(self.design_names):
            raise ValueError("features: two columns of the design have the same name: list each feature once, or rename it")
        for name in self.disclosure.columns or ():
            self._type_of("disclosure.columns", name)
        if isinstance(self.split, TimeSplit):
            self._need_numeric("split.column", self.split.column)
        elif self.disclosure.trajectories:
            raise ValueError('disclosure.trajectories: no column orders the rows: set it to false, or split them by kind = "time"')
        if isinstance(self.split, ColumnSplit):
            if self._type_of("split.column", self.split.column) != "string":
                raise ValueError(f"split.column: {self.split.column!r} is not a string column: it has to say train, validation or test")
            if self.split.column in self.features:
                raise ValueError(f"split.column: {self.split.column!r} is a feature too: take it out there")
        if self.file.header is not True and sorted(self.file.header) != sorted([self.device, *self.columns]):
            raise ValueError("file.header: expected the device column and every one of [columns], each once")
        return self

    @model_validator(mode="after")
    def _evolves(self) -> Self:
        known = Counter([self.device, *self.columns, *(alias for column in self.columns.values() for alias in column.aliases)])
        for name, column in self.columns.items():
            if double := [alias for alias in column.aliases if known[alias] > 1]:
                raise ValueError(f"columns.{name}.aliases: {double[0]!r} is another name of this contract too: use each name once")
            if column.unstated_unit and not column.unit:
                raise ValueError(f"columns.{name}.unstated_unit: the column has no unit: state it too")
            if column.since > 1:
                self._check_since(name, column.since)
        if problem := self._unit_problem(self.file.units):
            raise ValueError(f"file.units: {problem}")
        return self

    def _check_since(self, name: str, since: int) -> None:
        field = f"columns.{name}.since"
        if since > self.version:
            raise ValueError(f"{field}: version {since} is later than the contract's version {self.version}: raise that one")
        if name in self.targets or name == getattr(self.split, "column", None):
            raise ValueError(f"{field}: {name!r} is a target or splits the rows, and older part files lack it: import those again with it")
        if name not in self.gaps_in:
            policy = f"policy = {self.missing.policy!r} in [missing] allows none"
            raise ValueError(f"{field}: older part files have gaps in {name!r}, and {policy}: choose another policy")

    def _unit_problem(self, units: Mapping[str, str]) -> str:
        for name, unit in units.items():
            if name not in self.columns:
                return f"{name!r} is not declared: name one of [columns]"
            if not unit:
                return f"{name!r} is given no unit: name one, or leave the column out"
            if not self.columns[name].unit:
                return f"{name!r} has no unit to convert to: state it in [columns.{name}]"
        return ""

    def _type_of(self, field: str, name: str) -> ColumnType:
        if name not in self.columns:
            raise ValueError(f"{field}: {name!r} is not declared: add [columns.{name}] with its type")
        return self.columns[name].type

    def _need_numeric(self, field: str, name: str) -> None:
        if self._type_of(field, name) == "string":
            raise ValueError(f"{field}: {name!r} is a string column: encode its categories as numeric columns first")


def parse_contract(document: object, where: str) -> Contract:
    """A contract from a parsed document.

    Parameters
    ----------
    document
        What the TOML file says, as a dict.
    where
        How errors call the file, such as "demo/dataset.toml".

    Raises
    ------
    DataError
        In one line, with the file and the first field that is wrong.
    """
    try:
        return Contract.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
    first, others = problems[0], len(problems) - 1
    location = [str(part) for part in first["loc"]]
    if location[:1] in (["split"], ["feature_map"]):
        del location[1:2]  # pydantic puts the variant's kind there, which is no field
    field = f"{'.'.join(location)}: " if location else ""
    more = f" (and {others} more)" if others else ""
    message = f"{where}: {field}{first['msg'].removeprefix('Value error, ')}{more}"
    raise DataError(" ".join(message.split()))


def read_contract(folder: Place) -> Contract:
    """The contract of the data set in `folder`.

    Raises
    ------
    DataError
        Where the file cannot be read, is not TOML, or is no contract.
    """
    where = f"{folder.name}/{CONTRACT_FILE}"
    try:
        document = tomllib.loads(read_file(folder / CONTRACT_FILE).decode())
    except PlaceAway:
        raise
    except OSError as error:
        failure = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        failure = "not UTF-8 text: save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        failure = f"not TOML: {error}"
    else:
        return parse_contract(document, where)
    raise DataError(f"{where}: {failure}")


def write_contract(folder: Place, contract: Contract) -> None:
    """Write the contract into `folder`, every field spelt out, durably and in one step."""
    write_durably(folder / CONTRACT_FILE, tomli_w.dumps(contract.model_dump(mode="json", exclude_none=True)).encode())
