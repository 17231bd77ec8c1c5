from __future__ import annotations

import csv
import io
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data import places, records
from fedcore.data.records import cells, chunks
from fedcore.errors import DataError

CELL = st.text(alphabet='ab é";\n', min_size=1, max_size=5)


def read(file: Path, separator: str, width: int | None = None) -> pl.DataFrame:
    """All cells of a file, chunk by chunk."""
    tables: list[pl.DataFrame] = []
    for chunk in chunks(file):
        table = cells(chunk, separator, tables[0].width if tables else width, file.name)
        if table is not None:
            table.columns = [f"c{i}" for i in range(table.width)]
            tables.append(table)
    return pl.concat(tables)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=8), size=st.integers(1, 40), end=st.sampled_from(["\n", "\r\n"]))
def test_chunks_of_any_size_hold_the_same_cells(
    rows: list[tuple[str, ...]], size: int, end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("text") / "rows.csv"
    text = io.StringIO()
    csv.writer(text, delimiter=";", quoting=csv.QUOTE_ALL, lineterminator=end).writerows(rows)
    file.write_bytes(b"\xef\xbb\xbf" + text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "_BLOCK", size)
        assert read(file, ";").rows() == rows


def test_chunks_end_where_records_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_BLOCK", 8)
    (tmp_path / "rows.csv").write_text('a,b\n1,"x\n\ny"\n\n2,z')
    assert list(chunks(tmp_path / "rows.csv")) == [("a,b\n", 1), ('1,"x\n\ny"\n\n', 2), ("2,z", 6)]


@pytest.mark.parametrize("size", [4, 16, 1 << 20])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a b\n1 2\n\n3 4\n5 6 7000\n8 9\n", 5),
        ('a b\n1 2\n\n3 "4\n7000 6\n', 4),
        ('a b\n1 2\n3 4"4\n5 7000\n', 3),
    ],
)
def test_the_line_to_look_at_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, text: str, line: int) -> None:
    monkeypatch.setattr(places, "_BLOCK", size)
    file = tmp_path / "rows.csv"
    for separator, changed in (("whitespace", text.replace(" ", " \t ")), (",", text.replace(" ", ","))):
        file.write_text(changed)
        with pytest.raises(DataError) as caught:
            read(file, separator)
        expected = "rows.csv: no table: it is empty, a line has more fields than the first, or a quote is left open"
        assert str(caught.value) == f"{expected}: see line {line}"
        assert caught.value.__context__ is None


def test_short_lines_end_in_nulls_wherever_a_chunk_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_BLOCK", 6)
    (tmp_path / "rows.csv").write_text("a,b,c\n1\n2,3\n4,5,6\n")
    assert read(tmp_path / "rows.csv", ",").rows()[1:] == [("1", None, None), ("2", "3", None), ("4", "5", "6")]


def test_a_position_that_is_no_text_counts_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_BLOCK", 8)
    (tmp_path / "rows.csv").write_bytes(b"a,b\n" * 10 + b"a,\xe9\n")
    with pytest.raises(DataError, match=r"^rows.csv: not UTF-8 text from byte 42 on: save it as UTF-8$"):
        list(chunks(tmp_path / "rows.csv"))


def test_a_record_without_end_is_refused_before_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_BLOCK", 8)
    monkeypatch.setattr(records, "_LONGEST", 64)
    (tmp_path / "rows.csv").write_text('a,b\n1,"' + "7000\n" * 1000)
    with pytest.raises(DataError, match=r"^rows.csv: line 2 begins a record of more than 64 bytes: close its quote$"):
        list(chunks(tmp_path / "rows.csv"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a  b\tc\n 1 \t 2  3 \r\n", [["a", "b", "c"], ["1", "2", "3"]]),
        ('a b\n"two  words" 2\n', [["a", "b"], ["two  words", "2"]]),
        ('a b\n"a\ttab" "x ""y""  z"\n', [["a", "b"], ["a\ttab", 'x "y"  z']]),
        ("a b\nGr\u00fcn\u00a03 2\n", [["a", "b"], ["Gr\u00fcn\u00a03", "2"]]),
    ],
)
def test_whitespace_is_spaces_and_tabs_outside_quotes(text: str, expected: list[list[str]]) -> None:
    table = records.cells(records.Chunk(text, 1), "whitespace", None, "here")
    assert table is not None
    assert [list(row) for row in table.rows()] == expected
