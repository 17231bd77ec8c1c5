"""A site: it decides on each request, does what it takes, and logs what leaves."""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedcore.algorithm import AnyAlgorithm, FleetSpec
from fedcore.data import Dataset, Fitted
from fedcore.data.places import discard, is_file, place
from fedcore.errors import DeviceFailure, DeviceRefusal, FedlinError, Misuse
from flows.config import build_algorithm
from flows.terminal import counted
from tasks.cohort import asked
from tasks.device import device_enrol, device_finalize, device_forget, device_summarise, device_update
from tasks.ground import Station
from tasks.sites.audit import Audit
from tasks.sites.letters import Letter, Untrusted, fetch, opened, put, read_key, signed
from tasks.sites.messages import Answer, Described, Failed, Request, Said, packed, suits, unpacked
from tasks.sites.policy import AUDIT, KEY, Policy, read_policy

STEPS = {
    "summarise": device_summarise,
    "enrol": device_enrol,
    "update": device_update,
    "finalize": device_finalize,
    "forget": device_forget,
}


class Refused(FedlinError):
    """A request that a site does not carry out; says why, in one line."""


class Site:
    """What a worker at a site answers requests with.

    Attributes
    ----------
    policy
        What it answers, as it was when the worker began: its name and its exchange stay, all else is looked up for each request.
    """

    def __init__(self, folder: Path) -> None:
        """
        Raises
        ------
        Misuse
            Where the policy, the key or the log in the site's folder cannot be used.
        """
        self.policy = read_policy(folder)
        self._folder = folder
        self._key = read_key(folder / KEY)
        self._audit = Audit(folder / AUDIT)
        self._exchange = place(self.policy.exchange)

    def answer(self, sent: object, flow_run: str) -> str:
        """Carry out a request, and leave the answer and its letter in the exchange.

        Nothing of a device is opened before the letter, what it asks for, and its message are found to be in order. What is about to leave
        is in the log before it leaves.

        Parameters
        ----------
        sent
            The letter as it came.
        flow_run
            Prefect's id of the run by which it came, for the log.

        Returns
        -------
        str
            What was answered, in one line.

        Raises
        ------
        Refused
            Where it is not carried out.
        OSError
            Where the exchange or the log cannot be used now.
        """
        told: dict[str, Any] = {"flow_run": flow_run}
        try:
            letter = opened(sent, self._key, "request", self.policy.name)
            told |= letter.told
            policy = self._present()
            policy.check_time(letter, time.time())
            if self._audit.had(letter.nonce):
                raise Untrusted("it has been here before")
            self._audit.note("asked", **told, expires=letter.expires, message_sha256=letter.sha256)
            dataset = policy.allowed(letter.work)
            algorithm = _algorithm(letter)
            request = unpacked(fetch(self._exchange, letter), Request)
            answer = _carried_out(letter, dataset, algorithm, request)
        except Untrusted as error:
            self._audit.note("refused", **told, why=str(error))
            raise Refused(f"refused: {error}") from None
        return self._send(letter, answer, told)

    def _present(self) -> Policy:
        """The policy as it is now: what its owner has just struck out is not answered any more."""
        try:
            return read_policy(self._folder)
        except Misuse:
            raise Untrusted("the site's policy is not in order") from None

    def withdraw(self, sent: object) -> None:
        """Take back the answer to a request that nobody waits for any more.

        Raises
        ------
        OSError
            As the operating system says.
        """
        with suppress(Untrusted):
            letter = opened(sent, self._key, "request", self.policy.name)
            for name in (f"{letter.nonce}.answer", f"{letter.nonce}.letter"):
                if is_file(self._exchange / name):
                    discard(self._exchange / name)
                    self._audit.note("withdrawn", **letter.told, file=name)

    def failed(self, flow_run: str) -> None:
        """Keep the traceback of a failure of the site's own code, which may quote rows, for whoever may read them."""
        self._audit.note("failed", flow_run=flow_run)
        (self._folder / "error.txt").write_text(traceback.format_exc())

    def _send(self, letter: Letter, answer: Answer, told: Mapping[str, Any]) -> str:
        content = packed(answer)
        digest = hashlib.sha256(content).hexdigest()
        reply = letter.model_copy(update={"kind": "answer", "sha256": digest, "work": None})
        told_of = sum(len(what.devices) if isinstance(what, Described) else 1 for _, what in answer.answers)
        counts = {"devices": told_of, "devices_failed": len(answer.failed)}
        self._audit.note("left", **told, message_sha256=digest, bytes=len(content), **counts)
        try:
            put(self._exchange, reply.uri, content)
            put(self._exchange, f"{letter.nonce}.letter", json.dumps(signed(reply, self._key)).encode())
        except OSError as error:
            self._audit.note("undelivered", **told, message_sha256=digest, why=error.strerror)
            raise
        return f"{letter.step}: {counted(told_of, 'device')} answered, {len(answer.failed)} did not; {len(content)} bytes left"


def _algorithm(letter: Letter) -> AnyAlgorithm:
    assert letter.work is not None  # the policy has looked
    try:
        return build_algorithm(letter.work.algorithm, letter.work.options)
    except Misuse as error:
        raise Untrusted(str(error)) from None


def _carried_out(letter: Letter, dataset: Dataset, algorithm: AnyAlgorithm, request: Request) -> Answer:
    """What a site's devices say, one after the other; those of whom none is asked stay closed."""
    ours = dataset.device_ids
    if letter.step == "describe":
        return Answer((Said(letter.site, Described(ours)),), ())
    try:
        fitted = Fitted.model_validate_json(request.fitted) if request.fitted else None
    except ValidationError:
        raise Untrusted("its preprocessing is none of this version of fedlin") from None
    # Of the other sites' devices no more is known here than how many there are.
    spec = FleetSpec(tuple(map(str, range(request.devices))), request.d)
    station = Station(letter.run_id, letter.run_uuid, dataset.with_fitted(fitted), algorithm, spec, request.seed, request.deadline)
    answers: list[Said] = []
    failed: list[Failed] = []
    for device, what in request.told:
        try:
            if device not in ours or not suits(letter.step, device, what):
                raise DeviceRefusal(f"device {device}: site {letter.site} has no such device, or it is told something else")
            answers.append(Said(device, asked(STEPS[letter.step], station, device, *what)))
        except DeviceFailure as failure:
            failed.append(Failed(device, type(failure).__name__, str(failure)))
    return Answer(tuple(answers), tuple(failed))
