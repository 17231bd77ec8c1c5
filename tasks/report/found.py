"""What a run has left, read back from its folder for figures and reports: names, counts, estimates and scores, and never a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from fedcore.algorithm import AnyAlgorithm, FleetSpec, Outcome, algorithm_class
from fedcore.covariance import Covariance, diagonal
from fedcore.data.places import is_file, read_file
from fedcore.data.trajectory import Trajectory
from fedcore.errors import Misuse, PlaceAway
from fedcore.linear import LocalSteps
from fedcore.metrics import LEVELS
from fedcore.posterior import coefficient_summary
from fedcore.rounds import Schedule, draw_cohort
from fedcore.rows import Booleans, Floats
from fedcore.trees import from_npz, unpack
from tasks.checkpoint import Ledger, Record, RunFolder
from tasks.newcomers import fleet_prior
from tasks.report.style import short
from tasks.results import COURSE, FLEET
from tasks.tables import read_parquet

ABSENT, ANSWERED, SILENT, REFUSED = range(4)
"""Of a device in a round: not drawn; answered; drawn and silent; its answer was not taken."""

REACH = float(ndtri(0.95))
"""Of an interval at 90 %, in standard deviations."""


class Known(NamedTuple):
    """Posteriors of the coefficients one by one, each of shape (d, K): means, ends of the intervals at 90 %, whether these exclude 0."""

    mean: Floats
    lower: Floats
    upper: Floats
    included: Booleans


class Prior(NamedTuple):
    """What the fleet has learned that a device's coefficients are like, each of shape (d,).

    Attributes
    ----------
    mean, lower, upper
        Its mean and the ends of its interval at 90 %, which are NaN where the algorithm has no spread.
    """

    mean: Floats
    lower: Floats
    upper: Floats


class Hyper(NamedTuple):
    """One hyper-parameter: its block, its column of the design ("" where all share it), posterior with an interval at 90 %, and prior."""

    block: str
    feature: str
    mean: float
    lower: float
    upper: float
    prior_mean: float
    prior_sd: float


class Scores(NamedTuple):
    """Of the devices that told a score, each of shape (S,).

    Attributes
    ----------
    devices
        Their ids.
    n
        Test rows.
    rmse, alone
        RMSE on these, of the run and of the device on its own, in target units.
    hurt
        Whether federation made it worse by more than its few test rows explain.
    covered
        How many test rows the prediction intervals of `LEVELS` hold, shape (S, levels); None without posteriors.
    """

    devices: tuple[str, ...]
    n: Floats
    rmse: Floats
    alone: Floats
    hurt: Booleans
    covered: Floats | None

    @property
    def change(self) -> Floats:
        """By which share of it the RMSE is larger than alone."""
        return self.rmse / self.alone - 1.0


class Sent(NamedTuple):
    """Bytes that the devices sent, and that they were sent."""

    up: int
    down: int


@dataclass(frozen=True)
class Found:
    """A training run that has left its results.

    Attributes
    ----------
    run_id, dataset, target, algorithm, settings
        What was run: `settings` are the options and the schedule, with every default written out.
    outcome
        How its rounds ended.
    history
        One record a round.
    coefficients
        Names of the d columns of the design.
    fleet
        All devices of the run, sorted.
    devices, Theta
        Those that gave their result, and their coefficients, shape (d, K).
    n_train
        Their training rows, shape (K,).
    scores, known, prior, phi
        See the classes; None, or empty, where the run has none.
    Omega
        The covariance between the devices of the fleet, where the algorithm has one.
    unit
        In what errors are: the target's unit, or what it is scaled by, as words that follow "in"; "" where the contract names none.
    units
        By feature or column of time, its unit, where the contract names one and does not scale it away.
    exchanged
        What was sent before the first round, for the preprocessing.
    fewest_rows
        Rows that a device needs to tell of them, by the contract's disclosure rules.
    time
        The column that orders rows, "" where the contract names none.
    trajectories
        By device, those that were told.
    beyond
        Whether time is a feature, and test rows come later in it than all that a device is trained on.
    caution
        What the algorithm says has to be known of its results, part of a sentence; see `Outcome`'s message.
    rests
        What errors rest on besides the method, by the name that the contract gives it: split, scaling and preprocessing.
    prints
        By device, the fingerprint of its rows.
    """

    run_id: str
    dataset: str
    target: str
    algorithm: str
    settings: Mapping[str, Any]
    outcome: Outcome | None
    history: Sequence[Record]
    coefficients: tuple[str, ...]
    fleet: tuple[str, ...]
    devices: tuple[str, ...]
    Theta: Floats
    n_train: Floats
    scores: Scores
    known: Known | None
    prior: Prior | None
    phi: tuple[Hyper, ...]
    Omega: Covariance | None
    unit: str
    units: Mapping[str, str]
    exchanged: Sent
    fewest_rows: int
    time: str
    trajectories: Mapping[str, Trajectory]
    beyond: bool
    caution: str
    rests: Mapping[str, Any]
    prints: Mapping[str, str]

    @property
    def sent(self) -> Sent:
        """What was sent in the run, with the exchange before its rounds, as in `result.json`."""
        up, down = (sum(entry[way] for entry in self.history) for way in ("uplink_bytes", "downlink_bytes"))
        return Sent(self.exchanged.up + up, self.exchanged.down + down)

    @property
    def counted(self) -> str:
        """How many rounds of the main phase there were, which `rounds` bounds, and how many that warmed up."""
        main = sum(entry["phase"] == "main" for entry in self.history)
        return f"{main} + {len(self.history) - main} to warm up" if main < len(self.history) else str(main)

    @property
    def settled(self) -> int | None:
        """The round from which on the training error stays within 1 % of its last value; None where it is not finite in some round."""
        loss = np.array([np.nan if each["loss"] is None else each["loss"] for each in self.history])
        if not np.isfinite(loss).all():
            return None
        away = np.flatnonzero(np.abs(loss - loss[-1]) > 0.01 * abs(loss[-1]))
        return int(away[-1]) + 2 if len(away) else 1

    @property
    def stepwise(self) -> bool:
        """Whether devices take local steps, and a device on its own as many."""
        return issubclass(algorithm_class(self.algorithm), LocalSteps)

    @property
    def rival(self) -> str:
        """What a device is compared with that is on its own; see `fedcore.separate.separate_rival`."""
        if self.stepwise:
            return "as many local steps on its own rows"
        same = ", with the same penalty" if self.settings.get("penalty") else ""
        return f"exact least squares on its own rows{same}"

    @property
    def suffix(self) -> str:
        """The unit of errors at the end of a heading; what is no unit but words has no room there."""
        return f", {self.unit}" if self.unit and " " not in self.unit else ""

    def measured(self, name: str, most: int = 1000) -> str:
        """A name with its unit, where it has one; the name is shortened so that both have at most so many letters, or little more."""
        unit = f" ({self.units[name]})" if name in self.units else ""
        return f"{short(name, max(most - len(unit), 9))}{unit}"

    def differing(self, other: Found) -> list[str]:
        """In what another run differs from this one besides its method, so that their errors cannot be compared."""
        names = [name for name in {**self.rests, **other.rests} if self.rests.get(name) != other.rests.get(name)]
        changed = sum(other.prints[device] != self.prints[device] for device in self.prints.keys() & other.prints.keys())
        return [f"the rows of {changed} device{'' if changed == 1 else 's'}"] * (changed > 0) + names

    @cached_property
    def participation(self) -> np.ndarray[Any, np.dtype[np.int8]]:
        """What each device of the fleet did in each round, shape (K, R)."""
        schedule = Schedule(seed=self.settings["seed"], participation=self.settings["participation"])
        place = {device: k for k, device in enumerate(self.fleet)}
        found = np.full((len(self.fleet), len(self.history)), ABSENT, dtype=np.int8)
        for r, entry in enumerate(self.history):
            drawn = range(len(self.fleet)) if entry["cohort"] == len(self.fleet) else draw_cohort(self.fleet, schedule, entry["round_num"])
            found[np.asarray(drawn, dtype=np.intp), r] = ANSWERED
            found[[place[device] for device in entry["silent"]], r] = SILENT
            found[[place[device] for device in entry["reasons"]], r] = REFUSED
        return found


def _unit(contract: Mapping[str, Any]) -> str:
    scaling, column = contract["scaling"]["target"], contract["columns"][contract["target"]]
    return {"train": "shares of the device's own range", "own": "shares of the device's own range"}.get(scaling, column.get("unit") or "")


def _units(contract: Mapping[str, Any]) -> dict[str, str]:
    scaled = set(contract["features"]) if contract["scaling"]["features"] != "none" else set[str]()
    return {name: column["unit"] for name, column in contract["columns"].items() if column.get("unit") and name not in scaled}


PREPARED = ("features", "intercept", "interactions", "feature_map", "scaling", "missing", "categories", "split")
"""Of a contract, what makes a device's rows a design and parts."""


