"""What the messages of letters hold: what devices are told, and what they answer. Nothing is pickled (see `fedcore.trees`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.data import DeviceCard, DeviceSummary
from fedcore.errors import DeviceAway, DeviceFailure, DeviceLate, DeviceRefusal, Misuse
from fedcore.messages import Broadcast, Reply
from fedcore.trees import dump, load
from tasks.device import DeviceReport
from tasks.ground import Earlier
from tasks.sites.letters import NAME, UUID, Untrusted

LONGEST = 500
"""Characters of a reason."""


class Described(NamedTuple):
    """The devices that a site has of a data set, sorted."""

    devices: tuple[str, ...]


ANSWERS: Mapping[str, type[Any]] = {
    "describe": Described,
    "summarise": DeviceSummary,
    "enrol": DeviceCard,
    "update": Reply,
    "finalize": DeviceReport,
    "forget": NoneType,
}
"""What a device answers, by step; a site itself to `describe`."""

TOLD: Mapping[str, tuple[type[Any], ...]] = {
    "describe": (),
    "summarise": (),
    "enrol": (Earlier | NoneType,),  # pyright: ignore[reportAssignmentType]
    "update": (Broadcast,),
    "finalize": (Broadcast, list),
    "forget": (),
}
"""What a device is told, by step."""

FAILURES = {kind.__name__: kind for kind in (DeviceFailure, DeviceAway, DeviceLate, DeviceRefusal)}


class Numbers(NamedTuple):
    """A list of whole numbers."""

    values: NDArray[np.int64]


class Pairs(NamedTuple):
    """A mapping."""

    items: tuple[tuple[str, int | None], ...]


class Said(NamedTuple):
    """What is told to a device, or by it."""

    device: str
    what: Any


class Failed(NamedTuple):
    """Why a device has no answer."""

    device: str
    kind: str
    why: str


class Request(NamedTuple):
    """What a site's devices are to know.

    Attributes
    ----------
    devices, d
        How many take part in the whole fleet, and the width of the design, 0 where it is not known yet.
    seed, deadline
        Of the run.
    fitted
        The fleet's preprocessing as JSON, empty without.
    told
        For each device that is asked.
    """

    devices: int
    d: int
    seed: int
    deadline: float | None
    fitted: str
    told: tuple[Said, ...]


class Answer(NamedTuple):
    """What a site's devices answer, and why others do not."""

    answers: tuple[Said, ...]
    failed: tuple[Failed, ...]


def packed(message: Request | Answer) -> bytes:
    """A message as it travels."""
    return dump(_plain(message))


def unpacked(raw: bytes, kind: type[Any]) -> Any:
    """The message that `packed` made; the classes of its parts have to be known.

    Raises
    ------
    Untrusted
        Where it is none of this kind.
    """
    try:
        found = _whole(load(raw))
    except Misuse:
        found = None
    if not isinstance(found, kind):
        raise Untrusted("its message is damaged, or of another version of fedlin")
    return found


def suits(step: str, device: str, what: Any) -> bool:
    """Whether a device may be told this: files that it is told of are its own."""
    kinds = TOLD[step]
    if not isinstance(what, tuple) or len(what) != len(kinds) or not all(map(isinstance, what, kinds)):
        return False
    earlier = [each for each in what if isinstance(each, Earlier)]
    return all(each.owner == device and NAME.fullmatch(each.run_id) and UUID.fullmatch(each.run_uuid) for each in earlier)


def checked(answer: Answer, step: str, asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, DeviceFailure]]:
    """What devices have answered, and why the others that were asked have not.

    Raises
    ------
    Untrusted
        Where it is no answer to what was asked.
    """
    said = {each.device: each.what for each in answer.answers}
    failed = {each.device: FAILURES.get(each.kind, DeviceFailure)(shown(each.why)) for each in answer.failed}
    if set(said) | set(failed) != set(asked) or set(said) & set(failed):
        raise Untrusted(f"it answers for other devices than the {len(asked)} that were asked")
    if not all(isinstance(what, ANSWERS[step]) for what in said.values()):
        raise Untrusted(f"it holds something else than answers to {step}")
    return said, failed


def shown(why: object) -> str:
    """A reason from elsewhere as one line of bounded length."""
    return "".join(each if each.isprintable() else " " for each in str(why))[:LONGEST]


def _plain(tree: Any) -> Any:
    """The same with lists and mappings as what a tree may hold."""
    if isinstance(tree, list):
        return Numbers(np.array(tree, dtype=np.int64))
    if isinstance(tree, Mapping):
        return Pairs(tuple(tree.items()))
    if isinstance(tree, tuple):
        parts = [_plain(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def _whole(tree: Any) -> Any:
    if isinstance(tree, Numbers):
        return tree.values.tolist()
    if isinstance(tree, Pairs):
        return dict(tree.items)
    if isinstance(tree, tuple):
        parts = [_whole(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree
