"""The tables of a report: cells as they are shown, with the value that they are sorted by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tasks.report.clusters import Clusters
from tasks.report.found import REFUSED, SILENT, Found
from tasks.report.words import size

UNTOLD = "not told"
"""In place of what the disclosure rules keep back."""


class Cell(NamedTuple):
    """A cell: its text, what it is sorted by (a number, or "" for the text), whether it is a number, and the ids that it lists."""

    text: str
    key: str = ""
    number: bool = False
    ids: tuple[str, ...] = ()


class Table(NamedTuple):
    """A table with its column heads; the first cell of a row names it."""

    head: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


def devices_table(found: Found, known: Clusters | None, others: Sequence[Found]) -> Table:
    """A row a device of the fleet: rows, errors, what federation changed, silence, its group, and its error in the other runs."""
    head = [
        "Device",
        "Training rows",
        "Test rows",
        f"Error with the fleet{found.suffix}",
        f"Error alone{found.suffix}",
        "Change",
        "Verdict",
        "Rounds missed",
    ]
    groups = dict(zip(known.devices, known.group.tolist(), strict=True)) if known and (len(known.groups) > 1 or known.outliers) else {}
    head += ["Group"] if groups else []
    head += [f"Error in run {i} ({other.algorithm})" for i, other in enumerate(others, 2)]
    scores, trained = found.scores, dict(zip(found.devices, found.n_train.tolist(), strict=True))
    scored = {device: k for k, device in enumerate(scores.devices)}
    rivals = [dict(zip(other.scores.devices, other.scores.rmse.tolist(), strict=True)) for other in others]
    missed = ((found.participation == SILENT) | (found.participation == REFUSED)).sum(axis=1)
    rows: list[tuple[Cell, ...]] = []
    for device, lost in sorted(zip(found.fleet, missed.tolist(), strict=True), key=lambda each: _natural(each[0])):
        cells = [Cell(device), _whole(trained.get(device))]
        if (k := scored.get(device)) is None:
            cells += [Cell(UNTOLD, "-1", number=True)] * 4 + [Cell("no result" if device not in trained else "no score")]
        else:
            change = float(scores.change[k])
            cells += [_whole(int(scores.n[k])), _figure(scores.rmse[k]), _figure(scores.alone[k])]
            cells += [Cell(f"{100 * change:+.1f} %".replace("-", "−"), f"{change:.6g}", number=True)]
            cells += [Cell("hurt" if scores.hurt[k] else "better" if change < 0 else "worse, maybe by chance")]
        cells += [_whole(lost)]
        cells += [Cell("outlier" if groups.get(device) == -1 else "ABCDEFGH"[groups[device]] if device in groups else "")] if groups else []
        cells += [_figure(rival[device]) if device in rival else Cell(UNTOLD, "-1", number=True) for rival in rivals]
        rows.append(tuple(cells))
    return Table(tuple(head), rows)


def coefficients_table(found: Found) -> Table:
    """A row a column of the design: the coefficients over devices, the fleet's prior, and how many devices include it."""
    head = ["Column", "Smallest", "Median", "Largest"]
    head += ["Fleet's mean"] if found.prior else []
    head += ["Devices that include it"] if found.known else []
    rows: list[tuple[Cell, ...]] = []
    for j, name in enumerate(found.coefficients):
        cells = [Cell(found.measured(name)), *(_figure(value) for value in np.quantile(found.Theta[j], (0.0, 0.5, 1.0)))]
        cells += [_figure(found.prior.mean[j])] if found.prior else []
        cells += [_whole(int(found.known.included[j].sum()))] if found.known else []
        rows.append(tuple(cells))
    return Table(tuple(head), rows)


def groups_table(known: Clusters) -> Table:
    """A row a group of devices, and one for the outliers."""
    groups = [*((f"Group {'ABCDEFGH'[g]}", names) for g, names in enumerate(known.groups)), ("Outliers", known.outliers)]
    rows = [(Cell(title), _whole(len(names)), Cell(", ".join(names), ids=tuple(names))) for title, names in groups if names]
    return Table(("Group", "Devices", "Which"), rows)


def settings_table(found: Found) -> Table:
    """What the run was asked for."""
    return Table(("Setting", "Value"), [(Cell(name), Cell(_told(value))) for name, value in found.settings.items()])


def runs_table(founds: Sequence[Found]) -> Table:
    """A row a run: what it was, and how well it did on the devices that all of them have scored."""
    common = set.intersection(*(set(each.scores.devices) for each in founds))
    rows: list[tuple[Cell, ...]] = []
    for i, each in enumerate(founds, 1):
        chosen = [k for k, device in enumerate(each.scores.devices) if device in common]
        ours, alone = each.scores.rmse[chosen], each.scores.alone[chosen]
        known = bool(chosen)
        cells = [Cell(f"{i}: {each.run_id}"), Cell(each.algorithm), Cell(each.outcome.name if each.outcome else "")]
        cells += [_figure(ours.mean() if known else np.nan), _figure(ours.max() if known else np.nan)]
        cells += [_figure(alone.mean() if known else np.nan), _whole(int(each.scores.hurt[chosen].sum()) if known else None)]
        up = each.sent.up
        cells += [Cell(each.counted, str(len(each.history)), number=True), Cell(size(up), str(up), number=True)]
        rows.append(tuple(cells))
    head = ("Run", "Method", "Ended", "Mean error", "Worst device", "Mean alone", "Hurt", "Rounds", "Sent")
    return Table(head, rows)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A key by which 2 comes before 10."""
    parts = re.findall(r"([0-9]+)|([^0-9]+)", name)
    return [(not number, int(number or 0), number or text) for number, text in parts]


def _figure(value: float) -> Cell:
    if not np.isfinite(value):
        return Cell("–", "-1", number=True)
    return Cell(f"{value:.4g}".replace("-", "−"), f"{value:.10g}", number=True)


def _whole(value: int | None) -> Cell:
    return Cell(UNTOLD, "-1", number=True) if value is None else Cell(str(value), str(value), number=True)


def _told(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
