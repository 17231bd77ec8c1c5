"""Runs whose process went with their worker: told from those that live, started again, and seen by the doctor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling, Crashed, Pending, Running, State

from flows.checks import servers
from flows.deploy import PROCESSES, make_pools, read_deployments
from flows.orchestrator import Orchestrator
from flows.reviving import DIED, dead, revive, under_way
from flows.workspace import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def client(server: Orchestrator) -> Iterator[SyncPrefectClient]:
    """Of a server with the work pool and the deployments, which go again."""
    with get_client(sync_client=True) as client:
        make_pools()
        flow = client.create_flow_from_name("fedlin-retrain")
        made = [client.create_deployment(flow, name=each["name"], work_pool_name="fedlin") for each in read_deployments()]
        try:
            yield client
        finally:
            for each in made:
                client.delete_deployment(each)
            client.delete_work_pool("fedlin")


def begun(client: SyncPrefectClient, state: State) -> UUID:
    """A run of a deployment that a worker has brought to a state."""
    (deployment,) = (each for each in client.read_deployments() if each.name == "retrain-on-partition")
    run = client.create_flow_run_from_deployment(deployment.id, parameters={"config": {"dataset": "pumps"}})
    client.update_flow_run(run.id, infrastructure_pid="1")  # else the server itself takes Cancelling for Cancelled
    client.set_flow_run_state(run.id, state, force=True)
    return run.id


def test_runs_without_a_process_start_again_and_the_others_go_on(client: SyncPrefectClient) -> None:
    noticed = State(type=StateType.CRASHED, name=DIED)
    lives, *gone, stopped = (begun(client, each) for each in (Running(), Running(), Pending(), noticed, Cancelling()))
    begun(client, Crashed())  # of which a worker has told: it has ended
    command = [sys.executable, "-c", "print(flush=True); input()"]
    environment = os.environ | {"PREFECT__FLOW_RUN_ID": str(lives)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = dead(under_way())
        process.communicate(b"\n")
    assert {run.id for run in found} == {*gone, stopped}
    said: list[str] = []
    revive(found, said.append)
    after = [client.read_flow_run(each).state_type for each in (lives, *gone, stopped)]
    assert after == ["RUNNING", *["SCHEDULED"] * 3, "CANCELLED"]
    assert client.read_flow_run(gone[0]).parameters == {"config": {"dataset": "pumps"}}
    assert len(said) == 4


def test_a_run_that_crashed_and_a_pool_that_is_full_are_told(
    client: SyncPrefectClient, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "online", lambda pool: True)
    run = begun(client, Crashed())
    (finding,) = (each for each in servers.deployments(Workspace(home)) if each.level == "warning")
    assert finding.text.startswith("the last run of retrain-on-partition that ended has crashed (")
    assert finding.text.endswith(f": prefect flow-run retry {run}")
    for _ in range(PROCESSES):
        begun(client, Running())
    (full, _) = (each for each in servers.deployments(Workspace(home)) if each.level == "warning")
    assert full.text.startswith("work pool fedlin is full: 8 runs are under way or wait for their turn")
