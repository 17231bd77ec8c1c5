"""The machine that is measured on, and the versions of what is measured."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import timeit
from importlib.metadata import version
from pathlib import Path

from threadpoolctl import threadpool_info

from benchmarks.programs import peer_versions
from benchmarks.results import Machine

WORK = "json.loads(json.dumps({str(i): [i, float(i)] for i in range(50_000)}))"

LIBRARIES = ("numpy", "scipy", "polars", "pyarrow", "pydantic", "prefect", "mlflow", "scikit-learn")


@functools.cache
def machine() -> Machine:
    """This machine, as it is now; names no path, host or user."""
    import numpy as np  # its BLAS has to be there to be asked

    assert np
    system = platform.freedesktop_os_release()["PRETTY_NAME"] if Path("/etc/os-release").exists() else platform.system()
    blas = sorted({f"{each['internal_api']} {each['version']}, threads: {each['num_threads']}" for each in threadpool_info()})
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        system=f"{system}, {platform.system()} {platform.release()}",
        blas="; ".join(blas),
        versions={"python": platform.python_version(), "fedlin": version("fedlin")} | {name: version(name) for name in LIBRARIES},
        peers=peer_versions(),
    )


def pace() -> list[float]:
    """Milliseconds that plain work of Python's library takes now, three times: a sign of how fast a machine is that others share. It makes
    and drops many objects, as tasks of Prefect do."""
    return [1e3 * taken for taken in timeit.repeat(WORK, "import json", number=1, repeat=3)]


def commit() -> str:
    """The commit that is checked out, marked where files of the project differ from it; "unknown" without git."""
    root = Path(__file__).parents[1]
    try:
        head = _git(root, "rev-parse", "--short=10", "HEAD")
        # What the benchmarks themselves write does not make them another commit's.
        changed = _git(
            root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/RESULTS.md", ":!benchmarks/results.json"
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head} and uncommitted changes" if changed else head


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout.strip()


def _cpu() -> str:
    """The model's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
