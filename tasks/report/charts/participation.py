"""Which devices took part in which rounds."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tasks.report.found import ABSENT, ANSWERED, REFUSED, SILENT, Found
from tasks.report.style import BLUE, INK, MUTED, VERMILLION, Chart, canvas, listed, short, styled

CELLS = 200
"""The most rows and columns; beyond, several devices or rounds share one."""

NAMED = 30
"""The most devices that are drawn by name."""


@styled
def participation(found: Found) -> Chart | None:
    """Devices by rounds: answered, silent, not taken or not drawn. None where every device has answered every round."""
    did = found.participation
    if did.size == 0 or (did == ANSWERED).all():
        return None
    K, R = did.shape
    devices, rounds = (-(-size // CELLS) for size in (K, R))
    answered, silent, refused = (_merged(did == what, devices, rounds) for what in (ANSWERED, SILENT, REFUSED))
    colours = np.zeros((*answered.shape, 4))  # what was not drawn shows the page
    colours[answered], colours[silent], colours[refused] = to_rgba(BLUE), to_rgba(VERMILLION), to_rgba(INK)
    figure = canvas(1.0 + min(0.17 * K, 3.2))
    panel = figure.subplots()
    panel.imshow(colours, aspect="auto", interpolation="nearest", extent=(0.5, R + 0.5, K - 0.5, -0.5))
    for side in ("top", "right"):
        panel.spines[side].set_visible(True)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("communication round")
    if K <= NAMED:
        panel.set_yticks(range(K), [short(device, 14) for device in found.fleet])
    else:
        panel.set_yticks([])
        panel.set_ylabel(f"{K} devices, by id")
    marks = (
        (ANSWERED, "answered", BLUE),
        (SILENT, "silent", VERMILLION),
        (REFUSED, "not taken", INK),
        (ABSENT, "not drawn", "none"),
    )
    handles = [Patch(facecolor=colour, edgecolor=MUTED, label=name) for what, name, colour in marks if (did == what).any()]
    figure.legend(handles=handles, loc="outside upper left", ncols=4)
    drawn = (did != ABSENT).sum()
    lost = ((did == SILENT) | (did == REFUSED)).sum(axis=1)
    alt = f"Devices were drawn {drawn} times in {R} rounds and answered {100 * (did == ANSWERED).sum() / max(drawn, 1):.1f} % of them. "
    worst = [found.fleet[k] for k in np.argsort(-lost, kind="stable") if lost[k]]
    alt += f"Silent or not taken at times: {listed(worst)}." if worst else "None was silent when drawn."
    caption = "A row a device, a column a round."
    if devices > 1 or rounds > 1:
        caption += f" A cell stands for {devices} devices and {rounds} rounds, and shows the worst of them."
    return Chart("participation", "Who took part", caption, alt, figure)


def _merged(did: np.ndarray, devices: int, rounds: int) -> np.ndarray:
    """Whether any of these devices did so in any of these rounds."""
    K, R = did.shape
    padded = np.zeros((-(-K // devices) * devices, -(-R // rounds) * rounds), dtype=bool)
    padded[:K, :R] = did
    return np.asarray(padded.reshape(len(padded) // devices, devices, -1, rounds).any(axis=(1, 3)))
