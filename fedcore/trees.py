"""States as named arrays and back, so that they can be kept in a file without pickling anything.

A state is a NamedTuple of arrays, scalars and further such tuples, plain ones too. Its leaves are stored under dotted names
(`server.Theta`), or one after the other where speed counts; its classes are noted beside them, and on the way back only
classes are taken that this process has already imported.
"""

from __future__ import annotations

import io
import json
import math
import sys
import zlib
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedcore.alike import all_single, apart, together
from fedcore.errors import Misuse

Arrays = dict[str, NDArray[Any]]

SCALARS = (float, int, bool, str)
Build = Callable[[Iterator[NDArray[Any]]], Any]
Place = tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"], int]
"""Of a leaf: type, shape, order in memory, and where it begins after the head."""

STRUCTURE = "structure"
MARK = b"fedlin1\n"
ALIGNED = 8
FORMS, MOST_LEAVES, LONGEST = 128, 100, 2**13
"""Of how many forms the heads are kept, and up to how many leaves and bytes: those of cohorts whose devices differ are large, and no
other's."""

DAMAGED = "the file is damaged: restore it, or start a new run"
FOREIGN = "the file does not hold a state of this version of fedlin: restore it, or start a new run"


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
    leaves: list[NDArray[Any]] = []
    structure = _structure(_form(tree, leaves))
    return {STRUCTURE: np.array(json.dumps(structure)), **dict(zip(_names(structure, ""), leaves, strict=True))}


