"""Runs as MLflow's own pages show them, in a browser."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tasks.tracking.runs import Tracker

ALGORITHMS = ("separate", "fedavg", "ditto", "eb", "hm1", "hm2", "hm2", "hm2", "mtrl", "pooled")
PRIORS = {5: "gaussian", 6: "lasso", 7: "horseshoe"}


def fill(folder: Path) -> list[str]:
    """Ten runs, told as a training tells them; their names in MLflow."""
    names: list[str] = []
    for i, algorithm in enumerate(ALGORITHMS):
        tracker = Tracker.open(None, default_store=folder / "mlflow.db", artifacts=folder / "artifacts", experiment="pumps")
        settings = {"algorithm": algorithm, "dataset": "pumps", "target": "pressure", "seed": "0", "rounds": "20", "K": "100", "d": "8"}
        settings |= {"option.prior": PRIORS[i]} if i in PRIORS else {"option.eta": "safe"}
        tracker.start(f"run-{i}", params=settings, tags={"fedlin.command": "train"})
        tracker.log_rounds([{"round_num": r, "cohort": 100, "answered": 100, "loss": 1 / (r + i)} for r in range(1, 4)])
        assert tracker.finish("FINISHED", metrics={"a_rmse": 0.5 - 0.01 * i, "a_rmse_separate": 0.5}, artifacts=None)
        names.append(tracker.mlflow_run_id)
    return names


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The address of MLflow's pages of ten runs, and the runs' ids there."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        known = fill(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(1200):
            try:
                if httpx.get(f"{address}/health").status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield address, known
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


@pytest.mark.slow
def test_the_compare_page_tells_ten_runs_apart(runs: tuple[str, list[str]], browser: Any, tmp_path: Path) -> None:
    address, known = runs
    shown = browser.new_page(viewport={"width": 2600, "height": 2000})
    shown.goto(f"{address}/#/compare-runs?runs={quote(json.dumps(known))}&experiments={quote(json.dumps(['1']))}")
    plot = shown.locator(".js-plotly-plot .parcoords")
    plot.first.wait_for(timeout=120_000)
    shown.screenshot(path=tmp_path / "compare.png", full_page=True)
    told = shown.locator("body").inner_text()
    assert "Comparing 10 Runs" in told
    rows = {name: values for name, *values in (line.split("\t") for line in told.splitlines() if "\t" in line)}
    assert rows["algorithm"] == list(ALGORITHMS)
    assert [value for value in rows["option.prior"] if value] == list(PRIORS.values())
    assert rows["K"] == ["100"] * 10
    names = [f"{algorithm} run-{i}" for i, algorithm in enumerate(ALGORITHMS)]
    assert [line for line in told.splitlines() if line in names][:10] == names
    for name in ("a_rmse", "a_rmse_separate", "loss"):
        assert name in told.splitlines()
    axes = shown.locator(".js-plotly-plot .axis-title").all_text_contents()
    assert "algorithm" in axes
    assert "loss" in axes  # and not a count of devices, which is the same for all
