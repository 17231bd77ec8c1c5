"""The devices' coefficients, one panel a column of the design."""

from __future__ import annotations

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedcore.rows import Floats
from tasks.report.found import Found
from tasks.report.style import BLUE, INK, MUTED, PRIOR, Chart, canvas, grid, listed, short, styled

PANELS = 9
NAMED = 20
"""The most devices that are drawn by name."""

SINGLE = 300
"""The most devices that have an interval of their own; of more every n-th is drawn."""


@styled
def coefficients(found: Found) -> Chart | None:
    """A forest plot for each column: devices sorted by their coefficient, with intervals where there are any, on the fleet's prior."""
    K, d = len(found.devices), len(found.coefficients)
    chosen = _chosen(found)
    across = min(len(chosen), 3 if K > NAMED else 2)
    down = -(-len(chosen) // across)
    figure = canvas(0.6 + down * (1.9 if K > NAMED else 0.75 + 0.15 * K))
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel, j in zip(panels, chosen, strict=False):
        _forest(panel, found, j, letters=18 if across == 3 else 30)
    for panel in panels[len(chosen) :]:
        panel.set_visible(False)
    label = "device, 90 % interval" if found.known else "device"
    handles: list[Artist] = [Line2D([], [], color=BLUE, marker="o", markersize=3.5, linewidth=1.0, label=label)]
    if found.prior is not None:
        spread = bool(np.isfinite(found.prior.lower).all())
        handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=1.0, label="the fleet's mean"))
        handles += [Patch(color=PRIOR, alpha=0.3, label="the fleet's prior, 90 %")] if spread else []
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    left = d - len(chosen)
    which = f"; the {left} other columns, in which devices differ less, are in the table of coefficients" if left else ""
    caption = f"A panel for each column of the design, devices sorted by their coefficient{which}. "
    if found.prior is not None:
        caption += "The band is what the fleet expects of a device of which it knows nothing yet. "
    caption += "A unit in brackets is the column's; a column without may be scaled."
    alt = f"Coefficients of {K} devices. " + " ".join(_in_words(found, j) for j in chosen)
    return Chart("coefficients", "Coefficients by device", caption, alt, figure)


def _chosen(found: Found) -> list[int]:
    """The columns in which devices differ most, in the design's order: beyond their intervals where there are any."""
    middle = found.Theta if found.known is None else found.known.mean
    spread = np.nan_to_num(np.nanstd(middle, axis=1))
    if found.known is not None:
        width = np.nanmean(found.known.upper - found.known.lower, axis=1)
        spread = spread / np.where(width > 0, width, np.inf)
    return sorted(np.argsort(-spread, kind="stable")[:PANELS].tolist())


def _forest(panel: Axes, found: Found, j: int, letters: int) -> None:
    known = found.known
    middle = found.Theta[j] if known is None else known.mean[j]
    order = np.argsort(middle, kind="stable")
    order = order[np.isfinite(middle[order])]
    if len(order) > SINGLE:
        order = order[np.linspace(0, len(order) - 1, SINGLE).round().astype(int)]
    places = np.arange(len(order))
    if found.prior is not None:
        if np.isfinite(found.prior.lower[j]):
            panel.axvspan(found.prior.lower[j], found.prior.upper[j], color=PRIOR, alpha=0.3, linewidth=0)
        panel.axvline(found.prior.mean[j], color=INK, linestyle="--", linewidth=1.0)
    if known is not None:
        lower, upper = known.lower[j][order], known.upper[j][order]
        panel.hlines(places, lower, upper, color=BLUE, linewidth=1.0 if len(order) <= 60 else 0.6)
    panel.plot(middle[order], places, marker="o", markersize=3.5 if len(order) <= NAMED else 1.8, color=BLUE, linestyle="")
    panel.axvline(0.0, color=MUTED, linewidth=0.7, zorder=0)
    panel.set_title(found.measured(found.coefficients[j], letters), loc="left")
    panel.set_ylim(-1, len(order))
    panel.locator_params(axis="x", nbins=5)
    grid(panel, "x")
    if len(found.devices) <= NAMED:
        panel.set_yticks(places, [short(found.devices[k], 14) for k in order])
    else:
        panel.set_yticks([])
        _name_ends(panel, found, middle, order)


def _name_ends(panel: Axes, found: Found, middle: Floats, order: np.ndarray) -> None:
    panel.set_yticks([0, len(order) - 1], [short(found.devices[order[end]], 10) for end in (0, -1)], fontsize=7)
    panel.tick_params(axis="y", length=2)


def _in_words(found: Found, j: int) -> str:
    middle = found.Theta[j]
    low, high = int(np.nanargmin(middle)), int(np.nanargmax(middle))
    ends = f"from {middle[low]:.3g} ({listed([found.devices[low]])}) to {middle[high]:.3g} ({listed([found.devices[high]])})"
    return f"{short(found.coefficients[j], 30)}: {ends}."
