"""The deployments: a file whose entry points exist, and one command that makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.events.schemas.events import Resource
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid, preprocess_schema

import flows.deploy
import tasks
from fedcore.errors import Misuse
from flows.deploy import AUTOMATIONS, PROCESSES, deploy, pools, read_deployments
from flows.events import PARTITION_ADDED
from flows.orchestrator import Orchestrator
from flows.reviving import DIED

DEPLOYMENTS = {each["name"]: each for each in read_deployments()}
ROOT = Path(flows.deploy.__file__).parents[1]


def deployed(name: str) -> Flow[..., Any]:
    return load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"], use_placeholder_flow=False)


def schema(name: str) -> dict[str, Any]:
    return preprocess_schema(parameter_schema(deployed(name)).model_dump())


def test_the_file_has_the_deployments_in_one_pool() -> None:
    assert set(DEPLOYMENTS) == {"retrain", "retrain-on-partition", "compare", "ingest"}
    assert pools() == ["fedlin"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_entry_points_are_flows_of_modules(name: str) -> None:
    assert ":" not in DEPLOYMENTS[name]["entrypoint"]  # a file would be loaded twice, and pulled
    assert deployed(name).name.startswith("fedlin-")


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_process_has_the_environment_of_an_installed_fedlin(name: str) -> None:
    assert DEPLOYMENTS[name]["work_pool"]["job_variables"]["env"] == tasks.DEFAULTS


@pytest.mark.parametrize("schedule", DEPLOYMENTS["retrain"]["schedules"])
def test_parameters_of_a_schedule_are_valid(schedule: dict[str, Any]) -> None:
    assert is_valid(schedule["parameters"], schema("retrain"))
    deployed("retrain").validate_parameters(schedule["parameters"])


@pytest.mark.parametrize("name", ["compare", "ingest"])
def test_a_process_takes_what_the_server_takes(name: str) -> None:
    given = {"config": {"dataset": "pumps"} | ({"file": "a.csv"} if name == "ingest" else {})}
    assert is_valid(given, schema(name))
    taken = deployed(name).validate_parameters(given)["config"]
    assert taken.dataset == "pumps"
    assert type(taken).__name__ == f"{name.title()}Config"


def test_the_trigger_waits_for_the_event_and_names_its_data_set() -> None:
    (trigger,) = DEPLOYMENTS["retrain-on-partition"]["triggers"]
    assert trigger["expect"] == [PARTITION_ADDED]
    resource = Resource.model_validate({"prefect.resource.id": "fedlin.dataset.pumps", "prefect.resource.name": "pumps"})
    assert trigger["match"] == {"prefect.resource.id": "fedlin.dataset.*"}
    assert resource.name == "pumps"
    assert trigger["parameters"] == {"config": {"dataset": "{{ event.resource.name }}"}}
    assert is_valid({"config": {"dataset": "pumps"}}, schema("retrain-on-partition"))


@pytest.mark.parametrize(
    "config",
    [
        {"rounds": 3},
        {"dataset": ""},
        {"dataset": "pumps", "rounds": 0},
        {"dataset": "pumps", "seed": -1},
        {"dataset": "pumps", "participation": 0},
        {"dataset": "pumps", "participation": 1.5},
        {"dataset": "pumps", "quorum": 0},
        {"dataset": "pumps", "budget": 0},
        {"dataset": "pumps", "unknown": 1},
    ],
)
def test_a_server_refuses_parameters_out_of_bounds(config: dict[str, Any]) -> None:
    assert is_valid({"config": {"dataset": "pumps", "rounds": 3}}, schema("compare"))
    assert not is_valid({"config": config}, schema("compare"))


@pytest.mark.parametrize(
    "config", [{"dataset": "pumps"}, {"dataset": "pumps", "file": ""}, {"dataset": "pumps", "file": "a.csv", "device": ""}]
)
def test_a_server_refuses_rows_from_nowhere(config: dict[str, Any]) -> None:
    assert is_valid({"config": {"dataset": "pumps", "file": "a.csv"}}, schema("ingest"))
    assert not is_valid({"config": config}, schema("ingest"))


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_parameter_is_described(name: str) -> None:
    models = {model: each for model, each in parameter_schema(deployed(name)).definitions.items() if model.endswith("Config")}
    assert models
    without = [
        f"{model}.{field}" for model, each in models.items() for field, said in each["properties"].items() if not said.get("description")
    ]
    assert without == []


def test_without_an_address_it_says_what_to_set() -> None:
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(Misuse, match=r"^PREFECT_API_URL is not set: name the Prefect server to deploy to"),
    ):
        deploy()


def test_a_server_that_is_away_is_one_line() -> None:
    environment = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_CLIENT_MAX_RETRIES": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "flows.deploy"], env=environment, capture_output=True, text=True, check=False)
    expected = "deploy: error: no Prefect server answers at PREFECT_API_URL=http://127.0.0.1:9/api (ConnectError): start it\n"
    assert (done.returncode, done.stderr) == (2, expected)


def known() -> dict[str, Any]:
    """What a server has of deployments and what starts them, but for times of writing, and ids of automations, which are made anew."""
    with get_client(sync_client=True) as client:
        pool = client.read_work_pool("fedlin").model_dump(exclude={"updated"})
        deployments = [each.model_dump(exclude={"updated", "last_polled", "version_id"}) for each in client.read_deployments()]
        for schedule in (schedule for each in deployments for schedule in each["schedules"]):
            schedule.pop("updated")
        automations = client.request("POST", "/automations/filter", json={}).json()
    for automation in automations:
        for each in (automation, automation["trigger"]):
            each.pop("id")
        automation.pop("created"), automation.pop("updated")
    return {"pool": pool, "deployments": sorted(deployments, key=lambda each: each["name"]), "automations": automations}


def test_a_run_tells_that_it_lives_several_times_before_it_is_taken_for_dead() -> None:
    (automation,) = yaml.safe_load(AUTOMATIONS.read_text())
    assert automation["actions"][0]["name"] == DIED
    assert automation["trigger"]["within"] >= 3 * int(tasks.DEFAULTS["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
    for name in DEPLOYMENTS:
        assert fnmatch(deployed(name).name, automation["trigger"]["match_related"]["prefect.resource.name"])


@pytest.mark.slow
def test_a_second_time_changes_nothing(server: Orchestrator) -> None:
    told = deploy()
    first = known()
    assert deploy() == told
    assert told == [
        "retrain: cron 0 3 * * * (UTC)",
        "retrain-on-partition: on fedlin.partition.added",
        "compare: on demand",
        "ingest: on demand",
    ]
    assert known() == first
    assert [each["name"] for each in first["deployments"]] == sorted(DEPLOYMENTS)
    assert (first["pool"]["type"], first["pool"]["concurrency_limit"]) == ("process", PROCESSES)
    automations = {each["name"]: each for each in first["automations"]}
    assert set(automations) == {"fedlin-retrain-on-partition", "fedlin-dead-runs"}
    (action,) = automations["fedlin-retrain-on-partition"]["actions"]
    (triggered,) = (each for each in first["deployments"] if each["name"] == "retrain-on-partition")
    assert (action["type"], action["deployment_id"]) == ("run-deployment", str(triggered["id"]))
