"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.lines import Line2D

from tasks.report.found import Found
from tasks.report.style import BLUE, INK, PRIOR, VERMILLION, Chart, canvas, grid, logarithmic, short, styled


@styled
def comparison(founds: Sequence[Found]) -> Chart | None:
    """The devices' errors in each run, and alone beside the first; None where no device has a score in all of them."""
    common = sorted(set.intersection(*(set(each.scores.devices) for each in founds)))
    if not common:
        return None
    errors = {f"{i}: {each.algorithm}": _of(each, common, each.scores.rmse) for i, each in enumerate(founds, 1)}
    errors["alone, beside run 1"] = _of(founds[0], common, founds[0].scores.alone)
    figure = canvas(1.1 + 0.34 * len(errors))
    panel = figure.subplots()
    places = np.arange(len(errors))[::-1]
    for place, values in zip(places, errors.values(), strict=True):
        panel.plot(values, np.full(len(values), place), marker="|", markersize=9, color=PRIOR, alpha=0.8, linestyle="", markeredgewidth=0.8)
        panel.plot(np.quantile(values, (0.25, 0.75)), (place, place), color=BLUE, linewidth=5, alpha=0.85, solid_capstyle="butt")
        panel.plot(values.mean(), place, marker="D", color=VERMILLION, markersize=6, markeredgecolor=INK, markeredgewidth=0.6)
    panel.set_yticks(places, [short(name, 46) for name in errors])
    panel.set_ylim(-0.6, len(errors) - 0.4)
    values = np.concatenate(list(errors.values()))
    if values.max() > 20 * values.min() > 0:
        logarithmic(panel, "x", values)
    panel.set_xlabel(f"RMSE on test rows ({founds[0].unit or 'target units'})")
    grid(panel, "x")
    handles = [
        Line2D([], [], color=VERMILLION, marker="D", markeredgecolor=INK, markeredgewidth=0.6, linestyle="", label="mean over devices"),
        Line2D([], [], color=BLUE, linewidth=5, label="the middle half of the devices"),
        Line2D([], [], color=PRIOR, marker="|", markersize=9, linestyle="", label="a device"),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    alt = "Mean error: " + "; ".join(f"{name}: {values.mean():.4g}" for name, values in errors.items()) + "."
    caption = f"Errors of the {len(common)} devices that have a score in all of these runs, each on its own test rows. "
    caption += f"Run 1 is {founds[0].run_id}."
    return Chart("comparison", "The runs side by side", caption, alt, figure)


def _of(found: Found, devices: Sequence[str], values: np.ndarray) -> np.ndarray:
    place = {device: k for k, device in enumerate(found.scores.devices)}
    return values[[place[device] for device in devices]]
