"""States as named arrays and back, so that they can be kept in a file without pickling anything.

A state is a NamedTuple of arrays, scalars and further such tuples, plain ones too. Its leaves are stored under dotted names
(`server.Theta`); its classes are noted beside them, and on the way back only classes are taken that this process has
already imported.
"""

from __future__ import annotations

import io
import json
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedcore.alike import together
from fedcore.errors import Misuse

Arrays = dict[str, NDArray[Any]]

STRUCTURE = "structure"
TEXT = "text"
MARK = b"fedlin1\n"
DAMAGED = "the file is damaged: restore it, or start a new run"
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
        raise Misuse(DAMAGED) from None


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
    """A state as bytes: a mark, a checksum, the size of what comes next, a text in JSON (structure and leaves), and the leaves' numbers.

    An npz file, with an entry for each leaf, can be looked at by name, but takes 0.1 ms a leaf: as long as ten steps of a device.
    """
    leaves: Arrays = {}
    structure = _describe(tree, "", leaves)
    layout: list[tuple[str, str, tuple[int, ...], Any]] = []
    parts: list[bytes] = []
    for name, leaf in leaves.items():
        if leaf.dtype.kind == "U":
            layout.append((name, TEXT, leaf.shape, leaf.ravel().tolist()))
            continue
        order: Literal["F", "C"] = "F" if leaf.flags.f_contiguous and not leaf.flags.c_contiguous else "C"
        layout.append((name, leaf.dtype.str, leaf.shape, order))
        parts.append(leaf.tobytes(order))
    text = json.dumps([structure, layout]).encode()
    content = b"".join((len(text).to_bytes(8, "little"), text, *parts))
    return MARK + zlib.crc32(content).to_bytes(4, "little") + content


def load(raw: bytes) -> Any:
    """The state that `dump` stored, equal to the bit.

    Raises
    ------
    Misuse
        Where the file is damaged, or does not hold a state of this version.
    """
    content = memoryview(raw)[len(MARK) + 4 :]
    if raw[: len(MARK)] != MARK or int.from_bytes(raw[len(MARK) : len(MARK) + 4], "little") != zlib.crc32(content):
        raise Misuse(DAMAGED)
    at = 8 + int.from_bytes(content[:8], "little")
    leaves: Arrays = {}
    try:
        structure, layout = json.loads(bytes(content[8:at]))
        for name, kind, shape, more in layout:
            if kind == TEXT:
                leaves[name] = np.array(more, dtype=np.str_).reshape(shape)
                continue
            numbers = np.frombuffer(content, np.dtype(kind), math.prod(shape), at)
            at += numbers.nbytes
            leaves[name] = numbers.reshape(shape, order=more).copy("K")
        return _rebuild(structure, "", leaves)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise Misuse(FOREIGN) from None


def dump_all(trees: Sequence[object]) -> bytes:
    """Several states as the bytes of one file, those of one form with one array a leaf; a single one as `dump` stores it."""
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
