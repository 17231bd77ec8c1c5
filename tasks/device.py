"""What is done on a device in a training: each device opens its own folder and nothing else.

Rows, compressions and the devices' states live in the data set's folder (see `tasks.keeping`). What leaves a task are messages, and
failures that quote nothing (see `tasks.cohort`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from pathlib import Path
from typing import Any, NamedTuple, overload

from fedcore.algorithm import DeviceResult, FleetSpec, Outcome
from fedcore.alike import Member, members, single, together
from fedcore.comparison import HURT
from fedcore.data import DeviceCard, DeviceSummary, Stamp
from fedcore.data.disclosure import check_cohort, check_fleet, check_parameters, check_rows, scored_rows
from fedcore.data.places import is_folder
from fedcore.data.trajectory import Trajectory
from fedcore.deadline import check_deadline, deadline, seconds_left
from fedcore.errors import DeviceRefusal, Misuse
from fedcore.messages import Broadcast, DeviceInfo, Reply, Stacked
from fedcore.metrics import Score, covered, score, squared_errors
from fedcore.posterior import AnyPosterior
from fedcore.receipts import Memory, settle
from fedcore.rounds import DeviceRngs
from fedcore.rows import DeviceData, Floats
from fedcore.selection import Paired, paired
from fedcore.separate import separate_rival
from tasks.cohort import Attempt, device_task
from tasks.ground import Earlier, Ground, Station
from tasks.keeping import Held, Kept


class DeviceReport(NamedTuple):
    """What a device tells at the end of a run.

    Attributes
    ----------
    device
        Device id.
    n_train
        Number of training rows.
    theta
        Its coefficients, shape (d,).
    test, test_separate
        Its score on its test rows, and that of the same device on its own; see `separate_rival`. Empty where there are too few
        of them to tell of.
    posterior
        Of its coefficients, where the algorithm has one.
    excess
        How much larger its squared errors on these rows are than on its own, paired by row.
    covered
        Where it has a posterior, how many of these rows' targets lie in their prediction intervals, one count for each of
        `fedcore.metrics.LEVELS`.
    trajectory
        Means of its target over time, where its contract lets it tell them.
    """

    device: str
    n_train: int
    theta: Floats
    test: Score
    test_separate: Score
    posterior: AnyPosterior | None
    excess: Paired
    covered: tuple[int, ...] | None
    trajectory: Trajectory | None

    @property
    def hurt(self) -> bool:
        """Whether federation made it worse by more than its few test rows explain; see `fedcore.comparison.HURT`."""
        return self.excess.mean > HURT * self.excess.se


class Opened(NamedTuple):
    """A device's rows, which stay there, as they were read, the files' stamp, and what may be told of them."""

    data: DeviceData
    stamp: Stamp | None
    card: DeviceCard


@dataclass(slots=True)
class Settled:
    """A device before its step: what it keeps of the run, its memory after the receipt, what it is told, how many seconds are left to it,
    and the way to its rows."""

    kept: Kept
    memory: Memory
    broadcast: Broadcast
    left: float | None
    attempt: Attempt[Station]
    _data: DeviceData | None = None

    @property
    def data(self) -> DeviceData:
        """The rows, opened when they are first asked for: as the device has kept them, where these are of the files that it has now; else
        they are read again."""
        if self._data is None:
            held = self.attempt.files.held(self.kept.device)
            same = held and self.kept.stamp and held.files == self.kept.stamp.files
            self._data = held.data if held and same else _read(self.attempt, self.kept)
        return self._data

    def keeping(self, memory: Memory) -> Kept:
        """What the device keeps after its step; what it has, where that is the same."""
        return self.kept if memory is self.kept.memory else Kept(*self.kept[:-1], memory)


class WhereAsked(Sequence[DeviceData]):
    """Devices' rows, opened where a step looks at them: most steps need only what was made of them when the run began."""

    def __init__(self, devices: Sequence[Settled]) -> None:
        self._devices = devices

    def __len__(self) -> int:
        return len(self._devices)

    @overload
    def __getitem__(self, index: int) -> DeviceData: ...
    @overload
    def __getitem__(self, index: slice) -> WhereAsked: ...
    def __getitem__(self, index: int | slice) -> DeviceData | WhereAsked:
        return WhereAsked(self._devices[index]) if isinstance(index, slice) else self._devices[index].data


