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
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import Misuse

Arrays = dict[str, NDArray[Any]]

STRUCTURE = "structure"
LAYOUT = "layout"
FOREIGN = "the file does not hold a state of this version of fedlin: restore it, or start a new run"
SCALARS = {"float": float, "int": int, "bool": bool, "str": str}


def npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays as the bytes of an npz file."""
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
    """The state that `pack` stored, equal to the bit.

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
    """A state as the bytes of an npz file that holds one array for each type of number.

    An entry for each leaf, as in `npz(pack(tree))`, can be looked at by name but takes 0.1 ms, and a device that takes part in many trials
    has hundreds of leaves.
    """
    leaves = pack(tree)
    joined: dict[str, list[NDArray[Any]]] = {}
    layout: list[tuple[str, str, tuple[int, ...], str]] = []
    structure = leaves.pop(STRUCTURE)
    for name, leaf in leaves.items():
        order = "F" if leaf.flags.f_contiguous and not leaf.flags.c_contiguous else "C"
        joined.setdefault(leaf.dtype.name, []).append(leaf.ravel(order))
        layout.append((name, leaf.dtype.name, leaf.shape, order))
    arrays = {kind: np.concatenate(parts) for kind, parts in joined.items()}
    return npz({STRUCTURE: structure, LAYOUT: np.array(json.dumps(layout)), **arrays})


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
        leaves[STRUCTURE] = joined[STRUCTURE]
        for name, kind, shape, order in json.loads(str(joined[LAYOUT])):
            begin = read[kind]
            read[kind] += math.prod(shape)
            leaves[name] = joined[kind][begin : read[kind]].reshape(shape, order=order).copy("K")
    except (KeyError, ValueError, TypeError):
        raise Misuse(FOREIGN) from None
    return unpack(leaves)


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
    return SCALARS[structure](array[()]) if structure in SCALARS else array


def _class(path: str) -> type[Any]:
    module, _, qualname = path.partition(":")
    found: Any = getattr(sys.modules[module], qualname)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(cast("object", found), "_fields")):
        raise ValueError
    return cast("type[Any]", found)
