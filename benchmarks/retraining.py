"""Seconds from the event that a device was added to the champion's next version, step by step, on a stack that is up.

`make stack && make deploy && . .stack/env && .venv/bin/python -m benchmarks.retraining`. It makes a data set of its own, trains its
first champion for one round, and adds two devices: the first retraining finds a better model, the second one may not.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from fedcore.data import add_partition, create_simulated
from fedcore.simulate import Fleet, simulate
from flows.events import owed, tell
from flows.workspace import Workspace

ENDS = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")

LAG = 10
"""Seconds that Prefect's records of tasks may come late."""


def ask(path: str, **document: Any) -> Any:
    """What the Prefect server answers."""
    answer = httpx.post(f"{os.environ['PREFECT_API_URL']}{path}", json=document, trust_env=False, timeout=60)
    answer.raise_for_status()
    return answer.json()


def retrainings(dataset: str) -> list[dict[str, Any]]:
    """Flow runs that the event of a data set has started, the oldest first."""
    (deployment,) = ask("/deployments/filter", deployments={"name": {"any_": ["retrain-on-partition"]}})
    runs = ask("/flow_runs/filter", flow_runs={"deployment_id": {"any_": [deployment["id"]]}}, sort="EXPECTED_START_TIME_ASC")
    return [run for run in runs if run["parameters"]["config"]["dataset"] == dataset]


def after(moment: str | None, begun: float) -> float:
    """Seconds from `begun` to a moment of Prefect's."""
    return float("nan") if moment is None else datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() - begun


def timeline(run: dict[str, Any], begun: float) -> dict[str, float]:
    """Of the steps of a retraining, when each was there, in seconds after the event."""
    told = {"run made": after(run["created"], begun)}
    states = httpx.get(f"{os.environ['PREFECT_API_URL']}/flow_run_states/", params={"flow_run_id": run["id"]}, trust_env=False).json()
    told |= {state["name"].lower(): after(state["timestamp"], begun) for state in sorted(states, key=lambda state: state["timestamp"])}
    parents = ask("/task_runs/filter", task_runs={"flow_run_id": {"any_": [run["id"]]}})
    inner = ask("/flow_runs/filter", flow_runs={"parent_task_run_id": {"any_": [task["id"] for task in parents]}})
    tasks = list(parents)
    for each in inner:
        told |= {"challenger begins": after(each["start_time"], begun), "challenger ends": after(each["end_time"], begun)}
        counted = {"flow_runs": {"id": {"any_": [each["id"]]}}}
        for offset in range(0, ask("/task_runs/count", **counted), 200):
            tasks += ask("/task_runs/filter", **counted, offset=offset)
    for task in tasks:
        kind = task["name"].split("-" if task["name"].startswith("fedlin") else " ")[0]
        for name, moment, choose in (("first", task["start_time"], min), ("last", task["end_time"], max)):
            key = f"{name} {kind}"
            told[key] = choose(told.get(key, after(moment, begun)), after(moment, begun))
    return dict(sorted(told.items(), key=lambda item: item[1]))


def main() -> None:
    """Print the steps of both retrainings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--algorithm", default="eb")
    asked = parser.parse_args()
    workspace, name = Workspace.find(), f"bench-{secrets.token_hex(3)}"
    whole = simulate("demo", 0)
    ids = list(whole.devices)[: asked.devices + 2]
    with tempfile.TemporaryDirectory() as folder:
        known = {each: whole.devices[each] for each in ids}
        create_simulated(Path(folder), name, Fleet(known, whole.Theta, whole.Omega), "the devices that come too")
        first = {each: known[each] for each in ids[: asked.devices]}
        create_simulated(workspace.datasets, name, Fleet(first, whole.Theta, whole.Omega), "a fleet to time a retraining with")
        words = [sys.executable, "-m", "flows.cli.app", "retrain", name, "--algorithm", asked.algorithm, "--rounds", "1"]
        subprocess.run(words, check=True, capture_output=True)
        for i, device in enumerate(ids[asked.devices :]):
            (file,) = (Path(folder) / name / f"device={device}").glob("*.parquet")
            with owed(workspace, name) as rows:
                rows[device] = add_partition(workspace.datasets, file, name, device).rows
            begun = datetime.now(UTC).timestamp()
            assert not tell(workspace, os.environ["PREFECT_API_URL"])
            while len(runs := retrainings(name)) <= i or runs[i]["state"]["type"] not in ENDS:
                time.sleep(1)
            time.sleep(LAG)
            print(f"{asked.devices + 1 + i} devices, {asked.algorithm}: {runs[i]['state']['message']}")
            for step, when in timeline(runs[i], begun).items():
                print(f"{when:8.1f} s  {step}")


if __name__ == "__main__":
    main()
