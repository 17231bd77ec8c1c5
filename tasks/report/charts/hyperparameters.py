"""What the fleet has learned of its hyper-parameters, beside what was assumed of them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from tasks.report.found import REACH, Found, Hyper
from tasks.report.style import BLUE, MUTED, PRIOR, Chart, canvas, grid, short, styled

MOST = 24
"""Hyper-parameters of a block that are drawn: those that are known best beside their prior."""

MEANING = {
    "mu": "mu: the fleet's mean coefficient",
    "log_tau": "log tau: how much devices differ (log variance)",
    "log_sigma2": "log sigma²: noise (log variance)",
    "log_lambda": "log lambda: strength of the shrinkage",
}


@styled
def hyperparameters(found: Found) -> Chart | None:
    """Posterior and prior of phi as intervals, a panel a block; None where the algorithm has none."""
    if not found.phi:
        return None
    blocks: dict[str, list[Hyper]] = {}
    for each in found.phi:
        blocks.setdefault(each.block, []).append(each)
    shown = {block: _chosen(rows) for block, rows in blocks.items()}
    heights = [0.55 + 0.2 * len(rows) for rows in shown.values()]
    figure = canvas(0.5 + sum(heights))
    panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (block, rows) in zip(panels, shown.items(), strict=True):
        _intervals(panel, block, rows)
    handles = [
        Line2D([], [], color=BLUE, marker="o", markersize=5, linewidth=2.0, label="posterior, 90 % interval"),
        Line2D([], [], color=PRIOR, linewidth=7, alpha=0.5, label="prior, 90 % interval"),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=2)
    left = len(found.phi) - sum(map(len, shown.values()))
    caption = "What the fleet has learned against what was assumed before. Where the two are alike, the data say little."
    caption += f" {left} more are in the table of coefficients." if left else ""
    told = [f"{_name(each)} {each.mean:.3g} ({each.lower:.3g} to {each.upper:.3g})" for rows in shown.values() for each in rows]
    return Chart("hyperparameters", "The fleet's hyper-parameters", caption, f"Posterior means and intervals: {'; '.join(told)}.", figure)


def _chosen(rows: list[Hyper]) -> list[Hyper]:
    if len(rows) <= MOST:
        return rows
    known = sorted(rows, key=lambda each: each.upper - each.lower)[:MOST]
    return [each for each in rows if each in known]


def _intervals(panel: Axes, block: str, rows: list[Hyper]) -> None:
    places = np.arange(len(rows))[::-1]
    for place, each in zip(places, rows, strict=True):
        if np.isfinite(each.prior_sd):
            ends = each.prior_mean - REACH * each.prior_sd, each.prior_mean + REACH * each.prior_sd
            panel.plot(ends, (place, place), color=PRIOR, linewidth=7, alpha=0.5, solid_capstyle="butt")
        panel.plot((each.lower, each.upper), (place, place), color=BLUE, linewidth=2.0, solid_capstyle="butt")
        panel.plot(each.mean, place, marker="o", color=BLUE, markersize=5)
    panel.set_yticks(places, [short(each.feature or "all devices", 24) for each in rows])
    panel.set_ylim(-0.7, len(rows) - 0.3)
    panel.set_title(MEANING.get(block, block), loc="left")
    panel.axvline(0.0, color=MUTED, linewidth=0.7, zorder=0)
    grid(panel, "x")


def _name(each: Hyper) -> str:
    return f"{each.block} of {short(each.feature)}" if each.feature else each.block
