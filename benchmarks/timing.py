"""How long things take, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def once(run: Callable[[], object]) -> float:
    """Wall time of `run`, in seconds."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def middle(run: Callable[[], object], repeats: int) -> float:
    """Median wall time of `run`, in seconds, after a first one that warms up."""
    run()
    return median(once(run) for _ in range(repeats))


def best(run: Callable[[], object], repeats: int) -> float:
    """Shortest wall time of `run`, in milliseconds."""
    return 1e3 * min(once(run) for _ in range(repeats))
