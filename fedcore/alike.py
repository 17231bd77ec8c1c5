"""Many trees of one form as one tree whose arrays have a leading axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

SCALARS = (bool, int, float, str, np.generic)


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
        return tuple(parts) if kind is tuple else cast("Any", kind)(*parts)
    if kind is np.ndarray:
        first = trees[0].shape, trees[0].dtype, True
        if any((array.shape, array.dtype, array.flags.c_contiguous) != first for array in trees):
            raise _Different
    elif not issubclass(kind, SCALARS):
        raise _Different
    return np.array(trees)
