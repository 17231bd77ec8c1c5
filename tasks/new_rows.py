"""Files of rows to predict for, and of predictions: CSV or parquet, by their ending."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from fedcore.data import Contract
from fedcore.data.names import shown
from fedcore.data.scoring import DEVICE
from fedcore.errors import DataError, Misuse

TYPES = {"float64": pa.float64(), "int64": pa.int64(), "string": pa.string()}


def read_rows(file: Path, contract: Contract) -> pa.Table:
    """The rows of a file, with the column `device` and the contract's columns in its units.

    Raises
    ------
    Misuse
        Where the file is missing or has another ending.
    DataError
        Where it cannot be read, or a column is not of its type.
    """
    _check_ending(file)
    if not file.is_file():
        raise Misuse(f"{file} is not there: name a .csv or .parquet file")
    types = {name: TYPES[column.type] for name, column in contract.columns.items()} | {DEVICE: pa.string()}
    try:
        if file.suffix == ".parquet":
            return pq.read_table(file)
        return pyarrow.csv.read_csv(file, convert_options=pyarrow.csv.ConvertOptions(column_types=types))
    except (pa.ArrowException, OSError) as error:  # whose text may quote cells
        column = re.search(r"column #(\d+)", str(error))
    if not file.stat().st_size:
        raise DataError(f"{file} is empty: expected a line with the columns' names, and rows")
    which = f"column {shown(_header(file)[int(column[1])])}" if column else "it"
    raise DataError(f"{file}: {which} cannot be read as the contract's types: numbers with a decimal point, whole numbers, ids as text")


def _header(file: Path) -> list[str]:
    with file.open(newline="", errors="replace") as stream:
        return next(csv.reader(stream))


def write_predictions(predicted: Any, file: Path) -> None:
    """Write a table of predictions.

    Raises
    ------
    Misuse
        Where the file has another ending, or cannot be written.
    """
    _check_ending(file)
    try:
        with file.open("wb") as stream:
            predicted.write_parquet(stream) if file.suffix == ".parquet" else predicted.write_csv(stream)
    except OSError as error:
        raise Misuse(f"{file} cannot be written ({error.strerror}): name another file with --output") from None


def _check_ending(file: Path) -> None:
    if file.suffix not in (".csv", ".parquet"):
        raise Misuse(f"{file}: expected a name that ends in .csv or .parquet")
