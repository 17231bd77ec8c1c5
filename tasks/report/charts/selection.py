"""Which columns matter on which device."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from tasks.report.found import Found
from tasks.report.style import BLUE, GRID, HATCH, MUTED, ORANGE, Chart, canvas, listed, short, styled

MOST = 40
"""Columns that are drawn: those that the most devices include."""

NAMED = 30
"""The most devices that are drawn by name, and with signs."""

LETTERS = 24
"""The most letters of all devices' names that stand beside each other."""


@styled
def selection(found: Found) -> Chart | None:
    """Columns by devices, where the interval leaves out zero, with the sign; None without posteriors."""
    known = found.known
    if known is None:
        return None
    signs = np.where(known.included, np.sign(known.mean), 0.0)
    share = np.abs(signs).mean(axis=1)
    rows = np.argsort(-share, kind="stable")[: min(MOST, max(int((share > 0).sum()), 1))]
    shown, K = signs[rows], len(found.devices)
    names = [short(device, 12) for device in found.devices]
    upright = K <= NAMED and sum(map(len, names)) > LETTERS
    figure = canvas(0.9 + 0.17 * len(rows) + (0.07 * max(map(len, names)) if upright else 0.0))
    matrix, shares = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    _matrix(matrix, shown, names, 90 if upright else 0)
    matrix.set_yticks(range(len(rows)), [short(found.coefficients[j], 26) for j in rows])
    counted = [(shown > 0).mean(axis=1), (shown < 0).mean(axis=1)]
    shares.barh(range(len(rows)), counted[0], color=BLUE, height=0.7)
    shares.barh(range(len(rows)), counted[1], left=counted[0], color=ORANGE, height=0.7, hatch=HATCH, edgecolor="white", linewidth=0)
    shares.set_xlim(0, 1)
    shares.set_xticks((0, 0.5, 1), ("0 %", "50 %", "100 %"))
    shares.set_xlabel("devices")
    shares.tick_params(axis="y", length=0)
    handles = [
        Patch(color=BLUE, label="included, positive"),
        Patch(facecolor=ORANGE, edgecolor="white", hatch=HATCH, linewidth=0, label="included, negative"),
        Patch(facecolor="none", edgecolor=MUTED, label="not sure to differ from zero"),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    left = len(share) - len(rows)
    caption = "A coefficient is included where its 90 % interval leaves out zero. Columns that the most devices include come first"
    caption += f"; {left} that fewer include, or none, are not drawn." if left else "."
    always, never = ([found.coefficients[j] for j in np.flatnonzero(share == value)] for value in (1.0, 0.0))
    alt = f"Of {len(share)} columns, every one of {K} devices includes {listed(always)}; no device includes {listed(never)}."
    return Chart("selection", "Which columns matter, and where", caption, alt, figure)


def _matrix(panel: Axes, signs: np.ndarray, devices: list[str], rotation: int) -> None:
    colours = np.zeros((*signs.shape, 4))  # what is not included shows the page
    colours[signs > 0], colours[signs < 0] = to_rgba(BLUE), to_rgba(ORANGE)
    panel.imshow(colours, aspect="auto", interpolation="nearest")
    for side in ("top", "right"):
        panel.spines[side].set_visible(True)
    if len(devices) > NAMED:
        panel.set_xticks([])
        panel.set_xlabel(f"{len(devices)} devices, by id")
        return
    panel.set_xticks(range(len(devices)), devices, rotation=rotation)
    size = min(8.5, 150 / len(devices))  # of a cell as wide as a phone has it
    for j, k in zip(*np.nonzero(signs), strict=True):
        colour = "white" if signs[j, k] > 0 else "black"
        panel.text(k, j, "+" if signs[j, k] > 0 else "−", ha="center", va="center", color=colour, fontweight="bold", fontsize=size)
    panel.set_xticks(np.arange(0.5, len(devices) - 1), minor=True)
    panel.set_yticks(np.arange(0.5, len(signs) - 1), minor=True)
    panel.grid(which="minor", color=GRID, linewidth=0.6)
    panel.tick_params(which="minor", length=0)
