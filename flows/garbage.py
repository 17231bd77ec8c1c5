"""Python's search for garbage, made seldom.

Python looks for what nobody uses any more after each 700 new objects, which suits small programs. To import Prefect, MLflow and
matplotlib makes some 600,000, and a task of Prefect hundreds.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Generator
from contextlib import contextmanager

OBJECTS = 10_000
"""New objects between two searches. More gain little, and what is found late takes memory meanwhile."""


def in_a_command() -> None:
    """Search seldom for as long as this process lives, and not once more at its end, when it gives its memory back anyhow."""
    gc.set_threshold(OBJECTS)
    atexit.register(gc.freeze)


@contextmanager
def in_a_run() -> Generator[None]:
    """Search seldom meanwhile, and leave out what is there already, modules for the most part: a large fleet's messages would have them
    all gone through again and again, for as long as the devices' steps take."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
