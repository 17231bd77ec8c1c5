"""Many trees of one form as one tree whose arrays have a leading axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np

SCALARS = (bool, int, float, str, np.generic)

T = TypeVar("T")

_NEW = cast("Any", tuple).__new__
_BY_ROWS, _TYPE = attrgetter("flags.c_contiguous"), attrgetter("dtype")


def together(trees: Sequence[Any]) -> Any:
    """Trees of one form as one of them, its arrays and scalars with a leading axis.

    A tree is a tuple, mostly a NamedTuple, of arrays, scalars, None and further such tuples.

    Parameters
    ----------
    trees
        At least one.

    Returns
    -------
    Any
        None where they are not all of one form: the same classes, shapes and types, all arrays stored by rows, since arithmetic on other
        strides may round otherwise. None too where each of them is None.
    """
    try:
        return _joined(trees)
    except _Different:
        return None


def tuple_like(like: T, parts: Iterable[Any]) -> T:
    """The tuple of these parts of the class that another one is of, as `NamedTuple._make` makes it: one for each device of a fleet."""
    return _NEW(type(like), parts)


class _Different(Exception):
    pass


def _joined(trees: Sequence[Any]) -> Any:
    kind = cast("type[Any]", type(trees[0]))
    if len(set(map(type, trees))) > 1:
        raise _Different
    if kind is type(None):
        return None
    if issubclass(kind, tuple):
        if len(set(map(len, trees))) > 1:
            raise _Different
        parts = [_joined(column) for column in zip(*trees, strict=True)]
        return tuple_like(trees[0], parts)
    if kind is np.ndarray:
        if not all(map(_BY_ROWS, trees)) or list(map(_TYPE, trees)).count(trees[0].dtype) < len(trees):
            raise _Different
    elif not issubclass(kind, SCALARS):
        raise _Different
    try:
        return np.array(trees)
    except ValueError:  # their shapes differ
        raise _Different from None
