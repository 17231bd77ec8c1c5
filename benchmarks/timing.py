"""How long things take."""

from __future__ import annotations

import time
from collections.abc import Callable


def best(run: Callable[[], object], repeats: int) -> float:
    """Shortest wall time of `run`, in milliseconds."""
    times: list[float] = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return 1e3 * min(times)
