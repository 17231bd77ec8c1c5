"""Parquet in, frames out, and back; and the tables of other libraries.

Arrow reads and writes the bytes, because polars' own reader can abort the whole process on a damaged file (a bad length becomes an
allocation that fails), and one broken device must not end every other's round. Arrow raises, and checks the checksum of each
page where the writer stored one, as this one does.
"""

# pyright: standard
# (pyarrow declares no types)

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedcore.errors import DataError, Misuse

# The entry of a file's metadata that holds fedlin's mark.
_MARK = b"fedlin"

# A batch that streams has about this many cells.
_CELLS = 1 << 20

T = TypeVar("T")


def decode(raw: bytes, where: str) -> pl.DataFrame:
    """The rows of a parquet file.

    Raises
    ------
    DataError
        Where the bytes are not a whole parquet file, name a column twice, or hold a column that is neither number nor text.
        The parser's own words are dropped: they can quote values.
    """
    table = _tried(lambda: _validated(_reader(pa.BufferReader(raw)).read(use_threads=False)))
    if table is None:
        raise _unreadable(where, len(raw))
    _check_schema(table.schema, where)
    return _frame(table)


def encode(frame: pl.DataFrame, mark: bytes | None = None) -> bytes:
    """The frame as a parquet file with page checksums, and fedlin's mark among its metadata."""
    buffer, table = io.BytesIO(), frame.to_arrow()
    # Without the Arrow schema metadata of a table are not stored, so the mark is an entry of the file.
    with pq.ParquetWriter(buffer, table.schema, compression="zstd", write_page_checksum=True, store_schema=False) as writer:
        if mark is not None:
            writer.add_key_value_metadata({_MARK: mark})
        writer.write_table(table)
    return buffer.getvalue()


def mark_in(raw: bytes) -> bytes | None:
    """The mark of a parquet file that can be read, as it is stored: any bytes; None where it has none."""
    return _mark(pa.BufferReader(raw))


def mark_of(file: Path) -> bytes | None:
    """As `mark_in`, of a file.

    Raises
    ------
    Misuse
        Where the file cannot be read.
    """
    with _opened(file) as stream:
        return _mark(stream)


def column_names(file: Path) -> list[str]:
    """Names of a parquet file's columns, after the checks of `decode` that need no rows.

    Raises
    ------
    Misuse
        Where the file cannot be read.
    DataError
        As for `decode`.
    """
    with _opened(file) as stream:
        schema = _tried(lambda: _reader(stream).schema_arrow)
    if not schema:
        raise _unreadable(file.name, file.stat().st_size)
    _check_schema(schema, file.name)
    return schema.names


def batches(file: Path) -> Iterator[pl.DataFrame]:
    """The rows of a parquet file whose schema was checked, a batch at a time.

    Raises
    ------
    Misuse
        Where the file cannot be read.
    DataError
        Where it is damaged.
    """
    with _opened(file) as stream:
        reader = _tried(lambda: _reader(stream, buffer_size=_CELLS))
        left = reader.metadata.num_rows if reader else 1
        following = reader.iter_batches(max(1, _CELLS // reader.metadata.num_columns), use_threads=False) if reader else iter(())
        while left and (table := _tried(lambda: _validated(pa.Table.from_batches([next(following)])))) is not None:
            left -= table.num_rows
            yield _frame(table)
    if left:
        raise _unreadable(file.name, file.stat().st_size)


def from_table(table: object, where: str) -> pl.DataFrame:
    """A table of Arrow, Polars, or any library that speaks Arrow's C stream interface.

    Raises
    ------
    Misuse
        Where it is no table.
    DataError
        Where it names a column twice, or holds a column that is neither number nor text.
    """
    arrow = _tried(lambda: pa.table(table))
    if arrow is None:
        raise Misuse(f"{where}: expected an Arrow table or a Polars data frame, got {type(table).__name__}: convert it first")
    _check_schema(arrow.schema, where)
    return _frame(arrow)


def _tried(call: Callable[[], T]) -> T | None:
    # Whatever the parser trips over, the file is unreadable; suppressing leaves no exception behind, with all that it quotes.
    with suppress(Exception):
        return call()
    return None


def _reader(source: pa.NativeFile | io.BufferedReader, buffer_size: int = 0) -> pq.ParquetFile:
    # Without pre_buffer, and with a buffer's size, a column of a large row group is read in pieces; with it, whole.
    return pq.ParquetFile(source, page_checksum_verification=True, buffer_size=buffer_size, pre_buffer=False)


def _mark(source: pa.NativeFile | io.BufferedReader) -> bytes | None:
    metadata = _tried(lambda: _reader(source).metadata.metadata)
    return (metadata or {}).get(_MARK)


def _validated(table: pa.Table) -> pa.Table | None:
    table.validate(full=True)
    return table if table.num_columns else None


def _frame(table: pa.Table) -> pl.DataFrame:
    # Only columns and names go on: metadata may be no UTF-8, and polars panics on that.
    frame = pl.from_arrow(pa.Table.from_arrays(table.columns, names=table.column_names))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _check_schema(schema: pa.Schema, where: str) -> None:
    if len(set(schema.names)) < len(schema):
        raise DataError(f"{where}: a column name occurs twice: rename one")
    for field in schema:
        if not _plain(field.type):
            kind = str(field.type).split("<")[0].split("[")[0]
            raise DataError(f"{where}: column {field.name!r} is {kind}: expected float64, int64 or string")


def _opened(file: Path) -> io.BufferedReader:
    try:
        return file.open("rb")
    except OSError as error:
        reason = error.strerror
    raise Misuse(f"{file.name}: cannot be read: {reason}")


def _unreadable(where: str, size: int) -> DataError:
    return DataError(f"{where}: not a readable parquet file ({size} bytes, empty, cut short or damaged): write it again")


def _plain(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return text or pa.types.is_integer(kind) or pa.types.is_floating(kind)
