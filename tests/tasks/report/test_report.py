"""Reports of a small reproduction as CSV, JSON, Markdown and PNG."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from fedcore.reproduce.published import Published
from fedcore.reproduce.table import Cell, Curve, Reproduction, Table
from fedcore.reproduce.verdict import Reached
from tasks.report.figures import a_rmse_by_part, error_by_round
from tasks.report.folder import write_report
from tasks.report.tables import as_csv, as_json, as_markdown, summary

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def small() -> Reproduction:
    paper = Published(0.1, 0.001)
    lost = Reached(np.nan, failure="it overflowed")
    cells = (
        Cell.of("Case I", "good", paper, [Reached(0.1, "eta=1"), Reached(0.1002, "eta=1"), Reached(0.0998, "eta=2")]),
        Cell.of("Case I", "lost", paper, [lost, lost, lost]),
        Cell.of("Case I", "half", None, [Reached(0.2), Reached(0.3), lost]),
        Cell.of("Case I", "far", None, [Reached(5.0), Reached(6.0), Reached(7.0)]),
    )
    curves = {"Case I": {"good": Curve.of([[3.0, 2.0, 1.0], [5.0, 4.0]]), "long": Curve.of([[3.0, 2.0, 1.0]] * 2)}}
    curves["Case I"] |= {"limit": Curve.of([[0.5]]), "other": Curve.of([[0.4]])}
    return Reproduction("small", "A small one", 3, 7, ("As it was.",), (Table("The table", cells),), ("It holds.",), curves)


def test_a_curve_ends_where_any_run_does(small: Reproduction) -> None:
    curve = small.curves["Case I"]["good"]
    assert curve.mean.tolist() == [4.0, 3.0]
    np.testing.assert_allclose(curve.low, [3.2, 2.2])
    np.testing.assert_allclose(curve.high, [4.8, 3.8])


def test_csv_and_json_hold_every_cell(small: Reproduction) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(small))))
    document = json.loads(as_json(small), parse_constant=pytest.fail)
    assert [row["method"] for row in rows] == ["good", "lost", "half", "far"] == [cell["method"] for cell in document["cells"]]
    assert (rows[0]["verdict"], rows[0]["chosen"], rows[0]["paper_mean"]) == ("reproduced", "eta=1 (2); eta=2 (1)", "0.1")
    assert float(rows[0]["mean"]) == pytest.approx(0.1)
    assert (rows[1]["mean"], rows[1]["diverged"], rows[1]["verdict"]) == ("", "3", "not reproduced")
    assert (rows[2]["paper_mean"], rows[2]["verdict"], rows[2]["reason"]) == ("", "", "diverged in 1 of 3 runs: it overflowed")
    assert document["cells"][1]["mean"] is None
    assert document["curves"]["Case I"]["good"]["mean"] == [4.0, 3.0]
    assert (document["runs"], document["seed"]) == (3, 7)


def test_markdown_has_tables_reasons_and_conventions(small: Reproduction) -> None:
    text = as_markdown(small, "figure.png")
    assert summary(small) == "1 of 2 cells are reproduced (3 runs a cell, seed 7)."
    for line in (
        "| Case I | lost | 0.100 (0.001) | diverged | not reproduced: diverged in 3 of 3 runs: it overflowed |",
        "| Case I | half |  | 0.2500 (0.0707) | diverged in 1 of 3 runs: it overflowed |",
        "| Case I | good | eta=1 (2); eta=2 (1) |",
        "![A small one](figure.png)",
        "- As it was.",
        "- It holds.",
    ):
        assert line in text
    assert "| good | 4.0000 | 3.0000 | diverged |" in text
    assert text.count("A cell is reproduced where") == 1


def test_the_folder_has_all_of_it_and_replaces_an_earlier_one(small: Reproduction, tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("earlier")
    write_report(tmp_path, small, a_rmse_by_part(small))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["figure.png", "report.md", "table.csv", "table.json"]
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)
    assert (tmp_path / "report.md").read_text() == as_markdown(small, "figure.png")
    assert error_by_round(small).startswith(PNG)
