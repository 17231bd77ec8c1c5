"""States survive storage to the bit, and nothing else comes out of it."""

from __future__ import annotations

import io
import json
import zlib
from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedcore import Misuse
from fedcore.testing import equal
from fedcore.trees import MARK, STRUCTURE, _head, _read_head, dump, dump_all, load, load_all, npz, pack, unpack


class Leaf(NamedTuple):
    array: np.ndarray
    nothing: None = None


class Tree(NamedTuple):
    number: float
    count: int
    flag: bool
    word: str
    leaf: Leaf


arrays = npst.arrays(st.sampled_from([np.float64, np.int64]), npst.array_shapes(min_dims=0, max_dims=3, min_side=0))


@given(st.floats(), st.integers(-(2**62), 2**62), st.booleans(), st.text("abc é"), arrays)
def test_round_trip(number: float, count: int, flag: bool, word: str, array: np.ndarray) -> None:
    tree = Tree(number, count, flag, word, Leaf(array))
    with np.load(io.BytesIO(npz(pack(tree))), allow_pickle=False) as stored:
        back = unpack(stored)
    assert equal(back, tree)
    assert [type(part) for part in back] == [float, int, bool, str, Leaf]


def test_leaves_have_dotted_names() -> None:
    assert set(pack(Tree(1.0, 2, True, "x", Leaf(np.ones(2))))) == {STRUCTURE, "number", "count", "flag", "word", "leaf.array"}


@pytest.mark.parametrize("path", ["os:system", "pathlib:Path", "no.such.module:X", "nonsense"])
def test_only_states_are_rebuilt(path: str) -> None:
    stored: dict[str, Any] = {STRUCTURE: np.array(json.dumps({"class": path, "fields": {}}))}
    with pytest.raises(Misuse, match="does not hold a state"):
        unpack(stored)


def test_a_missing_leaf_is_named_misuse() -> None:
    stored = pack(Leaf(np.ones(2)))
    del stored["array"]
    with pytest.raises(Misuse, match="does not hold a state"):
        unpack(stored)


@given(st.floats(), st.integers(-(2**62), 2**62), st.booleans(), st.text("abc é"), arrays)
def test_round_trip_as_one_array_a_type(number: float, count: int, flag: bool, word: str, array: np.ndarray) -> None:
    tree = (Tree(number, count, flag, word, Leaf(array)), Leaf(array.T), Leaf(np.asfortranarray(array)))
    back = load(dump(tree))
    assert equal(back, tree)
    for one, other in zip(back[1:], tree[1:], strict=True):
        assert (one.array.flags.c_contiguous, one.array.flags.f_contiguous) == (
            other.array.flags.c_contiguous,
            other.array.flags.f_contiguous,
        )


@given(st.lists(st.tuples(st.floats(), st.sampled_from("ab"), arrays, st.booleans()), min_size=1, max_size=6))
def test_round_trip_of_several(parts: list[tuple[float, str, np.ndarray, bool]]) -> None:
    """Of one form and of several, with and without a part, and stored by rows and by columns."""
    trees = [
        (Tree(number, len(word), flag, word, Leaf(array if flag else np.asfortranarray(array))), Leaf(array) if flag else None, ())
        for number, word, array, flag in parts
    ]
    back = load_all(dump_all(trees))
    assert len(back) == len(trees)
    for one, other in zip(back, trees, strict=True):
        leaves, expected = ({name: leaf for name, leaf in pack(tree).items() if name != STRUCTURE} for tree in (one, other))
        assert leaves.keys() == expected.keys()
        assert all((leaves[name].tobytes(), leaves[name].dtype) == (leaf.tobytes(), leaf.dtype) for name, leaf in expected.items())
        assert one[0].leaf.array.flags.f_contiguous == other[0].leaf.array.flags.f_contiguous
    assert load_all(dump(trees[0]))[0][0].word == trees[0][0].word


def test_states_of_one_form_share_their_arrays() -> None:
    """A file of a hundred has as many leaves as one of two."""
    few, many = (dump_all([(Leaf(np.full(3, i)), i) for i in range(m)]) for m in (2, 100))
    assert few.count(b"array") == many.count(b"array")


def test_classes_that_are_not_in_use_can_be_stored_again() -> None:
    """Of an algorithm that this process has not imported, or of another version of it."""
    elsewhere, other = (namedtuple(name, fields) for name, fields in (("State", ("theta", "n")), ("Leaf", ("array", "more"))))
    elsewhere.__module__, other.__module__ = "not.imported", __name__
    trees = [Leaf((elsewhere(np.full(3, i), None), other(np.ones(i), "word"))) for i in (1, 1, 2)]
    raw = dump_all(trees)
    with pytest.raises(Misuse, match="does not hold a state"):
        load_all(raw)
    found = load_all(raw, known=False)
    assert [type(each) for each in found] == [Leaf] * 3
    assert [each.array[0].theta.tolist() for each in found] == [[1, 1, 1], [1, 1, 1], [2, 2, 2]]
    assert dump_all(found) == raw


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_byte_that_has_changed_is_noticed(at: int, by: int) -> None:
    raw = bytearray(dump((Leaf(np.ones(2)), "word")))
    raw[at % len(raw)] ^= by
    with pytest.raises(Misuse, match="is damaged"):
        load(bytes(raw))


@pytest.mark.parametrize("raw", [b"", b"fedlin1\n", b"fedlin1\n\0\0\0\0", npz(pack(Leaf(np.ones(2)))), dump(Leaf(np.ones(2)))[:-1]])
def test_what_is_no_whole_dump_is_named_misuse(raw: bytes) -> None:
    with pytest.raises(Misuse, match=r"is damaged|does not hold a state"):
        load(raw)


def checked(content: bytes) -> bytes:
    return MARK + zlib.crc32(content).to_bytes(4, "little") + content


def test_a_dump_of_another_version_is_named_misuse() -> None:
    with pytest.raises(Misuse, match="does not hold a state"):
        load(checked(dump(Leaf(np.ones(2)))[12:].replace(b"Leaf", b"Loaf")))


@pytest.mark.parametrize(
    "head",
    [
        '["array", [["<f8", [99999999999999999999], "C"]]]',
        '["array", []]',
        "[" * 5000 + "]" * 5000,
        '["array", [["O", [1], "C"]]]',
        '["array"]',
    ],
)
def test_a_head_that_no_dump_has_is_named_misuse(head: str) -> None:
    with pytest.raises(Misuse, match="does not hold a state"):
        load(checked(len(head).to_bytes(8, "little") + head.encode() + bytes(64)))


def test_states_of_many_forms_are_not_kept_in_memory() -> None:
    """A cohort whose devices differ has a head of its own, and a large one."""
    trees = [Leaf(np.ones(m)) for m in range(1, 600)]
    before = (_head.cache_info().currsize, _read_head.cache_info().currsize)
    back = load_all(dump_all(trees))
    assert all(equal(one, other) for one, other in zip(back, trees, strict=True))
    assert (_head.cache_info().currsize, _read_head.cache_info().currsize) == before


@pytest.mark.parametrize("scalar", [np.float64(0.1), np.int64(3), np.bool_(True), np.float32(2.5)])
def test_numbers_of_numpy_keep_their_type(scalar: Any) -> None:
    (found,) = load(dump((scalar,)))
    assert (type(found), found) == (type(scalar), scalar)
