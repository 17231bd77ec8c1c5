"""What runs and commands set of Python's search for garbage, and take back."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flows.garbage import OBJECTS, in_a_run


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_a_run_gives_back_what_it_has_set() -> None:
    gc.set_threshold(700, 10, 10)
    with in_a_run():
        assert gc.get_threshold() == (OBJECTS, 10, 10)
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == ((700, 10, 10), 0)


def test_of_runs_within_one_another_or_beside_the_last_one_ends_it() -> None:
    gc.set_threshold(700, 10, 10)
    outer, inner = in_a_run(), in_a_run()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert (gc.get_threshold()[0], gc.get_freeze_count() > 0) == (OBJECTS, True)
    inner.__exit__(None, None, None)
    assert (gc.get_threshold(), gc.get_freeze_count()) == ((700, 10, 10), 0)


@pytest.mark.parametrize(("own", "expected"), [((0, 10, 10), 0), ((50_000, 5, 5), 50_000)])
def test_who_searches_more_seldom_is_left_alone(own: tuple[int, int, int], expected: int) -> None:
    gc.set_threshold(*own)
    with in_a_run():
        assert gc.get_threshold() == (expected, *own[1:])
    assert gc.get_threshold() == own


def test_a_command_searches_seldom() -> None:
    told = "import atexit, gc, flows.cli.app as app; atexit.register(lambda: print(gc.get_threshold()[0])); app.main()"
    done = subprocess.run([sys.executable, "-c", told, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(OBJECTS)
