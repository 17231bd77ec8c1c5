"""Partitions as bytes: parquet in, frame out, and back.

Arrow reads and writes the bytes, because polars' own reader can abort the whole process on a damaged file (a bad length becomes an
allocation that fails), and one broken device must not end every other's round. Arrow raises, and checks the checksum of each
page where the writer stored one, as this one does.
"""

# pyright: standard
# (pyarrow declares no types)

from __future__ import annotations

import io
from contextlib import suppress

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedcore.errors import DataError


def decode(raw: bytes, where: str) -> pl.DataFrame:
    """The rows of a parquet file.

    Raises
    ------
    DataError
        Where the bytes are not a whole parquet file, name a column twice, or hold a column that is neither number nor text.
        The parser's own words are dropped: they can quote values.
    """
    table = _table(raw)
    if table is None:
        raise DataError(f"{where}: not a readable parquet file ({len(raw)} bytes, empty, cut short or damaged): write it again")
    if len(set(table.column_names)) < table.num_columns:
        raise DataError(f"{where}: a column name occurs twice: rename one")
    for field in table.schema:
        if not _plain(field.type):
            kind = str(field.type).split("<")[0].split("[")[0]
            raise DataError(f"{where}: column {field.name!r} is {kind}: expected float64, int64 or string")
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def encode(frame: pl.DataFrame) -> bytes:
    """The frame as a parquet file with page checksums."""
    buffer = io.BytesIO()
    pq.write_table(frame.to_arrow(), buffer, compression="zstd", write_page_checksum=True, store_schema=False)
    return buffer.getvalue()


def _table(raw: bytes) -> pa.Table | None:
    # Whatever the parser trips over, the file is unreadable; suppressing leaves no exception behind, with all that it quotes.
    with suppress(Exception):
        table = pq.ParquetFile(pa.BufferReader(raw), page_checksum_verification=True).read(use_threads=False)
        table.validate(full=True)
        # Only columns and names go on: metadata may be no UTF-8, and polars panics on that.
        return pa.Table.from_arrays(table.columns, names=table.column_names) if table.num_columns else None
    return None


def _plain(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return text or pa.types.is_integer(kind) or pa.types.is_floating(kind)
