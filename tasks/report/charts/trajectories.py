"""What devices saw over time, beside what their models say of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedcore.data.trajectory import Trajectory
from tasks.report.found import Found
from tasks.report.style import BLUE, INK, PRIOR, Chart, canvas, grid, short, styled

PANELS = 6


@styled
def trajectories(found: Found) -> Chart | None:
    """Means of the target and its prediction over time, a panel a device, from the most to the least helped; None where none are told."""
    chosen = _chosen(found)
    if not chosen:
        return None
    across = min(len(chosen), 3)
    down = -(-len(chosen) // across)
    figure = canvas(0.7 + 1.7 * down)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel, device in zip(panels, chosen, strict=False):
        _course(panel, found.trajectories[device])
        panel.set_title(short(device), loc="left")
    for panel in panels[len(chosen) :]:
        panel.set_visible(False)
    figure.supxlabel(short(found.measured(found.time), 60), fontsize=8.5)
    figure.supylabel(short(f"{found.target} ({found.unit})" if found.unit else found.target, 60), fontsize=8.5)
    tested = any(found.trajectories[device].tested.any() for device in chosen)
    handles = [
        Line2D([], [], color=INK, marker="o", markerfacecolor="none", markersize=3.5, linestyle="", label="observed"),
        Line2D([], [], color=BLUE, linewidth=1.4, label="predicted"),
        *([Patch(color=PRIOR, alpha=0.3, label="test rows, not trained on")] if tested else []),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    sizes = sorted({found.trajectories[device].rows for device in chosen})
    over = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    told, K = len(found.trajectories), len(found.devices)
    caption = (
        f"Each point is a mean over {over} rows, which is all that devices tell of their course; the target as the contract scales it. "
    )
    caption += "From the device that federation helps most to the one that it helps least" if len(found.scores.devices) else "By id"
    caption += f"; {told} of {K} devices tell theirs." if told > len(chosen) or told < K else "."
    return Chart("trajectories", "Predicted and observed over time", caption, _in_words(found, chosen), figure)


def _chosen(found: Found) -> Sequence[str]:
    """Devices evenly from the most to the least helped, or by id where none has a score."""
    change = dict(zip(found.scores.devices, found.scores.change, strict=True))
    known = sorted(found.trajectories, key=lambda device: (change.get(device, np.inf), device))
    places = np.linspace(0, len(known) - 1, min(PANELS, len(known))).round().astype(int)
    return [known[place] for place in places]


def _course(panel: Axes, told: Trajectory) -> None:
    if told.tested.any():
        first = int(np.argmax(told.tested))
        begin = told.time[first] if first == 0 else (told.time[first - 1] + told.time[first]) / 2
        panel.axvspan(begin, told.time[-1], color=PRIOR, alpha=0.3, linewidth=0)
    panel.plot(told.time, told.observed, marker="o", markerfacecolor="none", markersize=3.5, color=INK, linestyle="")
    panel.plot(told.time, told.predicted, color=BLUE, linewidth=1.4)
    panel.locator_params(nbins=4)
    grid(panel, "both")


def _in_words(found: Found, chosen: Sequence[str]) -> str:
    told = []
    for device in chosen:
        each = found.trajectories[device]
        rms = float(np.sqrt(np.mean((each.predicted - each.observed) ** 2)))
        told.append(
            f"on {short(device)} observed means go from {each.observed[0]:.3g} to {each.observed[-1]:.3g}, predictions {rms:.2g} from them"
        )
    return f"Over {short(found.time, 60)}, {'; '.join(told)} (root mean square)."
