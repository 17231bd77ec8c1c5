"""States as named arrays and back, so that they can be kept in an npz file without pickling anything.

A state is a NamedTuple of arrays, scalars and further such tuples, plain ones too. Its leaves are stored under dotted names
(`server.Theta`); its classes are noted beside them, and on the way back only classes are taken that this process has
already imported.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedcore.alike import together
from fedcore.errors import Misuse

Arrays = dict[str, NDArray[Any]]

STRUCTURE = "structure"
LAYOUT = "layout"
TEXT = "text"
FOREIGN = "the file does not hold a state of this version of fedlin: restore it, or start a new run"
SCALARS = {"float": float, "int": int, "bool": bool, "str": str}


class Several(NamedTuple):
    """States of several devices. Those of one form are one tree, whose arrays have a leading axis.

    Attributes
    ----------
    trees
        One a form.
    places
        One a form: the positions of its s states, ascending, shape (s,).
    """

    trees: tuple[Any, ...]
    places: tuple[NDArray[np.int64], ...]


def npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays of any shape as the bytes of an npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **cast("Any", arrays))
    return buffer.getvalue()


def from_npz(raw: bytes) -> Arrays:
    """The arrays of an npz file.

    Raises
    ------
    Misuse
        Where it is damaged.
    """
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            return dict(stored)
    except Exception:  # zip files can be damaged in more ways than their reader has exceptions for
        raise Misuse("the file is damaged: restore it, or start a new run") from None


def pack(tree: object) -> Arrays:
    """The leaves of a state by dotted name, and its structure as JSON text under `structure`."""
    leaves: Arrays = {}
    structure = _describe(tree, "", leaves)
    return {STRUCTURE: np.array(json.dumps(structure)), **leaves}


def unpack(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The state that `pack` stored, its arrays of the same shape and equal to the bit.

    Raises
    ------
    Misuse
        Where the structure names a class that is not a NamedTuple of a module in use, or a leaf is missing.
    """
    try:
        return _rebuild(json.loads(str(arrays[STRUCTURE])), "", arrays)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise Misuse(FOREIGN) from None


def dump(tree: object) -> bytes:
    """A state as the bytes of an npz file that holds one array for each type of number, and a text with all else.

    An entry for each leaf, as in `npz(pack(tree))`, can be looked at by name but takes 0.1 ms, and a device that takes part in many trials
    has hundreds of leaves.
    """
    leaves: Arrays = {}
    structure = _describe(tree, "", leaves)
    joined: dict[str, list[NDArray[Any]]] = {}
    layout: list[tuple[str, str, tuple[int, ...], Any]] = []
    for name, leaf in leaves.items():
        if leaf.dtype.kind == "U":
            layout.append((name, TEXT, leaf.shape, leaf.ravel().tolist()))
            continue
        order = "F" if leaf.flags.f_contiguous and not leaf.flags.c_contiguous else "C"
        joined.setdefault(leaf.dtype.name, []).append(leaf.ravel(order))
        layout.append((name, leaf.dtype.name, leaf.shape, order))
    arrays = {kind: np.concatenate(parts) for kind, parts in joined.items()}
    return npz({LAYOUT: np.frombuffer(json.dumps([structure, layout]).encode(), np.uint8), **arrays})


def load(raw: bytes) -> Any:
    """The state that `dump` stored, equal to the bit.

    Raises
    ------
    Misuse
        Where the file is damaged, or does not hold a state of this version.
    """
    joined = from_npz(raw)
    read = dict.fromkeys(joined, 0)
    leaves: Arrays = {}
    try:
        structure, layout = json.loads(joined[LAYOUT].tobytes())
        for name, kind, shape, more in layout:
            if kind == TEXT:
                leaves[name] = np.array(more, dtype=np.str_).reshape(shape)
                continue
            begin = read[kind]
            read[kind] += math.prod(shape)
            leaves[name] = joined[kind][begin : read[kind]].reshape(shape, order=more).copy("K")
        return _rebuild(structure, "", leaves)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise Misuse(FOREIGN) from None


