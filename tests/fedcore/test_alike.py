"""Trees of one form become one tree; others are told apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from fedcore.alike import Member, all_single, apart, members, single, together
from fedcore.messages import Stacked, alike
from fedcore.testing import equal


class Leaf(NamedTuple):
    theta: Any
    n: Any


class Tree(NamedTuple):
    leaf: Any
    name: Any
    nothing: Any = None


def tree(i: int, **other: Any) -> Tree:
    return Tree(Leaf(np.arange(3.0) + i, np.float64(2 * i)), str(i))._replace(**other)


def test_fields_get_a_leading_axis() -> None:
    found = together([tree(i) for i in range(4)])
    assert found.nothing is None
    assert found.leaf.theta.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert found.leaf.n.tolist() == [0, 2, 4, 6]
    assert found.name.tolist() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "other",
    [
        (np.zeros(3), 0.0),
        Leaf(np.zeros(2), 0.0),
        Leaf(np.zeros(3, dtype=np.float32), 0.0),
        Leaf(np.zeros((3, 3)).T, 0.0),
        Leaf(np.zeros(3), 0),
        Leaf(np.zeros(3), None),
        Leaf([0.0, 0.0, 0.0], 0.0),
        None,
    ],
)
def test_another_form_is_none_of_them(other: Any) -> None:
    assert together([tree(0), tree(1, leaf=other), tree(2)]) is None


def test_what_is_no_number_of_a_message_is_not_taken_for_one() -> None:
    """A list of numbers would become an array."""
    assert together([tree(i, leaf=[1.0, 2.0]) for i in range(3)]) is None
    assert together([tree(i, leaf=np.ones((2, 3)).T) for i in range(3)]) is None


def test_messages_of_one_form_are_read_as_before() -> None:
    messages = [tree(i) for i in range(3)]
    found = alike(messages)
    assert isinstance(found, Stacked)
    assert alike(found) is found
    for before, after, at in zip(messages, found, [found[i] for i in range(3)], strict=True):
        for each in (after, at):
            assert (each.nothing, each.name, each.leaf.n) == (None, before.name, before.leaf.n)
            assert each.leaf.theta.tolist() == before.leaf.theta.tolist()
    assert alike(mixed := [*messages, tree(3, nothing=1.0)]) == mixed, "the same objects"
    apart_from = [*members(found.fields, 3), tree(3, nothing=1.0)]
    assert all(map(equal, alike(apart_from), [*found, tree(3, nothing=1.0)]))
    assert alike(none := []) is none


def taken_apart(m: int) -> list[Any]:
    """Trees whose leaves are each a member of those of all."""
    return apart(together([tree(i) for i in range(m)]), m, (Tree,))


def test_what_is_taken_apart_is_the_trees() -> None:
    trees = [tree(i) for i in range(4)]
    for back in (apart(together(trees), 4), list(map(all_single, taken_apart(4)))):
        assert all(map(equal, back, trees))
        assert [type(each.name) for each in back] == [str] * 4
    assert apart(None, 2) == [None, None]


def test_only_the_classes_that_are_named_are_taken_apart() -> None:
    found = taken_apart(3)
    assert [(type(each), type(each.leaf), each.name, each.nothing) for each in found] == [(Tree, Member, str(i), None) for i in range(3)]
    assert [each.leaf.at for each in found] == [0, 1, 2]
    assert equal(single(found[1].leaf), tree(1).leaf)
    assert single(found[1]) is found[1]


def test_all_members_in_order_are_what_they_are_members_of() -> None:
    found = taken_apart(3)
    assert together(found).leaf.theta is found[0].leaf.of.theta


@pytest.mark.parametrize("order", [[2, 0], [1], [0, 1], [1, 1, 0, 2]])
def test_some_members_are_as_the_trees(order: list[int]) -> None:
    trees, found = [tree(i) for i in range(3)], taken_apart(3)
    assert equal(together([found[i] for i in order]), together([trees[i] for i in order]))


def test_members_of_several_and_trees_are_brought_together() -> None:
    """A round of some devices leaves the others members of an older file."""
    old, new = taken_apart(4), members(together([tree(i).leaf for i in (9, 8)]), 2)
    mixed = [old[0], old[1]._replace(leaf=new[1]), old[2], old[3]._replace(leaf=new[0])]
    expected = together([tree(0), tree(1, leaf=tree(8).leaf), tree(2), tree(3, leaf=tree(9).leaf)])
    assert equal(together(mixed), expected)
    mixed[2] = tree(2)
    assert equal(together(mixed), expected)
    words = [*members((np.array(["a", "b"]),), 2), *members((np.array(["long"]),), 1)]
    assert together(words)[0].tolist() == ["a", "b", "long"]


@pytest.mark.parametrize(
    "other",
    [
        Leaf(np.zeros((1, 2)), np.zeros(1)),
        Leaf(np.zeros((1, 3), dtype=np.float32), np.zeros(1)),
        Leaf(np.zeros((1, 3, 3)).swapaxes(1, 2), np.zeros(1)),
        Leaf(np.zeros((1, 3)), None),
        (np.zeros((1, 3)), np.zeros(1)),
    ],
)
def test_members_of_another_form_are_none_of_them(other: Any) -> None:
    assert together([*(each.leaf for each in taken_apart(3)), *members(other, 1)]) is None


def test_members_that_are_stored_by_columns_are_none() -> None:
    """Joined as single trees they are none either, since arithmetic on other strides may round otherwise."""
    columns = np.arange(18.0).reshape(2, 3, 3).swapaxes(1, 2)
    assert together(members(Leaf(columns, np.zeros(2)), 2)) is None
    assert together([Leaf(each, 0.0) for each in columns]) is None
