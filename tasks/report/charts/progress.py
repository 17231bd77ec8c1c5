"""How the rounds went: error and bytes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tasks.report.found import Found
from tasks.report.style import BLUE, INK, MUTED, ORANGE, PRIOR, Chart, canvas, grid, logarithmic, styled

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


@styled
def progress(found: Found) -> Chart | None:
    """The training error and the bytes sent so far, by round; None for a run without rounds."""
    history = found.history
    if not history:
        return None
    rounds = np.arange(1, len(history) + 1)
    loss = np.array([np.nan if each["loss"] is None else each["loss"] for each in history])
    before = zip(found.exchanged, ("uplink_bytes", "downlink_bytes"), strict=True)
    up, down = (first + np.cumsum([each[way] for each in history]) for first, way in before)
    figure = canvas(3.4)
    above, below = figure.subplots(2, 1, sharex=True)
    style = {"marker": "o", "markersize": 3} if len(rounds) <= 60 else {}
    above.plot(rounds, loss, color=BLUE, linewidth=1.6, **style)
    known = loss[np.isfinite(loss)]
    if len(known) and known.min() > 0 and known.max() > 10 * known.min():
        logarithmic(above, "y", known)
    above.set_ylabel("training error\n(mean square)")
    unit, name = next((size, name) for size, name in UNITS if max(up[-1], down[-1], 1) >= size)
    for values, colour, line, label in ((up, INK, "-", "by the devices"), (down, ORANGE, "--", "to the devices")):
        below.plot(rounds, values / unit, color=colour, linestyle=line, linewidth=1.6, label=label)
    below.set_ylabel(f"sent so far ({name})")
    below.set_ylim(bottom=0)
    below.set_xlabel("communication round")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.legend(loc="upper left")
    for panel in (above, below):
        grid(panel, "y")
        _shade_start(panel, [each["phase"] for each in history])
    figure.align_ylabels()
    alt = f"Over {found.counted} rounds the training error went from {_told(loss[0])} to {_told(loss[-1])}"
    alt += f", within 1 % of its last value from round {found.settled} on" if found.settled else ""
    alt += f". Devices sent {up[-1] / unit:.3g} {name}, and were sent {down[-1] / unit:.3g} {name}."
    caption = (
        "The mean training error that devices report in each round, and what has been sent until then, with the exchange before the first. "
    )
    other = sorted({each["phase"] for each in history} - {"main"})
    caption += f"Shaded rounds are of other phases than the main one: {', '.join(other)}." if other else ""
    return Chart("progress", "Convergence, and bytes sent", caption.strip(), alt, figure)


def _shade_start(panel: Axes, phases: list[str]) -> None:
    for i, phase in enumerate(phases, 1):
        if phase != "main":
            panel.axvspan(i - 0.5, i + 0.5, color=PRIOR, alpha=0.2, linewidth=0)
    panel.set_xlim(0.5, len(phases) + 0.5)
    panel.tick_params(color=MUTED)


def _told(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else "none that is finite"
