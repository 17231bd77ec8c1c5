"""The stack as a whole: what runs, where it answers, and in which order it starts and ends."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import tasks as tasks  # isort: skip  (settles the environment, which prefect reads on import)
import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import WorkerFilter
from prefect.settings import PREFECT_API_URL, temporary_settings

from fedcore.errors import Misuse
from flows.deploy import DEPLOYMENTS, make_pools, pools
from flows.events import tell
from flows.reviving import dead, revive, under_way
from flows.stack.postgres import Postgres
from flows.stack.processes import Service
from flows.workspace import Workspace

SERVER_SETTINGS = DEPLOYMENTS / "server.env"
ENVIRONMENT = "env"

WORKER_SETTINGS = {"PREFECT_WORKER_QUERY_SECONDS": "2"}
"""A run that an event starts is not to wait 10 s for the worker's next look, which is one small request."""


class Ports(NamedTuple):
    """Of the loopback, one a server."""

    prefect: int = 4200
    mlflow: int = 5000
    postgres: int = 5433


class Stack:
    """The stack of one project.

    Attributes
    ----------
    folder
        `.stack/`.
    ports
        Where its servers listen.
    """

    def __init__(self, workspace: Workspace, **ports: int | None) -> None:
        """The stack as it was started first, but for ports that are given."""
        self.folder = workspace.stack
        self.ports = _saved(self.folder)._replace(**{name: port for name, port in ports.items() if port is not None})
        self._workspace = workspace
        self._postgres = Postgres(self.folder, self.ports.postgres)
        self._prefect, self._mlflow, self._worker = (Service(name, self.folder) for name in ("prefect", "mlflow", "worker"))

    @property
    def addresses(self) -> dict[str, str]:
        """What clients of it set in their environment."""
        prefect, mlflow = (f"http://127.0.0.1:{port}" for port in (self.ports.prefect, self.ports.mlflow))
        return {"PREFECT_API_URL": f"{prefect}/api", "MLFLOW_TRACKING_URI": mlflow}

    @property
    def running(self) -> dict[str, bool]:
        """Which of its services are there, by name."""
        services = {each.name: each.running for each in (self._prefect, self._mlflow, self._worker)}
        return {**services, "postgres": self._postgres.running}

    def up(self, say: Callable[[str], object]) -> None:
        """Start what does not run yet, wait until all of it answers, and make the work pools.

        Parameters
        ----------
        say
            Told of each service, in one line.

        Raises
        ------
        Misuse
            Where something that it needs is missing, or a port is taken.
        FedlinError
            Where a service does not start; names its log.
        """
        if importlib.util.find_spec("psycopg") is None:
            raise Misuse("MLflow needs psycopg for PostgreSQL: install fedlin with its extra stack")
        self.folder.mkdir(parents=True, exist_ok=True)
        running = {name: is_up for name, is_up in self.running.items() if name in self.ports._fields}
        if running != dict.fromkeys(running, True):
            self._check_ports(running)
        (self.folder / "ports.json").write_text(json.dumps(self.ports._asdict()))
        self._postgres.start()
        say(f"PostgreSQL on 127.0.0.1:{self.ports.postgres}")
        common = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))},
            "PYTHONUNBUFFERED": "1",
            "PREFECT_HOME": str(self.folder / "prefect"),
            "DO_NOT_TRACK": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        database = common | {"PGPASSFILE": str(self._postgres.password_file)}
        if not running["prefect"]:
            settings = _server_settings() | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": self._postgres.url("asyncpg", "prefect")}
            command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.ports.prefect)]
            self._prefect.start(command, database | settings)
        if not running["mlflow"]:
            where = ["--host", "127.0.0.1", "--port", str(self.ports.mlflow), "--workers", "1"]
            kept = ["--artifacts-destination", str(self.folder / "mlartifacts")]
            stored = {"MLFLOW_BACKEND_STORE_URI": self._postgres.url("psycopg", "mlflow"), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
            self._mlflow.start([sys.executable, "-m", "mlflow", "server", *where, *kept], database | stored)
        self._prefect.await_ready(lambda: _answers(f"{self.addresses['PREFECT_API_URL']}/health"))
        say(f"Prefect on {self.addresses['PREFECT_API_URL']}")
        self._mlflow.await_ready(lambda: _answers(f"{self.addresses['MLFLOW_TRACKING_URI']}/health"))
        say(f"MLflow on {self.addresses['MLFLOW_TRACKING_URI']}")
        with temporary_settings({PREFECT_API_URL: self.addresses["PREFECT_API_URL"]}):
            make_pools()
            (pool,) = pools()
            if not self._worker.running:
                found = under_way()
                self._worker.stop()  # runs that a killed worker has left
                revive(dead(found), say)
                command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", "--name", "stack"]
                # Runs are started as `python`, which is to be this one.
                path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
                self._worker.start(
                    command, common | WORKER_SETTINGS | self.addresses | {"PATH": path, "FEDLIN_HOME": str(self._workspace.root)}
                )
            self._worker.await_ready(lambda: online(pool))
        say(f"a worker of the pool {pool}")
        if failure := tell(self._workspace, self.addresses["PREFECT_API_URL"]):
            say(failure)
        names = self.addresses | {"FEDLIN_HOME": str(self._workspace.root)}
        told = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in names.items())
        (self.folder / ENVIRONMENT).write_text(told)

    def down(self, say: Callable[[str], object]) -> None:
        """End what runs, clients first; databases and logs stay.

        Parameters
        ----------
        say
            Told of each service that ended, in one line.
        """
        (self.folder / ENVIRONMENT).unlink(missing_ok=True)
        for service in (self._worker, self._mlflow, self._prefect):
            if service.stop():
                say(f"{service.name} ended")
        if self._postgres.stop():
            say("PostgreSQL ended")

    def _check_ports(self, running: Mapping[str, bool]) -> None:
        for name, port in self.ports._asdict().items():
            if not running[name]:
                try:
                    socket.create_server(("127.0.0.1", port)).close()
                except OSError as error:
                    raise Misuse(
                        f"port {port} cannot be used ({os.strerror(error.errno or 0)}): name another one with --{name}-port"
                    ) from None


def _saved(folder: Path) -> Ports:
    try:
        return Ports(**json.loads((folder / "ports.json").read_text()))
    except (OSError, ValueError, TypeError):
        return Ports()


def _server_settings() -> dict[str, str]:
    try:
        lines = SERVER_SETTINGS.read_text().splitlines()
    except OSError as error:
        raise Misuse(f"{SERVER_SETTINGS} cannot be read ({error.strerror}): start the stack from a clone of the project") from None
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


def online(pool: str) -> bool:
    """Whether a worker of a pool has told the server of `PREFECT_API_URL` lately that it is there."""
    with get_client(sync_client=True) as client:
        return bool(client.read_workers_for_work_pool(pool, worker_filter=WorkerFilter.model_validate({"status": {"any_": ["ONLINE"]}})))
