"""How figures look, and how they become files: colours that the colour-blind can tell apart, each with a marker or hatching beside it."""

from __future__ import annotations

import functools
import io
import re
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedcore.rows import Floats

P = ParamSpec("P")
R = TypeVar("R")

BLUE, VERMILLION, ORANGE = "#0072b2", "#d55e00", "#e69f00"
"""Okabe and Ito's."""

HATCH = "////"
"""Of what is to be seen without colour too."""

INK, MUTED, GRID, PRIOR = "#1c2127", "#59626e", "#d5dae1", "#9aa3af"

THEMED = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PRIOR: "prior",
    BLUE: "blue",
    VERMILLION: "vermillion",
    ORANGE: "orange",
}
"""What a page calls the colours, as in `var(--chart-ink)`, so that its theme can choose them anew."""

DPI = 130
WIDTH = 7.2
"""Inches."""

NARROW = 3.9
"""Inches, of what a phone shows."""

LINE = 34
"""Letters of a line of a label in a figure as wide as that."""

SUBS = ((0.5, tuple(range(1, 10))), (1.2, (1.0, 2.0, 3.0, 5.0)), (2.5, (1.0, 2.0, 5.0)), (4.0, (1.0, 3.0)), (np.inf, (1.0,)))
"""Of a logarithmic axis of fewer decades than the first number, the digits of its labels."""

STYLE: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # names are the user's
    "svg.fonttype": "none",
    "svg.image_inline": True,
}


class Chart(NamedTuple):
    """A figure with its words.

    Attributes
    ----------
    name
        Of its file, without an ending.
    title, caption
        What it is, and how to read it.
    alt
        What it shows, for those who do not see it.
    figure
        The figure.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a function draw in this style."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def canvas(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, sizes in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def grid(panel: Axes, axis: str) -> None:
    """Grid lines of one axis."""
    panel.grid(axis=axis, color=GRID, linewidth=0.6)  # pyright: ignore[reportArgumentType]


def logarithmic(panel: Axes, axis: Literal["x", "y"], values: Floats) -> None:
    """Make an axis logarithmic, with labels at round numbers: as many as there is room for in the range of these values."""
    decades = np.log10(values.max() / values.min())
    getattr(panel, f"set_{axis}scale")("log")
    ticks = getattr(panel, f"{axis}axis")
    ticks.set_major_locator(LogLocator(subs=next(subs for most, subs in SUBS if decades < most)))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_minor_formatter(NullFormatter())


def short(name: str, most: int = 20) -> str:
    """A name that fits a label: of a longer one the beginning and the end, since names of one fleet often begin alike."""
    left = most // 2
    return name if len(name) <= most else f"{name[:left]}…{name[len(name) - (most - 1 - left) :]}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names in a sentence, the first of them where they are many."""
    shown = [short(name, 40) for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else "none"


def png(figure: Figure) -> bytes:
    """As a picture on white paper."""
    return _saved(figure, format="png", dpi=DPI, facecolor="white")


@styled
def narrow(chart: Chart) -> Chart:
    """The same figure laid out anew for a phone, whose name ends in `-narrow`: legends are in one column, axes have fewer ticks.

    The figure of `chart` itself is changed: save its wide form first.
    """
    figure = chart.figure
    rows = 0
    for legend in list(figure.legends):
        handles, labels = legend.legend_handles, [text.get_text() for text in legend.get_texts()]
        legend.remove()
        across = 2 if len(labels) > 1 and max(map(len, labels)) <= 24 else 1
        figure.legend(handles, labels, loc="outside upper left", ncols=across)  # pyright: ignore[reportArgumentType]
        rows += -(-len(labels) // across)
    height = figure.get_figheight() * _regridded(figure)
    for panel in figure.axes:
        beside = _across(panel) > 1
        if isinstance(panel.xaxis.get_major_locator(), MaxNLocator):
            panel.locator_params(axis="x", nbins=2 if beside else 4)
        if beside:
            panel.tick_params(axis="both", labelsize=6.5)
            lines = panel.get_title("left").replace(" (", "\n(").split("\n")
            panel.set_title("\n".join(short(line, 14) for line in lines), loc="left", fontsize=8)
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_text().count(" ") > 2:
            text.set_text(fill(text.get_text(), LINE))
    square = any(panel.get_aspect() == 1.0 and panel.images for panel in figure.axes)
    height *= NARROW / figure.get_figwidth() if square else 1.0
    figure.set_size_inches(NARROW, height + 0.16 * rows)
    figure.draw_without_rendering()
    for panel in figure.axes:
        _thin(panel.xaxis)
        _thin(panel.yaxis)
    return chart._replace(name=f"{chart.name}-narrow")


def _regridded(figure: Figure) -> float:
    """Put panels that stand three beside each other in two columns; by what factor the figure is higher then."""
    panels = [panel for panel in figure.axes if panel.get_visible()]
    if max(map(_across, panels)) < 3:
        return 1.0
    down = -(-len(panels) // 2)
    before = panels[0].get_subplotspec().get_gridspec().nrows  # pyright: ignore[reportOptionalMemberAccess]
    spec = GridSpec(down, 2, figure)
    for i, panel in enumerate(panels):
        panel.set_subplotspec(spec[i])
    return down / before


def _thin(axis: Axis) -> None:
    """Hide labels of an axis that has been drawn, every other one or more of them, until none covers its neighbour."""
    low, high = sorted(axis.get_view_interval())
    labels = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    told = [label for label in labels if label.get_visible() and label.get_text()]
    boxes = [label.get_window_extent() for label in told]
    step = next(step for step in range(1, len(told) + 2) if not any(a.overlaps(b) for a, b in pairwise(boxes[::step])))
    for i, label in enumerate(told):
        label.set_visible(i % step == 0)


def _across(panel: Axes) -> int:
    """How many panels stand beside each other where this one does."""
    spec = panel.get_subplotspec()
    return spec.get_gridspec().ncols if spec else 1


@styled
def svg(chart: Chart) -> str:
    """As an element of a page, whose style sheet chooses its colours; ids are its own among the page's."""
    text = _saved(chart.figure, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{chart.name}-', text)
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{chart.name}-", text)
    for side in ("width", "height"):
        text = re.sub(rf'(<svg\b[^>]*?) {side}="[^"]*"', r"\1", text, count=1)
    for colour, name in THEMED.items():
        text = text.replace(colour, f"var(--chart-{name})")
    return text


def _saved(figure: Figure, **options: object) -> bytes:
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in letters that the font lacks; a page has others
        figure.savefig(content, **options)  # pyright: ignore[reportArgumentType]
    return content.getvalue()
