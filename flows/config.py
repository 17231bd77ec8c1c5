"""The configuration of a run, validated once, here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from fedcore.algorithm import AnyAlgorithm, algorithm_class
from fedcore.errors import Misuse
from fedcore.rounds import Schedule

C = TypeVar("C", bound="DataConfig")

_SHARE: dict[str, Any] = {"exclusiveMinimum": 0, "maximum": 1}


class DataConfig(BaseModel):
    """What every command that leaves a run is asked for: on what, and where it is tracked.

    Attributes
    ----------
    dataset
        Name of a data set.
    target, target_scaling
        In place of the contract's own, where given.
    experiment
        The MLflow experiment, by default the data set's name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    COMMAND: ClassVar[str]
    """The command whose configuration it is."""

    dataset: str = Field(min_length=1, description="Name of a data set.")
    target: str | None = Field(default=None, description="One of the contract's targets, by default its own.")
    target_scaling: str | None = Field(default=None, description="none, train or own, in place of the contract's.")
    experiment: str | None = Field(default=None, description="The MLflow experiment, by default the data set's name.")

    def check(self) -> None:
        """Refuse what no data set can make right, before anything is waited for.

        Raises
        ------
        Misuse
            Where a setting is unknown or out of bounds.
        """


class IngestConfig(BaseModel):
    """Rows that come to a data set.

    Attributes
    ----------
    dataset
        Name of a data set that has a contract.
    file
        The source, as the machine sees it that reads it.
    device, append
        Whose rows they are, and whether it is there already; without a device the source is of all devices of a data set that has none.
    units
        By column, the unit in which this source brings it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str = Field(min_length=1, description="Name of a data set that has a contract.")
    file: str = Field(
        min_length=1, description="A .csv, .txt or .parquet file, or a folder of them: a path on the worker's machine, or a URL."
    )
    device: str | None = Field(default=None, min_length=1, description="Whose rows they are; by default all devices of a new data set.")
    append: bool = Field(default=False, description="The device is there already: these are further rows.")
    units: dict[str, str] = Field(default_factory=dict, description="The unit in which the file brings a column, by column.")


class RunConfig(DataConfig):
    """What a run of communication rounds is asked for beside.

    Attributes
    ----------
    rounds, seed, participation, quorum
        See `fedcore.rounds.Schedule`.
    deadline
        Seconds that a device's work in a round may take; one that takes longer is stopped, and silent in that round.
    runner, dask_address, ray_address
        What device tasks run on, and where that is; see `flows.runners`.
    devices_per_task
        How many devices share a Prefect task; by default each has its own in fleets of up to 1,000, and larger ones go into 40 cohorts.
    """

    # `Schedule` holds the bounds; in the schema they are for a server, which refuses parameters before a run is made of them.
    rounds: int = Field(
        default=30, description="The most communication rounds.", json_schema_extra={"minimum": 1, "maximum": 1_000_000_000}
    )
    seed: int = Field(default=0, description="Root of all random numbers.", json_schema_extra={"minimum": 0, "maximum": 2**63 - 1})
    participation: float = Field(default=1.0, description="Share of the fleet drawn each round.", json_schema_extra=_SHARE)
    quorum: float = Field(default=0.5, description="Share of the drawn devices that must answer.", json_schema_extra=_SHARE)
    deadline: float | None = Field(
        default=None, gt=0, le=1e9, description="Seconds that a device's work in a round may take; by default no limit."
    )

    runner: Literal["thread", "process", "dask", "ray"] = Field(default="thread", description="What device tasks run on.")
    dask_address: str | None = Field(default=None, description="A Dask scheduler's address; by default a cluster of the run's own.")
    ray_address: str | None = Field(default=None, description="A Ray cluster's address; by default one of the run's own.")
    devices_per_task: int | None = Field(
        default=None, ge=1, description="How many devices share a Prefect task; by default as the fleet's size asks for."
    )

    def build_schedule(self) -> Schedule:
        """Rounds, seed, participation and quorum.

        Raises
        ------
        Misuse
            Where one is out of bounds.
        """
        return Schedule(rounds=self.rounds, seed=self.seed, participation=self.participation, quorum=self.quorum)

    def check(self) -> None:
        """See `DataConfig.check`."""
        self.build_schedule()


class TrainConfig(RunConfig):
    """One algorithm, trained.

    Attributes
    ----------
    algorithm
        Name of an algorithm.
    options
        The algorithm's hyper-parameters by name.
    parent
        The run that it goes on from, with its preprocessing; by default none.
    devices
        The fleet; by default all devices of the data set.
    sites
        A file of the sites whose workers have the devices; by default they are in the data set's folder.
    """

    COMMAND: ClassVar[str] = "train"

    algorithm: str = Field(default="hm1", description="Name of an algorithm.")
    options: dict[str, Any] = Field(default_factory=dict, description="The algorithm's hyper-parameters by name.")
    parent: str | None = Field(default=None, description="The run that this one goes on from.")
    devices: tuple[str, ...] | None = Field(default=None, description="The fleet; by default all devices of the data set.")
    sites: str | None = Field(default=None, min_length=1, description="A file of the sites that have the devices.")

    @field_validator("devices")
    @classmethod
    def _sorted(cls, devices: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if devices is None else tuple(sorted(set(devices)))

    def build_algorithm(self) -> AnyAlgorithm:
        """The algorithm with its options; see `build_algorithm`."""
        return build_algorithm(self.algorithm, self.options)

    def resolved(self) -> dict[str, Any]:
        """The configuration with every default of the algorithm written out."""
        return self.model_dump() | {"options": asdict(self.build_algorithm())}  # pyright: ignore[reportArgumentType]


class RetrainConfig(RunConfig):
    """A challenger, and what it has to be better by.

    Attributes
    ----------
    rounds, seed, participation, quorum
        Of the challenger; the quorum is also that of the devices that compare.
    algorithm, options
        Of the challenger; by default the champion's, of which single options may be given in place of its own, and hm1 where there is no
        champion.
    margin, p_value
        The challenger is promoted where its A-RMSE is smaller by more than this share of the champion's, and the one-sided paired test's
        p is at most this.
    only_if_drifted
        Leave it at that where no device has drifted from the champion and the fleet is the champion's.
    drift
        A device has drifted where the rms of its standardised residuals is above this, in standard deviations of its noise, and by more
        than chance explains (see `fedcore.drift.Drift.exceeds`); the fleet has where the median of it is.
    drift_move
        A device has drifted too where its rows would move what the fleet has learned by more than this, in nats; see `Algorithm.moved`.
    """

    COMMAND: ClassVar[str] = "retrain"

    rounds: int = Field(default=30, ge=1, le=1_000_000_000, description="The most communication rounds of the challenger.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Root of all random numbers.")
    participation: float = Field(default=1.0, gt=0, le=1, description="Share of the fleet drawn each round.")
    quorum: float = Field(default=0.5, gt=0, le=1, description="Share of the devices that must answer.")
    algorithm: str | None = Field(default=None, description="By default the champion's, and hm1 where there is none.")
    options: dict[str, Any] = Field(default_factory=dict, description="The algorithm's options, in place of the champion's.")
    margin: float = Field(default=0.01, ge=0, lt=1, description="By which share the challenger's A-RMSE has to be smaller.")
    p_value: float = Field(default=0.05, gt=0, le=0.5, description="The largest p of the one-sided test, paired over devices.")
    only_if_drifted: bool = Field(default=False, description="Train no challenger where no device has drifted.")
    drift: float = Field(default=2.0, gt=0, le=1e6, description="Rms of a device's standardised residuals above which it has drifted.")
    drift_move: float = Field(default=1.0, gt=0, le=1e6, description="Nats by which a device that has drifted moves phi (hm2).")

    def check(self) -> None:
        """See `DataConfig.check`; options beside the champion's algorithm are known once there is a turn."""
        super().check()
        if self.algorithm is not None:
            build_algorithm(self.algorithm, self.options)


