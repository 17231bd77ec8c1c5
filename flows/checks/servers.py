"""The servers that runs use: whether they answer, how fast, in which version, at which time; and what is deployed there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from statistics import median

import tasks as tasks  # isort: skip  (settles the environment, which prefect reads on import)
import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL

from fedcore.data.places import is_file
from fedcore.errors import Misuse
from flows.checks.finding import Finding
from flows.checks.packages import beside
from flows.deploy import PROCESSES, pools, read_deployments
from flows.events import untold
from flows.orchestrator import orchestrator
from flows.reviving import UNDER_WAY, dead, under_way
from flows.stack.local import ENVIRONMENT, Stack, online
from flows.workspace import Workspace
from tasks.tracking.health import champions, store_state

SLOW = 0.2
"""Seconds: every round asks a few times, and every task run sends some messages."""

SKEWED, WRONG = 5.0, 300.0
"""Seconds of difference between two clocks: from the first on ages and schedules mislead, past the second one certificates and signatures
fail."""

ASKED = 5
"""How often a server is asked for its latency."""

LIMIT = 10.0
"""Seconds that it may take to answer."""


def prefect(workspace: Workspace) -> Iterator[Finding]:
    """The server that `PREFECT_API_URL` names, or one that is started as runs do, which takes some seconds."""
    with orchestrator(workspace.prefect_home) as server, get_client(sync_client=True) as client:
        kind = "private server" if not os.environ.get("PREFECT_API_URL") else f"server at {server.api_url}"
        waits: list[float] = []
        for _ in range(ASKED):
            begun = time.perf_counter()
            client.request("GET", "/health").raise_for_status()
            waits.append(time.perf_counter() - begun)
        yield latency(kind, median(waits))
        if wrong := beside("prefect", "Prefect", client.api_version(), client.client_version()):
            yield wrong


def latency(kind: str, seconds: float) -> Finding:
    """Whether a Prefect server, which answered in so many seconds, answers soon enough."""
    if seconds > SLOW:
        what = f"{kind} answers in {1000 * seconds:.0f} ms"
        return Finding("warning", "prefect", f"{what}, which slows every round: use one that is nearer or less busy")
    return Finding("ok", "prefect", f"{kind} answers in {1000 * seconds:.0f} ms")


def mlflow(workspace: Workspace) -> Iterator[Finding]:
    """The tracking store: whether it can be reached, and its schema is the one that is used here."""
    state = store_state(workspace.mlflow_store)
    if state.uri is None:
        yield Finding("ok", "mlflow", f"no store yet: the first run makes {workspace.mlflow_store}")
    elif state.url is not None:
        if wrong := beside("mlflow", "MLflow", str(state.version), state.own):
            yield wrong
        else:
            yield Finding("ok", "mlflow", f"server at {state.uri} answers, version {state.version}")
    elif state.schema is None:
        yield Finding("error", "mlflow", f"{state.uri} holds no MLflow store: name another one in MLFLOW_TRACKING_URI")
    elif state.schema != state.expected:
        what = f"the schema of {state.uri} is {state.schema}, MLflow {state.own} works with {state.expected}"
        yield Finding("error", "mlflow", f"{what}: keep a copy of the database, then run mlflow db upgrade on it")
    else:
        yield Finding("ok", "mlflow", f"store {state.uri}, schema {state.schema}")


def registry(workspace: Workspace) -> Iterator[Finding]:
    """Champions: whether the runs that trained them are there, from which retrainings go on."""
    found = champions(workspace.mlflow_store)
    for model, version in found.items():
        if is_file(workspace.runs / version.run_id / "config.json"):
            yield Finding("ok", "registry", f"version {version.number} is the champion of {model}")
        else:
            what = (
                f"version {version.number}, the champion of {model}, was trained by run {version.run_id}, which is not in {workspace.runs}"
            )
            yield Finding("error", "registry", f"{what}: restore its folder, or take another version with fedlin rollback")
    if not found:
        yield Finding("ok", "registry", "no champion yet")


def clock(workspace: Workspace) -> Iterator[Finding]:
    """This machine's clock against those of the servers that the environment names."""
    named = {"Prefect": (PREFECT_API_URL.value(), "/health"), "MLflow": (os.environ.get("MLFLOW_TRACKING_URI"), "/health")}
    asked = False
    for name, (url, path) in named.items():
        if not (url and url.startswith("http")):
            continue
        asked, before = True, time.time()
        try:
            date = httpx.get(f"{url.rstrip('/')}{path}", timeout=LIMIT).headers.get("date", "")
        except httpx.HTTPError as error:
            yield Finding("warning", "clock", f"the {name} server does not answer ({type(error).__name__}): start it to compare clocks")
            continue
        yield compared(name, date, before, time.time())
    if not asked:
        yield Finding("ok", "clock", "no server of another machine to compare it with")


