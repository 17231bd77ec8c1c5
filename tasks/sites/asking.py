"""What the server asks of a site: one task a site and step, which sends a letter, starts a run of the site's deployment and waits for it.

To the rest of a run a site is a cohort of devices that share this task, with its retries: what may pass is asked again in a new letter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from threading import Event
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from fedcore.data.places import discard, read_file
from fedcore.errors import DeviceAway, DeviceFailure, DeviceLate, DeviceRefusal
from tasks.cohort import Attempt, device_task
from tasks.ground import Ground
from tasks.sites.enrolled import Enrolled
from tasks.sites.letters import Letter, Step, Untrusted, Work, fetch, new_nonce, opened, put, signed
from tasks.sites.messages import Answer, Request, Said, checked, packed, shown, unpacked

LEAVING = Event()
"""Set where the process is told to end: no answer is waited for any more."""

SOONEST, LATEST = 0.1, 2.0
"""Seconds between two looks at a site's run: at first, and of one that takes long."""


class Far(Ground):
    """Where devices at sites work, as the server knows it.

    Attributes
    ----------
    sites
        By name.
    step, title
        What is asked, and how Prefect is to call it.
    work, request
        What is trained, and what all devices are told of it.
    """

    def __init__(self, ground: Ground, sites: Mapping[str, Enrolled], step: Step, title: str, work: Work, request: Request) -> None:
        super().__init__(ground.run_id, ground.run_uuid, ground.dataset, ground.devices)
        self.sites = sites
        self.step: Step = step
        self.title = title
        self.work = work
        self.request = request


@device_task("site-ask", "{ground.title} {errand.name}", "exchange")
def site_ask(attempt: Attempt[Far]) -> Mapping[str, Any]:
    """Ask a site for what its devices answer."""
    far = attempt.ground
    site = far.sites[str(attempt.owner)]
    try:
        answers, failed = _asked(far, site, attempt.told)
        attempt.failed |= failed
        return answers
    except Untrusted as error:
        failure = DeviceFailure(f"site {site.name}: its answer is not taken: {error}")
    except DeviceFailure as error:
        failure = error
    except httpx.HTTPError as error:
        failure = DeviceAway(f"site {site.name}: the Prefect server does not answer ({type(error).__name__})")
    except OSError as error:
        failure = DeviceAway(f"site {site.name}: its exchange cannot be used ({error.strerror})")
    attempt.failed |= dict.fromkeys(attempt.told, failure)
    return {}


def _asked(far: Far, site: Enrolled, told: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, DeviceFailure]]:
    content = packed(far.request._replace(told=tuple(Said(device, what) for device, what in told.items())))
    nonce, expires = new_nonce(), time.time() + site.patience
    round_num = next((each.round_num for what in told.values() for each in what[:1] if hasattr(each, "down")), 0)
    about = {"site": site.name, "run_id": far.run_id, "run_uuid": far.run_uuid, "step": far.step, "round_num": round_num}
    about |= {"nonce": nonce, "expires": expires}
    files = [f"{nonce}.request", f"{nonce}.answer", f"{nonce}.letter"]
    try:
        digest = put(site.exchange, files[0], content)
        letter = Letter.model_validate({"kind": "request", **about, "sha256": digest, "work": far.work})
        _carried_out(far, site, signed(letter, site.key))
        return checked(_answer(site, letter), far.step, told)
    finally:
        for name in files:
            with suppress(OSError):
                discard(site.exchange / name)


def _carried_out(far: Far, site: Enrolled, sent: Mapping[str, str]) -> None:
    """Have a site do what a letter asks for.

    Raises
    ------
    DeviceFailure
        Where it has not.
    """
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(site.deployment)
        except ObjectNotFound:
            raise DeviceAway(
                f"site {site.name}: it has never served on this Prefect server: start fedlin site serve {site.name} there"
            ) from None
        name, tags = f"{far.run_id} {far.title} {site.name}", [far.run_id]
        run = client.create_flow_run_from_deployment(deployment.id, parameters={"letter": dict(sent)}, name=name, tags=tags)
        state = _ended(client, run.id, site.patience)
        if state is None:
            client.set_flow_run_state(run.id, Cancelled(message="the server has waited long enough"), force=True)
            raise DeviceLate(f"site {site.name}: no answer within {site.patience:g} s: see that fedlin site serve {site.name} runs there")
    why = shown(state.message)
    if state.is_failed():
        raise DeviceRefusal(f"site {site.name}: {why}")
    if not state.is_completed():
        raise DeviceAway(f"site {site.name}: {why}")


def _ended(client: SyncPrefectClient, run: UUID, patience: float) -> State[Any] | None:
    """The last state of a flow run, None where it has none in time."""
    begun, wait = time.monotonic(), SOONEST
    while time.monotonic() < begun + patience:
        state = client.read_flow_run(run).state
        if state and state.is_final():
            return state
        if LEAVING.wait(wait):
            break
        wait = min(wait * 1.1, LATEST)
    return None


def _answer(site: Enrolled, request: Letter) -> Answer:
    """What a site has put into the exchange for a request."""
    try:
        sent = json.loads(read_file(site.exchange / f"{request.nonce}.letter"))
    except (FileNotFoundError, ValueError):
        raise Untrusted("it is not in the exchange, or no letter") from None
    letter = opened(sent, site.key, "answer", site.name)
    if (letter.nonce, letter.run_id, letter.step) != (request.nonce, request.run_id, request.step):
        raise Untrusted("it is the answer to another request")
    return unpacked(fetch(site.exchange, letter), Answer)
