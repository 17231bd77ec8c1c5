"""Pooled regression over devices, beside regression on the concatenated table."""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

from functools import partial

import numpy as np
from sklearn.linear_model import LinearRegression

from benchmarks.programs import coefficients_apart
from benchmarks.results import Bar, Part, medians
from benchmarks.timing import middle, once
from fedcore import DeviceData, Pooled, fit

K, D, NOISE = 100, 50, 0.5


class Programs:
    """The programs, from rows in memory, and the coefficients that each found."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(0)
        self.X = rng.standard_normal((rows, D))
        self.y = self.X @ rng.standard_normal(D) + NOISE * rng.standard_normal(rows)
        parts = zip(np.split(self.X, K), np.split(self.y, K), strict=True)
        self.devices = {f"{k:03}": DeviceData.of(X, y) for k, (X, y) in enumerate(parts)}
        self.found: dict[str, np.ndarray] = {}

    def pooled(self) -> None:
        """Every device's factor, and the server's solution."""
        self.found["ours"] = fit(Pooled(), self.devices, rounds=1).server.theta

    def normal_equations(self) -> None:
        """X'X theta = X'y."""
        self.found["NumPy"] = np.linalg.solve(self.X.T @ self.X, self.X.T @ self.y)

    def scikit_learn(self) -> None:
        """Its LinearRegression, which takes singular values of the table."""
        self.found["scikit-learn"] = LinearRegression(fit_intercept=False).fit(self.X, self.y).coef_


def measure(quick: bool) -> Part:
    """Seconds of each."""
    repeats, fits, rows = (2, 3, 100_000) if quick else (5, 5, 1_000_000)
    programs = Programs(rows)
    floor = "NumPy, normal equations"
    runs = {
        "ours, pooled": partial(middle, programs.pooled, fits),
        floor: partial(middle, programs.normal_equations, fits),
        "scikit-learn, LinearRegression": partial(once, programs.scikit_learn),
    }
    seconds = medians(runs, repeats)
    ours = seconds["ours, pooled"]
    apart = coefficients_apart(programs.found.values())
    return Part(
        name="centralised",
        title="Pooled beside the concatenated table",
        about=(
            f"Least squares on N = {rows:,} rows of d = {D} columns: `fit` of `pooled` over {K} devices, and two programs that have all "
            f"rows in one table. All from rows in memory, on one thread. Medians of {repeats} runs in turns, each the median of {fits} "
            "fits after one that warms up (of scikit-learn's 1)."
        ),
        columns=("program", "it / NumPy", "ms"),
        rows=tuple((name, taken / seconds[floor] if name != floor else None, 1e3 * taken) for name, taken in seconds.items()),
        bars=(Bar(what="ours / NumPy's normal equations", value=ours / seconds[floor], limit=1.3),),
        runs=seconds.runs,
        notes=(
            f"Coefficients differ by at most {apart:.1e}.",
            "Ours also tells each device's own training error, and hands back one result a device.",
        ),
    )
