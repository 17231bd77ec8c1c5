"""Sources to import: separated text, parquet, a folder of one file a device, tables of other libraries.

Rows come in batches, so that a source may be larger than the memory. Text comes back as text, every column: what a column means is
the contract's business, and `001` must not turn into 1 on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from fedcore.data import parquet
from fedcore.data.contract import SourceFile
from fedcore.data.names import checked_distinct
from fedcore.data.places import Place, entries, is_folder
from fedcore.data.records import Chunk, cells, chunks, no_table
from fedcore.errors import DataError, Misuse

_SEPARATORS = (",", ";", "\t")
_SUFFIXES = (".csv", ".txt", ".parquet")
_BATCH = 65536


@dataclass(frozen=True)
class Source:
    """Rows to import.

    Attributes
    ----------
    where
        How errors call it.
    names
        Its columns.
    form
        How text is read.
    batches
        Reads the rows from the start: frames of these columns. Raises `DataError` on what is found damaged on the way.
    device
        The device that all rows are of; None where a column says it.
    mark
        What a part file of fedlin says of itself, as it is stored.
    """

    where: str
    names: tuple[str, ...]
    form: SourceFile
    batches: Callable[[], Iterator[pl.DataFrame]]
    device: str | None = None
    mark: bytes | None = None


def open_sources(path: Place, form: SourceFile | None, device_column: str | None) -> tuple[Source, ...]:
    """A source file, or one source a file of a folder, where the files' names are the devices' ids.

    Parameters
    ----------
    path
        A file, or a folder with nothing but such files (hidden ones are left aside).
    form, device_column
        As for `open_source`; by default all files of a folder are read as the first one.

    Raises
    ------
    Misuse
        Where something cannot be read, or is no source file.
    DataError
        Where a file is not what it seems, or a name is no device id.
    """
    if not is_folder(path):
        return (open_source(path, form, device_column),)
    files = _files(path)
    if not files:
        raise DataError(f"{path.name}: no files: expected one .csv, .txt or .parquet file a device")
    checked_distinct(file.stem for file in files)
    sources: list[Source] = []
    for file in files:
        sources.append(open_source(file, form or (sources[0].form if sources else None), device_column, file.stem))
    return tuple(sources)


def open_device(path: Place, form: SourceFile, device_column: str, device: str) -> tuple[Source, ...]:
    """The rows of one device: a source file, or all source files of a folder in the order of their names.

    Parameters and errors as for `open_source`.
    """
    files = _files(path) if is_folder(path) else [path]
    return tuple(open_source(file, form, device_column, device) for file in files)


def open_source(file: Place, form: SourceFile | None, device_column: str | None, device: str | None = None) -> Source:
    """One source file.

    Parameters
    ----------
    file
        `.csv` or `.txt` (text in UTF-8), or `.parquet`.
    form
        How to read text; by default the first line names the columns and its most frequent separator counts.
    device_column
        The device column's name, which a file without a header line may lack if all its rows are of `device`.
    device
        The device that all rows are of.

    Raises
    ------
    Misuse
        Where the file cannot be read, or its name ends otherwise.
    DataError
        Where it is not what it seems: damaged, without rows, ragged, or with column names that are missing or double.
    """
    if file.suffix.lower() not in _SUFFIXES:
        raise Misuse(f"{file.name}: expected a .csv, .txt or .parquet file: convert it, or rename it")
    if file.suffix.lower() == ".parquet":
        names = tuple(parquet.column_names(file))
        return Source(file.name, names, form or SourceFile(), lambda: parquet.batches(file), device, parquet.mark_of(file))
    first = next((chunk for chunk in chunks(file) if not chunk.text.isspace()), None)
    if first is None:
        raise no_table(file.name)
    form = form or SourceFile(separator=_sniffed(first))
    top = cells(first, form.separator, None, file.name)
    if top is None:
        raise no_table(file.name)
    if form.header is True:
        names = _header(top, file.name)
    else:
        names = form.header
        if device is not None and len(names) == top.width + 1:
            names = tuple(name for name in names if name != device_column)
    if len(names) != top.width:
        expected = f"expected {len(names)} columns as [file] header says, got {top.width}"
        raise DataError(f"{file.name}: {expected}: correct the header or the separator")
    return Source(file.name, names, form, lambda: _text_batches(file, form, names), device)


def open_table(table: object, where: str, form: SourceFile) -> Source:
    """A table in memory, of Arrow, Polars, or whatever speaks Arrow's C stream interface.

    Raises
    ------
    Misuse
        Where it is no table.
    DataError
        Where it names a column twice, or holds a column that is neither number nor text.
    """
    frame, mark = parquet.from_table(table, where)
    return Source(where, tuple(frame.columns), form, lambda: frame.iter_slices(_BATCH), mark=mark)


def _files(folder: Place) -> list[Place]:
    """What is in a folder, sorted by name; hidden files are left aside."""
    try:
        names = sorted(entry.name for entry in entries(folder) if not entry.name.startswith("."))
    except OSError as error:
        reason = error.strerror
    else:
        return [folder / name for name in names]
    raise Misuse(f"{folder.name}: cannot be read: {reason}")


def _text_batches(file: Place, form: SourceFile, names: tuple[str, ...]) -> Iterator[pl.DataFrame]:
    above, found = form.header is True, False
    for chunk in chunks(file):
        rows = cells(chunk, form.separator, len(names), file.name)
        if rows is None:
            continue
        if above:
            rows, above = rows[1:], False
        if rows.height:
            found = True
            rows.columns = list(names)
            yield rows
    if not found:
        raise DataError(f"{file.name}: no rows below the header line: nothing to import")


def _sniffed(chunk: Chunk) -> str:
    first = chunk.text.lstrip().partition("\n")[0]
    best = max(_SEPARATORS, key=first.count)
    return best if best in first else "whitespace"


def _header(top: pl.DataFrame, where: str) -> tuple[str, ...]:
    names = tuple(name for name in top.row(0) if name is not None)
    if len(names) < top.width or len(set(names)) < len(names):
        expected = f"the first line has to name the {top.width} columns, each once"
        raise DataError(f"{where}: {expected}: a file without names needs a contract with [file] header")
    return names
