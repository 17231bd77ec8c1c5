"""What every algorithm offers to the communication-round loop, and the table of algorithms by name.

An algorithm is a frozen dataclass: its fields are its hyper-parameters and nothing else. What a run knows lives in the
server state and in each device's state, both NamedTuples of arrays and scalars, so that they can be stored and
compared. Devices are numbered: device k is the k-th id in sorted order, and its column is Theta[:, k].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from numpy.random import Generator

from fedcore.errors import Misuse
from fedcore.messages import DeviceInfo, Stacked, stacked
from fedcore.posterior import AnyPosterior
from fedcore.rows import DeviceData, Floats


class FleetSpec(NamedTuple):
    """What the server knows of a fleet before the first round.

    Attributes
    ----------
    device_ids
        The K device ids, sorted.
    d
        Number of columns of the design.
    """

    device_ids: tuple[str, ...]
    d: int


class Continue(NamedTuple):
    """The run goes on; `phase` is "main" or the name of a warm-up phase."""

    phase: str = "main"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    name
        Short name: `completed`, `converged`, `diverged`, `quorum_lost`.
    message
        A full sentence; where the run failed it says what to try.
    ok
        Whether the result is one to use.
    """

    name: str
    message: str
    ok: bool


class DeviceResult(NamedTuple):
    """What a device ends a run with: its coefficients, shape (d,), and their posterior where the algorithm has one."""

    theta: Floats
    posterior: AnyPosterior | None = None


Server = TypeVar("Server")
Device = TypeVar("Device", bound=tuple[Any, ...])
Down = TypeVar("Down")
Up = TypeVar("Up")


class Aggregated(NamedTuple):
    """What the server made of a round's updates.

    Attributes
    ----------
    server
        The new server state.
    fraction
        The fraction in (0, 1] of each update that was applied; devices are told in their next receipt.
    info
        A NamedTuple of scalars to report, such as the relative change.
    """

    server: Any
    fraction: float
    info: tuple[float, ...]


class Algorithm(Protocol[Server, Device, Down, Up]):
    """A federated algorithm. Steps return new states and change nothing.

    Attributes
    ----------
    SEARCH
        Options that are worth tuning, each with its default first; every combination of them is valid. Steps and batch are not
        among them: they are the local budget, which algorithms are compared at.
    WHOLE
        Whether `aggregate` always applies updates whole.
    FINITE
        Whether an update with a number that is not finite is never taken.
    STEADY
        Whether rounds leave devices' states as they are, so that a device has nothing to remember of them.

    Raises
    ------
    Misuse
        From the constructor on a hyper-parameter out of bounds, from `init_device` on one that is unsafe for the
        device's data.
    """

    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {}
    WHOLE: ClassVar[bool] = True
    FINITE: ClassVar[bool] = True
    STEADY: ClassVar[bool] = False

    def init_server(self, spec: FleetSpec) -> Server:
        """The server's state before the first round."""
        ...

    def init_device(self, spec: FleetSpec, data: DeviceData) -> Device:
        """A device's state before its first round; compressions of its rows live here and never leave the device."""
        ...

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Device]:
        """`init_device` for several devices; overridden where batching pays."""
        return [self.init_device(spec, data) for data in datas]

    def broadcast(self, server: Server, k: int) -> Down:
        """All that device k is told of the server's state."""
        ...

    def broadcasts(self, server: Server, cohort: Sequence[int]) -> Sequence[Down]:
        """`broadcast` for a cohort; overridden where batching pays."""
        return [self.broadcast(server, k) for k in cohort]

    def local_step(self, down: Down, device: Device, data: DeviceData, rng: Generator) -> tuple[Device, Up, DeviceInfo]:
        """One round on a device, on `data.train` only. The new state counts once a receipt says that its update was
        taken."""
        ...

    def local_steps(
        self, downs: Sequence[Down], devices: Sequence[Device], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[Device], Sequence[Up], Sequence[DeviceInfo]]:
        """`local_step` for a cohort, equal to it to the last bit; overridden where batching pays.

        An override that leaves the devices as they were returns the sequence `devices` itself.
        """
        steps = [self.local_step(*each) for each in zip(downs, devices, datas, rngs, strict=True)]
        states, ups, infos = zip(*steps, strict=True)
        return states, ups, infos

    def form(self, spec: FleetSpec, server: Server) -> Up:
        """An update as devices are to send it in the next round, of any values: one of other fields, shapes or types is not taken."""
        ...

    def accept(self, device: Device, pending: Device, fraction: float) -> Device:
        """The device's state once the server has applied `fraction` of the update that led to `pending`, which it is for all of it."""
        return pending

    def accepts(self, devices: Sequence[Device], pending: Sequence[Device], fraction: float) -> Sequence[Device]:
        """`accept` for several devices; overridden where batching pays."""
        return [self.accept(*each, fraction) for each in zip(devices, pending, strict=True)]

    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Up]) -> Aggregated:
        """The round's updates taken into the server's state, `ups` in ascending order of device."""
        ...

    def status(self, server: Server) -> Continue | Outcome:
        """Whether the run goes on, and in which phase."""
        ...

    def finalize(self, down: Down, device: Device, data: DeviceData) -> DeviceResult:
        """A device's result, from its state after its last receipt."""
        ...

    def finalize_devices(self, downs: Sequence[Down], devices: Sequence[Device], datas: Sequence[DeviceData]) -> Sequence[DeviceResult]:
        """`finalize` for several devices, equal to it to the last bit; overridden where batching pays."""
        return [self.finalize(*each) for each in zip(downs, devices, datas, strict=True)]

    def caution(self, server: Server) -> str:
        """What has to be known of the results of a run that ended well, part of a sentence; empty where there is nothing."""
        return ""

    def findings(self, server: Server, spec: FleetSpec) -> dict[str, Any]:
        """What a run has found beside coefficients, by name: finite numbers, or mappings to lists of them; None for what there is not."""
        return {}

    def newcomer(self, server: Server) -> Down:
        """What a device outside the fleet is told, with which `finalize` gives it a result from its initial state.

        Raises
        ------
        Misuse
            Where what the fleet has learned is of no use to another device.
        """
        raise Misuse(f"{type(self).__name__.lower()} learns nothing that other devices can use: adapt a run of hm2, eb, fedavg or pooled")

    def continued_server(self, server: Server, places: Sequence[int | None], spec: FleetSpec) -> Server:
        """The server's state of an ended run, to go on with another fleet: what it took of devices that have left is taken back.

        Parameters
        ----------
        server
            Of the ended run.
        places
            For each device of the new fleet its number in the old one, None for one that joins.
        spec
            The new fleet.

        Raises
        ------
        Misuse
            Where the algorithm cannot go on with another fleet.
        """
        raise Misuse(f"a run of {type(self).__name__.lower()} cannot go on with another fleet: train anew, or use hm2")

    def continued_device(self, device: Device, initial: Device) -> Device:
        """A device's state from its last one in an ended run, accepted by the server, and from the initial one with its rows of now.

        Raises
        ------
        Misuse
            Where the algorithm cannot go on with another fleet.
        """
        raise Misuse(f"a run of {type(self).__name__.lower()} cannot go on with another fleet: train anew, or use hm2")

    def moved(self, down: Down, device: Device, data: DeviceData) -> float | None:
        """How far a device's rows of now would move what the fleet has learned, in nats; None where the algorithm cannot tell.

        Parameters
        ----------
        down
            Of an ended run.
        device
            The device's state as `continued_device` gives it.
        data
            Its rows of now.
        """
        return None


