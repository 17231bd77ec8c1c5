"""Source files as frames: comma, semicolon, tab and whitespace separated text, and parquet.

Text comes back as text, every column: what a column means is the contract's business, and `001` must not turn into 1 on the way.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from fedcore.data.contract import SourceFile
from fedcore.data.parquet import decode
from fedcore.errors import DataError, Misuse

_SEPARATORS = (",", ";", "\t")


def read_source(file: Path, form: SourceFile | None) -> tuple[pl.DataFrame, SourceFile]:
    """The rows of a source file, and the form it was read in.

    Parameters
    ----------
    file
        `.csv` or `.txt` (text in UTF-8), or `.parquet`.
    form
        How to read text; by default the first line names the columns and its most frequent separator counts.

    Raises
    ------
    Misuse
        Where the file cannot be read, or its name ends otherwise.
    DataError
        Where it is not what it seems: damaged, without rows, ragged, or with column names that are missing or double.
    """
    if file.suffix.lower() not in (".csv", ".txt", ".parquet"):
        raise Misuse(f"{file.name}: expected a .csv, .txt or .parquet file: convert it, or rename it")
    raw = _read(file)
    if file.suffix.lower() == ".parquet":
        return decode(raw, file.name), form or SourceFile()
    text = _decoded(raw, file.name)
    form = form or SourceFile(separator=_sniffed(text))
    cells = _cells(text, form.separator, file.name)
    if form.header is True:
        names, rows = _header(cells, file.name), cells[1:]
    else:
        names, rows = list(form.header), cells
    if rows.is_empty():
        raise DataError(f"{file.name}: no rows below the header line: nothing to import")
    if len(names) != cells.width:
        expected = f"expected {len(names)} columns as [file] header says, got {cells.width}"
        raise DataError(f"{file.name}: {expected}: correct the header or the separator")
    rows.columns = names
    return rows, form


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        reason = error.strerror
    raise Misuse(f"{file.name}: cannot be read: {reason}")


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        position = error.start
    raise DataError(f"{where}: not UTF-8 text from byte {position} on: save it as UTF-8")


def _sniffed(text: str) -> str:
    first = text.lstrip().partition("\n")[0]
    best = max(_SEPARATORS, key=first.count)
    return best if best in first else "whitespace"


def _cells(text: str, separator: str, where: str) -> pl.DataFrame:
    """All cells as strings, the empty ones null; columns get the names that polars makes up."""
    if separator == "whitespace":
        # polars wants one separator: any run of blanks becomes one space, and those at line ends go.
        text, separator = "\n".join(" ".join(line.split()) for line in text.split("\n")), " "
    # Blank lines would read as rows of nulls.
    text = "\n".join(line for line in text.split("\n") if line.strip(" \r"))
    try:
        cells = pl.read_csv(text.encode(), has_header=False, infer_schema=False, separator=separator)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        cells = None
    if cells is None:
        raise DataError(f"{where}: no table: it is empty, a line has more fields than the first, or a quote is left open")
    return cells


def _header(cells: pl.DataFrame, where: str) -> list[str]:
    names = [name for name in cells.row(0) if name is not None]
    if len(names) < cells.width or len(set(names)) < len(names):
        expected = f"the first line has to name the {cells.width} columns, each once"
        raise DataError(f"{where}: {expected}: a file without names needs a contract with [file] header")
    return names
