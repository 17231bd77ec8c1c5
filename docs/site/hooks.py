"""What MkDocs asks while it builds the site: pages that are made from the project, and equations as MathML, which browsers can show."""

from __future__ import annotations

import html
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer.main
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from benchmarks.million import tables
from benchmarks.results import Part

ROOT = Path(__file__).resolve().parents[2]

TAKEN = {"reference/contract.md": "datasets/README.md", "reference/decisions.md": "DECISIONS.md", "reference/changelog.md": "CHANGELOG.md"}
"""Pages that are files of the project as they are."""

FONT = Path(str(find_spec("ziamath").origin)).parent / "fonts" / "STIXTwoMath-Regular.ttf"
"""STIX Two Math (SIL Open Font License), without which equations are as good as the reader's fonts."""

EXAMPLE = re.compile(r"(\n {4}fedlin [^\n]*)\n(?=\n {4}fedlin )")
"""One that another follows, in a help text: there they are paragraphs, here the lines of one block."""

GROWTH = "<!-- growth -->"
"""Where a page has the tables of it."""

MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written nowhere else."""
    for page, source in TAKEN.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "reference/cli.md", content=command_line()))
    files.append(File.generated(config, "site/math.ttf", abs_src_path=str(FONT)))
    return files


def command_line() -> str:
    """The reference of the command line, as Typer tells it."""
    from flows.cli.app import app

    command: Any = typer.main.get_command(app)
    told = get_docs_for_click(obj=command, ctx=typer.Context(command), name="fedlin", title="Command line")
    return EXAMPLE.sub(r"\1", told)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The tables of what a million devices would take."""
    return markdown.replace(GROWTH, growth()) if GROWTH in markdown else markdown


def growth() -> str:
    """Of the benchmarks' results; a sentence where they have no such part."""
    file = ROOT / "benchmarks" / "results.json"
    entries = json.loads(file.read_text())["entries"] if file.exists() else []
    parts = [Part.model_validate(each["part"]) for each in entries if each["name"] == "growth" and each["part"]]
    return (
        tables(parts[0])
        if parts
        else "Not measured yet: `python -m benchmarks growth` does, and the documents take its figures when they are built.\n"
    )


def on_page_content(content: str, **_: Any) -> str:
    """Equations, which Markdown leaves in TeX."""

    def mathml(found: re.Match[str]) -> str:
        kind, opened, tex = found.groups()
        display = "block" if opened == "[" else "inline"
        return f'<{kind} class="math">{convert(html.unescape(tex).strip(), display=display)}</{kind}>'

    return MATH.sub(mathml, content)


def on_post_page(output: str, **_: Any) -> str:
    """The search, which the theme leaves without a name for screen readers."""
    return output.replace('data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"')