def device_check(station: Station, device_id: str) -> DeviceCard:
    """What enrolment will say of a device, without keeping anything.

    Raises
    ------
    DeviceRefusal
        Where its rows break the contract, its disclosure rules forbid to tell of them, or an option is unsafe for them.
    DeviceFailure
        Where its own code fails.
    """
    attempt: Attempt[Station] = Attempt(station, "check", device_id, {device_id: ()})
    opened = attempt.each(lambda device_id, _: examined(attempt, device_id), attempt.told)
    _initial(attempt, opened)
    if attempt.failed:
        raise attempt.failed[device_id]
    return opened[device_id].card


def examined(attempt: Attempt[Station], device_id: str) -> Opened:
    """A device's rows, which stay here, and what may be told of them.

    Raises
    ------
    DataError
        Where they break the contract, or its disclosure rules forbid to tell of them.
    DeviceRefusal
        Where its state could leave its folder.
    """
    station = attempt.ground
    contract, where = station.dataset.contract, f"device={device_id}"
    check_fleet(station.devices, contract, where)
    _check_folder(station, device_id)
    stamp = station.dataset.stamp(device_id)
    data, card = station.dataset.loaded(device_id)
    check_rows(data.train.n, contract, where)
    check_parameters(data.train.d, data.train.n, contract, where)
    return Opened(data, stamp, card)


def settled(attempt: Attempt[Station], device_id: str, broadcast: Broadcast) -> Settled:
    """A device's memory of this run after the broadcast's receipt, and the way to its rows.

    Raises
    ------
    DeviceRefusal
        Where its rows or its state are not those that it took part with, or the round was drawn with too few devices.
    DeviceFailure
        Where it does not remember the update of the receipt.
    """
    station = attempt.ground
    check_cohort(broadcast.devices, station.dataset.contract, f"device={device_id}")
    kept, data = attempt.files.recall(device_id), None
    stamp = station.dataset.stamp(device_id, kept.stamp)
    if stamp is not kept.stamp:
        _check_folder(station, device_id)  # a link in its place would be a change of the device's folder
        if not stamp or not kept.stamp or stamp.files != kept.stamp.files:
            data = _read(attempt, kept)
        kept = kept._replace(stamp=stamp)
    return Settled(kept, settle(station.algorithm, kept.memory, broadcast.receipt), broadcast, seconds_left(), attempt, data)


def continued(attempt: Attempt[Station], device_id: str, earlier: Earlier, initial: Any) -> Any:
    """The state that a device goes on with from an earlier run, and from the initial one with its rows of now.

    Raises
    ------
    Misuse
        Where the algorithm does not go on.
    DeviceFailure
        Where the device has no state of that run, or not what its server last took.
    """
    algorithm = attempt.ground.algorithm
    before = settle(algorithm, attempt.files.recall(device_id, earlier).memory, earlier.receipt)
    return algorithm.continued_device(single(before.accepted), initial)


def _check_folder(station: Station, device_id: str) -> None:
    folder = station.state_folder(device_id)
    if isinstance(folder, Path) and folder.is_symlink():
        raise DeviceRefusal("its .fedlin is a link, and its state may not leave its own folder: replace the link by a folder")


def _check_there(station: Station, device_id: str) -> None:
    if not is_folder(station.state_folder(device_id).parent):  # what a cohort keeps of it would stay for good
        raise DeviceRefusal("its folder has gone since it was read a moment ago: bring it back")


def _read(attempt: Attempt[Station], kept: Kept) -> DeviceData:
    data, card = attempt.ground.dataset.loaded(kept.device)
    if card.sha256 != kept.fingerprint:
        raise DeviceRefusal("its partition has changed since the run began: start a new run")
    return data


@device_task("device-summarise", "summarise {errand.name}", "summary")
def device_summarise(attempt: Attempt[Ground]) -> Mapping[str, DeviceSummary]:
    """What a device tells of its training segment for the fleet's preprocessing."""
    dataset, devices = attempt.ground.dataset, attempt.ground.devices

    def summary(device_id: str, _: object) -> DeviceSummary:
        check_fleet(devices, dataset.contract, f"device={device_id}")
        return dataset.summary(device_id)

    return attempt.each(summary, attempt.told)