def compared(name: str, date: str, before: float, after: float) -> Finding:
    """A server's time against ours.

    Parameters
    ----------
    name
        The server.
    date
        Its header `Date`, in whole seconds.
    before, after
        Our time when it was asked and when it had answered, in seconds since 1970.
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return Finding("warning", "clock", f"the {name} server does not tell its time: compare the clocks by hand")
    apart = max(theirs - after, before - theirs - 1, 0.0)
    if apart <= SKEWED:
        return Finding("ok", "clock", f"within {SKEWED:g} s of the {name} server's")
    level = "error" if apart > WRONG else "warning"
    return Finding(level, "clock", f"{apart:.0f} s apart from the {name} server's: let both machines keep time by NTP")


def deployments(_: Workspace) -> Iterator[Finding]:
    """Work pools, workers and deployments, where any is on the server that `PREFECT_API_URL` names.

    Raises
    ------
    Misuse
        Where it cannot say what is deployed.
    """
    if not PREFECT_API_URL.value():
        yield Finding("ok", "deployments", "none: PREFECT_API_URL is not set")
        return
    try:
        with get_client(sync_client=True) as client:
            yield from _deployed(client)
    except httpx.HTTPError as error:
        raise Misuse(f"the Prefect server cannot say what is deployed ({type(error).__name__}): start it") from None


def _deployed(client: SyncPrefectClient) -> Iterator[Finding]:
    there = {pool.name for pool in client.read_work_pools()}
    wanted = {each["name"] for each in read_deployments()}
    found = {each.name: each for each in client.read_deployments() if each.name in wanted}
    if not found and not there & set(pools()):
        yield Finding("ok", "deployments", "none on this server: make deploy makes them")
        return
    begun = under_way() if there & set(pools()) else []
    for pool in pools():
        if pool not in there:
            yield Finding("error", "deployments", f"work pool {pool} is missing: make deploy makes it")
        elif client.read_work_pool(pool).is_paused:
            yield Finding("warning", "deployments", f"work pool {pool} is paused: prefect work-pool resume {pool}")
        elif not online(pool):
            yield Finding("error", "deployments", f"no worker of pool {pool} is online: prefect worker start --pool {pool}")
        elif len(taken := [run for run in begun if run.state_type in UNDER_WAY]) >= PROCESSES:
            what = f"work pool {pool} is full: {len(taken)} runs are under way or wait for their turn"
            yield Finding("warning", "deployments", f"{what}: wait for them, or cancel some in Prefect")
        else:
            yield Finding("ok", "deployments", f"work pool {pool} has a worker online")
    if missing := sorted(wanted - set(found)):
        yield Finding("error", "deployments", f"{', '.join(missing)} not deployed: make deploy")
    if paused := sorted(name for name, each in found.items() if each.paused):
        yield Finding("warning", "deployments", f"{', '.join(paused)} paused: prefect deployment resume")
    for name, each in sorted(found.items()):
        last = client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [each.id]}}),
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": TERMINAL_STATES}}}),
            sort=FlowRunSort.END_TIME_DESC,
            limit=1,
        )
        if last and last[0].state_type == StateType.CRASHED:
            what = f"the last run of {name} that ended has crashed ({last[0].name}), and what it was for has not been done"
            yield Finding("warning", "deployments", f"{what}: prefect flow-run retry {last[0].id}")
    if not missing and not paused:
        yield Finding("ok", "deployments", f"{', '.join(sorted(found))} are deployed")


def events(workspace: Workspace) -> Iterator[Finding]:
    """Rows that were added while the Prefect server was away, which no retraining has been started for."""
    if due := untold(workspace):
        names = ", ".join(sorted({each.dataset for each in due}))
        what = f"Prefect has not been told of rows that were added ({names}; {len(due)} batches)"
        yield Finding(
            "warning",
            "events",
            f"{what}: the next fedlin data add tells it (the last one again will do), as does make stack",
        )
    else:
        yield Finding("ok", "events", "no added rows are still to be told")


def stack(workspace: Workspace) -> Iterator[Finding]:
    """The local stack, where one was started and not ended."""
    if not (workspace.stack / ENVIRONMENT).exists():
        yield Finding("ok", "stack", "not started")
        return
    local = Stack(workspace)
    if gone := [name for name, running in local.running.items() if not running]:
        yield Finding("error", "stack", f"{', '.join(gone)} ended by itself: make stack starts it again, its logs are in {workspace.stack}")
        return
    if PREFECT_API_URL.value() == local.addresses["PREFECT_API_URL"] and (
        gone := [run.name for run in dead(under_way()) if run.state_type == StateType.RUNNING]
    ):
        what = f"{', '.join(gone)} ended with a worker, and Prefect takes them to be under way"
        yield Finding("warning", "stack", f"{what}: python -m flows.reviving starts them again")
        return
    apart = [name for name, url in local.addresses.items() if os.environ.get(name) != url]
    if apart:
        use = f". {workspace.stack / ENVIRONMENT}"
        yield Finding("warning", "stack", f"it is up, and this shell does not use it ({', '.join(apart)}): {use}")
    else:
        yield Finding("ok", "stack", "it is up, and used by this shell")
