"""What is done on a device: each task opens one device's own folder and nothing else.

Rows, compressions and the device's state live in `device=<id>/` below the data set's folder. What leaves a task is a
message, or a `DeviceFailure` that says where and of what kind, never what the failing code said: such text quotes data.
The full traceback is written beside the device's state, for whoever may read its rows.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from fedcore.algorithm import AnyAlgorithm, DeviceResult, FleetSpec
from fedcore.comparison import HURT
from fedcore.data import Dataset, DeviceCard, DeviceSummary
from fedcore.data.disclosure import check_cohort, check_fleet, check_parameters, check_rows, scored_rows
from fedcore.data.places import Place, discard, make_folder, read_file, write_durably
from fedcore.errors import DataError, DeviceFailure, DeviceRefusal, FedlinError, Misuse, PlaceAway
from fedcore.messages import Broadcast, Receipt, Reply
from fedcore.metrics import Score, covered, score, squared_errors
from fedcore.posterior import AnyPosterior
from fedcore.receipts import Memory, settle
from fedcore.rounds import device_rng
from fedcore.rows import DeviceData, Floats
from fedcore.selection import Paired, paired
from fedcore.separate import separate_rival
from fedcore.trees import dump, load

G = TypeVar("G", bound="Ground")
P = ParamSpec("P")
R = TypeVar("R")

RETRIES = 2


class Ground:
    """Where all device tasks of a run work. (A plain class: Prefect looks into tuples and dataclasses for futures, task
    by task.)

    Attributes
    ----------
    run_id
        The run.
    dataset
        The way to the devices' partitions.
    devices
        How many take part.
    """

    def __init__(self, run_id: str, dataset: Dataset, devices: int) -> None:
        self.run_id = run_id
        self.dataset = dataset
        self.devices = devices

    def state_folder(self, device_id: str) -> Place:
        """Where a device keeps its own things, below its partition's folder."""
        return self.dataset.path / f"device={device_id}" / ".fedlin"


class Station(Ground):
    """What all device tasks that train share.

    Attributes
    ----------
    algorithm, spec, seed
        What is run.
    """

    def __init__(self, run_id: str, dataset: Dataset, algorithm: AnyAlgorithm, spec: FleetSpec, seed: int) -> None:
        super().__init__(run_id, dataset, len(spec.device_ids))
        self.algorithm = algorithm
        self.spec = spec
        self.seed = seed


class Earlier(NamedTuple):
    """A run that a device has taken part in, and what its server last took of the device."""

    run_id: str
    receipt: Receipt | None


