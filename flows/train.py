"""Federated training: communication rounds of mapped device tasks and one aggregation, checkpointed and tracked."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.cancelling import cancellable
from flows.config import TrainConfig
from flows.fleet import Fleet
from flows.parent import Parent
from flows.runners import THREADS, on_runner
from flows.running import Run, at_end, flow_run_name, open_data, reopened, run_rounds, scalars, seconds, sent
from flows.sites.fleet import SiteFleet
from tasks.results import figures, write_phi, write_results
from tasks.sites.enrolled import read_sites


@flow(name="fedlin-train", flow_run_name=flow_run_name, task_runner=THREADS, persist_result=False)
@cancellable
@on_runner
def train(config: TrainConfig | None = None, run_id: str | None = None) -> State[None]:
    """Train on a data set, or go on with a run that was interrupted.

    Parameters
    ----------
    config
        What to train; None for a run that has begun, which keeps the configuration that it began with.
    run_id
        Name of the run; by default a new one.

    Returns
    -------
    State
        Completed or Failed, as the run's outcome is; the figures are in `runs/<run_id>/result.json`.

    Raises
    ------
    Misuse
        Where the run cannot be carried out as it is asked for.
    """
    run = Run.open(TrainConfig, config, run_id)
    folder, fleet = run.folder, _fleet(run)
    with run.held():
        earlier = seconds(folder.load())
        run.start_tracking(_flat(run.config.resolved()))
        checkpoint, reports = at_end(fleet, run_rounds(run, fleet, folder), fleet.finalize)
        outcome = checkpoint.outcome
        assert outcome is not None
        told, findings = list(reports.values()), fleet.algorithm.findings(checkpoint.state.server, fleet.spec)
        if told:
            write_results(
                folder.results,
                told,
                fleet.dataset.design_names,
                checkpoint.state.server,
                device_ids=fleet.device_ids,
                fitted=fleet.dataset.fitted,
                gaps=folder.manifest()["gaps"],
            )
            if phi := findings.get("phi"):
                write_phi(folder.results, phi, fleet.dataset.design_names)
            # What they import takes as long as a short run to start.
            from tasks.report.folder import write_figures
            from tasks.tracking.model import write_model

            write_figures(folder)
            if outcome.ok:
                write_model(folder)
        result = {
            "algorithm": run.config.algorithm,
            **sent(checkpoint.history, [folder]),
            **figures(told),
            **findings,
            "devices_missing": sorted(set(fleet.device_ids) - set(reports)),
        }
        run.tracker.log_rounds(scalars(checkpoint.history))  # a run that had ended before may be known there in part only
        return run.end(outcome, result, uploads=bool(told), task_runs=fleet.task_runs, earlier=earlier)


def _fleet(run: Run[TrainConfig]) -> Fleet:
    config, algorithm = run.config, run.config.build_algorithm()
    dataset = open_data(config, run.workspace, elsewhere=config.sites is not None)
    parent = Parent.open(run.workspace, config.parent) if config.parent else None
    make = partial(SiteFleet, read_sites(Path(config.sites))) if config.sites else Fleet
    if run.folder.exists:
        return reopened(run.folder, config, dataset, algorithm, parent, make)
    fleet = make(run.folder.run_id, config, dataset, algorithm, config.devices, parent)
    fleet.preprocess()
    run.create(config.resolved(), fleet.manifest(fleet.enrol()))
    return fleet


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    options = {f"option.{name}": value for name, value in config["options"].items()}
    return options | {name: value for name, value in config.items() if name != "options"}
