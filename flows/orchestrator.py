"""The Prefect server of a run: the user's own, or one that lives exactly as long as the run.

A private server is one child process, bound to a free port of the loopback, with its SQLite database under the run's home.
Its standard input is a pipe that the parent holds open and never writes to: when the parent goes, however it goes, the pipe
closes and the server ends itself. So no server outlives its run, on any system, without signals or process groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import tasks  # noqa: F401  # isort: skip  (settles the environment, which prefect reads on import)
import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from fedcore.errors import FedlinError, Misuse

POLL = 0.5
STOP_LIMIT = 15.0
EVENTS_LIMIT = 60.0

SERVER_DEFAULTS = {
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "500",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}


@dataclass(frozen=True)
class Orchestrator:
    """A Prefect server that answers.

    Attributes
    ----------
    api_url
        Address of its API; flow runs of this process use it while the context is open.
    """

    api_url: str

    def recorded(self, flow_run_id: UUID | str) -> dict[str, int]:
        """Count the task runs of a flow run in Prefect's own records.

        Parameters
        ----------
        flow_run_id
            The flow run.

        Returns
        -------
        dict of str to int
            Number of task runs by state type (``"COMPLETED"``, ``"RUNNING"``, ...); types without any are left out.

        Raises
        ------
        FedlinError
            If the server does not answer.
        """
        counts = {}
        try:
            with get_client(sync_client=True) as client:
                for state in StateType:
                    wanted = {"flow_run_id": {"any_": [str(flow_run_id)]}, "state": {"type": {"any_": [state.value]}}}
                    counts[state.value] = client.request("POST", "/task_runs/count", json={"task_runs": wanted}).json()
        except httpx.HTTPError as error:
            raise FedlinError(f"the Prefect server at {self.api_url} does not answer ({type(error).__name__})") from None
        return {state: count for state, count in counts.items() if count}

    def drain(self, flow_run_id: UUID | str, expected: int, *, patience: float = 60) -> dict[str, int]:
        """Wait until Prefect has recorded the end of every task run.

        Parameters
        ----------
        flow_run_id
            The flow run.
        expected
            Number of task runs that the flow run made.
        patience
            Longest time without any progress, in seconds, before giving up.

        Returns
        -------
        dict of str to int
            What is recorded then, as `recorded` counts it; complete if all are terminal and add up to `expected`.
        """
        counts: dict[str, int] = {}
        progress = time.monotonic()
        while time.monotonic() - progress < patience:
            with contextlib.suppress(FedlinError):
                latest = self.recorded(flow_run_id)
                if latest != counts:
                    counts, progress = latest, time.monotonic()
            if finished(counts) == sum(counts.values()) >= expected:
                break
            time.sleep(POLL)
        return counts


def finished(counts: Mapping[str, int]) -> int:
    """Number of task runs in a terminal state among counts by state type."""
    return sum(count for state, count in counts.items() if StateType(state) in TERMINAL_STATES)


@contextlib.contextmanager
def orchestrator(home: Path, *, start_timeout: float = 120) -> Iterator[Orchestrator]:
    """Give this process a Prefect server: the one of ``PREFECT_API_URL``, or a private one for as long as the context lasts.

    Parameters
    ----------
    home
        Folder for the private server's database and log, made if missing; unused with the user's own server.
    start_timeout
        Longest time that a private server may take to answer, in seconds (the first start creates the database).

    Yields
    ------
    Orchestrator
        The server; flows called inside the context run against it.

    Raises
    ------
    Misuse
        If ``PREFECT_API_URL`` does not answer, or `home` cannot be written.
    FedlinError
        If the private server ends or does not answer in time; names its log file.
    """
    if url := PREFECT_API_URL.value():
        with get_client(sync_client=True) as client:
            if client.api_healthcheck():
                raise Misuse(f"no Prefect server answers at PREFECT_API_URL={url}: start it, or unset PREFECT_API_URL to use a private one")
        yield Orchestrator(url)
        return
    with _private_server(home, start_timeout) as url, temporary_settings({PREFECT_API_URL: url}):
        try:
            yield Orchestrator(url)
        finally:
            EventsWorker.drain_all(timeout=EVENTS_LIMIT, at_exit=False)


@contextlib.contextmanager
def _private_server(home: Path, start_timeout: float) -> Iterator[str]:
    log = home / "prefect-server.log"
    try:
        home.mkdir(parents=True, exist_ok=True)
        stderr = log.open("ab")
    except OSError as error:
        raise Misuse(f"the Prefect server needs a writable folder, and {home} is not ({error.strerror}): choose another one") from None
    # -P and sys.path.append: neither the working directory nor ours may shadow a library in the server.
    start = "import sys; sys.path.append(sys.argv[1]); from flows.orchestrator import _serve; _serve()"
    command = [sys.executable, "-P", "-c", start, str(Path(__file__).resolve().parents[1])]
    environment = {"PREFECT_HOME": str(home.resolve())} | SERVER_DEFAULTS | os.environ
    with (
        stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment, start_new_session=True
        ) as server,
    ):
        try:
            url = f"http://127.0.0.1:{server.stdout.readline().decode().strip()}/api"
            _await_health(url, server, log, start_timeout)
            yield url
        finally:
            server.terminate()
            try:
                server.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                server.kill()


def _await_health(url: str, server: subprocess.Popen, log: Path, start_timeout: float) -> None:
    deadline = time.monotonic() + start_timeout
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return
        time.sleep(0.1)
    happened = "ended" if server.poll() is not None else f"did not answer within {start_timeout:g} s"
    raise FedlinError(f"the private Prefect server {happened} while starting: see {log}")


def _serve() -> None:
    """Run the server in this process until it is told to stop or its standard input closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.server.utilities.messaging import memory

    class Subscription(memory.Subscription):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._queue = asyncio.Queue()

    memory.Subscription = Subscription
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads the pipe after the port
    # An ephemeral app records events and task runs, and does without UI, schedules and triggers: nobody would use them here.
    app = create_app(ephemeral=True, final=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)).run(sockets=[listener])


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_LIMIT)
    os._exit(1)