def dump_all(trees: Sequence[object]) -> bytes:
    """Several states as the bytes of one npz file, those of one form with one array a leaf; a single one as `dump` stores it."""
    if len(trees) == 1:
        return dump(trees[0])
    if (whole := together(trees)) is not None:
        return dump(Several((whole,), (np.arange(len(trees)),)))
    forms: dict[Any, list[int]] = {}
    for i, tree in enumerate(trees):
        forms.setdefault(_form(tree), []).append(i)
    joined = tuple(together([trees[i] for i in places]) if len(places) > 1 else trees[places[0]] for places in forms.values())
    return dump(Several(joined, tuple(np.array(places) for places in forms.values())))


def load_all(raw: bytes) -> list[Any]:
    """The states that `dump_all` stored, with numbers equal to the bit.

    Raises
    ------
    Misuse
        As `load` does.
    """
    found = load(raw)
    if not isinstance(found, Several):
        return [found]
    trees: list[Any] = [None] * sum(map(len, found.places))
    for tree, places in zip(found.trees, found.places, strict=True):
        for i, one in zip(places.tolist(), _split(tree, len(places)) if len(places) > 1 else [tree], strict=True):
            trees[i] = one
    return trees


def _form(tree: object) -> Any:
    """What states have in common that can share arrays: classes, shapes and types. What is stored by columns has a form of its own, since
    arithmetic on strides may round otherwise."""
    if isinstance(tree, tuple):
        return (type(cast("object", tree)), *map(_form, cast("tuple[object, ...]", tree)))
    if isinstance(tree, np.ndarray):
        array = cast("NDArray[Any]", tree)
        return (array.shape, array.dtype) if array.flags.c_contiguous else object()
    return getattr(tree, "dtype", type(tree))


def _split(tree: Any, length: int) -> list[Any]:
    if isinstance(tree, np.ndarray):
        array = cast("NDArray[Any]", tree)
        return array.tolist() if array.dtype.kind == "U" else list(array)
    if not tree:  # None, or a tuple of nothing
        return [tree] * length
    return [_like(tree, row) for row in zip(*(_split(part, length) for part in tree), strict=True)]


def _like(tree: Any, parts: Sequence[Any]) -> Any:
    return tuple(parts) if type(tree) is tuple else type(tree)(*parts)


def _describe(tree: object, name: str, leaves: Arrays) -> Any:
    if tree is None:
        return None
    if type(tree) is tuple:
        return [_describe(part, f"{name}.{i}" if name else str(i), leaves) for i, part in enumerate(cast("tuple[object, ...]", tree))]
    if isinstance(tree, tuple):
        fields: dict[str, object] = cast("Any", tree)._asdict()
        parts = {field: _describe(value, f"{name}.{field}" if name else field, leaves) for field, value in fields.items()}
        made: type[object] = type(cast("object", tree))
        return {"class": f"{made.__module__}:{made.__qualname__}", "fields": parts}
    leaves[name] = np.asarray(tree)
    if isinstance(tree, np.generic):
        return "scalar"
    kind = type(tree).__name__
    return kind if kind in SCALARS else "array"


def _rebuild(structure: Any, name: str, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if structure is None:
        return None
    if isinstance(structure, list):
        parts = cast("list[Any]", structure)
        return tuple(_rebuild(part, f"{name}.{i}" if name else str(i), arrays) for i, part in enumerate(parts))
    if isinstance(structure, dict):
        described = cast("dict[str, Any]", structure)
        make = _class(described["class"])
        return make(**{field: _rebuild(part, f"{name}.{field}" if name else field, arrays) for field, part in described["fields"].items()})
    array = arrays[name]
    if structure == "scalar":
        return array[()]
    return SCALARS[structure](array[()]) if structure in SCALARS else array


def _class(path: str) -> type[Any]:
    module, _, qualname = path.partition(":")
    found: Any = getattr(sys.modules[module], qualname)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(cast("object", found), "_fields")):
        raise ValueError
    return cast("type[Any]", found)
