"""A run as one HTML file that needs nothing beside it: what it means for the devices first, then the details."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedcore.errors import Misuse
from tasks.report.charts import CHARTS
from tasks.report.charts.comparison import comparison
from tasks.report.clusters import clusters
from tasks.report.found import Found
from tasks.report.style import Chart, listed, narrow, svg
from tasks.report.tabular import Table, coefficients_table, devices_table, groups_table, runs_table, settings_table
from tasks.report.words import intervals, size, verdict


class Drawn(NamedTuple):
    """A chart, with the width of its figure in inches, as elements of the page for a wide window and for a phone's."""

    chart: Chart
    inches: float
    wide: Markup
    narrow: Markup


class Section(NamedTuple):
    """A part of the page.

    Attributes
    ----------
    name, title, lead
        Its anchor, its heading, and what is said before all else.
    caution
        Whether that is a caution.
    figures
        Charts, drawn.
    tables
        Tables by caption.
    """

    name: str
    title: str
    lead: str
    caution: bool
    figures: tuple[Drawn, ...]
    tables: dict[str, Table]


def page(found: Found, others: Sequence[Found] = ()) -> str:
    """The report of a run.

    Parameters
    ----------
    found
        The run.
    others
        Runs that it is compared with.

    Returns
    -------
    str
        HTML; its policy forbids every request and every script but its own.

    Raises
    ------
    Misuse
        Where a run that it is compared with has another data set or target, so that errors have other units.
    """
    for other in others:
        if (other.dataset, other.target) != (found.dataset, found.target):
            ours, theirs = (f"target {each.target!r} of {each.dataset!r}" for each in (found, other))
            raise Misuse(f"run {found.run_id} has {ours}, run {other.run_id} has {theirs}: their errors cannot be compared")
    charts = {draw.__name__: chart for draw in CHARTS if (chart := draw(found))}
    environment = Environment(loader=PackageLoader("tasks.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    files = resources.files("tasks.report")
    style, script = (files.joinpath(name).read_text() for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = _sections(found, others, charts)
    return environment.get_template("page.html.j2").render(
        found=found,
        verdict=verdict(found),
        tiles=_tiles(found),
        benefit=_drawn(charts, "benefit"),
        sections=[each for each in sections if each.lead or each.figures or each.tables],
        style=Markup(style),
        script=Markup(script),
        digest=digest,
    )


def _drawn(charts: dict[str, Chart], *names: str) -> tuple[Drawn, ...]:
    return tuple(_both(charts[name]) for name in names if name in charts)


def _both(chart: Chart) -> Drawn:
    inches, wide = chart.figure.get_figwidth(), Markup(svg(chart))
    return Drawn(chart, inches, wide, Markup(svg(narrow(chart))))


def _tiles(found: Found) -> list[tuple[str, str]]:
    scores = found.scores
    known = bool(scores.devices)
    return [
        (f"Mean error with the fleet{found.suffix}", f"{scores.rmse.mean():.4g}" if known else "–"),
        (f"Mean error alone{found.suffix}", f"{scores.alone.mean():.4g}" if known else "–"),
        ("Better with the fleet", f"{int((scores.change < 0).sum())} of {len(scores.devices)}" if known else "–"),
        ("Hurt", str(int(scores.hurt.sum())) if known else "–"),
        ("Rounds", found.counted),
        ("Sent by the devices", size(found.sent.up)),
    ]


def _sections(found: Found, others: Sequence[Found], charts: dict[str, Chart]) -> list[Section]:
    known, held = clusters(found), intervals(found.scores)
    beside = comparison([found, *others]) if others else None
    uneven = _uneven(found, others)
    groups = {"Groups": groups_table(known)} if known and (len(known.groups) > 1 or known.outliers) else {}
    return [
        Section(
            "runs",
            "Beside other runs",
            uneven,
            bool(uneven),
            _drawn({"comparison": beside}, "comparison") if beside else (),
            {"Runs, on the devices that have a score in all of them": runs_table([found, *others])} if others else {},
        ),
        Section(
            "devices",
            "Device by device",
            f"Errors are root mean squared errors on test rows, in {found.unit or 'units of the target'}.",
            False,
            (),
            {"Devices": devices_table(found, known, others)},
        ),
        Section("trajectories", "Over time", _untold(found), False, _drawn(charts, "trajectories"), {}),
        Section("alike", "Devices that are alike", "", False, _drawn(charts, "correlation"), groups),
        Section(
            "coefficients",
            "What was learned",
            "",
            False,
            _drawn(charts, "coefficients", "selection", "hyperparameters"),
            {"Coefficients over the devices, in units of the design": coefficients_table(found)},
        ),
        Section("calibration", "How far intervals can be trusted", held.sentence, held.caution, _drawn(charts, "calibration"), {}),
        Section("training", "How the training went", _rounds(found), False, _drawn(charts, "progress", "participation"), {}),
        Section("settings", "Settings", "", False, (), {"Settings, with every default": settings_table(found)}),
    ]


def _uneven(found: Found, others: Sequence[Found]) -> str:
    """In what runs differ beside their method."""
    told = [f"run {i} ({other.run_id}) in {listed(names, 8)}" for i, other in enumerate(others, 2) if (names := found.differing(other))]
    return f"Errors cannot be compared where runs differ from run 1 in more than their method: {'; '.join(told)}." if told else ""


def _untold(found: Found) -> str:
    """Why no course over time is shown, of rows that have one."""
    if not found.time or found.trajectories:
        return ""
    why = "the contract's disclosure rules let devices tell no means of it over time, or none that are of enough rows"
    return f"How {found.target} goes over {found.time} is not shown: {why} ([disclosure] trajectories, rows and parameters)."


def _rounds(found: Found) -> str:
    ended = f"The run ended as {found.outcome.name}: {found.outcome.message}." if found.outcome else ""
    if not found.history:
        return ended
    before, sent = found.exchanged, found.sent
    ended += f" Devices sent {size(sent.up)} and were sent {size(sent.down)}"
    if before.up or before.down:
        ended += f", of which {size(before.up)} and {size(before.down)} in the exchange before the rounds, for the preprocessing"
    ended += "."
    silent = sum(len(entry["silent"]) for entry in found.history)
    return f"{ended} " + ("Every device that was drawn answered in every round." if not silent else "")
