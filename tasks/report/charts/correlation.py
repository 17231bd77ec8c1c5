"""Which devices are alike."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.patches import Rectangle

from tasks.report.clusters import Clusters, clusters
from tasks.report.found import Found
from tasks.report.style import BLUE, INK, VERMILLION, Chart, canvas, listed, short, styled

NAMED = 40
CELLS = 250
"""The most rows; of more devices each cell is the mean over several."""

SCALE = LinearSegmentedColormap.from_list("sign", [to_rgba(VERMILLION), to_rgba(VERMILLION, 0.0), to_rgba(BLUE, 0.0), to_rgba(BLUE)])
"""What is near zero shows the page."""


@styled
def correlation(found: Found) -> Chart | None:
    """The correlations between devices, ordered by clustering, with groups and outliers named; see `tasks.report.clusters`."""
    known = clusters(found)
    if known is None:
        return None
    K = len(known.devices)
    figure = canvas(4.6, width=5.6)
    panel = figure.subplots()
    panel.imshow(
        SCALE(Normalize(-1, 1)(_binned(known.correlation))), interpolation="nearest", extent=(-0.5, K - 0.5, K - 0.5, -0.5), aspect="equal"
    )
    for side in ("top", "right"):
        panel.spines[side].set_visible(True)
    _groups(panel, known)
    if K <= NAMED:
        panel.set_xticks(range(K), [short(device, 12) for device in known.devices], rotation=90, fontsize=7)
        panel.set_yticks(range(K), [short(device, 12) for device in known.devices], fontsize=7)
    else:
        panel.set_xticks([])
        outliers = [i for i in range(K) if known.group[i] == -1][:12]
        panel.set_yticks(outliers, [short(known.devices[i], 12) for i in outliers], fontsize=7)
        panel.set_xlabel(f"{K} devices, in the order of the clustering")
    bar = figure.colorbar(ScalarMappable(Normalize(-1, 1), SCALE), ax=panel, shrink=0.6, ticks=(-1, -0.5, 0, 0.5, 1))
    bar.set_label("correlation of coefficients")
    bar.outline.set_edgecolor(INK)  # pyright: ignore[reportCallIssue]
    told = [f"Group {_letter(g)} has {len(names)} devices ({listed(names)})" for g, names in enumerate(known.groups)]
    clear = len(known.groups) > 1 or known.outliers
    alt = f"Correlations between {K} devices. " + (f"{'; '.join(told)}. " if clear else "No groups stand out. ")
    alt += f"Outliers: {listed(known.outliers)}." if clear else ""
    caption = "What the fleet has learned of how alike devices' coefficients are. "
    caption += (
        f"Boxes are groups of devices that go together; the mean silhouette, 1 at best, is {known.silhouette:.2f}. A device that goes with "
        "none is an outlier."
        if clear
        else "No groups stand out: devices are alike in degrees."
    )
    if len(found.fleet) > K:
        caption += f" Shown are {K} of {len(found.fleet)} devices, evenly spaced by id."
    return Chart("correlation", "Correlations between devices", caption, alt, figure)


def _letter(group: int) -> str:
    return "ABCDEFGH"[group]


def _groups(panel: Axes, known: Clusters) -> None:
    if len(known.groups) == 1 and not known.outliers:
        return
    for g in range(len(known.groups)):
        places = np.flatnonzero(known.group == g)
        size, ends = len(places), (places[0] - 0.5, places[-1] + 0.5)
        panel.add_patch(Rectangle((ends[0], ends[0]), size, size, fill=False, edgecolor=INK, linewidth=1.3, clip_on=False))
        beside = (len(known.devices) - 0.5, sum(ends) / 2)
        panel.annotate(f"{_letter(g)} ({size})", beside, (4, 0), textcoords="offset points", va="center", fontsize=8, annotation_clip=False)


def _binned(matrix: np.ndarray) -> np.ndarray:
    step = -(-len(matrix) // CELLS)
    if step == 1:
        return matrix
    edges = np.arange(0, len(matrix), step)
    counts = np.diff(np.append(edges, len(matrix)))
    return np.add.reduceat(np.add.reduceat(matrix, edges, axis=0), edges, axis=1) / counts[:, None] / counts
