"""Many trees of one form as one tree whose arrays have a leading axis, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

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
        At least one. They, or parts of them, may be each a `Member`.

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


class Member:
    """One of several trees that are held as one with a leading axis. It becomes a tree of its own when somebody looks at it alone, which
    costs more than most steps: those of a whole fleet are passed on as they are.

    Attributes
    ----------
    of
        The tree of them all.
    at
        Its position among them.
    """

    __slots__ = ("at", "of")

    def __init__(self, of: Any, at: int) -> None:
        self.of = of
        self.at = at

    @property
    def tree(self) -> Any:
        """The tree itself; its arrays are parts of those of them all."""
        return mapped(self._part, self.of)

    def _part(self, array: NDArray[Any]) -> Any:
        part = array[self.at]
        return str(part) if isinstance(part, np.str_) else part


def members(of: Any, length: int) -> list[Member]:
    """Each of the trees that one with a leading axis of this length stands for."""
    return [Member(of, at) for at in range(length)]


def single(tree: Any) -> Any:
    """A tree itself, where it is a `Member`; else as it is."""
    return tree.tree if isinstance(tree, Member) else tree


def all_single(tree: Any) -> Any:
    """A tree in which no part is a `Member`."""
    if not isinstance(tree, tuple):
        return single(tree)
    parts = cast("tuple[Any, ...]", tree)
    return tuple_like(parts, map(all_single, parts))


def apart(tree: Any, length: int, classes: Collection[type[Any]] | None = None) -> list[Any]:
    """The trees that one with a leading axis of this length stands for.

    Parameters
    ----------
    tree, length
        Arrays with a leading axis, None, and tuples of such.
    classes
        The tuples of these classes are taken apart, and others below them become each a `Member`; by default all are taken apart.
    """
    if isinstance(tree, np.ndarray):
        array = cast("NDArray[Any]", tree)
        return array.tolist() if array.dtype.kind == "U" else list(array)
    if not tree:  # None, or a tuple of nothing
        return [tree] * length
    if classes is not None and type(tree) not in classes:
        return members(tree, length)
    return [tuple_like(tree, parts) for parts in zip(*(apart(part, length, classes) for part in tree), strict=True)]


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """The tree whose arrays and scalars are a function of those of trees of one form."""
    if isinstance(trees[0], tuple):
        first = cast("tuple[Any, ...]", trees[0])
        return tuple_like(first, (mapped(function, *parts) for parts in zip(*trees, strict=True)))
    return None if trees[0] is None else function(*trees)


class _Different(Exception):
    pass


def _joined(trees: Sequence[Any]) -> Any:
    kinds = set(map(type, trees))
    if Member in kinds:
        if len(kinds) == 1:
            with suppress(_Different):
                return _gathered(trees)
        trees = list(map(single, trees))
        kinds = set(map(type, trees))
    if len(kinds) > 1:
        raise _Different
    kind = cast("type[Any]", type(trees[0]))
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


def _gathered(trees: Sequence[Member]) -> Any:
    """The same of trees that are members already: mostly of one tree, all of them and in order, which it is then."""
    wholes = {id(each.of): each.of for each in trees}
    places: dict[int, list[int]] = {which: [] for which in wholes}
    for i, each in enumerate(trees):
        places[id(each.of)].append(i)
    m, at = len(trees), np.array([each.at for each in trees])
    in_order = len(wholes) == 1 and np.array_equal(at, np.arange(m))

    def gathered(*columns: Any) -> Any:
        first = columns[0]
        if any((each.dtype, each.shape[1:]) != (first.dtype, first.shape[1:]) or not _BY_ROWS(each[0]) for each in columns):
            raise _Different
        if in_order and len(first) == m:
            return first
        found = np.empty((m, *first.shape[1:]), first.dtype)
        for each, here in zip(columns, places.values(), strict=True):
            found[here] = each[at[here]]
        return found

    if len(set(map(_classes, wholes.values()))) > 1:
        raise _Different
    return mapped(gathered, *wholes.values())


def _classes(tree: Any) -> Any:
    if not isinstance(tree, tuple):
        return tree is None
    parts = cast("tuple[Any, ...]", tree)
    return (type(parts), *map(_classes, parts))
