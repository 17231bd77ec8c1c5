"""A reproduction's cells as records, CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcore.reproduce.table import QUANTILES, Cell, Reproduction
from fedcore.reproduce.verdict import RULE, Word
from tasks.results import finite


def records(reproduction: Reproduction) -> list[dict[str, Any]]:
    """One flat record a cell; None for what is not there or not finite."""
    return [{"table": table.title} | _record(cell) for table in reproduction.tables for cell in table.cells]


def _record(cell: Cell) -> dict[str, Any]:
    return {
        "part": cell.part,
        "method": cell.method,
        "paper_mean": cell.published.mean if cell.published else None,
        "paper_sd": cell.published.sd if cell.published else None,
        "mean": finite(cell.ours.mean),
        "sd": finite(cell.ours.sd),
        "runs": cell.ours.runs,
        "diverged": cell.ours.diverged,
        "verdict": cell.verdict.word.value or None,
        "reason": cell.verdict.reason or None,
        "chosen": settings(cell) or None,
    }


def judgement(cell: Cell) -> str:
    """The verdict with its reason."""
    return ": ".join(part for part in (cell.verdict.word.value, cell.verdict.reason) if part)


def settings(cell: Cell) -> str:
    """How often the validation rows chose each setting, such as "eta=0.1 (28), eta=0.3 (2)"."""
    return "; ".join(f"{setting} ({count})" for setting, count in cell.chosen.items())


def paper_figure(cell: Cell) -> str:
    """The paper's mean and standard deviation, as it prints them."""
    if cell.published is None:
        return ""
    return f"{cell.published.mean:.3f}" + ("" if cell.published.sd is None else f" ({cell.published.sd:.3f})")


def our_figure(cell: Cell) -> str:
    """Our mean and standard deviation over the runs that did not diverge."""
    if cell.ours.diverged == cell.ours.runs:
        return "diverged"
    sd = "-" if finite(cell.ours.sd) is None else f"{cell.ours.sd:.4f}"
    return f"{cell.ours.mean:.4f} ({sd})"


def summary(reproduction: Reproduction) -> str:
    """How many cells are reproduced."""
    count, total = reproduction.count(Word.REPRODUCED), len(reproduction.judged)
    if not total:
        return f"The paper has pictures here and no figures ({reproduction.runs} runs, seed {reproduction.seed})."
    return f"{count} of {total} cells are reproduced ({reproduction.runs} runs a cell, seed {reproduction.seed})."


def as_csv(reproduction: Reproduction) -> str:
    """One line a cell."""
    rows = records(reproduction)
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(reproduction: Reproduction) -> str:
    """Everything: cells, conventions, rule, findings, and the curves by round."""
    curves = {
        part: {label: {name: values.tolist() for name, values in curve._asdict().items()} for label, curve in of_part.items()}
        for part, of_part in reproduction.curves.items()
    }
    document = {
        "name": reproduction.name,
        "title": reproduction.title,
        "runs": reproduction.runs,
        "seed": reproduction.seed,
        "summary": summary(reproduction),
        "rule": RULE,
        "conventions": reproduction.conventions,
        "findings": reproduction.findings,
        "cells": records(reproduction),
        "quantiles": QUANTILES,
        "curves": curves,
        "intervals": {
            part: {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in each._asdict().items()}
            for part, each in reproduction.intervals.items()
        },
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def as_markdown(reproduction: Reproduction, figure: str) -> str:
    """The report: tables with verdicts and reasons, conventions, findings; `figure` is the name of the picture beside it."""
    parts = [f"# {reproduction.title}", summary(reproduction), _bullets(reproduction.findings)]
    for table in reproduction.tables:
        rows = [(cell.part, cell.method, paper_figure(cell), our_figure(cell), judgement(cell)) for cell in table.cells]
        parts += [f"## {table.title}", _table(("", "method", "paper, mean (sd)", "ours, mean (sd)", "verdict"), rows)]
    parts += [f"![{reproduction.title}]({figure})"]
    for part, of_part in reproduction.curves.items():
        shown = [(label, *_sampled(curve.mean.tolist())) for label, curve in of_part.items()]
        rounds = [str(n) for n in SHOWN_ROUNDS]
        parts += [f"## Parameter error by round, {part} (mean over runs)", _table(("method", *(f"round {n}" for n in rounds)), shown)]
    for part, each in reproduction.intervals.items():
        figures = zip(each.labels, each.truth, each.mean, each.lower, each.upper, strict=True)
        shown = [(label, *(f"{value:.4f}" for value in values)) for label, *values in figures]
        parts += [f"## {part}: one run", _table(("", "truth", "mean", "lower", "upper"), shown)]
    chosen = [(cell.part, cell.method, settings(cell)) for cell in reproduction.tables[0].cells if cell.chosen]
    if chosen:
        parts += ["## Settings that the validation rows chose (in how many runs)", _table(("", "method", "settings"), chosen)]
    parts += ["## Conventions", _bullets(reproduction.conventions), "## The rule", RULE]
    return "\n\n".join(parts) + "\n"


SHOWN_ROUNDS = (1, 2, 3, 5, 10, 20, 30, 40, 50)


def _sampled(mean: list[float]) -> list[str]:
    """A curve at the shown rounds; a limit has one value for all, and a curve ends where a run diverged."""
    values = mean * SHOWN_ROUNDS[-1] if len(mean) == 1 else mean
    return [f"{values[n - 1]:.4f}" if n <= len(values) else "diverged" for n in SHOWN_ROUNDS]


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
