"""`python -m flows.reviving`: deployed runs that ended with their worker, and that Prefect takes to be under way, start again.

A worker reports a run whose process ends. One that is killed itself, as where its machine stops, reports nothing: its runs stay as they
were, fill the pool, and what their events asked for does not come about. A worker of ours that starts has no run under way yet, so those
without a process are dead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tasks as tasks  # isort: skip  (settles the environment, which prefect reads on import)
import httpx
import typer
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Scheduled

from fedcore.errors import FedlinError, Misuse
from flows.deploy import pools

UNDER_WAY = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)

DIED = "Died"
"""What an automation (`deployments/automations.yaml`) calls the state of a run that tells no more that it lives."""


def under_way() -> list[FlowRun]:
    """The runs of our pools that a worker has taken and that have not ended, as the server of `PREFECT_API_URL` knows them; also those
    that it has noticed to be dead."""
    states = FlowRunFilter.model_validate({"state": {"operator": "or_", "type": {"any_": UNDER_WAY}, "name": {"any_": [DIED]}}})
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": pools()}}), flow_run_filter=states)


def dead(runs: Sequence[FlowRun]) -> list[FlowRun]:
    """Those of which no process of this machine is there. Needs Linux, whose /proc tells whose process is which run's."""
    there: set[bytes] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            there.update((process / "environ").read_bytes().split(b"\0"))
        except OSError:  # it has ended, or is somebody else's
            continue
    return [run for run in runs if f"PREFECT__FLOW_RUN_ID={run.id}".encode() not in there]


def revive(runs: Sequence[FlowRun], say: Callable[[str], object]) -> None:
    """Let runs start again with the parameters that they have; those that were being cancelled are cancelled.

    Parameters
    ----------
    runs
        Runs without a process.
    say
        Told of each, in one line.
    """
    with get_client(sync_client=True) as client:
        for run in runs:
            ends = run.state_type == StateType.CANCELLING
            state = Cancelled(message="its worker ended") if ends else Scheduled(message="its worker ended: it starts again")
            client.set_flow_run_state(run.id, state, force=True)
            say(f"run {run.name} ended with its worker: {'cancelled' if ends else 'it starts again'}")


if __name__ == "__main__":
    try:
        try:
            revive(dead(under_way()), typer.echo)
        except (httpx.HTTPError, PrefectException) as reason:
            raise Misuse(f"the Prefect server cannot say what is under way ({type(reason).__name__}): start it") from None
    except FedlinError as error:
        typer.echo(f"reviving: error: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
