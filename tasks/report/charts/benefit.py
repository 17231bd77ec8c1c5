"""Whether federation helps: each device's error on its test rows, beside what it reaches on its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter
from matplotlib.transforms import offset_copy

from tasks.report.found import Found, Scores
from tasks.report.style import BLUE, HATCH, INK, MUTED, PRIOR, VERMILLION, Chart, canvas, grid, listed, logarithmic, short, styled

NAMED = 40
"""The most devices that are drawn by name."""

SINGLE = 400
"""The most devices that have a bar of their own."""

STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Between labels of a narrow range, as shares."""

RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@styled
def benefit(found: Found) -> Chart | None:
    """Error with the fleet and alone, device by device, sorted by the change; hurt devices are marked. None without scores."""
    scores = found.scores
    if not scores.devices:
        return None
    K = len(scores.devices)
    order = np.argsort(scores.change, kind="stable")
    figure = canvas(1.1 + 0.19 * K if K <= NAMED else 3.2)
    panel = figure.subplots()
    if K <= NAMED:
        _pairs(panel, scores, order, found.unit)
    elif K <= SINGLE:
        _bars(panel, scores, order)
    else:
        _bins(panel, scores)
    better, hurt = int((scores.change < 0).sum()), [scores.devices[k] for k in order[::-1] if scores.hurt[k]]
    extremes = f"the most for {short(scores.devices[order[0]])} ({_percent(scores.change[order[0]])})"
    extremes += f", the least for {short(scores.devices[order[-1]])} ({_percent(scores.change[order[-1]])})"
    alt = f"Error on test rows of {K} devices with the fleet and alone: smaller with the fleet on {better} of them, {extremes}. "
    alt += f"Hurt: {listed(hurt)}."
    caption = (
        "Each device's root mean squared error on rows that no model was trained on. Left is better. "
        if K <= NAMED
        else "By how much federation changes each device's root mean squared error on rows that no model was trained on. Below the line "
        "is better. "
        if K <= SINGLE
        else "How many devices federation changes by how much, in root mean squared error on rows that no model was trained on. "
    )
    caption += "A device is marked as hurt where its errors are larger by more than two standard errors over its own test rows."
    return Chart("benefit", "Error with the fleet and alone, device by device", caption, alt, figure)


def _pairs(panel: Axes, scores: Scores, order: np.ndarray, unit: str) -> None:
    places = np.arange(len(order))[::-1]
    for place, k in zip(places, order, strict=True):
        colour = VERMILLION if scores.hurt[k] else BLUE if scores.change[k] < 0 else PRIOR
        panel.plot((scores.alone[k], scores.rmse[k]), (place, place), color=colour, linewidth=2.2, solid_capstyle="butt", zorder=1)
        panel.plot(scores.rmse[k], place, marker="X" if scores.hurt[k] else "o", color=colour, markersize=6, zorder=3)
        panel.plot(scores.alone[k], place, marker="o", color=MUTED, markerfacecolor="none", markersize=6, linestyle="", zorder=2)
    panel.set_yticks(places, [short(scores.devices[k]) for k in order])
    panel.set_ylim(-0.8, len(order) - 0.2)
    values = np.append(scores.rmse, scores.alone)
    if values.max() > 20 * values.min() > 0:
        logarithmic(panel, "x", values)
    else:
        panel.set_xlim(left=0)
    panel.set_xlabel(f"RMSE on test rows ({unit or 'target units'})")
    grid(panel, "x")
    handles = [
        Line2D([], [], color=MUTED, marker="o", markerfacecolor="none", linestyle="", label="alone"),
        Line2D([], [], color=BLUE, marker="o", linewidth=2.2, label="with the fleet: better"),
        Line2D([], [], color=PRIOR, marker="o", linewidth=2.2, label="worse, by what may be chance"),
        Line2D([], [], color=VERMILLION, marker="X", linewidth=2.2, label="hurt"),
    ]
    panel.figure.legend(handles=handles, loc="outside upper left", ncols=4)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]