def unpack(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The state that `pack` stored, its arrays of the same shape and equal to the bit.

    Raises
    ------
    Misuse
        Where the structure names a class that is not a NamedTuple of a module in use, or a leaf is missing.
    """
    try:
        structure = json.loads(str(arrays[STRUCTURE]))
        return _builder(structure, _class)(iter([arrays[name] for name in _names(structure, "")]))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise Misuse(FOREIGN) from None


def dump(tree: object) -> bytes:
    """A state as bytes: a mark, a checksum, the size of the head, the head, and the leaves' bytes, each from a multiple of 8 on.

    An npz file, with an entry for each leaf, can be looked at by name, but takes 0.1 ms a leaf: as long as ten steps of a device. States
    of one form have the same head, which is written and read once a process.
    """
    leaves: list[NDArray[Any]] = []
    form = _form(tree, leaves)
    head = _head(form) if len(leaves) <= MOST_LEAVES else _head.__wrapped__(form)
    parts = [len(head).to_bytes(8, "little"), head]
    for leaf in leaves:
        parts += (leaf.tobytes(_order(leaf)), bytes(-leaf.nbytes % ALIGNED))
    content = b"".join(parts)
    return MARK + zlib.crc32(content).to_bytes(4, "little") + content


def load(raw: bytes, *, known: bool = True) -> Any:
    """The state that `dump` stored, equal to the bit; its arrays are parts of one block of memory, which is there while one of them is.

    Parameters
    ----------
    raw
        What it stored.
    known
        Whether its classes have to be of modules in use; else others of the same names and fields stand for those that are not, which is
        enough to store it again.

    Raises
    ------
    Misuse
        Where the file is damaged, or does not hold a state of this version.
    """
    start = len(MARK) + 4
    content = bytearray(raw)
    if raw[: len(MARK)] != MARK or int.from_bytes(raw[len(MARK) : start], "little") != zlib.crc32(memoryview(content)[start:]):
        raise Misuse(DAMAGED)
    at = start + 8 + int.from_bytes(raw[start : start + 8], "little")
    try:
        head = raw[start + 8 : at]
        layout, build = _read_head(head, known) if len(head) <= LONGEST else _read_head.__wrapped__(head, known)
        leaves = [np.ndarray(shape, kind, content, at + offset, None, order) for kind, shape, order, offset in layout]
        return build(iter(leaves))
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, StopIteration):
        raise Misuse(FOREIGN) from None


def dump_all(trees: Sequence[object]) -> bytes:
    """Several states as the bytes of one file, those of one form with one array a leaf; a single one as `dump` stores it."""
    if len(trees) == 1:
        return dump(all_single(trees[0]))
    if (whole := together(trees)) is not None:
        return dump(Several((whole,), (np.arange(len(trees)),)))
    trees, forms = list(map(all_single, trees)), dict[Any, list[int]]()
    for i, tree in enumerate(trees):
        forms.setdefault(_alike(tree), []).append(i)
    joined = tuple(together([trees[i] for i in places]) if len(places) > 1 else trees[places[0]] for places in forms.values())
    return dump(Several(joined, tuple(np.array(places) for places in forms.values())))


def load_all(raw: bytes, classes: Collection[type[Any]] | None = None, *, known: bool = True) -> list[Any]:
    """The states that `dump_all` stored, with numbers equal to the bit.

    Parameters
    ----------
    raw
        What it stored.
    classes
        Which tuples are taken apart (see `fedcore.alike.apart`) where several states share their arrays.
    known
        As of `load`.

    Raises
    ------
    Misuse
        As `load` does.
    """
    found = load(raw, known=known)
    if not isinstance(found, Several):
        return [found]
    trees: list[Any] = [None] * sum(map(len, found.places))
    for tree, places in zip(found.trees, found.places, strict=True):
        for i, one in zip(places.tolist(), apart(tree, len(places), classes) if len(places) > 1 else [tree], strict=True):
            trees[i] = one
    return trees


def _alike(tree: object) -> Any:
    """What states have in common that can share arrays: classes, shapes and types. What is stored by columns has a form of its own, since
    arithmetic on strides may round otherwise."""
    if isinstance(tree, tuple):
        return (type(cast("object", tree)), *map(_alike, cast("tuple[object, ...]", tree)))
    if isinstance(tree, np.ndarray):
        array = cast("NDArray[Any]", tree)
        return (array.shape, array.dtype) if array.flags.c_contiguous else object()
    return getattr(tree, "dtype", type(tree))


def _form(tree: object, leaves: list[NDArray[Any]]) -> Any:
    """What there is to know of a state beside its leaves' values, hashable: of a tuple its class and the forms of its parts, of a leaf a
    word for what it is, type, shape and order in memory. The leaves, as arrays, are added to a list."""
    kind = type(tree)
    if kind is np.ndarray:
        word, leaf = "array", cast("NDArray[Any]", tree)
    elif tree is None:
        return None
    elif isinstance(tree, tuple):
        return (kind, *[_form(part, leaves) for part in cast("tuple[object, ...]", tree)])
    else:
        word, leaf = kind.__name__ if kind in SCALARS else "scalar" if isinstance(tree, np.generic) else "array", np.asarray(tree)
    leaves.append(leaf)
    return word, leaf.dtype, leaf.shape, _order(leaf)


def _order(leaf: NDArray[Any]) -> Literal["C", "F"]:
    flags = leaf.flags
    return "C" if flags.c_contiguous or not flags.f_contiguous else "F"


def _structure(form: Any) -> Any:
    """The classes of a form, as JSON has them."""
    if form is None:
        return None
    made, *parts = form
    if isinstance(made, str):
        return made
    if made is tuple:
        return [_structure(part) for part in parts]
    fields = dict(zip(made._fields, map(_structure, parts), strict=True))
    return {"class": f"{made.__module__}:{made.__qualname__}", "fields": fields}


@lru_cache(maxsize=FORMS)
def _head(form: Any) -> bytes:
    """Structure and leaves of a form, filled up with blanks."""
    text = json.dumps([_structure(form), _leaves(form)]).encode()
    return text + b" " * (-(len(MARK) + 4 + 8 + len(text)) % ALIGNED)


@lru_cache(maxsize=FORMS)
def _read_head(head: bytes, known: bool) -> tuple[list[Place], Build]:
    """How to read a form's leaves, with where each begins, and to build a state from them."""
    structure, described = json.loads(head)
    layout, offset = list[Place](), 0
    for kind, shape, order in described:
        dtype = np.dtype(kind)
        if dtype.hasobject:  # a file's bytes as addresses
            raise ValueError
        layout.append((dtype, tuple(shape), order, offset))
        size = math.prod(shape) * dtype.itemsize
        offset += size + -size % ALIGNED
    return layout, _builder(structure, _class if known else _class_or_like)


def _leaves(form: Any) -> list[tuple[str, tuple[int, ...], str]]:
    if form is None:
        return []
    made, *parts = form
    if isinstance(made, str):
        dtype, shape, order = parts
        return [(dtype.str, shape, order)]
    return [leaf for part in parts for leaf in _leaves(part)]


def _names(structure: Any, name: str) -> list[str]:
    """The dotted names of a structure's leaves."""
    if structure is None:
        return []
    if isinstance(structure, str):
        return [name]
    if isinstance(structure, list):
        fields = {str(i): part for i, part in enumerate(cast("list[Any]", structure))}
    else:
        fields = cast("dict[str, Any]", structure["fields"])
    return [each for field, part in fields.items() for each in _names(part, f"{name}.{field}" if name else field)]


def _builder(structure: Any, class_of: Callable[[str, Sequence[str]], type[Any]]) -> Build:
    """A function that takes the leaves one after the other, and returns the state."""
    if structure is None:
        return lambda leaves: None
    if isinstance(structure, list):
        each = [_builder(part, class_of) for part in cast("list[Any]", structure)]
        return lambda leaves: tuple([build(leaves) for build in each])
    if isinstance(structure, dict):
        described = cast("dict[str, Any]", structure)
        fields = described["fields"]
        make, parts = class_of(described["class"], tuple(fields)), [_builder(part, class_of) for part in fields.values()]
        if tuple(fields) == cast("Any", make)._fields:
            return lambda leaves: make(*[build(leaves) for build in parts])
        return lambda leaves: make(**dict(zip(fields, [build(leaves) for build in parts], strict=True)))
    if structure == "array":
        return next
    if structure == "scalar":
        return lambda leaves: next(leaves)[()]
    return lambda leaves: next(leaves).item()


def _class(path: str, fields: Sequence[str]) -> type[Any]:
    module, _, qualname = path.partition(":")
    found: Any = getattr(sys.modules[module], qualname)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(cast("object", found), "_fields")):
        raise ValueError
    return cast("type[Any]", found)


def _class_or_like(path: str, fields: Sequence[str]) -> type[Any]:
    with suppress(KeyError, AttributeError, ValueError):
        if cast("Any", found := _class(path, fields))._fields == fields:
            return found
    module, _, qualname = path.partition(":")
    like = cast("Any", namedtuple)(qualname.rpartition(".")[2], fields)
    like.__module__, like.__qualname__ = module, qualname
    return like
