"""Tables of results, searches and comparisons, as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from fedcore.data.places import Place, make_folder, read_file, write_durably


def write_csv(file: Place, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of the same columns, at least one; None is an empty cell."""
    make_folder(file.parent)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_durably(file, text.getvalue().encode())


def write_parquet(file: Place, columns: Mapping[str, Sequence[Any]]) -> None:
    """Columns of the same length."""
    make_folder(file.parent)
    buffer = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), buffer)
    write_durably(file, buffer.getvalue())


def read_parquet(file: Place) -> dict[str, list[Any]]:
    """Columns as they were written, read by this thread alone: one of Arrow's own may still hold the file's content when the process ends,
    which then aborts.

    Raises
    ------
    OSError
        As the operating system says.
    """
    return pq.ParquetFile(io.BytesIO(read_file(file)), pre_buffer=False).read(use_threads=False).to_pydict()


def write_toml(file: Place, values: Mapping[str, Any], comment: str) -> None:
    """A configuration below one line of comment; what is None is left out."""
    make_folder(file.parent)
    told = {name: value for name, value in values.items() if value is not None}
    write_durably(file, f"# {comment}\n{tomli_w.dumps(told)}".encode())
