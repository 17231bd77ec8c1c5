"""The Prefect server of a run: the user's own, or one that lives exactly as long as the run.

A private server is one child process, bound to a free port of the loopback, with its SQLite database under the run's home.
Its standard input is a pipe that the parent holds open and never writes to: when the parent goes, however it goes, the pipe
closes and the server ends itself. So no server outlives its run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import tasks as tasks  # isort: skip  (settles the environment, which prefect reads on import)
import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from fedcore.errors import FedlinError, Misuse
from tasks.lock import alone

# In seconds: between two looks at the records; without any answer, before a server is taken for gone; for a server to end, before it is
# killed; for the last events to be sent.
POLL = 0.5
GONE = 15.0
STOP_LIMIT = 15.0
EVENTS_LIMIT = 60.0

# What a private server does differently from Prefect's defaults, where the user has not set the variable.
SERVER_DEFAULTS = {
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_MESSAGING_BROKER": "flows.messaging",
    # The recorder writes each change of a task run in a transaction of its own, and lags by minutes; in batches it keeps up.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # Nobody reads the events themselves here, nor waits for one: without their rows the database takes less than half the room,
    # and nothing else competes for SQLite's one writer. The records of flow and task runs do not need them.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
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

    def recorded(self, flow_run_id: UUID | str, made: int | None = None) -> dict[str, int]:
        """Count the task runs of a flow run in Prefect's own records.

        Parameters
        ----------
        flow_run_id
            The flow run.
        made
            How many it has made, where that is known: once so many are found, no other state is asked for.

        Returns
        -------
        dict of str to int
            Number of task runs by state type (``"COMPLETED"``, ``"RUNNING"``, ...); types without any are left out.

        Raises
        ------
        FedlinError
            If the server does not answer.
        """
        counts: dict[str, int] = {}
        try:
            with self._client() as client:
                for state in sorted(StateType, key=lambda state: state != StateType.COMPLETED):  # mostly that is all there are
                    if made is not None and sum(counts.values()) >= made:
                        break
                    counts[state.value] = _count(client, flow_run_id, [state])
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
            Longest time without any progress, in seconds, before giving up; a server that does not answer at all is given up sooner.

        Returns
        -------
        dict of str to int
            What is recorded then, as `recorded` counts it; complete where `finished` of it is `expected`; empty without an answer.
        """
        self._await_ends(flow_run_id, expected, patience)
        try:
            return self.recorded(flow_run_id, expected)
        except FedlinError:
            return {}

    def pace(self, flow_run_id: UUID | str, made: int, ended: int = 0, *, backlog: int = 2000, patience: float = 60) -> int:
        """Hold a flow up, between two rounds, while Prefect is too far behind with recording its task runs.

        Tasks of a few milliseconds are made faster than they are recorded. What is not recorded yet waits in the memory of this
        process and of the server: without a bound in a private one, and up to 10,000 events, three a task run, in a user's own
        server, which drops what comes on top. A busy server takes long to answer, so it is asked only where it may be too far behind.

        Parameters
        ----------
        flow_run_id
            The flow run.
        made
            Number of task runs that the flow run has made so far.
        ended
            How many of them had a recorded end when it was last asked.
        backlog
            Number of task runs that may lack a recorded end when this returns.
        patience
            Longest time without any progress, in seconds, before going on all the same.

        Returns
        -------
        int
            How many have a recorded end, as far as is known.
        """
        if made - ended <= backlog:
            return ended
        return max(ended, self._await_ends(flow_run_id, made - backlog, patience))

    def _client(self) -> SyncPrefectClient:
        # Prefect's own client knows how to authenticate; by itself it would start a server where no address is set.
        with temporary_settings({PREFECT_API_URL: self.api_url}):
            return get_client(sync_client=True)

    def _await_ends(self, flow_run_id: UUID | str, number: int, patience: float) -> int:
        """Wait until so many ends are recorded, or nothing more comes; how many there are then."""
        ended, progress = 0, time.monotonic()
        answered = progress
        # One change of both: to copy all of Prefect's settings takes 50 ms.
        once = temporary_settings({PREFECT_API_URL: self.api_url, PREFECT_CLIENT_MAX_RETRIES: 0})
        with once, get_client(sync_client=True) as client:
            while time.monotonic() - progress < patience and time.monotonic() - answered < GONE:
                try:
                    latest = _count(client, flow_run_id, TERMINAL_STATES)
                    answered = time.monotonic()
                    if latest >= number:
                        return latest
                    if latest > ended:
                        ended, progress = latest, answered
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    pass
                except httpx.HTTPError:  # it is there, as while its database starts
                    answered = time.monotonic()
                time.sleep(POLL)
        return ended


