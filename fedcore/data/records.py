"""Text files as chunks of whole records, and chunks as cells: memory holds one chunk, however long the file is."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import polars as pl

from fedcore.data.places import Place, blocks
from fedcore.errors import DataError

# A record that is longer than this, in bytes, is a quote that nobody closed: reading on would put the rest of the file in memory.
_LONGEST = 64 << 20

_BLANKS = re.compile(r"[ \t]+")
_LINE_ENDS = re.compile(r" ?\r?\n ?")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Chunk(NamedTuple):
    """Consecutive whole records of a text file.

    Attributes
    ----------
    text
        The records, line ends and blank lines included.
    line
        Number of its first line in the file, from 1.
    """

    text: str
    line: int


def chunks(file: Place) -> Iterator[Chunk]:
    """The file in chunks that end where a record does: at a line end with an even number of quotes before it.

    Raises
    ------
    Misuse
        Where the file cannot be read.
    DataError
        Where it is not UTF-8 text (with the position), or a record has no end.
    """
    rest, begun, line = b"", 0, 1
    for block in blocks(file):
        rest += block
        end = _last_end(rest)
        if end:
            yield Chunk(_decoded(rest[:end], begun, file.name), line)
            line += rest.count(b"\n", 0, end)
            begun += end
            rest = rest[end:]
        elif len(rest) > _LONGEST:
            raise DataError(f"{file.name}: line {line} begins a record of more than {_LONGEST} bytes: close its quote")
    if rest:
        yield Chunk(_decoded(rest, begun, file.name), line)


def cells(chunk: Chunk, separator: str, width: int | None, where: str) -> pl.DataFrame | None:
    """All cells as strings, the empty ones null; None where the chunk holds blank lines only.

    Parameters
    ----------
    separator
        One character, or "whitespace".
    width
        Number of columns; by default as many as the first line has. Shorter lines end in nulls.
    where
        How errors call the file.

    Raises
    ------
    DataError
        On a line with more fields, or a quote that is left open, with the line's number as far as it can be told.
    """
    content = chunk.text
    if separator == "whitespace":
        content, separator = _single_spaced(content), " "
    lines = content.split("\n")
    text = "\n".join(_filled(lines))
    if not text:
        return None
    if width:
        # Without a first line of full width polars would take a short one for the width.
        text = separator.join("x" * width) + "\n" + text
    try:
        table = pl.read_csv(text.encode(), has_header=False, infer_schema=False, separator=separator)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        table = None
    if table is None:
        raise no_table(where, _suspect(lines, separator, width, chunk.line))
    return table[1:] if width else table


def _single_spaced(text: str) -> str:
    """Polars wants one separator: any run of spaces and tabs becomes one space, and those at line ends go. Quoted text stays."""
    parts = text.split('"')
    outside = slice(None, None, 2 if len(parts) % 2 else 1)  # a quote that nothing closes quotes nothing
    parts[outside] = [_LINE_ENDS.sub("\n", _BLANKS.sub(" ", part)) for part in parts[outside]]
    return '"'.join(parts).strip(" \r")


def no_table(where: str, line: int | None = None) -> DataError:
    """The error for text that is no table, with the line to look at where it is known."""
    see = "" if line is None else f": see line {line}"
    return DataError(f"{where}: no table: it is empty, a line has more fields than the first, or a quote is left open{see}")


def _last_end(raw: bytes) -> int:
    end = raw.rfind(b"\n") + 1
    odd = raw.count(b'"', 0, end) % 2
    while odd and end:
        start = raw.rfind(b"\n", 0, end - 1) + 1
        odd ^= raw.count(b'"', start, end) % 2
        end = start
    return end


def _decoded(raw: bytes, begun: int, where: str) -> str:
    try:
        return (raw.removeprefix(_BYTE_ORDER_MARK) if begun == 0 else raw).decode()
    except UnicodeDecodeError as error:
        position = begun + error.start
    raise DataError(f"{where}: not UTF-8 text from byte {position} on: save it as UTF-8")


def _filled(lines: list[str]) -> Iterator[str]:
    """The lines without the blank ones, which would read as rows of nulls; those within quotes are text and stay."""
    quoted = False
    for line in lines:
        if quoted or line.strip(" \r"):
            yield line
        quoted ^= line.count('"') % 2 == 1


def _suspect(lines: list[str], separator: str, width: int | None, first: int) -> int | None:
    """Number of the first line that has too many fields, or opens a quote which nothing closes; else of one with an odd quote."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    begun = first
    with suppress(csv.Error):
        for fields in reader:
            width = width or len(fields) or None
            if width and len(fields) > width:
                return begun
            begun = first + reader.line_num
        return next((first + i for i, line in enumerate(lines) if line.count('"') % 2), None)
    return begun