@device_task("device-enrol", "enrol {errand.name}", "enrolment")
def device_enrol(attempt: Attempt[Station]) -> Mapping[str, DeviceCard]:
    """Check a device's partition, compress its rows, and keep both with its initial state; or with the one that it goes on from, of the
    earlier run that it is told of."""
    opened = attempt.each(lambda device_id, _: examined(attempt, device_id), attempt.told)
    devices = _initial(attempt, opened)

    def first(device_id: str, device: Any) -> Kept:
        _check_there(attempt.ground, device_id)
        earlier: Earlier | None = attempt.told[device_id][0]
        if earlier:
            device = continued(attempt, device_id, earlier, device)
        return Kept(device_id, opened[device_id].card.sha256, opened[device_id].stamp, Memory.initial(device))

    kept = attempt.each(first, devices)
    kept = attempt.whole(lambda: attempt.files.keep(kept.values()), kept)
    if kept:
        attempt.files.hold(
            [Held(device_id, stamp.files, data) for device_id, (data, stamp, _) in opened.items() if stamp and device_id in kept]
        )
    return {device_id: opened[device_id].card for device_id in kept}


def _initial(attempt: Attempt[Station], opened: Mapping[str, Opened]) -> dict[str, Any]:
    """The algorithm's initial states, which stay here."""
    station = attempt.ground
    return attempt.together(
        lambda _, devices: list(station.algorithm.init_devices(station.spec, [device.data for device in devices])),
        lambda _, device: station.algorithm.init_device(station.spec, device.data),
        opened,
    )


@device_task("device-update", "round {errand.round_num} {errand.name}", "local step")
def device_update(attempt: Attempt[Station]) -> Mapping[str, Reply]:
    """One round on devices: settle the receipt, take the local step, keep a new state as pending, and answer.

    A device that is late keeps nothing of the round, so it comes back where its last receipt leaves it.
    """
    station = attempt.ground

    def in_time(device_id: str, told: tuple[Broadcast]) -> Settled:
        with deadline(station.deadline):
            device = settled(attempt, device_id, *told)
            check_deadline()
        return device

    ready = attempt.each(in_time, attempt.told)
    stepped = attempt.together(
        lambda ids, devices: _steps(station, ids, devices), lambda device_id, device: _steps(station, [device_id], [device])[0], ready
    )

    def pending(device_id: str) -> Kept:
        device = ready[device_id]
        if station.algorithm.STEADY:
            return device.keeping(device.memory)
        return device.keeping(device.memory.awaiting(stepped[device_id][0], device.broadcast.round_num))

    stepped = attempt.whole(lambda: attempt.files.keep([pending(device_id) for device_id in stepped]), stepped)
    return {device_id: Reply(up, info) for device_id, (_, up, info) in stepped.items()}


def _steps(station: Station, ids: Sequence[str], devices: Sequence[Settled]) -> list[tuple[Any, Any, DeviceInfo]]:
    left = [device.left for device in devices if device.left is not None]
    kept = [device.memory.accepted for device in devices]
    before = _accepted(devices)
    with deadline(sum(left) if left else None):  # where they are late together, each is asked alone
        states, ups, infos = station.algorithm.local_steps(
            [device.broadcast.down for device in devices],
            before,
            WhereAsked(devices),
            DeviceRngs(station.seed, devices[0].broadcast.round_num, ids),
        )
    if states is before:
        states = kept
    elif not isinstance(states, Stacked):
        states = [same if state is old else state for state, old, same in zip(states, before, kept, strict=True)]
    if station.algorithm.STEADY and any(map(is_not, states, kept)):
        raise Misuse("its step made a new state, and its algorithm says that rounds leave states as they are: set STEADY to False there")
    return list(zip(*map(_each, (states, ups, infos)), strict=True))


