"""The worker at a site: it serves the site's work pool, and does one thing there.

Workers of Prefect start what a deployment says: a command, an entry point, variables, all of them the server's words. This one takes of a
flow run its letter alone and gives it to the `Site`, so whoever writes to the Prefect server cannot have anything else done. It answers
in its own process, which saves each run the seconds that a new one takes to import what it needs.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import tasks as tasks  # isort: skip  (settles the environment, which prefect reads on import)
import anyio
import anyio.abc
import anyio.to_thread
import httpx
from filelock import Timeout
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType, WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_URL, PREFECT_WORKER_QUERY_SECONDS, temporary_settings
from prefect.states import Completed, Crashed, Failed, Running
from prefect.utilities.engine import propose_state
from prefect.workers.base import BaseJobConfiguration, BaseWorker, BaseWorkerResult

from fedcore.errors import Misuse
from flows.progress import say
from flows.sites.site import Refused, Site
from tasks.lock import alone
from tasks.sites.enrolled import FLOW, POOL
from tasks.sites.policy import SERVING

QUERY = 0.5
"""Seconds between two looks for requests, each of them one small request: a round waits for half of it."""


@flow(name=FLOW)
def site_update(letter: dict[str, str]) -> None:
    """What a site does for a run; only its own worker knows how.

    Parameters
    ----------
    letter
        The request, signed.

    Raises
    ------
    Misuse
        Wherever another worker takes it.
    """
    raise Misuse("a request to a site is carried out by its own worker alone: fedlin site serve")


class SiteResult(BaseWorkerResult):
    """A request has been dealt with; how is in the state of its flow run."""


class SiteWorker(BaseWorker[BaseJobConfiguration, Any, SiteResult]):
    """A worker that answers requests to one site, one at a time."""

    type = "fedlin-site"
    _description = "Answers signed requests to a site of fedlin."

    def __init__(self, site: Site) -> None:
        super().__init__(work_pool_name=f"{POOL}{site.policy.name}", name=site.policy.name, limit=1)
        self._site = site

    async def run(
        self, flow_run: FlowRun, configuration: BaseJobConfiguration, task_status: anyio.abc.TaskStatus[Any] | None = None
    ) -> SiteResult:
        """Deal with a request, to its end even where the worker is told to end meanwhile."""
        if task_status is not None:
            task_status.started(self.name)
        with anyio.CancelScope(shield=True):
            await propose_state(self.client, Running(), flow_run_id=flow_run.id)
            ended = await anyio.to_thread.run_sync(self._ended, flow_run.parameters.get("letter"), str(flow_run.id))
            say(str(ended.message))
            await propose_state(self.client, ended, flow_run_id=flow_run.id)
            state = (await self.client.read_flow_run(flow_run.id)).state
            if state and state.is_cancelled():  # the server has gone, or waits no longer
                await anyio.to_thread.run_sync(self._site.withdraw, flow_run.parameters.get("letter"))
        return SiteResult(identifier=self.name, status_code=0)

    def _ended(self, letter: object, flow_run: str) -> State[None]:
        """How the flow run of a letter ends."""
        try:
            return Completed(message=self._site.answer(letter, flow_run))
        except Refused as refusal:
            return Failed(message=str(refusal))
        except OSError as error:
            say(f"{error.filename or 'the exchange'} cannot be used ({error.strerror}): let the site's user write it")
            return Crashed(message=f"its exchange or log cannot be used now ({error.strerror}): its worker's own output says which")
        except Exception as error:  # whose text may quote rows
            self._site.failed(flow_run)
            return Crashed(message=f"{type(error).__name__} in its own code; the details are in the site's folder")


def serve(folder: Path) -> None:
    """Answer requests to the site of a folder, until the process is told to end.

    Raises
    ------
    Misuse
        Where the site's folder is not in order, it is being served already, or no Prefect server answers.
    """
    site = Site(folder)
    if not PREFECT_API_URL.value():
        raise Misuse("PREFECT_API_URL is not set: name the Prefect server that requests come by")
    try:
        with alone(folder / SERVING, timeout=0), temporary_settings({PREFECT_WORKER_QUERY_SECONDS: QUERY}):
            _deploy(site.policy.name)
            with suppress(KeyboardInterrupt, asyncio.CancelledError):
                asyncio.run(_until_told(SiteWorker(site)))
    except Timeout:
        raise Misuse(f"site {site.policy.name} is being served already: end that process first") from None
    except httpx.HTTPError as error:
        raise Misuse(f"no Prefect server answers at PREFECT_API_URL={PREFECT_API_URL.value()} ({type(error).__name__}): start it") from None


async def _until_told(worker: SiteWorker) -> None:
    """Serve until the process is told to end. A signal that raised in the middle of the event loop would cancel the request under way too;
    one that cancels this task lets it end."""
    serving = asyncio.current_task()
    assert serving is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    await worker.start(printer=partial(print, flush=True))


def _deploy(name: str) -> None:
    """Make the site's work pool where it is missing, and its deployment; requests that a killed worker was at end, so that the server asks
    again at once."""
    pool = f"{POOL}{name}"
    with get_client(sync_client=True) as client:
        with suppress(ObjectAlreadyExists):
            template = SiteWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=pool, type=SiteWorker.type, base_job_template=template))
        client.create_deployment(client.create_flow(site_update), name=name, work_pool_name=pool)
        begun = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])))
        for left in client.read_flow_runs(work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])), flow_run_filter=begun):
            client.set_flow_run_state(left.id, Crashed(message="its worker was lost while it was at it, and is back"), force=True)