def _rests(contract: Mapping[str, Any]) -> dict[str, Any]:
    """These fields by name, and of those that have fields themselves each of them, as in `split.seed`."""
    chosen = {name: contract[name] for name in PREPARED}
    parts = {name: value if isinstance(value, dict) else {"": value} for name, value in chosen.items()}
    return {f"{name}.{key}".rstrip("."): value for name, part in parts.items() for key, value in part.items()}


def read_found(folder: RunFolder) -> Found:
    """The results of a training run.

    Raises
    ------
    Misuse
        Where another command has begun the run, it has left no results yet, or they are missing or damaged.
    """
    config, manifest, ledger = folder.trained()["resolved"], folder.manifest(), folder.ledger()
    if ledger is None or not is_file(folder.results / "devices.parquet"):
        raise Misuse(f"run {folder.run_id} has left no results yet: fedlin status {folder.run_id} says how far it is")
    try:
        return _read(folder, config, manifest, ledger)
    except (PlaceAway, Misuse):
        raise
    except (OSError, KeyError, TypeError, ValueError):
        raise Misuse(f"run {folder.run_id}: its results are missing or damaged: start a new run") from None


def _read(folder: RunFolder, config: Mapping[str, Any], manifest: Mapping[str, Any], ledger: Ledger) -> Found:
    estimates = from_npz(read_file(folder.results / "theta.npz"))
    stored = from_npz(read_file(folder.results / "server.npz"))
    coefficients, devices, fleet = (tuple(names.tolist()) for names in (estimates["coefficients"], estimates["devices"], stored[FLEET]))
    algorithm, spec = algorithm_class(config["algorithm"])(**config["options"]), FleetSpec(fleet, len(coefficients))
    algorithm.init_server(spec)  # its state's classes are known from then on
    server, table = unpack(stored), read_parquet(folder.results / "devices.parquet")
    contract = manifest["contract"]
    split = contract["split"]
    return Found(
        run_id=folder.run_id,
        dataset=config["dataset"],
        target=manifest["target"],
        algorithm=config["algorithm"],
        settings={**config["options"], **{name: config[name] for name in ("rounds", "seed", "participation", "quorum")}},
        outcome=ledger.outcome,
        history=ledger.history,
        coefficients=coefficients,
        fleet=fleet,
        devices=devices,
        Theta=estimates["Theta"],
        n_train=np.array(table["n_train"]),
        scores=_scores(table),
        known=_known(folder, coefficients, devices),
        prior=_prior(algorithm, spec, server),
        phi=_phi(folder),
        Omega=getattr(server, "Omega", None),
        unit=_unit(contract),
        units=_units(contract),
        exchanged=Sent(manifest["preprocessing_bytes"]["uplink"], manifest["preprocessing_bytes"]["downlink"]),
        fewest_rows=contract["disclosure"]["rows"],
        time=split["column"] if split["kind"] == "time" else "",
        trajectories=_trajectories(folder),
        beyond=split["kind"] == "time" and split["column"] in contract["features"],
        caution=algorithm.caution(server),
        rests=_rests(contract),
        prints={card["device"]: card["sha256"] for card in manifest["devices"]},
    )