def _bars(panel: Axes, scores: Scores, order: np.ndarray) -> None:
    height, places = np.log(scores.change[order] + 1.0), np.arange(len(order))
    hurt = scores.hurt[order]
    better = (height < 0) & ~hurt
    for chosen, colour, hatch in ((better, BLUE, None), (~better & ~hurt, PRIOR, None), (hurt, VERMILLION, HATCH)):
        panel.bar(places[chosen], height[chosen], width=0.9, color=colour, hatch=hatch, edgecolor="white" if hatch else "none", linewidth=0)
    above = offset_copy(panel.transData, panel.get_figure(root=True), y=4, units="points")  # at any scale they stand on their bars
    panel.plot(places[hurt], height[hurt], marker="v", markersize=4, color=VERMILLION, linestyle="", transform=above)
    panel.axhline(0.0, color=INK, linewidth=0.8)
    ends = float(min(height.min(), -0.005)), float(max(height.max(), 0.005))
    panel.set_ylim(ends[0] - 0.05 * (ends[1] - ends[0]), ends[1] + 0.1 * (ends[1] - ends[0]))
    _changes(panel.yaxis, *panel.get_ylim())
    panel.set_xlim(-1, len(order))
    panel.set_xticks([])
    panel.spines["bottom"].set_visible(False)
    panel.set_xlabel(f"{len(order)} devices, from the one that federation helps most")
    panel.set_ylabel("change of the RMSE")
    grid(panel, "y")
    _legend(panel, int(better.sum()), int((~better & ~hurt).sum()), int(hurt.sum()))


def _bins(panel: Axes, scores: Scores) -> None:
    change, hurt = np.log(scores.change + 1.0), scores.hurt
    better = (change < 0) & ~hurt
    reach = max(float(np.abs(np.percentile(change, (1, 99))).max()), 0.05)
    edges = np.linspace(-reach, reach, 41)
    groups = [np.clip(change[chosen], -reach, reach) for chosen in (better, ~better & ~hurt, hurt)]
    drawn = panel.hist(groups, bins=list(edges), stacked=True, color=(BLUE, PRIOR, VERMILLION))
    for bars in drawn[2][2:]:  # pyright: ignore[reportIndexIssue]
        for bar in bars:  # pyright: ignore[reportGeneralTypeIssues]
            bar.set_hatch(HATCH)
            bar.set_edgecolor("white")
            bar.set_linewidth(0)
    panel.axvline(0.0, color=INK, linewidth=0.8)
    _changes(panel.xaxis, -reach, reach)
    panel.set_xlabel("change of the RMSE (the ends hold what is beyond)")
    panel.set_ylabel("devices")
    grid(panel, "y")
    _legend(panel, *(len(group) for group in groups))


def _legend(panel: Axes, better: int, worse: int, hurt: int) -> None:
    handles = [
        Patch(color=BLUE, label=f"better ({better})"),
        Patch(color=PRIOR, label=f"worse, by what may be chance ({worse})"),
        Patch(facecolor=VERMILLION, edgecolor="white", hatch=HATCH, linewidth=0, label=f"hurt ({hurt})"),
    ]
    panel.figure.legend(handles=handles, loc="outside upper left", ncols=3)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]


def _changes(axis: Axis, low: float, high: float) -> None:
    """Label changes on an axis of log ratios, no change in bold."""
    ticks = sorted(_ticks(low, high))
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _percent(np.expm1(value))))
    axis.get_ticklabels()[ticks.index(0.0)].set_fontweight("bold")


def _ticks(low: float, high: float) -> list[float]:
    """Ratios to label, about three to nine: round ones, or in a narrow range round shares of a change; each side of no change has one
    where it has room for it."""
    if high - low < 1.0:
        step = next(step for step in STEPS if (high - low) / step <= 8)
        chosen = [float(np.log1p(step * i)) for i in range(math.ceil(math.expm1(low) / step), math.floor(math.expm1(high) / step) + 1)]
    else:
        chosen = [0.0]
        for value in sorted((np.log(ratio) for ratio in RATIOS if low <= np.log(ratio) <= high), key=abs):
            if min(abs(value - other) for other in chosen) > (high - low) / 9:
                chosen.append(value)
    for sign in (-1, 1):
        if not any(sign * value > 0 for value in chosen):
            room = [float(value) for value in np.log1p(sign * np.array(STEPS)) if low <= value <= high and abs(value) > (high - low) / 16]
            chosen += room[-1:]
    return chosen


def _percent(change: Any) -> str:
    """A change with its sign; of those below ten per cent a decimal too, where it is not 0."""
    told = f"{100 * change:+.{0 if abs(change) >= 0.0995 else 1}f} %".replace(".0 %", " %")
    return "0 %" if told in ("+0 %", "-0 %") else told.replace("-", "−")
