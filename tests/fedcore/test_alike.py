"""Trees of one form become one tree; others are told apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from fedcore.alike import together
from fedcore.messages import Stacked, alike


class Leaf(NamedTuple):
    theta: Any
    n: Any


class Tree(NamedTuple):
    leaf: Any
    name: Any
    nothing: Any = None


def tree(i: int, **other: Any) -> Tree:
    return Tree(Leaf(np.arange(3.0) + i, 2.0 * i), str(i))._replace(**other)


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
    assert alike(mixed := [*messages, tree(3, nothing=1.0)]) is mixed
    assert alike(none := []) is none