def _scores(table: Mapping[str, list[Any]]) -> Scores:
    columns = zip(table["n_test"], table["rmse_test"], table["rmse_separate"], strict=True)
    told = [k for k, (n, ours, alone) in enumerate(columns) if n and ours is not None and alone]

    def of(name: str) -> Floats:
        return np.array([table[name][k] for k in told])

    hurt = of("hurt").astype(bool) if "hurt" in table else np.zeros(len(told), dtype=bool)
    names = [f"covered.{level:g}" for level in LEVELS]
    counted = all(name in table and None not in table[name] for name in names)
    covered = np.stack([of(name) for name in names], axis=1) if counted and told else None
    return Scores(tuple(table["device"][k] for k in told), of("n_test"), of("rmse_test"), of("rmse_separate"), hurt, covered)


def _known(folder: RunFolder, coefficients: Sequence[str], devices: Sequence[str]) -> Known | None:
    if not is_file(folder.results / "posteriors.parquet"):
        return None
    table = read_parquet(folder.results / "posteriors.parquet")
    names, place = ("mean", "lower", "upper", "included"), {device: k for k, device in enumerate(devices)}
    columns = [place[device] for device in table["device"][:: len(coefficients)]]
    by_name = {name: np.array(table[name]).reshape(len(columns), len(coefficients)).T for name in names}
    whole = {name: np.full((len(coefficients), len(devices)), False if name == "included" else np.nan) for name in names}
    for name, values in by_name.items():
        whole[name][:, columns] = values
    return Known(**whole)


