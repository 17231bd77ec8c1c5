"""What `fedlin train` takes besides its rounds, where Prefect's server is up already."""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import itertools
import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.project import project
from benchmarks.results import Bar, Part
from fedcore.data import create_simulated
from fedcore.simulate import simulate
from flows.orchestrator import Orchestrator

STEPS = (
    "import, checks, first look at rows, reading and compressing",
    "start of tracking",
    "rounds",
    "results, figures, model, tracking",
    "waiting for Prefect's records",
)


def trained(home: Path, server: Orchestrator, rounds: int) -> tuple[list[float], dict[str, Any]]:
    """One run of the command: seconds of its steps, as its own log and the clock outside tell them, and what it printed."""
    words = [sys.executable, "-m", "flows.cli.app", "train", "demo", "--rounds", str(rounds), "--json"]
    environment = os.environ | {"FEDLIN_HOME": str(home), "FEDLIN_LOG": "json", "PREFECT_API_URL": server.api_url}
    begun = time.time()
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    ended = time.time()
    told = json.loads(done.stdout.splitlines()[-1])
    log = [json.loads(line) for line in (home / "runs" / told["run_id"] / "log.jsonl").read_text().splitlines()]
    when = [(line["event"], datetime.fromisoformat(line["time"]).timestamp(), line) for line in log]
    each = [(moment, line["seconds"]) for event, moment, line in when if event == "round"]
    assert len(each) == rounds
    moments = {event: moment for event, moment, _ in when}
    first = each[0][0] - each[0][1]
    marks = [begun, moments["begun"], first, each[-1][0], moments["ended"], ended]
    return [after - before for before, after in itertools.pairwise(marks)], told


def measure(quick: bool) -> Part:
    """Seconds of each step."""
    repeats, rounds = (1, 2) if quick else (5, 30)
    with project() as (datasets, server):
        home, fleet = datasets.parent, simulate("demo", 0)
        create_simulated(datasets, "demo", fleet, "the demo's fleet")
        if not quick:
            trained(home, server, 1)  # what is made once: the stores' tables, compiled modules
        runs = [trained(home, server, rounds) for _ in range(repeats)]
    times = dict(zip(STEPS, zip(*(steps for steps, _ in runs), strict=True), strict=True))
    seconds = {step: median(each) for step, each in times.items()}
    besides = median(sum(steps) - steps[STEPS.index("rounds")] for steps, _ in runs)
    recorded = [f"{told['task_runs_recorded']} of {told['task_runs']}" for _, told in runs]
    return Part(
        name="warm",
        title="A training's fixed costs",
        about=(
            f"`fedlin train demo` (hm1, K = {len(fleet.devices)}, d = 8, C = {rounds} rounds, a task a device) as a process, timed from "
            f"outside, with a Prefect server that is up. What lies between is told by the run's own log. Medians of {repeats} runs"
            + ("." if quick else " after a short one, which makes what is made once.")
        ),
        columns=("step", "share of the whole", "s"),
        rows=tuple((step, taken / sum(seconds.values()), taken) for step, taken in seconds.items()),
        runs=times,
        bars=(Bar(what="s besides the rounds", value=None if quick else besides, limit=10.0),),  # a first run makes what is made once
        notes=(
            f"Task runs recorded: {', '.join(recorded)}.",
            "The report for people is a command of its own, and not part of it; the run's figures are.",
        ),
    )
