"""The backend of a run whose devices are at sites: the same rounds, with one task a site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from prefect import unmapped
from prefect.futures import PrefectFuture

from fedcore.algorithm import AnyAlgorithm
from fedcore.data import Dataset, DeviceCard
from fedcore.data.names import checked_distinct
from fedcore.errors import DeviceFailure, Misuse
from flows.config import TrainConfig
from flows.fleet import DeviceTask, Fleet, ended
from flows.parent import Parent
from flows.sites.site import STEPS
from tasks.cohort import Answered, Errand
from tasks.ground import Ground, Owner, Station
from tasks.sites.asking import Far, site_ask
from tasks.sites.enrolled import Enrolled
from tasks.sites.letters import NAME, Step, Work
from tasks.sites.messages import Request

Members = Mapping[str, Sequence[str]]
"""The devices of each site."""


class SiteFleet(Fleet):
    """The devices of some sites behind Prefect tasks, one a site and step. A site keeps its devices' files as if each were on its own."""

    HERE = False
    REMEDY = "mend such a device at its site, or take it out there with fedlin data remove"

    def __init__(
        self,
        sites: Mapping[str, Enrolled],
        run_id: str,
        config: TrainConfig,
        dataset: Dataset,
        algorithm: AnyAlgorithm,
        device_ids: Sequence[str] | None = None,
        parent: Parent | None = None,
        run_uuid: str | None = None,
        members: Members | None = None,
    ) -> None:
        """`members` are those of a run that has begun; by default the sites are asked.

        Raises
        ------
        Misuse
            Where a site does not say which devices it has, two have one of the same name, or as for any fleet.
        """
        if not NAME.fullmatch(run_id):
            raise Misuse(f"a run over sites needs a name of letters, digits, '.', '_' and '-', got {run_id!r}")
        self._sites = sites
        self._work = Work(
            dataset=dataset.name,
            contract=dataset.contract.digest,
            target=dataset.contract.target,
            target_scaling=dataset.contract.scaling.target,
            algorithm=config.algorithm,
            options=asdict(algorithm),  # pyright: ignore[reportArgumentType]
        )
        run_uuid = uuid4().hex if run_uuid is None else run_uuid
        self._members = members or self._described(Ground(run_id, run_uuid, dataset, 0))
        known = checked_distinct(device_id for ids in self._members.values() for device_id in ids)
        self._site_of = {device_id: name for name, ids in self._members.items() for device_id in ids}
        if unknown := [device_id for device_id in device_ids or () if device_id not in self._site_of]:
            raise Misuse(f"no site has device {unknown[0]!r} ({len(unknown)} are missing): name devices that sites have")
        config = config.model_copy(update={"devices_per_task": 1})
        super().__init__(run_id, config, dataset, algorithm, device_ids or known, parent, run_uuid)
        self.task_runs += 0 if members else len(sites)

    def manifest(self, cards: Sequence[DeviceCard]) -> dict[str, Any]:
        """As of any fleet, with the devices of each site."""
        return super().manifest(cards) | {"sites": self._members}

    def _owner(self, device_id: str) -> Owner:
        """The site that has a device."""
        return self._site_of[device_id]

    def _started(self, task: DeviceTask, ground: Ground, errands: Sequence[Errand]) -> Iterable[PrefectFuture[Any]]:
        """The tasks that ask sites for what `task` would do at their devices."""
        step: Step = next(name for name, each in STEPS.items() if each is task)  # pyright: ignore[reportAssignmentType]
        fitted = self.dataset.fitted.model_dump_json() if self.dataset.fitted else ""
        d = ground.spec.d if isinstance(ground, Station) else 0
        deadline = ground.deadline if isinstance(ground, Station) else None
        title = f"round {errands[0].round_num}" if step == "update" else step
        request = Request(ground.devices, d, self._seed, deadline, fitted, ())
        return site_ask.map(unmapped(Far(ground, self._sites, step, title, self._work, request)), errands)

    def _described(self, ground: Ground) -> Members:
        """Which devices the sites have; each is asked in the place of a device."""
        far = Far(ground, self._sites, "describe", "describe", self._work, Request(0, 0, 0, None, "", ()))
        found = [ended(future) for future in site_ask.map(unmapped(far), [Errand(name, {name: ()}) for name in self._sites])]
        if failed := [each for each in found if not isinstance(each, Answered)]:
            why = failed[0] if isinstance(failed[0], DeviceFailure) else type(failed[0]).__name__
            raise Misuse(f"{len(failed)} of {len(self._sites)} sites cannot take part: {why}")
        return {name: list(each.answers[name].devices) for name, each in zip(self._sites, found, strict=True)}  # pyright: ignore
