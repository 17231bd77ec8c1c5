"""The devices of a data set behind Prefect tasks, one a device or one for each cohort of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

from prefect import Task, unmapped
from prefect.futures import PrefectFuture
from prefect.results import ResultRecord  # pyright: ignore[reportPrivateImportUsage]
from prefect.utilities.annotations import opaque

from fedcore.algorithm import Aggregated, AnyAlgorithm, FleetSpec
from fedcore.data import Contract, Dataset, DeviceCard
from fedcore.errors import DeviceFailure, FedlinError, Misuse
from fedcore.messages import nbytes
from fedcore.rounds import Answers, Call, RunState, Schedule, draw_cohort
from flows.config import RunConfig
from flows.parent import Parent
from tasks.cohort import Answered, CohortFailure, Errand
from tasks.device import DeviceReport, device_enrol, device_finalize, device_forget, device_summarise, device_update
from tasks.ground import Ground, Owner, Station, owner_of
from tasks.server import aggregate, fit_preprocessing

DeviceTask = Task[[Ground, Errand], Answered]

COHORTS_ABOVE = 1000
"""The largest fleet with a task a device, where nothing else is asked for."""

ENDED = Answered | CohortFailure | DeviceFailure
"""What a task that was carried out ends with."""

LOST = 2
"""How often a task is given to another worker when its own is lost. What the lost one has done is done again, or told again."""

COHORTS = 40
"""Into how many cohorts larger fleets go."""


class WorkersLost(FedlinError):
    """Tasks that no worker has carried out, though they were given to several: not a device's failure."""


class Exchanged(NamedTuple):
    """Sizes in bytes of what all devices sent before the first round, and of what they were sent."""

    uplink: int
    downlink: int


