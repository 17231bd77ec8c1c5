"""`python -m flows.deploy`: work pools, deployments and automations of `deployments/` on the Prefect server that is in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import tasks as tasks  # isort: skip  (settles the environment, which prefect reads on import)
import httpx
import typer
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_URL
from prefect.workers.process import ProcessWorker

from fedcore.errors import FedlinError, Misuse

DEPLOYMENTS = Path(__file__).resolve().parents[1] / "deployments"
FILE = DEPLOYMENTS / "prefect.yaml"
AUTOMATIONS = DEPLOYMENTS / "automations.yaml"

PROCESSES = 8
"""Runs of a pool at a time, those that wait for their turn included: each is a process of some 300 MB."""


def read_deployments(file: Path = FILE) -> list[dict[str, Any]]:
    """The deployments of a file.

    Raises
    ------
    Misuse
        Where it cannot be read.
    """
    try:
        return yaml.safe_load(file.read_text())["deployments"]
    except OSError as error:
        raise Misuse(f"{file} cannot be read ({error.strerror}): deploy from a clone of the project") from None


def pools(file: Path = FILE) -> list[str]:
    """The work pools that deployments run in."""
    return sorted({each["work_pool"]["name"] for each in read_deployments(file)})


def make_pools(file: Path = FILE) -> None:
    """Make those work pools that are missing, for processes; others stay as they are."""
    with get_client(sync_client=True) as client:
        for name in pools(file):
            template = ProcessWorker.get_default_base_job_template()
            try:
                client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template, concurrency_limit=PROCESSES))
            except ObjectAlreadyExists:
                continue


def make_automations(file: Path = AUTOMATIONS) -> None:
    """Make the automations of a file; those that are there as it says stay, with what they have seen so far."""
    wanted = [AutomationCore.model_validate(each) for each in yaml.safe_load(file.read_text())]
    with get_client(sync_client=True) as client:
        for automation in wanted:
            known = client.read_automations_by_name(automation.name)
            if [AutomationCore.model_validate(each.model_dump()) for each in known] == [automation]:
                continue
            for each in known:
                client.delete_automation(each.id)
            client.create_automation(automation)


def deploy(file: Path = FILE) -> list[str]:
    """Make the work pools, the deployments and the automations, or bring those that are there up to the file.

    Returns
    -------
    list of str
        Of each deployment, in one line, when it runs.

    Raises
    ------
    Misuse
        Where no server is named, or it does not answer.
    FedlinError
        Where it does not take a deployment.
    """
    url = PREFECT_API_URL.value()
    if not url:
        raise Misuse("PREFECT_API_URL is not set: name the Prefect server to deploy to (make stack starts one, and says how to use it)")
    try:
        make_pools(file)
    except httpx.HTTPError as error:
        raise Misuse(f"no Prefect server answers at PREFECT_API_URL={url} ({type(error).__name__}): start it") from None
    # Prefect's own command, which is its way of reading such a file.
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    environment = os.environ | {"PREFECT_API_URL": url, "COLUMNS": "1000", "NO_COLOR": "1"}
    done = subprocess.run(command, env=environment, cwd=file.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise FedlinError(f"prefect deploy failed: {said[-1].strip() if said else f'status {done.returncode}'}")
    make_automations()
    return [_shown(each) for each in read_deployments(file)]


def _shown(deployment: dict[str, Any]) -> str:
    when = [f"cron {each['cron']} ({each['timezone']})" for each in deployment.get("schedules", ())]
    when += [f"on {event}" for each in deployment.get("triggers", ()) for event in each["expect"]]
    return f"{deployment['name']}: {', '.join(when) or 'on demand'}"


if __name__ == "__main__":
    try:
        for line in deploy():
            typer.echo(line)
    except FedlinError as error:
        typer.echo(f"deploy: error: {' '.join(str(error).split())}", err=True)
        sys.exit(2 if isinstance(error, Misuse) else 1)