@device_task("device-finalize", "finalize {errand.name}", "final step")
def device_finalize(attempt: Attempt[Station]) -> Mapping[str, DeviceReport]:
    """A device's result and its scores; it is told the last broadcast, and in which rounds it was drawn, for the rival that works alone."""
    station = attempt.ground
    algorithm = station.algorithm
    ready = attempt.each(lambda device_id, told: settled(attempt, device_id, told[0]), attempt.told)
    kept = [device.keeping(device.memory) for device in ready.values()]
    ready = attempt.whole(lambda: attempt.files.keep(kept), ready)
    results = attempt.together(
        lambda _, devices: algorithm.finalize_devices(
            [device.broadcast.down for device in devices], _accepted(devices), [device.data for device in devices]
        ),
        lambda _, device: algorithm.finalize(device.broadcast.down, single(device.memory.accepted), device.data),
        ready,
    )
    drawn = {device_id: attempt.told[device_id][1] for device_id in results}
    own = attempt.together(
        lambda ids, devices: alone(station, ids, [device.data for device in devices], [drawn[device_id] for device_id in ids]),
        lambda device_id, device: alone(station, [device_id], [device.data], [drawn[device_id]])[0],
        {device_id: ready[device_id] for device_id in results},
    )

    reports = attempt.each(
        lambda device_id, by_itself: reported(station, device_id, ready[device_id].data, results[device_id], by_itself), own
    )
    if reports:  # of who was refused nothing is touched
        attempt.files.let_go()
    return reports


def reported(station: Station, device_id: str, data: DeviceData, result: DeviceResult, own: DeviceResult) -> DeviceReport:
    """What a device tells of its result, beside what it reaches on its own."""
    test = scored_rows(data.test, station.dataset.contract)
    excess = paired(squared_errors(result, test), squared_errors(own, test))
    counts = covered(result.posterior, test) if result.posterior else None
    scores, course = (score(result, test), score(own, test)), station.dataset.trajectory(device_id, result.theta)
    return DeviceReport(device_id, data.train.n, result.theta, *scores, result.posterior, excess, counts, course)


def _each(answers: Sequence[Any]) -> Sequence[Any]:
    """One for each device; what the devices of a cohort have as one stays one, until somebody looks at one of them."""
    return members(answers.fields, len(answers)) if isinstance(answers, Stacked) and len(answers) > 1 else answers


def _accepted(devices: Sequence[Settled]) -> Sequence[Any]:
    """Devices' accepted states as an algorithm takes them: as one, where they are kept as one."""
    kept = [device.memory.accepted for device in devices]
    if isinstance(kept[0], Member) and (fields := together(kept)) is not None:
        return Stacked(fields, len(kept))
    return list(map(single, kept))


def alone(station: Station, ids: Sequence[str], datas: Sequence[DeviceData], drawn: Sequence[Sequence[int]]) -> Sequence[DeviceResult]:
    """What devices reach each on its own, in the rounds that it was drawn in; see `separate_rival`."""
    rival = separate_rival(station.algorithm)
    fleets = [FleetSpec((device_id,), station.spec.d) for device_id in ids]
    servers, devices = [rival.init_server(fleet) for fleet in fleets], list(rival.init_devices(fleets[0], datas))
    by_round: dict[int, list[int]] = {}
    for i, rounds in enumerate(drawn):
        for round_num in rounds:
            by_round.setdefault(round_num, []).append(i)
    for round_num, drawn_now in sorted(by_round.items()):
        mine = [i for i in drawn_now if not isinstance(rival.status(servers[i]), Outcome)]
        if not mine:
            continue
        states, ups, _ = rival.local_steps(
            [rival.broadcast(servers[i], 0) for i in mine],
            [devices[i] for i in mine],
            [datas[i] for i in mine],
            DeviceRngs(station.seed, round_num, [ids[i] for i in mine]),
        )
        for i, state, up in zip(mine, states, ups, strict=True):
            devices[i] = state
            servers[i] = rival.aggregate(servers[i], [0], [up]).server
    return rival.finalize_devices([rival.broadcast(server, 0) for server in servers], devices, datas)


@device_task("device-forget", "forget {errand.name}", "clearing up")
def device_forget(attempt: Attempt[Ground]) -> Mapping[str, None]:
    """Delete what devices keep of a run that did not begin."""
    attempt.files.forget()
    return dict.fromkeys(attempt.told)
