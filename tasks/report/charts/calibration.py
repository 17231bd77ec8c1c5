"""Whether intervals hold as often as they say."""

from __future__ import annotations

import numpy as np

from fedcore.metrics import LEVELS
from tasks.report.found import Found, Scores
from tasks.report.style import BLUE, INK, Chart, canvas, grid, styled

STATED = 0.9
"""The level that words speak of."""

TOLERATED = 0.02
"""By what share intervals may miss it and still hold about as often as they say."""


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
    panel.set_xticks(LEVELS, [f"{level:.0%}" for level in LEVELS])
    panel.set_xlim(0.45, 1.0)
    panel.set_ylim(min(0.45, float(low.min()) - 0.03), 1.02)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.set_xlabel("what the interval promises")
    panel.set_ylabel("test rows that it holds")
    grid(panel, "both")
    panel.legend(loc="lower right")
    told = ", ".join(f"{level:.0%} intervals hold {value:.1%}" for level, value in zip(LEVELS, share, strict=True))
    named = LEVELS.index(STATED)
    off = share[named] - STATED
    sure = not abs(off) <= reach[named] and abs(off) > TOLERATED
    verdict = "too narrow: the true value is outside more often than they say" if off < 0 else "wider than need be"
    rows, devices = int(scores.n.sum()), len(scores.devices)
    told_of = f"Intervals at {100 * STATED:.0f} % hold {100 * share[named]:.0f} % of the test rows"
    caption = f"{told_of}: {verdict if sure else 'about as often as they say'}. "
    caption += f"Prediction intervals on {rows} test rows of {devices} devices, counted by the devices. Above the line intervals are wider "
    caption += "than need be, as they are where the test targets of a simulated fleet have no noise; below it they are too narrow."
    return Chart("calibration", "Do intervals hold as often as they say?", caption, f"Of the test rows, {told}.", figure)


def held(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    """By level, the share of all test rows that intervals hold, and its standard error over devices (NaN for one device)."""
    assert scores.covered is not None
    n, K = scores.n, len(scores.devices)
    share = scores.covered.sum(axis=0) / n.sum()
    if K < 2:
        return share, np.full(len(share), np.nan)
    left = scores.covered - n[:, None] * share
    return share, np.sqrt(K / (K - 1) * (left**2).sum(axis=0)) / n.sum()
