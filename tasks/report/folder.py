"""What is written for a person to look at: a reproduction's folder with report, tables as data and figure; a run's figures."""

from __future__ import annotations

import logging
from pathlib import Path

from fedcore.data.places import make_folder, write_durably
from fedcore.reproduce.table import Reproduction
from tasks.checkpoint import RunFolder
from tasks.report.charts import CHARTS
from tasks.report.found import read_found
from tasks.report.style import png
from tasks.report.tables import as_csv, as_json, as_markdown

FIGURE = "figure.png"

logger = logging.getLogger("fedlin.report")


def write_report(folder: Path, reproduction: Reproduction, figure: bytes) -> None:
    """Write `report.md`, `table.csv`, `table.json` and the figure into a folder that is there; a file of an earlier time is replaced."""
    files = {
        FIGURE: figure,
        "table.csv": as_csv(reproduction).encode(),
        "table.json": as_json(reproduction).encode(),
        "report.md": as_markdown(reproduction, FIGURE).encode(),
    }
    for name, content in files.items():
        write_durably(folder / name, content)


def write_figures(folder: RunFolder) -> None:
    """Draw what a training has left in its results as `figures/<name>.png` beside them; never raises.

    A figure that cannot be drawn is left out, with a warning: the results are there without it.
    """
    try:
        found, figures = read_found(folder), folder.results / "figures"
        make_folder(figures)
    except Exception as error:
        logger.warning("run %s has no figures: %s", folder.run_id, type(error).__name__)
        return
    for draw in CHARTS:
        try:
            if chart := draw(found):
                write_durably(figures / f"{chart.name}.png", png(chart.figure))
        except Exception as error:
            logger.warning("run %s has no figure of its %s: %s", folder.run_id, draw.__name__, type(error).__name__)
