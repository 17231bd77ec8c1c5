"""Messages of expectation propagation, for a cohort at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from fedcore.messages import Stacked
from fedcore.rows import Booleans, Floats, Scalar
from fedcore.sums import added

M = TypeVar("M", bound=tuple[Any, ...])


def to_all(message: M, m: int) -> Stacked[M]:
    """A message, of numbers and arrays, to each of m devices."""

    def repeat(value: Scalar) -> Floats:
        array = np.asarray(value, dtype=np.float64)
        return np.broadcast_to(array, (m, *array.shape))

    return Stacked(_each(repeat, message), m)


def alike(message: M) -> M:
    """What all devices were sent alike; () stays what it is."""
    return Stacked(message, 1)[0] if message else message


def at(up: Any, rows: Booleans) -> Any:
    """The messages of some of m devices; `rows` says of which, shape (m,)."""
    return _each(lambda part: part[rows], up)


def added_to(total: Any, up: Any) -> Any:
    """A sum with the messages of m devices added; () stands for none yet."""
    return added(total or _each(lambda part: np.zeros(part.shape[1:]), up), up)


def _each(function: Callable[[Any], Any], message: M) -> M:
    """The message whose arrays are the function of these."""
    parts = (_each(function, cast("Any", part)) if isinstance(part, tuple) else function(part) for part in message)
    return cast("Any", type(message))(*parts)
