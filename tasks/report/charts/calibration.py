"""Whether intervals hold as often as they say."""

from __future__ import annotations

import numpy as np

from fedcore.metrics import LEVELS
from tasks.report.found import Found
from tasks.report.style import BLUE, INK, Chart, canvas, grid, styled
from tasks.report.words import held


@styled
def calibration(found: Found) -> Chart | None:
    """The share of test rows that prediction intervals hold, against what they should; None where no device told counts."""
    scores = found.scores
    if scores.covered is None:
        return None
    share, se = held(scores)
    figure = canvas(3.3, width=4.6)
    panel = figure.subplots()
    panel.plot((0.4, 1.0), (0.4, 1.0), color=INK, linewidth=0.9, linestyle="--", label="as it should be")
    reach = np.nan_to_num(2.0 * se)
    low, high = np.maximum(share - reach, 0.0), np.minimum(share + reach, 1.0)
    told = "the fleet, ± 2 standard errors"
    panel.errorbar(LEVELS, share, yerr=(share - low, high - share), fmt="o", color=BLUE, capsize=3, markersize=5, label=told)
    panel.set_xticks(LEVELS, [f"{100 * level:.0f} %" for level in LEVELS], fontsize=7)
    panel.set_xlim(0.45, 1.0)
    panel.set_ylim(min(0.45, float(low.min()) - 0.03), 1.02)
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    panel.set_xlabel("what the interval promises")
    panel.set_ylabel("test rows that it holds")
    grid(panel, "both")
    panel.legend(loc="lower right")
    told = ", ".join(f"{100 * level:.0f} % intervals hold {100 * value:.1f} %" for level, value in zip(LEVELS, share, strict=True))
    rows, devices = int(scores.n.sum()), len(scores.devices)
    caption = f"Prediction intervals on {rows} test rows of {devices} devices, counted by the devices. Above the line intervals are wider "
    caption += "than need be, as they are where the test targets of a simulated fleet have no noise; below it they are too narrow."
    return Chart("calibration", "Do intervals hold as often as they say?", caption, f"Of the test rows, {told}.", figure)