class Kept(NamedTuple):
    """A device's state file: whose it is, its memory, and the fingerprint of the rows that it was made from."""

    device: str
    fingerprint: str
    memory: Memory


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
    """

    device: str
    n_train: int
    theta: Floats
    test: Score
    test_separate: Score
    posterior: AnyPosterior | None
    excess: Paired
    covered: tuple[int, ...] | None

    @property
    def hurt(self) -> bool:
        """Whether federation made it worse by more than its few test rows explain; see `fedcore.comparison.HURT`."""
        return self.excess.mean > HURT * self.excess.se


def sealed(stage: str) -> Callable[[Callable[Concatenate[G, str, P], R]], Callable[Concatenate[G, str, P], R]]:
    """Let no exception of a device's own leave it: only its kind, and the texts of fedlin's own errors, which hold no
    values."""

    def decorate(function: Callable[Concatenate[G, str, P], R]) -> Callable[Concatenate[G, str, P], R]:
        @functools.wraps(function)
        def run(ground: G, device_id: str, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(ground, device_id, *args, **kwargs)
            except DeviceFailure as error:
                failure = type(error)(f"device {device_id}: {error}")
            except DataError as error:  # it names the device's own file
                failure = DeviceRefusal(str(error))
            except PlaceAway as error:
                failure = DeviceFailure(f"device {device_id}: {error}")
            except FedlinError as error:
                failure = DeviceRefusal(f"device {device_id}: {error}")
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # polars' panics and a library's exit too: whatever it says may quote rows
                kept = _keep_traceback(ground, device_id)
                failure = DeviceFailure(f"device {device_id}: {type(error).__name__} in its {stage}; {kept}")
            # Raised out here the failure has no context, so nothing that formats or pickles it can reach the original.
            raise failure

        return run

    return decorate


@sealed("check")
def device_check(station: Station, device_id: str) -> DeviceCard:
    """What enrolment will say of a device, without keeping anything.

    Raises
    ------
    DeviceRefusal
        Where its rows break the contract, its disclosure rules forbid to tell of them, or an option is unsafe for them.
    DeviceFailure
        Where its own code fails.
    """
    return _initial(station, device_id)[0]


def _initial(station: Station, device_id: str) -> tuple[DeviceCard, Any]:
    """What may be told of a device's rows, and the algorithm's initial state, which stays here."""
    data, card = examined(station, device_id)
    return card, station.algorithm.init_device(station.spec, data)


def examined(station: Station, device_id: str) -> tuple[DeviceData, DeviceCard]:
    """A device's rows, which stay here, and what may be told of them.

    Raises
    ------
    DataError
        Where they break the contract, or its disclosure rules forbid to tell of them.
    """
    contract, where = station.dataset.contract, f"device={device_id}"
    check_fleet(station.devices, contract, where)
    _own_folder(station, device_id)
    data, card = station.dataset.loaded(device_id)
    check_rows(data.train.n, contract, where)
    check_parameters(data.train.d, data.train.n, contract, where)
    return data, card


def _keep_traceback(ground: Ground, device_id: str) -> str:
    name = f"{ground.run_id}.error.txt"
    try:
        folder = ground.state_folder(device_id)
        make_folder(folder)
        write_durably(folder / name, traceback.format_exc().encode(errors="replace"))
    except OSError:
        return "its folder cannot be written, so the details are lost"
    return f"the details are in its own folder, .fedlin/{name}"


def _worth_retrying(task: Any, task_run: Any, state: Any) -> bool:
    return not isinstance(state.result(raise_on_failure=False), DeviceRefusal)


device_task: dict[str, Any] = {
    "retries": RETRIES,
    "retry_delay_seconds": exponential_backoff(backoff_factor=1),
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": _worth_retrying,
    # Inputs hold messages and results hold estimates: hashing or storing them would cost more than the step itself.
    "cache_policy": NO_CACHE,
    "persist_result": False,
}


@task(name="device-summarise", task_run_name="summarise {device_id}", **device_task)
@sealed("summary")
def device_summarise(ground: Ground, device_id: str) -> DeviceSummary:
    """What a device tells of its training segment for the fleet's preprocessing."""
    check_fleet(ground.devices, ground.dataset.contract, f"device={device_id}")
    return ground.dataset.summary(device_id)


@task(name="device-enrol", task_run_name="enrol {device_id}", **device_task)
@sealed("enrolment")
def device_enrol(station: Station, device_id: str, earlier: Earlier | None) -> DeviceCard:
    """Check a device's partition, compress its rows, and keep its initial state on the device; or the one that it goes on from."""
    card, device = _initial(station, device_id)
    if earlier:
        before = settle(station.algorithm, recall(station, device_id, earlier.run_id).memory, earlier.receipt)
        device = station.algorithm.continued_device(before.accepted, device)
    _keep(station, device_id, Kept(device_id, card.sha256, Memory.initial(device)))
    return card


@task(name="device-update", task_run_name="round {broadcast.round_num} {device_id}", **device_task)
@sealed("local step")
def device_update(station: Station, device_id: str, broadcast: Broadcast) -> Reply:
    """One round on one device: settle the receipt, take the local step, keep the result as pending, and answer."""
    data, kept, memory = settled(station, device_id, broadcast)
    rng = device_rng(station.seed, broadcast.round_num, device_id)
    state, up, info = station.algorithm.local_step(broadcast.down, memory.accepted, data, rng)
    _keep(station, device_id, kept._replace(memory=memory.awaiting(state, broadcast.round_num)))
    return Reply(up, info)