class Fleet:
    """The backend of a run: one mapped task a device or cohort of devices, and one for the server.

    Attributes
    ----------
    dataset, algorithm, device_ids
        What is trained, on which devices.
    devices_per_task
        How many devices share a task, and the files that they keep: the first ones of the fleet, the next ones, and so on.
    schedule
        How long the run is and who takes part.
    exchanged
        The size of what `preprocess` sent.
    silent
        Of the last tasks: why devices that did not answer did not, by id.
    task_runs
        How many tasks this backend has started.
    """

    HERE: ClassVar[bool] = True
    """Whether device tasks work where they run, and do not wait for others to."""

    REMEDY: ClassVar[str] = "mend such a device, or take it out with fedlin data remove"
    """For whoever owns the data: no run leaves a device out by itself."""

    def __init__(
        self,
        run_id: str,
        config: RunConfig,
        dataset: Dataset,
        algorithm: AnyAlgorithm,
        device_ids: Sequence[str] | None = None,
        parent: Parent | None = None,
        run_uuid: str | None = None,
    ) -> None:
        """`device_ids`, sorted, are the devices that the run began with; by default all that the data set has. `parent` is the run that
        it goes on from. `run_uuid` is that of a run that has begun; by default a new one is drawn.

        Raises
        ------
        Misuse
            Where the schedule is out of bounds, or rounds would be drawn with fewer devices than the contract allows.
        """
        self.dataset = dataset
        self.algorithm = algorithm
        self.device_ids = tuple(device_ids or dataset.device_ids)
        self.devices_per_task = config.devices_per_task or automatic(len(self.device_ids))
        self.silent: dict[str, str] = {}
        self.task_runs = 0
        self.schedule = _schedule(config, len(self.device_ids), dataset.contract)
        self.exchanged = Exchanged(0, 0)
        self._run_id = run_id
        self._run_uuid = uuid4().hex if run_uuid is None else run_uuid
        self._seed = config.seed
        self._deadline = config.deadline
        self._parent = parent
        self._lost: list[object] = []
        self._place = {device_id: k for k, device_id in enumerate(self.device_ids)}

    @property
    def spec(self) -> FleetSpec:
        """Devices and the width of the design, once that is known: see `preprocess`."""
        return FleetSpec(self.device_ids, len(self.dataset.design_names))

    @property
    def station(self) -> Station:
        """What the device tasks that train share."""
        return Station(self._run_id, self._run_uuid, self.dataset, self.algorithm, self.spec, self._seed, self._deadline)

    @property
    def initial_state(self) -> RunState:
        """The state before the first round.

        Raises
        ------
        Misuse
            Where the algorithm cannot go on with this fleet.
        """
        return self._parent.state(self.algorithm, self.spec) if self._parent else RunState.initial(self.algorithm, self.spec)

    def preprocess(self) -> None:
        """Fit what the devices prepare their rows with, where the contract needs it: they summarise, the server joins. A run that goes on
        from another one keeps the other's.

        Raises
        ------
        Misuse
            Where a device cannot (the first one is named), or the fleet's columns do not suit the contract.
        """
        contract = self.dataset.contract
        if self._parent:
            self.dataset = self._parent.prepared(self.dataset)
            return
        if not contract.needs_fit:
            return
        ground = Ground(self._run_id, self._run_uuid, self.dataset, len(self.device_ids))
        summaries = self._from_all(device_summarise, ground)
        self.task_runs += 1
        fitted = fit_preprocessing(contract, summaries)
        self.dataset = self.dataset.with_fitted(fitted)
        self.exchanged = Exchanged(nbytes(summaries), len(self.device_ids) * nbytes(fitted.model_dump()))

    def enrol(self) -> list[DeviceCard]:
        """Every device checks and compresses its rows.

        Raises
        ------
        Misuse
            Where a device cannot; the first one is named.
        """
        try:
            _ = self.initial_state  # where the algorithm cannot go on, no device need be asked
            earlier = self._parent.earlier(self.device_ids) if self._parent else [None] * len(self.device_ids)
            return self.from_all(device_enrol, earlier)
        except Misuse:
            self._gather(device_forget, self.station, self.device_ids)
            raise

    def from_all(self, task: DeviceTask, *told: Sequence[Any]) -> list[Any]:
        """What every device answers to a task before the first round; `told` is what it is told, one a device.

        Raises
        ------
        Misuse
            Where one cannot; the first one is named.
        """
        return self._from_all(task, self.station, *told)

    def manifest(self, cards: Sequence[DeviceCard]) -> dict[str, Any]:
        """What the run was trained on: names, counts and fingerprints, no rows."""
        return {
            "run_uuid": self._run_uuid,
            "dataset": self.dataset.name,
            "target": self.dataset.contract.target,
            "design": list(self.dataset.design_names),
            "contract": self.dataset.contract.model_dump(mode="json"),
            "preprocessing": self.dataset.fitted.model_dump(mode="json") if self.dataset.fitted else None,
            "preprocessing_bytes": self.exchanged._asdict(),
            "devices_per_task": self.devices_per_task,
            "devices": [{name: value for name, value in card._asdict().items() if name != "gaps"} for card in cards],
            "gaps": {card.device: card.gaps for card in cards if card.gaps},
        }

    def local_steps(self, call: Call) -> Answers:
        """The cohort's local steps; devices that fail after their task's retries are silent."""
        ids = [self.device_ids[k] for k in call.cohort]
        replies = self._gather(device_update, self.station, ids, call.broadcasts())
        answered = [(k, replies[device_id]) for k, device_id in zip(call.cohort, ids, strict=True) if device_id in replies]
        return Answers([k for k, _ in answered], [reply.up for _, reply in answered], [reply.info for _, reply in answered])

    def aggregate(self, server: Any, answers: Answers) -> Aggregated:
        """The server's task."""
        self.task_runs += 1
        whole: Any = opaque(answers)  # Prefect would look for futures in every message
        return aggregate(self.algorithm, opaque(server), whole)

    def finalize(self, state: RunState) -> dict[str, DeviceReport]:
        """Every device's result and scores, as `at_end` gives them."""
        drawn: list[list[int]] = [[] for _ in self.device_ids]
        for round_num in range(1, state.round_num + 1):
            for k in draw_cohort(self.device_ids, self.schedule, round_num):
                drawn[k].append(round_num)
        return self.at_end(device_finalize, state, drawn)

    def at_end(self, task: DeviceTask, state: RunState, *told: Sequence[Any]) -> dict[str, Any]:
        """What devices answer to a task after the last round, by id, sorted; those that fail are left out, and `silent` says why.

        Parameters
        ----------
        task
            Its devices are told the last broadcast first.
        state
            The last one.
        told
            What else they are told, one a device.
        """
        everyone = range(len(self.device_ids))
        call = Call(state.round_num, everyone, self.algorithm.broadcasts(state.server, everyone), state)
        return self.ask(task, self.device_ids, call.broadcasts(), *told)

    def ask(self, task: DeviceTask, ids: Sequence[str], *told: Sequence[Any]) -> dict[str, Any]:
        """What some devices answer to a task outside of rounds, by id in this order; those that fail are left out, and `silent` says why.

        Parameters
        ----------
        task
            What they do.
        ids
            The devices.
        told
            What they are told, one a device.
        """
        return self._gather(task, self.station, ids, *told)

    def _owner(self, device_id: str) -> Owner:
        """With whom a device shares a task."""
        return owner_of(device_id, self._place[device_id], self.devices_per_task)

    def _started(self, task: DeviceTask, ground: Ground, errands: Sequence[Errand]) -> Iterable[PrefectFuture[Any]]:
        """The task runs of some errands."""
        return task.map(unmapped(ground), errands)

    def _from_all(self, task: DeviceTask, ground: Ground, *told: Sequence[Any]) -> list[Any]:
        """The answers to a task that no device of the fleet may miss."""
        answers = self._gather(task, ground, self.device_ids, *told)
        if self._lost:
            raise WorkersLost(_on_workers(self._lost))
        if self.silent:
            what = f"{len(self.silent)} of {len(self.device_ids)} devices cannot take part: {next(iter(self.silent.values()))}"
            raise Misuse(f"{what}; {self.REMEDY}")
        return list(answers.values())

    def _gather(self, task: DeviceTask, ground: Ground, ids: Sequence[str], *told: Sequence[Any]) -> dict[str, Any]:
        """Devices' answers to a task, by id in this order. Those that fail are left out; their reasons are then in `silent`."""
        each = zip(*told, strict=True) if told else [()] * len(ids)
        cohorts: dict[Owner, dict[str, tuple[Any, ...]]] = {}
        for device_id, message in zip(ids, each, strict=True):
            cohorts.setdefault(self._owner(device_id), {})[device_id] = message
        errands = [Errand(owner, messages) for owner, messages in cohorts.items()]
        found: dict[Owner, object] = {}
        for _ in range(1 + LOST):
            left = [errand for errand in errands if not isinstance(found.get(errand.owner), ENDED)]
            if not left:
                break
            self.task_runs += len(left)
            found |= dict(zip((errand.owner for errand in left), map(ended, self._started(task, ground, left)), strict=True))
        self._lost = [each for each in found.values() if not isinstance(each, ENDED)]
        if errands and len(self._lost) == len(errands):
            raise WorkersLost(_on_workers(self._lost))
        answers = {device_id: answer for each in found.values() if isinstance(each, Answered) for device_id, answer in each.answers.items()}
        whose = {device_id: errand.owner for errand in errands for device_id in errand.told if device_id not in answers}
        self.silent = {device_id: _reason(found[owner], device_id) for device_id, owner in whose.items()}
        return {device_id: answers[device_id] for device_id in ids if device_id in answers}


