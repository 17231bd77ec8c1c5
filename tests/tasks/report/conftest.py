"""Runs as a report finds them, made up in memory: of any fleet, with or without scores, posteriors and covariance; a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.algorithm import Outcome
from fedcore.data.trajectory import Trajectory
from tasks.report.found import Found, Hyper, Known, Prior, Scores, Sent

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, for all tests of a module."""
    api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed: make test installs it")
    with api.sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, NAMES)), None) or playwright.chromium.executable_path
        if not Path(found).is_file():
            pytest.skip("no Chromium: apt-get install chromium, or .venv/bin/playwright install --only-shell chromium")
        opened = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield opened
        opened.close()


def record(number: int, fleet: tuple[str, ...], silent: tuple[str, ...] = (), reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    """A round's record in which all devices are drawn."""
    return {
        "round_num": number,
        "phase": "start" if number == 1 else "main",
        "cohort": len(fleet),
        "answered": len(fleet) - len(silent),
        "loss": 1.0 / number,
        "uplink_bytes": 80 * len(fleet),
        "downlink_bytes": 100 * len(fleet),
        "seconds": 0.1,
        "silent": [*silent, *reasons],
        "reasons": dict.fromkeys(reasons, "a number that is not finite"),
    }


def course(rng: np.random.Generator) -> Trajectory:
    """Means over ten blocks of rows, of which the last four are test rows."""
    time, wave = np.arange(10.0), rng.uniform(-0.5, 1.0) * np.linspace(0, 1, 10) ** 2
    return Trajectory(6, time, wave + 0.05 * rng.standard_normal(10), wave, time >= 6)


@pytest.fixture(scope="session")
def made() -> Callable[..., Found]:
    """Makes a run of K devices and d columns in which federation helps all but the last device, which it hurts."""

    def make(K: int = 6, d: int = 3, rounds: int = 5, seed: int = 0, **fields: Any) -> Found:
        rng = np.random.default_rng(seed)
        fleet, names = tuple(f"d{k:04d}" for k in range(K)), tuple(f"x{j}" for j in range(d))
        sign = np.where(np.arange(K) % 2, 1.0, -1.0)
        Theta = sign * rng.uniform(0.5, 2.0, (d, 1)) + 0.2 * rng.standard_normal((d, K))
        alone = rng.uniform(0.9, 1.1, K)
        rmse = alone * np.where(np.arange(K) == K - 1, 1.5, rng.uniform(0.5, 0.8, K))
        n = np.full(K, 20)
        covered = np.stack([n * share for share in (0.5, 0.8, 0.9, 0.95)], axis=1)
        scores = Scores(fleet, n, rmse, alone, np.arange(K) == K - 1, covered)
        reach = rng.uniform(0.1, 1.0, (d, K))
        whole: dict[str, Any] = {
            "run_id": "run-1",
            "dataset": "pumps",
            "target": "pressure",
            "algorithm": "hm2",
            "settings": {"eta": 0.1, "rounds": rounds, "seed": 0, "participation": 1.0, "quorum": 0.5},
            "outcome": Outcome("completed", f"all {rounds - 1} rounds were run", ok=True),
            "history": [record(r + 1, fleet) for r in range(rounds)],
            "coefficients": names,
            "fleet": fleet,
            "devices": fleet,
            "Theta": Theta,
            "n_train": np.full(K, 30),
            "scores": scores,
            "known": Known(Theta, Theta - reach, Theta + reach, np.abs(Theta) > reach),
            "prior": Prior(np.zeros(d), np.full(d, -2.0), np.full(d, 2.0)),
            "phi": (*(Hyper("mu", name, 0.1, -0.1, 0.3, 0.0, 1.0) for name in names), Hyper("log_sigma2", "", -1.0, -1.2, -0.8, 0.0, 3.0)),
            "Omega": np.outer(sign, sign) + 0.1 * np.eye(K),
            "unit": "bar",
            "units": {"x0": "kW", "hour": "h"},
            "exchanged": Sent(1_000, 2_000),
            "fewest_rows": 3,
            "time": "hour",
            "trajectories": {device: course(rng) for device in fleet},
            "beyond": False,
            "caution": "",
            "rests": {"split.kind": "time", "split.seed": 0, "missing.policy": "drop"},
            "prints": dict.fromkeys(fleet, "0"),
        }
        return Found(**whole | fields)

    return make
