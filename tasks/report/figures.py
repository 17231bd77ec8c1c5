"""Figures of a reproduction as PNG, in Okabe and Ito's colours, which the colour-blind can tell apart, each with a line style or marker."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from fedcore.reproduce.table import QUANTILES, Curve, Reproduction, Table

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777", "#882255")
LINES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*h"
SHOWN = 1.0
"""The largest A-RMSE that a figure shows, as a share of the target's range: what is beyond would press the rest together."""

DPI = 160
CROSS = Line2D([], [], color="black", marker="x", linestyle="")


def error_by_round(reproduction: Reproduction) -> bytes:
    """The parameter error by round, a panel for each part: means as lines, quantiles as bands, limits as level lines."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, len(reproduction.curves), sharey=True, squeeze=False)[0]
    for panel, (part, curves) in zip(panels, reproduction.curves.items(), strict=True):
        _curves(panel, curves)
        panel.set_title(f"{part}: mean of {reproduction.runs} runs, bands {QUANTILES[0]:.0%} to {QUANTILES[1]:.0%}", fontsize=10)
        panel.set_xlabel("communication round")
        panel.grid(axis="y", which="both", color="#dddddd", linewidth=0.5)
    panels[0].set_ylabel(r"parameter error $\|\hat{\Theta}-\Theta^*\|_F\,/\,\sqrt{K}$ (target units)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend([*handles, CROSS], [*labels, "the next round diverges"], loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return _png(figure)


def _curves(panel: Axes, curves: Mapping[str, Curve]) -> None:
    methods = {label: curve for label, curve in curves.items() if len(curve.mean) > 1}
    longest = max(len(curve.mean) for curve in methods.values())
    for (label, curve), colour, line in zip(methods.items(), cycle(COLOURS), cycle(LINES), strict=False):
        rounds = range(1, len(curve.mean) + 1)
        panel.plot(rounds, curve.mean, color=colour, linestyle=line, linewidth=1.8, label=label)
        panel.fill_between(rounds, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        if len(rounds) < longest:
            panel.plot(len(rounds), curve.mean[-1], color="black", marker="x", linestyle="", zorder=3)
    limits = {label: curve for label, curve in curves.items() if label not in methods}
    # The second is wide and pale: limits may be as good as equal.
    for (label, curve), (line, colour, width) in zip(limits.items(), (("--", "black", 1.0), ("-", "#bbbbbb", 3.5)), strict=True):
        panel.axhline(float(curve.mean[0]), color=colour, linestyle=line, linewidth=width, label=label, zorder=3 - width)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:.1g}" if f"{value:.0e}"[0] in "2357" else ""))


def a_rmse_by_part(reproduction: Reproduction) -> bytes:
    """Every cell as a marker, a panel for each table: ours filled, the paper's hollow beside it, a cross at the top where all diverged."""
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels = figure.subplots(1, len(reproduction.tables), sharey=True, squeeze=False)[0]
    for panel, table in zip(panels, reproduction.tables, strict=True):
        _markers(panel, table)
        panel.set_title(table.title, fontsize=9.5)
        panel.grid(axis="y", color="#dddddd", linewidth=0.5)
    panels[0].set_ylabel("A-RMSE on test rows (share of the target's range)")
    handles, labels = panels[-1].get_legend_handles_labels()
    hollow = Line2D([], [], color="black", marker="o", markerfacecolor="none", linestyle="")
    figure.legend(
        [*handles, hollow, CROSS], [*labels, "hollow: the paper's", "diverged"], loc="outside lower center", ncols=4, frameon=False
    )
    return _png(figure)


def _markers(panel: Axes, table: Table, shown: float = SHOWN) -> None:
    parts = list(table.means())
    methods = list(dict.fromkeys(cell.method for cell in table.cells))
    step = 0.84 / len(methods)
    for number, (method, colour, marker) in enumerate(zip(methods, cycle(COLOURS), cycle(MARKERS), strict=False)):
        style = {"marker": marker, "color": colour, "linestyle": "", "markersize": 6}
        of_method = [cell for cell in table.cells if cell.method == method]
        beyond = any(cell.ours.mean > shown for cell in of_method)
        panel.plot([], [], label=f"{method} (above {shown:g}, not shown)" if beyond else method, **style)
        for cell in of_method:
            x = parts.index(cell.part) + step * (number - (len(methods) - 1) / 2)
            if cell.ours.diverged == cell.ours.runs:
                panel.plot(x, 0.97, marker="x", color="black", linestyle="", transform=panel.get_xaxis_transform())
            elif cell.ours.mean <= shown:
                panel.plot(x, cell.ours.mean, **style)
            if cell.published:
                panel.plot(x + step / 4, cell.published.mean, markerfacecolor="none", **style)
    panel.set_xticks(range(len(parts)), parts)
    for i in range(1, len(parts)):
        panel.axvline(i - 0.5, color="#999999", linewidth=0.8)


def values_by_part(reproduction: Reproduction) -> bytes:
    """Every cell as a marker, with a panel and a scale of its own for each table: ours filled, the paper's hollow beside it."""
    figure = Figure(figsize=(4.2 * len(reproduction.tables), 4.8), layout="constrained")
    panels = figure.subplots(1, len(reproduction.tables), squeeze=False)[0]
    for panel, table in zip(panels, reproduction.tables, strict=True):
        _markers(panel, table, shown=float("inf"))
        panel.set_title(table.title, fontsize=9.5)
        panel.grid(axis="y", color="#dddddd", linewidth=0.5)
        panel.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    hollow = Line2D([], [], color="black", marker="o", markerfacecolor="none", linestyle="")
    figure.legend([hollow], ["hollow: the paper's"], loc="outside lower center", frameon=False)
    return _png(figure)


def intervals_with_truth(reproduction: Reproduction) -> bytes:
    """The intervals of one run less the truth, which labels tell, a panel for each part: means as dots, intervals as bars."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, len(reproduction.intervals), squeeze=False)[0]
    for panel, (part, each) in zip(panels, reproduction.intervals.items(), strict=True):
        places = range(len(each.labels))
        reach = (each.mean - each.lower, each.upper - each.mean)
        panel.errorbar(places, each.mean - each.truth, yerr=reach, fmt="o", color=COLOURS[1], capsize=4, label="mean and 90 % interval")
        panel.axhline(0.0, color="black", linewidth=1.0, label="truth (in brackets)")
        panel.set_xticks(
            places, [f"{label} ({truth:.3g})" for label, truth in zip(each.labels, each.truth, strict=True)], rotation=45, ha="right"
        )
        panel.set_title(f"{part}: one run", fontsize=10)
        panel.grid(axis="y", color="#dddddd", linewidth=0.5)
    panels[0].set_ylabel("posterior less the truth")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    return content.getvalue()