def automatic(devices: int) -> int:
    """How many devices share a task in a fleet of this size, where nothing else is asked for."""
    return 1 if devices <= COHORTS_ABOVE else -(-devices // COHORTS)


def ended(future: PrefectFuture[Any]) -> object:
    """What a task has returned or failed with; where its worker is lost, that error."""
    try:
        future.wait()
        state = future.state
        # What Prefect gives itself, but through its event loop, which takes as long as a device's step.
        return state.data.result if isinstance(state.data, ResultRecord) else state.result(raise_on_failure=False)
    except Exception as lost:  # of the pool or the cluster, and not of a device, whose failures are in the state
        return lost


def _reason(found: object, device_id: str) -> str:
    """Why a device has not answered, by what its task ended with."""
    failure = found.failed.get(device_id) if isinstance(found, Answered | CohortFailure) else found
    return str(failure) if isinstance(failure, DeviceFailure) else f"device {device_id}: its worker was lost ({type(failure).__name__})"


def _on_workers(lost: Sequence[object]) -> str:
    """What to do about lost tasks."""
    what = f"{len(lost)} tasks were given to workers {1 + LOST} times and came to nothing ({type(lost[0]).__name__})"
    return f"{what}: see that workers stay up and have this fedlin"


def _schedule(config: RunConfig, devices: int, contract: Contract) -> Schedule:
    """The configuration's schedule under the contract's disclosure rules; a fleet that is too small itself is for its devices to refuse."""
    fewest = contract.disclosure.devices
    schedule = replace(config.build_schedule(), fewest=fewest)
    drawn = schedule.drawn(devices)
    if drawn < min(fewest, devices):
        what = f"participation = {schedule.participation:g} draws {drawn} of {devices} devices a round"
        raise Misuse(f"{what}, fewer than [disclosure] devices = {fewest}: raise it to {fewest / devices:.3g} or more")
    return schedule
