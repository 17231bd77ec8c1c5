"""Which of a round's messages are not taken: those that are not as the algorithm's are, and those that are not finite.

A reason names a field, shapes and types, and never a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedcore.messages import DeviceInfo, Stacked, all_finite

INFO = DeviceInfo(0.0)

NUMBERS = (int, float, np.ndarray, np.generic)
FLOAT = np.dtype(np.float64)


class Faults(NamedTuple):
    """What is wrong with some of the messages of a cohort, by position.

    Attributes
    ----------
    malformed
        Other fields, shapes or types than the algorithm's messages have.
    not_finite
        The right form, with a number in it that is not finite. Where local steps overflow, messages of sound devices are that too.
    """

    malformed: dict[int, str]
    not_finite: dict[int, str]


def faults(ups: Sequence[Any], infos: Sequence[Any], form: object, *, finite: bool = True) -> Faults:
    """Look through a round's messages.

    Parameters
    ----------
    ups, infos
        What m devices sent.
    form
        An update as the algorithm expects it now, of any values; see `Algorithm.form`.
    finite
        Whether numbers that are not finite are a fault.
    """
    malformed = _malformed(infos, INFO) | _malformed(ups, form)
    if not finite:
        return Faults(malformed, {})
    return Faults(malformed, _not_finite(infos, malformed) | _not_finite(ups, malformed))


def _malformed(messages: Sequence[Any], form: object) -> dict[int, str]:
    if isinstance(messages, Stacked):  # one form for all
        misfit = _misfit(messages.fields, form, shared=1)
        return dict.fromkeys(range(len(messages)), misfit.told) if misfit else {}
    return {i: misfit.told for i, message in enumerate(messages) if (misfit := _misfit(message, form))}


class _Misfit(NamedTuple):
    """Where a message differs from the form, by the fields that lead there, and how."""

    path: tuple[str, ...]
    why: str

    @property
    def told(self) -> str:
        return f"{'.'.join(self.path) or 'update'} is {self.why}"


def _misfit(message: Any, form: Any, shared: int = 0) -> _Misfit | None:
    """The first place where a message, or messages that share 1 leading axis, differ from the form; words are only looked for there."""
    if _nested(form):
        if type(message) is not type(form):
            return _Misfit((), f"a {type(message).__name__}, expected {type(form).__name__}")
        mine, theirs = _parts(message), _parts(form)
        if len(mine) != len(theirs):
            return _Misfit((), f"of {len(mine)} fields, expected {len(theirs)}")
        for i, (part, as_in) in enumerate(zip(mine, theirs, strict=True)):
            if within := _misfit(part, as_in, shared):
                return _Misfit((_names(form, "")[i], *within.path), within.why)
        return None
    if not isinstance(message, NUMBERS):
        return _Misfit((), f"a {type(message).__name__}, expected numbers")
    array, expected = np.asarray(message), np.shape(form)
    shape = array.shape[shared:]
    if shape != expected:
        return _Misfit((), f"of shape {shape}, expected {expected}")
    # A count may be whole.
    if array.dtype != FLOAT and not (shape == () and array.dtype.kind in "iu"):
        # The name of a text's type has the length of the longest of the cohort.
        return _Misfit((), f"of type {'text' if array.dtype.kind == 'U' else array.dtype.name}, expected float64")
    return None


def _not_finite(messages: Sequence[Any], malformed: dict[int, str]) -> dict[int, str]:
    if isinstance(messages, Stacked):
        if malformed:
            return _not_finite(list(messages), malformed)
        if all_finite(messages.fields):
            return {}
        sound, found = np.ones(len(messages), dtype=bool), dict[int, str]()
        for name, numbers in _leaves(messages.fields, ""):
            finite = np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
            found |= dict.fromkeys(np.flatnonzero(sound & ~finite).tolist(), f"{name} is not finite")
            sound &= finite
        return found
    return {
        i: f"{name} is not finite"
        for i, message in enumerate(messages)
        if i not in malformed and (name := next((name for name, numbers in _leaves(message, "") if not np.isfinite(numbers).all()), ""))
    }


def _leaves(message: Any, name: str) -> list[tuple[str, Any]]:
    """A message's numbers, by the names of their fields."""
    if _nested(message):
        each = zip(_names(message, name), _parts(message), strict=True)
        return [leaf for field, part in each for leaf in _leaves(part, field)]
    return [(name, np.asarray(message))]


def _nested(message: object) -> bool:
    return message is None or isinstance(message, tuple)


def _parts(message: Any) -> tuple[Any, ...]:
    return message or ()


def _names(message: Any, name: str) -> list[str]:
    fields = getattr(message, "_fields", range(len(_parts(message))))
    return [f"{name}.{field}" if name else str(field) for field in fields]
