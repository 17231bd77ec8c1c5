"""Empirical Bayes on `sleepstudy`, beside maximum likelihood by lme4 and by statsmodels."""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import polars as pl

from benchmarks import reference
from benchmarks.programs import peer, present
from benchmarks.results import Bar, Part, medians, ratio
from fedcore import Eb, fit

SCRIPTS = {"lme4": "mixed.R", "statsmodels": "mixed.py"}


class Programs:
    """The programs, each of which fits so many times and tells its seconds a fit; and the log likelihood that each reached."""

    def __init__(self, folder: Path, fits: int) -> None:
        self.fits, self.file = fits, folder / "rows.csv"
        self.reached: dict[str, float] = {}
        self.rounds = 0
        pl.read_parquet(reference.FOLDER / "sleepstudy.parquet").write_csv(self.file)
        devices = reference.fleet("sleepstudy", intercept=True)
        self.rows = {name: (data.train.X, data.train.y) for name, data in devices.items()}

    def ours(self) -> float:
        """`fit` of the devices' rows, compression included."""
        times: list[float] = []
        for _ in range(self.fits + 1):
            begun = time.perf_counter()
            result = fit(Eb(), self.rows, rounds=100)
            times.append(time.perf_counter() - begun)
            assert result.outcome.name == "converged"
            self.reached["ours"], self.rounds = result.history[-1]["log_likelihood"], len(result.history)
        return median(times[1:])

    def peer(self, name: str) -> float:
        """A peer's fits."""
        told = peer(SCRIPTS[name], self.file, str(self.fits))
        self.reached[name] = told["log_likelihood"]
        return told["seconds"]


def measure(quick: bool) -> Part:
    """Seconds a fit of each, and the log likelihood reached."""
    repeats, fits = (1, 5) if quick else (5, 20)
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder), fits)
        every = {"ours": programs.ours} | {name: partial(programs.peer, name) for name in SCRIPTS}
        runs, notes = present(every, SCRIPTS)
        seconds = medians(runs, repeats)
    ours, reached = seconds["ours"], programs.reached
    apart = max(abs(each - reached["ours"]) for each in reached.values()) if len(reached) > 1 else None
    return Part(
        name="mixed",
        title="Empirical Bayes and mixed models",
        about=(
            "A random intercept and slope for 18 subjects, 180 rows (`tests/reference/sleepstudy`), full covariance, by maximum "
            f"likelihood, from rows in memory; each stops by its own default rule. Medians of {repeats} runs in turns of {fits} fits "
            "each, after one that warms up."
        ),
        columns=("program", "ours / it", "ms a fit", "log likelihood"),
        rows=tuple(
            (name, ratio(ours, taken) if name != "ours" else None, 1e3 * taken, f"{reached[name]:.4f}") for name, taken in seconds.items()
        ),
        runs=seconds.runs,
        bars=(
            Bar(what="ours / lme4", value=ratio(ours, seconds.get("lme4")), limit=1.0),
            Bar(what="log likelihoods apart", value=apart, limit=0.01),
        ),
        notes=(f"Ours took {programs.rounds} rounds, the one of the start included.", *notes),
    )
