"""Retraining that is safe: a challenger is trained, compared with the champion on the devices, and takes its place only past a margin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from prefect import flow
from prefect.client.schemas.objects import State

from fedcore.algorithm import Outcome
from fedcore.data import Dataset
from fedcore.data.places import is_file, make_folder, read_file, write_durably
from fedcore.drift import median_rms
from fedcore.errors import FedlinError, Misuse
from fedcore.messages import nbytes
from fedcore.metrics import Score
from fedcore.promotion import Contest, contest, refusal
from flows.cancelling import RunCancelled, cancellable
from flows.champions import FILE, Trained, carry_out, decide, decided, open_registry, show_metrics
from flows.config import RetrainConfig, RunConfig, TrainConfig
from flows.drifts import Drifts
from flows.fleet import Fleet
from flows.parent import Parent
from flows.progress import say, say_unanswered
from flows.runners import THREADS, on_runner
from flows.running import Run, flow_run_name, open_data
from flows.train import train
from flows.turns import in_turn
from tasks.checkpoint import RunFolder
from tasks.decision import KEPT, PROMOTED, SKIPPED, SUPERSEDED, Decision, actor, now
from tasks.results import finite
from tasks.retrain import device_contest, device_drift
from tasks.tables import write_parquet
from tasks.tracking.registry import Registry, Version

AWAY, REFUSED = "registry_away", "refused"
"""Outcomes of a run whose decision waits for the registry, and of one whose challenger could not be trained; both may go on."""


class Ring(NamedTuple):
    """Where champion and challenger meet.

    Attributes
    ----------
    champion
        The champion's run, None where there is none.
    before
        The data set with its preprocessing, None where the data are no longer what it was trained for.
    apart
        Why not.
    """

    champion: Parent | None
    before: Dataset | None
    apart: str


@flow(name="fedlin-retrain", flow_run_name=flow_run_name, task_runner=THREADS, persist_result=False)
@cancellable
@in_turn
@on_runner
def retrain(config: RetrainConfig | None = None, run_id: str | None = None) -> State[None]:
    """Train a challenger for a data set's champion and promote it where it is better; or go on with a run that was interrupted.

    Parameters
    ----------
    config
        For which data set; None for a run that has begun, which keeps the configuration that it began with.
    run_id
        Name of the run; by default a new one.

    Returns
    -------
    State
        Completed where the challenger was promoted, or the champion kept; Failed where there was no usable challenger, or no registry to
        decide in. The figures are in `runs/<run_id>/result.json`, the decision in `decision.json`.

    Raises
    ------
    Misuse
        Where the run cannot be carried out as it is asked for.
    """
    run = Run.open(RetrainConfig, config, run_id)
    folder, dataset = run.folder, open_data(run.config, run.workspace)
    registry = open_registry(run.workspace, run.config.dataset, run.config.target)
    begun = folder.exists
    known = folder.manifest()["champion"] if begun else None
    champion = registry.champion() if not begun else Version(**known) if known else None
    ring = _ring(run, champion, dataset)
    if not begun:
        _ = _challenger(run, ring)  # what cannot be trained is refused before anything is left
        told = champion._asdict() if champion else None
        run.create(run.config.model_dump(mode="json"), {"dataset": dataset.name, "model": registry.name, "champion": told, "devices": []})
    with run.held():
        params = {name: value for name, value in run.config.model_dump().items() if name != "options"}
        run.start_tracking(params | {f"option.{name}": value for name, value in run.config.options.items()})
        return _Retraining(run, dataset, registry, champion, ring).end()


def _ring(run: Run[RetrainConfig], champion: Version | None, dataset: Dataset) -> Ring:
    if champion is None:
        return Ring(None, None, "")
    parent = Parent.open(run.workspace, champion.run_id)
    try:
        return Ring(parent, parent.prepared(dataset), "")
    except Misuse as error:
        return Ring(parent, None, str(error).partition(": use")[0])


def _challenger(run: Run[RetrainConfig], ring: Ring) -> tuple[TrainConfig, str]:
    """What is trained, and why it does not go on from the champion's run; empty where it does."""
    asked = run.config
    own = ring.champion.config if ring.champion else None
    algorithm = asked.algorithm or (own.algorithm if own else "hm1")
    options = {**(own.options if own and own.algorithm == algorithm else {}), **asked.options}
    shared = asked.model_dump(include=set(RunConfig.model_fields))
    anew = TrainConfig(**shared, algorithm=algorithm, options=options)
    made = anew.build_algorithm()
    if ring.champion is None or ring.before is None:
        return anew, ring.apart if ring.champion else ""
    if made != ring.champion.config.build_algorithm():
        return anew, "algorithm or options are not the champion's"
    return anew.model_copy(update={"parent": ring.champion.folder.run_id}), ""


