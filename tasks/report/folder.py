"""A reproduction's folder: report, tables as data, figure."""

from __future__ import annotations

from pathlib import Path

from fedcore.data.places import write_durably
from fedcore.reproduce.table import Reproduction
from tasks.report.tables import as_csv, as_json, as_markdown

FIGURE = "figure.png"


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
