"""Figures of runs for Prometheus, as text files that node exporter's textfile collector reads.

Each file holds what one kind of run last did on one data set, or who is a model's champion, and is replaced whole. It stays after the
run, so that what an alert looks at does not vanish with the process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fedcore.algorithm import Outcome
from flows.progress import say
from tasks.checkpoint import Record

RUNNING = "running"


class _Families:
    """What a registry collects: these, once."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


class RunMetrics:
    """The file of one kind of run on one data set.

    Attributes
    ----------
    file
        Where it is.
    """

    def __init__(self, folder: Path, run_id: str, dataset: str, command: str) -> None:
        self.file = folder / f"fedlin-run-{dataset}-{command}.prom"
        self._labels = {"dataset": dataset, "command": command}
        self._run_id = run_id
        self._history: Sequence[Record] = ()

    def show(self, history: Sequence[Record]) -> None:
        """The run goes on after these rounds."""
        self._history = history
        self._write(None)

    def ended(self, outcome: Outcome) -> None:
        """The run has ended after the rounds that were shown last."""
        self._write(outcome)

    def _write(self, outcome: Outcome | None) -> None:
        _replace(self.file, run_families(self._labels, self._run_id, self._history, outcome, time.time()))


def run_families(labels: Mapping[str, str], run_id: str, history: Sequence[Record], outcome: Outcome | None, now: float) -> list[Metric]:
    """A run's figures.

    Parameters
    ----------
    labels
        Data set and command, which all have.
    run_id
        The run.
    history
        Its rounds so far.
    outcome
        None while it goes on.
    now
        In seconds since 1970.
    """

    def gauge(name: str, text: str, value: float, **more: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=[*labels, *more])
        family.add_metric([*labels.values(), *more.values()], value)
        return family

    def total(name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    families = [
        gauge("fedlin_run_info", "The run that the other figures are of.", 1, run_id=run_id),
        gauge("fedlin_run_outcome", "How it ended, or running.", 1, outcome=outcome.name if outcome else RUNNING),
        gauge("fedlin_run_updated_timestamp_seconds", "When its last round or its end was.", now),
        total("fedlin_run_rounds", "Rounds done.", len(history)),
        total("fedlin_run_uplink_bytes", "Sent by the devices in its rounds.", sum(each["uplink_bytes"] for each in history)),
        total("fedlin_run_downlink_bytes", "Sent to the devices in its rounds.", sum(each["downlink_bytes"] for each in history)),
    ]
    if outcome:
        families.append(gauge("fedlin_run_ok", "Whether its result is one to use.", float(outcome.ok)))
    if history:
        last = history[-1]
        devices = GaugeMetricFamily("fedlin_round_devices", "Devices of its last round that counted.", labels=[*labels, "answer"])
        devices.add_metric([*labels.values(), "answered"], last["answered"])
        devices.add_metric([*labels.values(), "silent"], len(last["silent"]))
        families += [devices, gauge("fedlin_round_seconds", "What that round took.", last["seconds"])]
    return families


def show_champion(folder: Path, model: str, version: int, since: float) -> None:
    """Tell which version of a model is the champion.

    Parameters
    ----------
    folder
        Of the files.
    model, version
        The registered model, and its champion.
    since
        When it became the champion, in seconds since 1970: the age is for Prometheus to count, a file does not grow older by itself.
    """
    number = GaugeMetricFamily("fedlin_champion_version", "The version that is the champion.", labels=["model"])
    number.add_metric([model], version)
    when = GaugeMetricFamily("fedlin_champion_since_timestamp_seconds", "When it became the champion.", labels=["model"])
    when.add_metric([model], since)
    _replace(folder / f"fedlin-champion-{quote(model, safe='~')}.prom", [number, when])


def _replace(file: Path, families: Iterable[Metric]) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))  # pyright: ignore[reportArgumentType]  it collects, which is all that is asked of it
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_to_textfile(str(file), registry)
    except OSError as error:  # a run is more than its figures
        say(f"fedlin: note: the metrics {file} cannot be written ({error.strerror}): name another folder in FEDLIN_METRICS")