@task(name="device-finalize", task_run_name="finalize {device_id}", **device_task)
@sealed("final step")
def device_finalize(station: Station, device_id: str, broadcast: Broadcast, drawn: Sequence[int]) -> DeviceReport:
    """A device's result and its scores; `drawn` are the rounds that it was drawn in, for the rival that works alone."""
    data, kept, memory = settled(station, device_id, broadcast)
    _keep(station, device_id, kept._replace(memory=memory))
    return reported(station, device_id, data, station.algorithm.finalize(broadcast.down, memory.accepted, data), drawn)


def reported(station: Station, device_id: str, data: DeviceData, result: DeviceResult, drawn: Sequence[int]) -> DeviceReport:
    """What a device tells of its result, beside what it reaches on its own in the rounds that are drawn."""
    own, test = _alone(station, device_id, data, drawn), scored_rows(data.test, station.dataset.contract)
    excess = paired(squared_errors(result, test), squared_errors(own, test))
    counts = covered(result.posterior, test) if result.posterior else None
    return DeviceReport(device_id, data.train.n, result.theta, score(result, test), score(own, test), result.posterior, excess, counts)


def _alone(station: Station, device_id: str, data: DeviceData, drawn: Sequence[int]) -> DeviceResult:
    """What a device reaches on its own in these rounds; see `separate_rival`."""
    rival, fleet = separate_rival(station.algorithm), FleetSpec((device_id,), station.spec.d)
    server, device = rival.init_server(fleet), rival.init_device(fleet, data)
    for round_num in drawn:
        rng = device_rng(station.seed, round_num, device_id)
        device, up, _ = rival.local_step(rival.broadcast(server, 0), device, data, rng)
        server = rival.aggregate(server, [0], [up]).server
    return rival.finalize(rival.broadcast(server, 0), device, data)


def settled(station: Station, device_id: str, broadcast: Broadcast) -> tuple[DeviceData, Kept, Memory]:
    """A device's rows, what it keeps of this run, and its memory after the broadcast's receipt.

    Raises
    ------
    DeviceRefusal
        Where its rows or its state are not those that it took part with, or the round was drawn with too few devices.
    DeviceFailure
        Where it does not remember the update of the receipt.
    """
    check_cohort(broadcast.devices, station.dataset.contract, f"device={device_id}")
    data, card = station.dataset.loaded(device_id)
    kept = recall(station, device_id, station.run_id)
    if kept.fingerprint != card.sha256:
        raise DeviceRefusal("its partition has changed since the run began: start a new run")
    return data, kept, settle(station.algorithm, kept.memory, broadcast.receipt)


@task(name="device-forget", task_run_name="forget {device_id}", **device_task)
@sealed("clearing up")
def device_forget(ground: Ground, device_id: str) -> None:
    """Delete what a device keeps of a run that did not begin."""
    discard(ground.state_folder(device_id) / f"{ground.run_id}.npz")


def _own_folder(station: Station, device_id: str) -> Place:
    folder = station.state_folder(device_id)
    if folder.is_symlink():
        raise DeviceRefusal("its .fedlin is a link, and its state may not leave its own folder: replace the link by a folder")
    return folder


def _keep(station: Station, device_id: str, kept: Kept) -> None:
    folder = _own_folder(station, device_id)
    make_folder(folder)
    write_durably(folder / f"{station.run_id}.npz", dump(kept))


def recall(station: Station, device_id: str, run_id: str) -> Kept:
    """What a device keeps of a run.

    Raises
    ------
    DeviceRefusal
        Where that is missing, damaged, or another device's.
    """
    try:
        kept: Kept = load(read_file(station.state_folder(device_id) / f"{run_id}.npz"))
    except PlaceAway:
        raise
    except (Misuse, OSError):
        refusal = f"its state of run {run_id} is missing or damaged: restore the device's .fedlin folder, or start a new run"
        raise DeviceRefusal(refusal) from None
    if kept.device != device_id:
        raise DeviceRefusal(f"its folder holds the state of device {kept.device}: give the folders their names back")
    return kept
