"""The devices of a data set behind Prefect tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from prefect import Task, unmapped
from prefect.futures import PrefectFuture

from fedcore.algorithm import Aggregated, AnyAlgorithm, FleetSpec
from fedcore.data import Contract, Dataset, DeviceCard
from fedcore.errors import DeviceFailure, Misuse
from fedcore.messages import nbytes
from fedcore.rounds import Answers, Call, RunState, Schedule, draw_cohort
from flows.config import RunConfig
from flows.parent import Parent
from tasks.device import DeviceReport, Ground, Station, device_enrol, device_finalize, device_forget, device_summarise, device_update
from tasks.server import aggregate, fit_preprocessing

R = TypeVar("R")


class Exchanged(NamedTuple):
    """Sizes in bytes of what all devices sent before the first round, and of what they were sent."""

    uplink: int
    downlink: int


class Fleet:
    """The backend of a run: one mapped task a device, and one for the server.

    Attributes
    ----------
    dataset, algorithm, device_ids
        What is trained, on which devices.
    schedule
        How long the run is and who takes part.
    exchanged
        The size of what `preprocess` sent.
    silent
        Of the last tasks: why devices that did not answer did not, by id.
    task_runs
        How many tasks this backend has started.
    """

    def __init__(
        self,
        run_id: str,
        config: RunConfig,
        dataset: Dataset,
        algorithm: AnyAlgorithm,
        device_ids: Sequence[str] | None = None,
        parent: Parent | None = None,
    ) -> None:
        """`device_ids`, sorted, are the devices that the run began with; by default all that the data set has. `parent` is the run that
        it goes on from.

        Raises
        ------
        Misuse
            Where the schedule is out of bounds, or rounds would be drawn with fewer devices than the contract allows.
        """
        self.dataset = dataset
        self.algorithm = algorithm
        self.device_ids = tuple(device_ids or dataset.device_ids)
        self.silent: dict[str, str] = {}
        self.task_runs = 0
        self.schedule = _schedule(config, len(self.device_ids), dataset.contract)
        self.exchanged = Exchanged(0, 0)
        self._run_id = run_id
        self._seed = config.seed
        self._deadline = config.deadline
        self._parent = parent

    @property
    def spec(self) -> FleetSpec:
        """Devices and the width of the design, once that is known: see `preprocess`."""
        return FleetSpec(self.device_ids, len(self.dataset.design_names))

    @property
    def station(self) -> Station:
        """What the device tasks that train share."""
        return Station(self._run_id, self.dataset, self.algorithm, self.spec, self._seed, self._deadline)

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
        ground = Ground(self._run_id, self.dataset, len(self.device_ids))
        summaries = self._from_all(device_summarise.map(unmapped(ground), list(self.device_ids)))
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
            self._gather(device_forget.map(unmapped(self.station), list(self.device_ids)), self.device_ids)
            raise

    def from_all(self, task: Task[..., R], *more: Any) -> list[R]:
        """What every device answers to a task before the first round; `more` is what else it takes, one a device.

        Raises
        ------
        Misuse
            Where one cannot; the first one is named.
        """
        return self._from_all(task.map(unmapped(self.station), list(self.device_ids), *more))

    def manifest(self, cards: Sequence[DeviceCard]) -> dict[str, Any]:
        """What the run was trained on: names, counts and fingerprints, no rows."""
        return {
            "dataset": self.dataset.name,
            "target": self.dataset.contract.target,
            "design": list(self.dataset.design_names),
            "contract": self.dataset.contract.model_dump(mode="json"),
            "preprocessing": self.dataset.fitted.model_dump(mode="json") if self.dataset.fitted else None,
            "preprocessing_bytes": self.exchanged._asdict(),
            "devices": [{name: value for name, value in card._asdict().items() if name != "gaps"} for card in cards],
            "gaps": {card.device: card.gaps for card in cards if card.gaps},
        }

    def local_steps(self, call: Call) -> Answers:
        """The cohort's local steps, one task a device; those that fail after their retries are silent."""
        ids = [self.device_ids[k] for k in call.cohort]
        broadcasts = [call.broadcast(i) for i in range(len(ids))]
        replies = self._gather(device_update.map(unmapped(self.station), ids, broadcasts), ids)
        answers = [(k, reply) for k, reply in zip(call.cohort, replies, strict=True) if reply is not None]
        return Answers([k for k, _ in answers], [reply.up for _, reply in answers], [reply.info for _, reply in answers])

    def aggregate(self, server: Any, answers: Answers) -> Aggregated:
        """The server's task."""
        self.task_runs += 1
        return aggregate(self.algorithm, server, answers)

    def finalize(self, state: RunState) -> dict[str, DeviceReport]:
        """Every device's result and scores, as `at_end` gives them."""
        drawn: list[list[int]] = [[] for _ in self.device_ids]
        for round_num in range(1, state.round_num + 1):
            for k in draw_cohort(self.device_ids, self.schedule, round_num):
                drawn[k].append(round_num)
        return self.at_end(device_finalize, state, drawn)

    def at_end(self, task: Task[..., R], state: RunState, *more: Any) -> dict[str, R]:
        """What devices answer to a task after the last round, by id, sorted; those that fail are left out, and `silent` says why.

        Parameters
        ----------
        task
            It takes the station, a device and its broadcast.
        state
            The last one.
        more
            What else the task takes: one a device, or `unmapped`.
        """
        everyone = range(len(self.device_ids))
        call = Call(state.round_num, everyone, self.algorithm.broadcasts(state.server, everyone), state)
        return self.ask(task, self.device_ids, [call.broadcast(k) for k in everyone], *more)

    def ask(self, task: Task[..., R], ids: Sequence[str], *more: Any) -> dict[str, R]:
        """What some devices answer to a task outside of rounds, by id in this order; those that fail are left out, and `silent` says why.

        Parameters
        ----------
        task
            It takes the station and a device.
        ids
            The devices.
        more
            What else the task takes: one a device, or `unmapped`.
        """
        answers = self._gather(task.map(unmapped(self.station), list(ids), *more), ids)
        return {device_id: answer for device_id, answer in zip(ids, answers, strict=True) if answer is not None}

    def _from_all(self, futures: Sequence[PrefectFuture[Any]]) -> list[Any]:
        """The results of tasks that no device of the fleet may miss."""
        results = self._gather(futures, self.device_ids)
        if self.silent:
            raise Misuse(f"{len(self.silent)} of {len(self.device_ids)} devices cannot take part: {next(iter(self.silent.values()))}")
        return results

    def _gather(self, futures: Sequence[PrefectFuture[Any]], ids: Sequence[str]) -> list[Any]:
        """The tasks' results, None where one failed, whose reason is then in `silent`."""
        self.task_runs += len(ids)
        self.silent = {}
        results: list[Any] = []
        for device_id, future in zip(ids, futures, strict=True):
            future.wait()
            found = future.state.result(raise_on_failure=False)
            if not future.state.is_completed():
                self.silent[device_id] = str(found) if isinstance(found, DeviceFailure) else f"device {device_id}: {type(found).__name__}"
                found = None
            results.append(found)
        return results


def _schedule(config: RunConfig, devices: int, contract: Contract) -> Schedule:
    """The configuration's schedule under the contract's disclosure rules; a fleet that is too small itself is for its devices to refuse."""
    fewest = contract.disclosure.devices
    schedule = replace(config.build_schedule(), fewest=fewest)
    drawn = schedule.drawn(devices)
    if drawn < min(fewest, devices):
        what = f"participation = {schedule.participation:g} draws {drawn} of {devices} devices a round"
        raise Misuse(f"{what}, fewer than [disclosure] devices = {fewest}: raise it to {fewest / devices:.3g} or more")
    return schedule
