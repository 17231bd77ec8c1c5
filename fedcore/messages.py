"""What crosses the boundary between device and server, and nothing else does.

A message is a NamedTuple of float arrays, scalars and further such tuples. The messages of a whole cohort can be held
as one `Stacked`: the same NamedTuple with a leading device axis on every array, which is what batched arithmetic wants,
and which still reads as a sequence of single messages, which is what a fan-out to devices wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from fedcore.alike import apart, mapped, single, together, tuple_like
from fedcore.rows import Scalar

Columns = slice | NDArray[np.intp]

M = TypeVar("M", bound=tuple[Any, ...])

SCALAR_BYTES = 8


class Receipt(NamedTuple):
    """What the server last took of a device: the result of round `round_num`, applied to `fraction` in (0, 1]."""

    round_num: int
    fraction: float


class Empty(NamedTuple):
    """A message with nothing in it."""


class DeviceInfo(NamedTuple):
    """What a device reports of a round beside its update.

    Attributes
    ----------
    loss
        Mean squared training error at the estimate that the local steps reached, in squared target units.
    """

    loss: Scalar


class Broadcast(NamedTuple):
    """All that one device is told in one round.

    Attributes
    ----------
    round_num
        The round.
    devices
        How many devices it was drawn with, this one among them.
    receipt
        None before anything was taken of the device.
    down
        The algorithm's own message.
    """

    round_num: int
    devices: int
    receipt: Receipt | None
    down: Any


class Reply(NamedTuple):
    """All that one device answers in one round: its update and its info, each a `fedcore.alike.Member` where a cohort answers as one."""

    up: Any
    info: DeviceInfo


def nbytes(message: object) -> int:
    """Size of a message in bytes: its arrays' own, UTF-8 for text, and 8 for every other scalar; names of a mapping count too."""
    if isinstance(message, np.ndarray):
        return message.nbytes
    if isinstance(message, Stacked):
        return nbytes(cast("Stacked[Any]", message).fields)
    if isinstance(message, str):
        return len(message.encode())
    if isinstance(message, Sequence):
        return sum(map(nbytes, cast("Sequence[object]", message)))
    if isinstance(message, Mapping):
        return sum(map(nbytes, cast("Mapping[object, object]", message).items()))
    return 0 if message is None else SCALAR_BYTES


def all_finite(message: object) -> bool:
    """Whether all of a message's numbers are finite."""
    if isinstance(message, tuple):
        return all(map(all_finite, cast("tuple[object, ...]", message)))
    return message is None or bool(np.isfinite(cast("Any", message)).all())


class Stacked(Sequence[M]):
    """Messages of m devices as one NamedTuple whose arrays carry a leading axis of length m."""

    def __init__(self, fields: M, length: int) -> None:
        self.fields = fields
        self.length = length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> M: ...
    @overload
    def __getitem__(self, index: slice) -> Stacked[M]: ...
    def __getitem__(self, index: int | slice) -> M | Stacked[M]:
        if isinstance(index, slice):
            return self.take(range(self.length)[index])
        if not -self.length <= index < self.length:
            raise IndexError(index)
        return mapped(itemgetter(index), self.fields)

    def __iter__(self) -> Iterator[M]:
        return iter(self._single)

    @cached_property
    def _single(self) -> list[M]:
        """The same objects whenever they are looked through: a step may return what it was given."""
        return apart(self.fields, self.length)

    def take(self, positions: Sequence[int]) -> Stacked[M]:
        """The messages at these positions, in this order."""
        chosen = np.asarray(positions, dtype=np.intp)
        return Stacked(mapped(itemgetter(chosen), self.fields), len(chosen))


def stacked(messages: Sequence[M]) -> M:
    """The messages' fields with a leading device axis, shape (m, ...).

    Parameters
    ----------
    messages
        At least one message, all of one type and shape; the fields of a `Stacked` are returned as they are.
    """
    if isinstance(messages, Stacked):
        return messages.fields
    return _joined(messages)


def alike(messages: Sequence[M]) -> Sequence[M]:
    """The same messages, as a `Stacked` where all are of one form: it is looked through and added up at once. Others are a message each,
    and none a `fedcore.alike.Member`."""
    if isinstance(messages, Stacked) or len(messages) == 0:
        return messages
    fields = together(messages)
    return list(map(single, messages)) if fields is None else Stacked(cast("M", fields), len(messages))


def take(messages: Sequence[M], positions: Sequence[int]) -> Sequence[M]:
    """The messages at these positions, in this order, held as they were held."""
    if hasattr(messages, "take"):
        return cast("Stacked[M]", messages).take(positions)
    return [messages[position] for position in positions]


def columns(cohort: Sequence[int], K: int) -> Columns:
    """The cohort as an index of columns, which costs nothing where it is the whole fleet of K devices."""
    return slice(None) if len(cohort) == K else np.asarray(cohort, dtype=np.intp)


def _joined(messages: Sequence[M]) -> M:
    columns: Iterator[tuple[Any, ...]] = zip(*messages, strict=True)
    return tuple_like(messages[0], (_joined(column) if isinstance(column[0], tuple) else np.array(column) for column in columns))
