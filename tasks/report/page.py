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
from tasks.report.style import Chart, svg
from tasks.report.tabular import Table, coefficients_table, devices_table, groups_table, runs_table, settings_table
from tasks.report.words import size, verdict


class Section(NamedTuple):
    """A part of the page.

    Attributes
    ----------
    name, title, lead
        Its anchor, its heading, and what is said before all else.
    figures
        Charts, as elements of the page.
    tables
        Tables by caption.
    """

    name: str
    title: str
    lead: str
    figures: tuple[tuple[Chart, Markup], ...]
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


def _drawn(charts: dict[str, Chart], *names: str) -> tuple[tuple[Chart, Markup], ...]:
    return tuple((charts[name], Markup(svg(charts[name]))) for name in names if name in charts)


def _tiles(found: Found) -> list[tuple[str, str]]:
    scores = found.scores
    known = bool(scores.devices)
    return [
        ("Mean error with the fleet", f"{scores.rmse.mean():.4g}" if known else "–"),
        ("Mean error alone", f"{scores.alone.mean():.4g}" if known else "–"),
        ("Better with the fleet", f"{int((scores.change < 0).sum())} of {len(scores.devices)}" if known else "–"),
        ("Hurt", str(int(scores.hurt.sum())) if known else "–"),
        ("Rounds", _counted(found)),
        ("Sent by the devices", size(found.sent)),
    ]


def _counted(found: Found) -> str:
    """How many rounds of the main phase there were, and how many that warmed up."""
    main = sum(entry["phase"] == "main" for entry in found.history)
    return f"{main} + {len(found.history) - main} to warm up" if main < len(found.history) else str(main)


def _sections(found: Found, others: Sequence[Found], charts: dict[str, Chart]) -> list[Section]:
    known = clusters(found)
    beside = comparison([found, *others]) if others else None
    groups = {"Groups": groups_table(known)} if known and (len(known.groups) > 1 or known.outliers) else {}
    return [
        Section(
            "runs",
            "Beside other runs",
            "",
            _drawn({"comparison": beside}, "comparison") if beside else (),
            {"Runs, on the devices that have a score in all of them": runs_table([found, *others])} if others else {},
        ),
        Section(
            "devices",
            "Device by device",
            f"Errors are root mean squared errors on test rows, in {found.unit or 'units of the target'}.",
            (),
            {"Devices": devices_table(found, known, others)},
        ),
        Section("trajectories", "Over time", _untold(found), _drawn(charts, "trajectories"), {}),
        Section("alike", "Devices that are alike", "", _drawn(charts, "correlation"), groups),
        Section(
            "coefficients",
            "What was learned",
            "",
            _drawn(charts, "coefficients", "selection", "hyperparameters"),
            {"Coefficients over the devices, in units of the design": coefficients_table(found)},
        ),
        Section("calibration", "How far intervals can be trusted", "", _drawn(charts, "calibration"), {}),
        Section("training", "How the training went", _rounds(found), _drawn(charts, "progress", "participation"), {}),
        Section("settings", "Settings", "", (), {"Settings, with every default": settings_table(found)}),
    ]


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
    silent = sum(len(entry["silent"]) for entry in found.history)
    return f"{ended} " + ("Every device that was drawn answered in every round." if not silent else "")
