"""Peers: programs in an environment of their own, or in R, which read what our side writes, time themselves, and print one JSON object.

Start-up and imports are not in the times that they tell.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import LeftOut

HERE = Path(__file__).parent
ENVIRONMENT = HERE / ".venv"
LIMIT = 600
"""Seconds after which a peer is given up."""

SAME = 1e-9
"""The most that coefficients of programs which do the same may differ by."""

LIBRARIES = ("flwr", "ray", "numpy", "scikit-learn", "scipy", "statsmodels", "jax", "numpyro")
VERSIONS = "import json, importlib.metadata as m, sys; print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
R_VERSIONS = 'cat(sprintf(\'{"R": "%s", "lme4": "%s"}\', getRversion(), packageVersion("lme4")))'


def peer(script: str, *words: str | Path) -> Any:
    """What a peer's program prints; `script` names a file of `benchmarks/peers`, Python or R.

    Raises
    ------
    LeftOut
        Where what it needs is not installed.
    RuntimeError
        Where it fails; with its last words.
    """
    return _asked([*_interpreter(script), HERE / "peers" / script, *words])


def present(runs: Mapping[str, Callable[[], float]], scripts: Mapping[str, str]) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """Those of some programs that can be run here, and a note on each that cannot; `scripts` says which are peers, by name."""
    kept, notes = dict(runs), list[str]()
    for name, script in scripts.items():
        try:
            _interpreter(script)
        except LeftOut as why:
            del kept[name]
            notes.append(f"{name} was left out: {why}.")
    return kept, notes


def coefficients_apart(found: Iterable[np.ndarray]) -> float:
    """The most that an entry of the coefficients, all of one shape, which programs have found differs between two of them.

    Raises
    ------
    RuntimeError
        Where that is too much for programs that do the same.
    """
    apart = float(np.ptp(list(found), axis=0).max())
    if not apart <= SAME:
        raise RuntimeError(f"the programs' coefficients differ by {apart:.1e}: they did not do the same")
    return apart


def peer_versions() -> dict[str, str]:
    """Of the peers that are there and can say; what was measured is not lost for those that cannot."""
    found: dict[str, str] = {}
    for interpreter, words in ((_python, ["-c", VERSIONS, *LIBRARIES]), (_rscript, ["-e", R_VERSIONS])):
        with contextlib.suppress(LeftOut, RuntimeError, subprocess.TimeoutExpired):
            found |= _asked([*interpreter(), *words])
    return found


def _interpreter(script: str) -> list[Path | str]:
    return _rscript() if script.endswith(".R") else _python()


def _python() -> list[Path | str]:
    if not (ENVIRONMENT / ".ready").exists():
        raise LeftOut("the peers' environment is not there: make bench sets it up")
    return [ENVIRONMENT / "bin/python"]


def _rscript() -> list[Path | str]:
    found = shutil.which("Rscript")
    if not found:
        raise LeftOut("R is not installed")
    if subprocess.run(
        [found, "-e", 'quit(status = !requireNamespace("lme4", quietly = TRUE))'], capture_output=True, check=False
    ).returncode:
        raise LeftOut("R has no package lme4")
    return [found]


def _asked(words: Sequence[str | Path]) -> Any:
    # One thread as on our side, the loopback and no other network, nothing told to the makers.
    own = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "PYTHONWARNINGS": "ignore",
    }
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")} | own
    # What Flower and Ray would leave in the home folder and in /tmp goes with the program.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment |= {"FLWR_HOME": folder, "RAY_TMPDIR": folder}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=LIMIT, check=False)
    if done.returncode:
        raise RuntimeError(f"a peer's program ended with status {done.returncode}: {done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if re.match(r"\s*\{", line)]
    return json.loads(lines[-1])