class BatchedAlgorithm(Algorithm[Server, Device, Down, Up], Protocol[Server, Device, Down, Up]):
    """An algorithm written for cohorts, whose single-device steps are cohorts of one.

    Implementers give `init_devices`, `broadcasts` and `local_steps`; an `accept` of theirs takes stacked states too.
    """

    def init_device(self, spec: FleetSpec, data: DeviceData) -> Device:
        return self.init_devices(spec, [data])[0]

    def broadcast(self, server: Server, k: int) -> Down:
        return self.broadcasts(server, [k])[0]

    def local_step(self, down: Down, device: Device, data: DeviceData, rng: Generator) -> tuple[Device, Up, DeviceInfo]:
        devices, ups, infos = self.local_steps([down], [device], [data], [rng])
        return devices[0], ups[0], infos[0]

    def accepts(self, devices: Sequence[Device], pending: Sequence[Device], fraction: float) -> Sequence[Device]:
        if isinstance(devices, Stacked) and isinstance(pending, Stacked):
            return Stacked(self.accept(stacked(devices), stacked(pending), fraction), len(devices))
        return super().accepts(devices, pending, fraction)


AnyAlgorithm = Algorithm[Any, Any, Any, Any]

ALGORITHMS = {
    "ditto": "fedcore.ditto:Ditto",
    "fedavg": "fedcore.fedavg:FedAvg",
    "eb": "fedcore.eb:Eb",
    "hm1": "fedcore.hm1:Hm1",
    "hm2": "fedcore.hm2.hm2:Hm2",
    "mtrl": "fedcore.mtrl:Mtrl",
    "pooled": "fedcore.pooled:Pooled",
    "separate": "fedcore.separate:Separate",
}
"""Algorithm by name: the module and the class. A new algorithm is one file and one line here."""


def algorithm_class(name: str) -> type[AnyAlgorithm]:
    """The class of an algorithm, whose dataclass fields are its options.

    Raises
    ------
    Misuse
        Where no algorithm has this name.
    """
    if name not in ALGORITHMS:
        raise Misuse(f"no algorithm {name!r}: choose one of {', '.join(sorted(ALGORITHMS))}")
    module, _, attribute = ALGORITHMS[name].partition(":")
    return getattr(import_module(module), attribute)