class _Retraining:
    """One retraining, step by step. What it finds is kept for `result.json`, in which the steps that were not taken are missing."""

    def __init__(self, run: Run[RetrainConfig], dataset: Dataset, registry: Registry, champion: Version | None, ring: Ring) -> None:
        self.run = run
        self.dataset = dataset
        self.registry = registry
        self.champion = champion
        self.ring = ring
        self.task_runs = 0
        self.sent = {"uplink_bytes": 0, "downlink_bytes": 0}
        self.trained = RunFolder(run.workspace.runs / f"{run.folder.run_id}-challenger")
        self.figures: dict[str, Any] = {"champion": champion.number if champion else None, "version": None}
        self.columns: dict[str, dict[str, Any]] = {}

    def end(self) -> State[None]:
        """Take all steps, and say how it ended."""
        outcome, result = self._outcome()
        self._write_results()
        complete = {"rounds": 0, "round_s": None, "devices_missing": [], **result, **self.figures}
        complete |= {way: size + result.get(way, 0) for way, size in self.sent.items()}
        return self.run.end(outcome, complete, uploads=True, task_runs=self.task_runs, earlier=0.0)

    def _outcome(self) -> tuple[Outcome, dict[str, Any]]:
        decision = decided(self.run.folder)
        if decision and decision.decision == SKIPPED:
            return self._carried_out(decision, None), {}
        if decision is None:
            drifts = self._drifts()
            if why := self._calm(drifts):
                return self._carried_out(self._decide(SKIPPED, why), None), {}
        try:
            result = self._train()
        except FedlinError as error:
            return Outcome(REFUSED, f"the challenger could not be trained, and the champion stays: {error}", ok=False), {}
        told = {name: result[name] for name in ("rounds", "round_s", "uplink_bytes", "downlink_bytes", "devices_missing")}
        if result["outcome"] == "quorum_lost":
            return Outcome("quorum_lost", f"the challenger's {result['message']}", ok=False), told
        if not result["ok"]:
            decision = decision or self._decide(KEPT, f"the challenger ended without a usable result ({result['outcome']})")
            done = self._carried_out(decision, None)
            failed = Outcome(result["outcome"], f"the challenger has no usable result: {result['message']}", ok=False)
            return (done if done.name == AWAY else failed), told
        if decision is None:
            found = self._contest()
            if isinstance(found, Outcome):
                return found, told
            decision = self._judged(found)
        else:
            self.figures |= decision.figures
        if not result["tracked"]:
            return self._away(decision, "the challenger's results are not all there"), told
        return self._carried_out(decision, Trained(self.trained.run_id, result["mlflow_run_id"], self._about(result))), told

    def _about(self, result: dict[str, Any]) -> dict[str, Any]:
        """What the challenger's version says of it."""
        numbers = {
            name: value for name, value in self.figures.items() if isinstance(value, int | float) and name not in ("champion", "version")
        }
        return {"dataset": self.dataset.name, "algorithm": result["algorithm"], **numbers}

    def _drifts(self) -> Drifts:
        """What the devices that the champion knows say of their drift."""
        champion, before = self.ring.champion, self.ring.before
        if champion is None or before is None:
            return Drifts({}, [], whole=False)
        theta = champion.coefficients
        ids = [device for device in before.device_ids if device in theta]
        self.figures |= {
            "devices_new": len(set(before.device_ids) - set(champion.device_ids)),
            "devices_gone": len(set(champion.device_ids) - set(before.device_ids)),
        }
        if not ids:
            return Drifts({}, [], whole=False)
        fleet = self._fleet(before, champion, ids)
        thetas, downs = [theta[each] for each in ids], list(champion.broadcasts(ids))
        told = fleet.ask(device_drift, ids, thetas, champion.earlier(ids), downs)
        self._count(fleet, "drift", told, (thetas, downs))
        limit, move = self.run.config.drift, self.run.config.drift_move
        drifted = [device for device, drift in told.items() if drift.exceeds(limit, move, len(told))]
        drifts = Drifts(told, drifted, whole=median_rms(told.values()) > limit)
        self.figures |= drifts.figures()
        for name in ("mean", "rms", "move"):
            self.columns[f"drift_{name}"] = {device: finite(getattr(drift, name)) for device, drift in told.items()}
        return drifts

    def _calm(self, drifts: Drifts) -> str:
        """Why no challenger is needed; empty where one is, or was asked for in any case."""
        asked = self.run.config
        if not asked.only_if_drifted or self.ring.before is None or self.figures["devices_new"] or self.figures["devices_gone"]:
            return ""
        K = len(self.dataset.device_ids)
        if drifts.drifted or drifts.whole or not drifts.measured or len(drifts.measured) < asked.quorum * K:
            return ""
        figures = drifts.figures()
        parts: list[str] = []
        if (rms := figures["drift_rms_largest"]) is not None:
            within = "no more than few rows explain" if rms > asked.drift else f"below {asked.drift:g}"
            parts.append(f"the largest rms of standardised residuals is {rms:.3g}, {within}")
        if (move := figures["drift_move_largest"]) is not None:
            parts.append(f"the largest move is {move:.3g} nats, below {asked.drift_move:g}")
        return f"none of {len(drifts.measured)} devices has drifted, {' and '.join(parts)}"

    def _train(self) -> dict[str, Any]:
        """The challenger's result; a run that has begun goes on, and one that has ended is not run again."""
        config, why = _challenger(self.run, self.ring)
        if self.trained.exists:
            result = self._result()
            if not (result and result["tracked"] and result["outcome"] != "quorum_lost"):
                self._run_train(None)
                result = self._result()
        else:
            failure = self._trained(config)
            if isinstance(failure, Misuse) and config.parent:
                why = f"it could not go on from the champion's run, {failure}"
                say(f"the challenger starts anew: {why}")
                failure = self._trained(config.model_copy(update={"parent": None}))
            if failure:
                raise failure
            result = self._result()
        if result is None:
            raise FedlinError(
                f"the challenger's run {self.trained.run_id} has stopped: go on with fedlin retrain --resume {self.run.folder.run_id}"
            )
        given = self.trained.config("train")["given"]["parent"]
        self.figures |= {"challenger": self.trained.run_id, "start": "warm" if given else "anew", "start_why": why or None}
        return result

    def _trained(self, config: TrainConfig) -> FedlinError | None:
        """Train the challenger; returns why it was refused before it began."""
        state = self._run_train(config)
        if self.trained.exists:
            return None
        found = state.result(raise_on_failure=False)
        return found if isinstance(found, FedlinError) else FedlinError(f"the challenger could not be trained ({type(found).__name__})")

    def _run_train(self, config: TrainConfig | None) -> State[Any]:
        self.task_runs += 1  # Prefect keeps a flow within a flow as a task of the outer one too
        state = train(config, run_id=self.trained.run_id, return_state=True)
        if state.is_cancelled():
            raise RunCancelled(state.message)
        return state

    def _result(self) -> dict[str, Any] | None:
        return self.trained.read_json("result.json") if is_file(self.trained.path / "result.json") else None

    def _contest(self) -> Contest | Outcome:
        """Champion and challenger on the devices' held-out rows, or why the devices that answered are too few."""
        champion, before = self.ring.champion, self.ring.before
        if champion is None or before is None:
            return contest(np.empty(0), np.empty(0))
        challenger = Parent.open(self.run.workspace, self.trained.run_id)
        theirs, ours = champion.coefficients, challenger.coefficients
        ids = [device for device in self.dataset.device_ids if device in theirs and device in ours]
        scores: dict[str, tuple[Score, Score]] = {}
        if ids:
            fleet = self._fleet(challenger.prepared(self.dataset), challenger, challenger.device_ids)
            thetas = [[each[device] for device in ids] for each in (theirs, ours)]
            scores = fleet.ask(device_contest, ids, [before] * len(ids), *thetas)
            self._count(fleet, "scores", scores, thetas)
            if why := fleet.schedule.lost(len(scores), len(ids)):
                message = f"only {len(scores)} of {len(ids)} devices could score champion and challenger, {why}"
                return Outcome("quorum_lost", f"{message}: see why devices fail, then resume the run", ok=False)
        scored = {device: pair for device, pair in scores.items() if all(each.n and np.isfinite(each.rmse) for each in pair)}
        for i, name in enumerate(("rmse_champion", "rmse_challenger")):
            self.columns[name] = {device: pair[i].rmse for device, pair in scored.items()}
        found = contest(*(np.array([pair[i].rmse for pair in scored.values()]) for i in (0, 1)))
        self.figures |= {
            "a_rmse_champion": finite(found.champion),
            "a_rmse": finite(found.challenger),
            "improvement": finite(found.improvement),
            "p": found.p,
            "devices_paired": found.devices,
            "devices_better": found.better,
            "devices_worse": found.worse,
            "devices_unscored": len(ids) - found.devices,
        }
        return found

    def _judged(self, found: Contest) -> Decision:
        if self.champion is None:
            return self._decide(PROMOTED, "there was no champion")
        if self.ring.before is None:
            take = f"look at it, and take it by fedlin rollback {self.dataset.name} --to its number"
            return self._decide(KEPT, f"the two cannot be compared, {self.ring.apart}: {take}")
        asked = self.run.config
        if why := refusal(found, asked.margin, asked.p_value):
            return self._decide(KEPT, why)
        smaller = f"its A-RMSE is {100 * found.improvement:.2f} % smaller, p = {found.p:.2g}"
        return self._decide(PROMOTED, f"{smaller}, and it is better on {found.better} of {found.devices} devices")

    def _decide(self, what: str, why: str) -> Decision:
        number = self.champion.number if self.champion else None
        told = {name: value for name, value in self.figures.items() if name not in ("champion", "version")}
        folder, model = self.run.folder, self.registry.name
        return decide(folder, Decision(folder.run_id, what, actor(), now(), why, self.dataset.name, model, number, None, told))

    def _carried_out(self, decision: Decision, trained: Trained | None) -> Outcome:
        try:
            done = carry_out(self.registry, self.run.folder, decision, trained)
        except Misuse as error:
            return self._away(decision, str(error).partition(": set ")[0])
        show_metrics(self.run.workspace, self.registry)
        self.figures["version"] = done.version
        before = "it" if done.champion is None else f"version {done.champion}"
        messages = {
            PROMOTED: f"version {done.version} is the champion of {done.model}: {done.why}",
            KEPT: f"{before} stays the champion, version {done.version} does not take its place: {done.why}",
            SKIPPED: f"{before} stays the champion, no challenger was trained: {done.why}",
            SUPERSEDED: f"version {done.version} is not the champion, {done.why}: retrain once more",
        }
        return Outcome(done.decision, messages[done.decision], ok=done.decision != SUPERSEDED)

    def _away(self, decision: Decision, why: str) -> Outcome:
        command = f"fedlin retrain --resume {self.run.folder.run_id}"
        what = f"the decision ({decision.decision}) could not be carried out, and the champion is not moved"
        return Outcome(AWAY, f"{what}: {why}; go on with {command}", ok=False)

    def _fleet(self, dataset: Dataset, parent: Parent, ids: Sequence[str]) -> Fleet:
        whole = self.run.config.model_copy(update={"participation": 1.0})  # nobody is drawn here
        return Fleet(self.run.folder.run_id, whole, dataset, parent.config.build_algorithm(), ids)

    def _count(self, fleet: Fleet, what: str, told: Mapping[str, object], asked: object) -> None:
        self.task_runs += fleet.task_runs
        self.sent["uplink_bytes"] += nbytes(list(told.values()))
        self.sent["downlink_bytes"] += nbytes(asked)
        say_unanswered(what, fleet.silent)

    def _write_results(self) -> None:
        folder, results = self.run.folder, self.run.folder.results
        make_folder(results)
        if is_file(folder.path / FILE):
            write_durably(results / FILE, read_file(folder.path / FILE))
        if ids := sorted({device for column in self.columns.values() for device in column}):
            columns = {name: [column.get(device) for device in ids] for name, column in self.columns.items()}
            write_parquet(results / "devices.parquet", {"device": ids, **columns})
