"""Which rows train, validate and test.

Draws hash the content of a row, never its position: the order of rows and columns does not matter, and rows that are appended leave
the earlier ones where they are. BLAKE2b over little-endian bytes is the same on every machine and in every version of every library.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedcore.data.contract import ColumnSplit, NoSplit, RandomSplit, Split, TimeSplit
from fedcore.errors import DataError

Mask = NDArray[np.bool_]

# No contract has a column of this name: those are printable.
_DRAWS = "\tdraws"


class Parts(NamedTuple):
    """Three masks of shape (n,), of which each row is in exactly one."""

    train: Mask
    validation: Mask
    test: Mask


def split_rows(frame: pl.DataFrame, split: Split, where: str) -> Parts:
    """The parts of one device's rows: by the draws that `with_draws` has given them, or else by those of the rows as they are.

    Raises
    ------
    DataError
        Where a split column says anything but train, validation or test (with the count), or no row is left to train.
    """
    match split:
        case TimeSplit():
            parts = _by_time(frame, split)
        case RandomSplit():
            draws = _draws(frame, split.seed)
            parts = _by_threshold(draws, draws < split.train, split.train * split.validation)
        case ColumnSplit():
            parts = _by_column(frame[split.column], where)
        case NoSplit():
            everything = np.ones(frame.height, dtype=np.bool_)
            parts = Parts(everything, ~everything, ~everything)
    if not parts.train.any():
        raise DataError(f"{where}: the split leaves 0 of {frame.height} rows to train: add rows, or change [split]")
    return parts


def with_draws(frame: pl.DataFrame, written: pl.DataFrame, split: Split) -> pl.DataFrame:
    """The frame with a column that keeps the draws of its rows, where the split needs any.

    Parameters
    ----------
    written
        The same rows as their file has them, whatever has become of names, units and columns since: a change of the contract moves no
        row.
    """
    if isinstance(split, RandomSplit) or (isinstance(split, TimeSplit) and split.validation):
        return frame.hstack([pl.Series(_DRAWS, row_draws(written, split.seed))])
    return frame


def without_draws(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows alone."""
    return frame.drop(_DRAWS, strict=False)


def row_draws(frame: pl.DataFrame, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, shape (n,), uniform over contents and fixed by content and seed.

    A row's canonical bytes are its numbers (columns by name, floats before integers) as 8 little-endian bytes each, with -0 as 0, and then
    its strings (columns by name), each as its length and UTF-8 bytes. A gap is a NaN, the smallest integer, or a length of -1.
    """
    key = seed.to_bytes(8, "little")
    rows = _canonical_rows(frame)
    # A copy costs less than a new hash with its key.
    keyed = hashlib.blake2b(digest_size=8, key=key)
    digests = b"".join([_digest(keyed.copy(), row) for row in rows])
    # 53 bits, as many as a float64 holds, so that no draw rounds up to 1.
    return (np.frombuffer(digests, dtype="<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _draws(frame: pl.DataFrame, seed: int) -> NDArray[np.float64]:
    return frame[_DRAWS].to_numpy() if _DRAWS in frame.columns else row_draws(frame, seed)


def _by_time(frame: pl.DataFrame, split: TimeSplit) -> Parts:
    order = np.argsort(frame[split.column].to_numpy(), kind="stable")
    segment = np.zeros(frame.height, dtype=np.bool_)
    segment[order[: round(frame.height * split.train)]] = True
    draws = _draws(frame, split.seed) if split.validation else np.zeros(frame.height)
    return _by_threshold(draws, segment, split.validation)


def _by_threshold(draws: NDArray[np.float64], segment: Mask, threshold: float) -> Parts:
    validation = segment & (draws < threshold)
    return Parts(segment & ~validation, validation, ~segment)


def _by_column(labels: pl.Series, where: str) -> Parts:
    parts = Parts(*((labels == name).to_numpy() for name in Parts._fields))
    if unknown := np.count_nonzero(~(parts.train | parts.validation | parts.test)):
        raise DataError(f"{where}: column {labels.name!r} has {unknown} values other than train, validation and test: correct them")
    return parts


def _digest(keyed: hashlib.blake2b, row: bytes) -> bytes:
    keyed.update(row)
    return keyed.digest()


def _canonical_rows(frame: pl.DataFrame) -> list[bytes]:
    columns = sorted(frame.iter_columns(), key=lambda column: column.name)
    # + 0.0 turns -0 into 0: the two are equal, so they are the same content.
    words = [(_filled(column, np.nan) + 0.0).astype("<f8").view("<u8") for column in columns if column.dtype == pl.Float64]
    words += [_filled(column, -(2**63)).astype("<i8").view("<u8") for column in columns if column.dtype == pl.Int64]
    # As plain bytes all at once, which is faster than row by row.
    rows: list[bytes] = np.column_stack(words).view(f"V{8 * len(words)}").ravel().tolist() if words else [b""] * frame.height
    texts = [column.to_list() for column in columns if column.dtype == pl.String]
    if texts:
        rows = [row + b"".join(map(_framed, strings)) for row, strings in zip(rows, zip(*texts, strict=True), strict=True)]
    return rows


def _filled(column: pl.Series, gap: float) -> NDArray[Any]:
    # Filling is slow even where there is nothing to fill.
    return (column.fill_null(gap) if column.null_count() else column).to_numpy()


def _framed(text: str | None) -> bytes:
    if text is None:
        return b"\xff" * 8
    content = text.encode()
    return len(content).to_bytes(8, "little") + content