def _trajectories(folder: RunFolder) -> dict[str, Trajectory]:
    if not is_file(folder.results / "trajectories.parquet"):
        return {}
    table = read_parquet(folder.results / "trajectories.parquet")
    devices, first = np.unique(table["device"], return_index=True)
    blocks = {name: np.split(np.array(table[name]), np.sort(first)[1:]) for name in COURSE}
    names = devices[np.argsort(first)].tolist()
    sizes = [table["rows"][place] for place in np.sort(first)]
    return {name: Trajectory(size, *each) for name, size, *each in zip(names, sizes, *blocks.values(), strict=True)}


def _phi(folder: RunFolder) -> tuple[Hyper, ...]:
    if not is_file(folder.results / "phi.parquet"):
        return ()
    table = read_parquet(folder.results / "phi.parquet")
    nothing = [np.nan] * len(table["block"])  # runs of earlier versions told no prior
    return tuple(Hyper(*each) for each in zip(*(table.get(name, nothing) for name in Hyper._fields), strict=True))


def _prior(algorithm: AnyAlgorithm, spec: FleetSpec, server: Any) -> Prior | None:
    """See `fleet_prior`; where the fleet has learned a covariance between devices, a normal distribution around zero with their mean
    variance."""
    d = spec.d
    if (Omega := getattr(server, "Omega", None)) is not None:
        spread = np.full(d, REACH * np.sqrt(diagonal(Omega).mean()))
        return Prior(np.zeros(d), -spread, spread)
    result = fleet_prior(algorithm, spec, server)
    if result is None:
        return None
    if result.posterior is None:
        return Prior(result.theta, np.full(d, np.nan), np.full(d, np.nan))
    summary = coefficient_summary(result.posterior)
    return Prior(summary.mean, summary.lower, summary.upper)
