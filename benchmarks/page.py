"""The page that is rendered from results."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.results import Cell, Results

TEMPLATE = "RESULTS.md.j2"


def render(results: Results) -> str:
    """RESULTS.md."""
    # Markdown, with texts of our own: nothing to escape for HTML.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["figure"] = figure
    return environment.get_template(TEMPLATE).render(results=results)


def figure(cell: Cell) -> str:
    """A cell for people: numbers with three digits that count, nothing for what is not known."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if 1000 <= abs(cell) < 1e15 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