def _count(client: SyncPrefectClient, flow_run_id: UUID | str, states: Iterable[StateType]) -> int:
    wanted = {"flow_run_id": {"any_": [str(flow_run_id)]}, "state": {"type": {"any_": [state.value for state in states]}}}
    return client.request("POST", "/task_runs/count", json={"task_runs": wanted}).json()


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
        if not _answers():
            raise Misuse(f"no Prefect server answers at PREFECT_API_URL={url}: start it, or unset PREFECT_API_URL to use a private one")
        try:
            yield Orchestrator(url)
        finally:
            _flush_events(EVENTS_LIMIT if _answers() else 0)
        return
    with _private_server(home, start_timeout) as (url, server), temporary_settings({PREFECT_API_URL: url}):
        _flush_events(EVENTS_LIMIT)  # a worker that this process already has would go on telling its earlier server
        try:
            yield Orchestrator(url)
        finally:
            _flush_events(EVENTS_LIMIT if server.poll() is None else 0)


def _answers() -> bool:
    """Whether the server of `PREFECT_API_URL` is there."""
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}), get_client(sync_client=True) as client:
        return client.api_healthcheck() is None


def _flush_events(limit: float) -> None:
    """Send what this process has yet to tell the server; drop what is left after `limit` seconds.

    Without a server each event would hold up the end of the process for 7 s of attempts, and a run has thousands.
    """
    logging.getLogger(EventsWorker.__name__).setLevel(logging.CRITICAL)  # else a line every 4 s, which nothing can be done about
    workers = tuple(EventsWorker._instances.values())
    try:
        EventsWorker.drain_all(timeout=limit, at_exit=False)
    finally:
        for worker in workers:
            with contextlib.suppress(queue.Empty):
                while True:
                    worker._queue.get_nowait()
            worker._queue.put(None)  # the worker's own sign for its end


@contextlib.contextmanager
def _private_server(home: Path, start_timeout: float) -> Iterator[tuple[str, subprocess.Popen]]:
    log = home / "prefect-server.log"
    environment = {"PREFECT_HOME": str(home.resolve())} | SERVER_DEFAULTS | os.environ
    # -P and sys.path.append: neither the working directory nor ours may shadow a library in the server.
    serve = "import sys; sys.path.append(sys.argv[1]); from flows.orchestrator import _serve; _serve()"
    command = [sys.executable, "-P", "-c", serve, str(Path(__file__).resolve().parents[1])]
    with contextlib.ExitStack() as starting:
        try:
            # Prefect does not keep two servers from creating one database at the same time, and then both fail.
            starting.enter_context(alone(Path(environment["PREFECT_HOME"]) / "starting.lock", timeout=start_timeout))
            home.mkdir(parents=True, exist_ok=True)
            stderr = starting.enter_context(log.open("ab"))
        except OSError as error:
            raise Misuse(f"a private Prefect server cannot use the folder {home} ({error}): choose one that can be written") from None
        # In a session of its own: Ctrl-C is meant for the run, which has last records to send after it.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment, start_new_session=True
        ) as server:
            try:
                assert server.stdout is not None
                url = f"http://127.0.0.1:{server.stdout.readline().decode().strip()}/api"
                _await_health(url, server, log, start_timeout)
                starting.close()
                yield url, server
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

    listener = socket.create_server(("127.0.0.1", 0))
    os.write(sys.stdout.fileno(), b"%d\n" % listener.getsockname()[1])
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads the pipe after the port
    # An ephemeral app does without UI, schedules and other services that nobody would use here.
    app = create_app(ephemeral=True, final=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)).run(sockets=[listener])


def _end_with_parent() -> None:
    """Wait for the end of the parent, which closes the pipe on standard input, and end this process: politely, then at once."""
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read(), whose lock Python wants for itself when it ends
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_LIMIT)
    os._exit(1)
