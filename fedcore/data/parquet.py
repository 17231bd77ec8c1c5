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
from typing import BinaryIO, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedcore.data.names import shown
from fedcore.data.places import Place, open_file, size
from fedcore.errors import DataError, Misuse

# The entry of a file's metadata that holds fedlin's mark.
_MARK = b"fedlin"

# A batch that streams has about this many cells.
_CELLS = 1 << 20

_INT64_MAX = 2**63 - 1
# As many digits as a decimal of 128 bits has.
_DIGITS = 38

_REMEDIES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_decimal, "cast it to float64 first"),
    (pa.types.is_duration, "convert it to a number, such as hours"),
    (pa.types.is_temporal, "convert it to a number, such as hours since a start"),
    (pa.types.is_boolean, "convert it to the numbers 0 and 1"),
    (pa.types.is_null, "write its gaps as one of these"),
    (pa.types.is_nested, "give each of its elements a column of its own"),
)

T = TypeVar("T")


def decode(raw: bytes, where: str) -> pl.DataFrame:
    """The rows of a parquet file: int64, float64 and string columns, whatever width or encoding of these the file has.

    Raises
    ------
    DataError
        Where the bytes are not a whole parquet file, name a column twice, or hold a column that is neither number nor text, is decimal,
        or has numbers beyond int64. The parser's own words are dropped: they can quote values.
    """
    table = _tried(lambda: _validated(_reader(pa.BufferReader(raw)).read(use_threads=False)))
    if table is None:
        raise _unreadable(where, len(raw))
    _check_schema(table.schema, where)
    frame = _frame(table, where)
    for column in frame.iter_columns():
        if column.dtype == pl.UInt64:
            beyond = (column > _INT64_MAX).sum()
            counted = f"column {shown(column.name)} has {beyond} numbers beyond int64"
            raise DataError(f"{where}: {counted}: store them as text where they are names, else as float64")
    return frame


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


def mark_of(file: Place) -> bytes | None:
    """As `mark_in`, of a file.

    Raises
    ------
    Misuse
        Where the file cannot be read.
    """
    with _opened(file) as stream:
        return _mark(stream)


def column_names(file: Place) -> list[str]:
    """Names of a parquet file's columns, after the checks of `decode` that need no rows; decimals are let through.

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
        raise _unreadable(file.name, size(file))
    _check_schema(schema, file.name, decimals=True)
    return schema.names


def batches(file: Place) -> Iterator[pl.DataFrame]:
    """The rows of a parquet file whose schema was checked, a batch at a time: columns as `decode` has them, or decimal, or uint64.

    Raises
    ------
    Misuse
        Where the file cannot be read.
    DataError
        Where it is damaged, or has decimals of more than 38 digits.
    """
    with _opened(file) as stream:
        reader = _tried(lambda: _reader(stream, buffer_size=_CELLS))
        left = reader.metadata.num_rows if reader else 1
        following = reader.iter_batches(max(1, _CELLS // reader.metadata.num_columns), use_threads=False) if reader else iter(())
        while left and (table := _tried(lambda: _validated(pa.Table.from_batches([next(following)])))) is not None:
            left -= table.num_rows
            yield _frame(table, file.name)
    if left:
        raise _unreadable(file.name, size(file))


def from_table(table: object, where: str) -> tuple[pl.DataFrame, bytes | None]:
    """A table of Arrow, Polars, or any library that speaks Arrow's C stream interface; and its mark, which an Arrow table keeps that was
    read from a marked file.

    Raises
    ------
    Misuse
        Where it is no table.
    DataError
        Where it names a column twice, holds a column that is neither number nor text, or has decimals of more than 38 digits.
    """
    arrow = _tried(lambda: pa.table(table))
    if arrow is None:
        raise Misuse(f"{where}: expected an Arrow table or a Polars data frame, got {type(table).__name__}: convert it first")
    _check_schema(arrow.schema, where, decimals=True)
    return _frame(arrow, where), (arrow.schema.metadata or {}).get(_MARK)


def _tried(call: Callable[[], T]) -> T | None:
    # Whatever the parser trips over, the file is unreadable; suppressing leaves no exception behind, with all that it quotes.
    with suppress(Exception):
        return call()
    return None


def _reader(source: pa.NativeFile | BinaryIO, buffer_size: int = 0) -> pq.ParquetFile:
    # Without pre_buffer, and with a buffer's size, a column of a large row group is read in pieces; with it, whole.
    return pq.ParquetFile(source, page_checksum_verification=True, buffer_size=buffer_size, pre_buffer=False)


def _mark(source: pa.NativeFile | io.BufferedReader) -> bytes | None:
    metadata = _tried(lambda: _reader(source).metadata.metadata)
    return (metadata or {}).get(_MARK)


def _validated(table: pa.Table) -> pa.Table | None:
    table.validate(full=True)
    return table if table.num_columns else None


def _frame(table: pa.Table, where: str) -> pl.DataFrame:
    # Only columns and names go on: metadata may be no UTF-8, and polars panics on that. And one column at a time, which takes
    # a tenth off the first read of thousands of small partitions: a table is handed to polars' threads, which have to be woken for each.
    each = zip(table.column_names, table.columns, strict=True)
    return pl.DataFrame([_widened(pl.Series(name, _taken(column, name, where))) for name, column in each])


def _taken(column: pa.ChunkedArray, name: str, where: str) -> pa.ChunkedArray:
    """The column without what polars does not take: dictionaries of some kinds, and decimals of 256 bits or a negative scale."""
    if pa.types.is_dictionary(column.type):
        values = _taken_from(column.type.value_type)
        return pa.chunked_array([chunk.dictionary.cast(values).take(chunk.indices) for chunk in column.chunks], values)
    if pa.types.is_decimal(column.type):
        short = _tried(lambda: column.cast(pa.decimal128(_DIGITS, max(column.type.scale, 0))))
        if short is None:
            counted = f"column {shown(name)} has decimals of more than {_DIGITS} digits"
            raise DataError(f"{where}: {counted}: convert it to float64 first")
        return short
    return column


def _taken_from(values: pa.DataType) -> pa.DataType:
    # Arrow takes no elements of a string_view.
    return pa.large_string() if pa.types.is_string_view(values) else values


def _widened(column: pl.Series) -> pl.Series:
    if column.dtype.is_float():
        return column.cast(pl.Float64)
    if column.dtype.is_integer():
        wide = column.cast(pl.Int64, strict=False)
        return wide if wide.null_count() == column.null_count() else column
    return column


def _check_schema(schema: pa.Schema, where: str, *, decimals: bool = False) -> None:
    if len(set(schema.names)) < len(schema):
        raise DataError(f"{where}: a column name occurs twice: rename one")
    for field in schema:
        if not field.name:
            raise DataError(f"{where}: a column has no name: give it one")
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not (_plain(kind) or (decimals and pa.types.is_decimal(field.type))):
            name = str(kind).split("<")[0].split("[")[0].split("(")[0]
            remedy = next((remedy for applies, remedy in _REMEDIES if applies(kind)), "convert it")
            raise DataError(f"{where}: column {shown(field.name)} is {name}: expected float64, int64 or string: {remedy}")


def _opened(file: Place) -> BinaryIO:
    try:
        return open_file(file)
    except OSError as error:
        reason = error.strerror
    raise Misuse(f"{file.name}: cannot be read: {reason}")


def _unreadable(where: str, length: int) -> DataError:
    return DataError(f"{where}: not a readable parquet file ({length} bytes, empty, cut short or damaged): write it again")


def _plain(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return text or pa.types.is_integer(kind) or pa.types.is_floating(kind)