def algorithm_options(name: str) -> tuple[str, ...]:
    """The names of an algorithm's options.

    Raises
    ------
    Misuse
        Where it does not exist.
    """
    return tuple(field.name for field in fields(algorithm_class(name)))  # pyright: ignore[reportArgumentType]


def build_algorithm(name: str, options: Mapping[str, Any]) -> AnyAlgorithm:
    """An algorithm with its options.

    Raises
    ------
    Misuse
        Where it does not exist, has no such option, or the option's value is out of bounds.
    """
    known = algorithm_options(name)
    for option in options:
        if option not in known:
            raise Misuse(f"{name} has no option {option!r}: choose from {', '.join(known)}")
    try:
        return TypeAdapter(algorithm_class(name)).validate_python(options)
    except ValidationError as error:
        raise Misuse(f"{name}: {_first(error)}") from None


def read_config(values: Mapping[str, Any], file: Path | None = None) -> TrainConfig:
    """The configuration of a training from a TOML file and values that override it.

    Parameters
    ----------
    values
        Fields of `TrainConfig`; `options` are merged one by one, None stands for not given.
    file
        A TOML file of the same fields.

    Raises
    ------
    Misuse
        Where the file is missing or not TOML, or a field is unknown or of the wrong type.
    """
    base = _read_toml(file) if file else {}
    given = {name: value for name, value in values.items() if value is not None}
    if isinstance(base.get("options", {}), dict):
        given["options"] = base.get("options", {}) | given.get("options", {})
    return checked_config(TrainConfig, base | given, f"configuration{f' {file}' if file else ''}")


def checked_config(kind: type[C], values: Mapping[str, Any], where: str = "configuration") -> C:
    """A configuration of any command; None stands for not given.

    Raises
    ------
    Misuse
        Where a field is missing, unknown, or of the wrong type.
    """
    try:
        return kind.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise Misuse(f"{where}: {_first(error)}") from None


def parse_options(pairs: list[str]) -> dict[str, str]:
    """Options from `name=value` texts.

    Raises
    ------
    Misuse
        Where one is not of that form.
    """
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise Misuse(f"--set takes name=value, got {pair!r}")
        options[name] = value
    return options


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise Misuse(f"configuration {file} cannot be read ({error.strerror}): give an existing TOML file") from None
    except ValueError as error:
        raise Misuse(f"configuration {file} is not TOML ({error}): correct it") from None


def _first(error: ValidationError) -> str:
    """The complaint about the first field, in one line, with the value that a person gave; of a union, what each member
    asks for."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Misuse):
        return str(cause)
    field = first["loc"][0]
    if first["type"] == "missing":
        return f"{field} is missing: {'name one that fedlin data list shows' if field == 'dataset' else 'give it'}"
    wanted = " or ".join(f"{each['msg'][0].lower()}{each['msg'][1:]}" for each in complaints if each["loc"][0] == field)
    return f"{field}: {wanted}, got {first['input']!r}"
