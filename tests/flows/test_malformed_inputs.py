"""What comes in broken is refused in one line that names what is wrong and what to do, and the store stays as it was."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedcore.data.parquet import encode
from flows.cli.app import main

# Every value of a device's rows has these digits or this word in it, so that it is seen where it leaks.
DIGITS, WORD = "700", "secret"

CONTRACT = """
device = "pump"
target = "flow"
features = ["hour", "speed"]
[file]
{file}
[split]
{split}
[columns.hour]
type = "int64"
[columns.speed]
type = "float64"
[columns.flow]
type = "float64"
[columns.note]
type = "string"
"""
HEADER = "pump,hour,speed,flow,note\n"
HEADERLESS = 'header = ["pump", "hour", "speed", "flow", "note"]'


def lines(*devices: str, start: int = 7000) -> str:
    """Three good rows a device."""
    return "".join(f"{device},{start + i},{start + i}.5,{start + i}.25,secret{start + i}\n" for device in devices for i in range(3))


def contract(file: str = "", split: str = 'kind = "none"') -> str:
    return CONTRACT.format(file=file, split=split)


def parquet(change: Callable[[pl.DataFrame], pl.DataFrame]) -> bytes:
    frame = pl.read_csv((HEADER + lines("4")).encode(), schema_overrides={"pump": pl.String})
    content = io.BytesIO()
    change(frame).write_parquet(content)
    return content.getvalue()


def arrow_parquet(**columns: pa.Array) -> bytes:
    frame = pl.read_csv((HEADER + lines("4")).encode(), schema_overrides={"pump": pl.String})
    content = io.BytesIO()
    table = {name: pa.array(frame[name].to_list()) for name in frame.columns} | columns
    pq.write_table(pa.table(table), content, store_schema=False)
    return content.getvalue()


NO_TEXT = arrow_parquet(named=pa.array([7000] * 3)).replace(b"named", b"n\xff\xfeed")


def evolved(version: int = 2, **changes: tuple[str, str]) -> str:
    """The contract of `pumps` at a later version, lines of some columns changed."""
    text = f"version = {version}\n" + contract()
    for name, (old, new) in changes.items():
        head = f"[columns.{name}]\n"
        assert head + old in text
        text = text.replace(head + old, head + new)
    return text


PUMPS, PART = "datasets/pumps/dataset.toml", "datasets/pumps/device=2/part-0.parquet"
SPEED = 'type = "float64"', 'type = "float64"\nunit = "m/s"'

Content = str | bytes | None
Case = tuple[str, dict[str, Content], str]

IMPORT = "import in.csv --dataset new"
FIRST = "import in.csv --dataset first --device pump --target flow"
FOLDER = "import folder --dataset new"
INFER = "infer in.csv --dataset first --device pump --target flow"
ADD = "add in.csv --dataset pumps --device 4"
APPEND = "add in.csv --dataset pumps --device 2 --append"
ADD_PARQUET = "add in.parquet --dataset pumps --device 4"
IMPORT_PARQUET = "import in.parquet --dataset new"

# Command, files to make (text, bytes, or None for a folder), message. `pumps` has devices 1, 2 and B; `new`, `comma`, `bare`, `timed`
# and `labelled` have contracts only.
CASES: dict[str, Case] = {
    "missing column": (
        IMPORT,
        {"in.csv": "pump,hour,speed,flow\n4,7000,1,7000\n"},
        "in.csv: column 'note' is missing: correct the file, its [file] section, or [columns]",
    ),
    "missing columns": (
        IMPORT,
        {"in.csv": "pump,hour,flow\n4,7000,7000\n"},
        "in.csv: 2 columns ('speed', 'note') are missing: correct the file, its [file] section, or [columns]",
    ),
    "missing device column": (
        IMPORT,
        {"in.csv": "hour,speed,flow,note\n7000,7000,7000,secret\n"},
        "in.csv: column 'pump' is missing: correct the file, its [file] section, or [columns]",
    ),
    "undeclared column": (
        IMPORT,
        {"in.csv": "pump,hour,speed,flow,note,heat\n4,7000,7000,7000,secret,7000\n"},
        "in.csv: column 'heat' is not in the contract: declare under [columns], or drop from the file",
    ),
    "no header line": (
        IMPORT,
        {"in.csv": lines("a", "b")},
        ("in.csv: 5 columns ('pump', 'hour', 'speed', 'flow', 'note') are missing: correct the file, its [file] section, or [columns]"),
    ),
    "double column": (
        IMPORT,
        {"in.csv": "pump,hour,speed,flow,flow\n4,7000,7000,7000,7000\n"},
        "in.csv: the first line has to name the 5 columns, each once: a file without names needs a contract with [file] header",
    ),
    "nameless column": (
        IMPORT,
        {"in.csv": "pump,hour,speed,flow,\n4,7000,7000,7000,secret\n"},
        "in.csv: the first line has to name the 5 columns, each once: a file without names needs a contract with [file] header",
    ),
    "long line": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "a,7000,7000,7000,secret,secret\n"},
        "in.csv: no table: it is empty, a line has more fields than the first, or a quote is left open: see line 8",
    ),
    "short line": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "a,7003,7000.5\n"},
        "in.csv: device=a: column 'flow' has 1 null or non-finite values: fill them, or see [missing]",
    ),
    "open quote": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + 'a,7003,7000.5,7000,"secret\n' + lines("c")},
        "in.csv: no table: it is empty, a line has more fields than the first, or a quote is left open: see line 8",
    ),
    "quote within a field": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + 'a,7003,7000.5,7000,sec"ret\n' + lines("c")},
        "in.csv: no table: it is empty, a line has more fields than the first, or a quote is left open: see line 8",
    ),
    "empty file": (IMPORT, {"in.csv": ""}, "in.csv: no table: it is empty, a line has more fields than the first, or a quote is left open"),
    "blank file": (
        IMPORT,
        {"in.csv": " \n\r\n\n"},
        "in.csv: no table: it is empty, a line has more fields than the first, or a quote is left open",
    ),
    "header line only": (IMPORT, {"in.csv": HEADER}, "in.csv: no rows below the header line: nothing to import"),
    "UTF-16": (IMPORT, {"in.csv": (HEADER + lines("a")).encode("utf-16")}, "in.csv: not UTF-8 text from byte 0 on: save it as UTF-8"),
    "Latin-1": (
        IMPORT,
        {"in.csv": (HEADER + lines("a") + "a,7003,7003,7003,secrét\n").encode("latin-1")},
        "in.csv: not UTF-8 text from byte 146 on: save it as UTF-8",
    ),
    "word for a number": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003,secret,7003,secret\n"},
        "in.csv: column 'speed' has 1 values that are not float64, the first of device b: correct them or its type",
    ),
    "fraction for a whole number": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003.5,7003,7003,secret\n"},
        "in.csv: column 'hour' has 1 values that are not int64, the first of device b: correct them or its type",
    ),
    "whole number too large": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,70030000000000000000,7003,7003,secret\n"},
        "in.csv: column 'hour' has 1 values that are not int64, the first of device b: correct them or its type",
    ),
    "number with thousands": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + 'b,7003,"7,003.5",7003,secret\n'},
        "in.csv: column 'speed' has 1 values that are not float64, the first of device b: state [file] decimal, or correct them",
    ),
    "hexadecimal": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,0x7003,7003,7003,secret\n"},
        "in.csv: column 'hour' has 1 values that are not int64, the first of device b: correct them or its type",
    ),
    "unit in the cell": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003,7003 rpm,7003,secret\n"},
        "in.csv: column 'speed' has 1 values that are not float64, the first of device b: correct them or its type",
    ),
    "empty cells": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003,,7003,secret\nb,7004,,7004,secret\n"},
        "in.csv: device=b: column 'speed' has 2 null or non-finite values: fill them, or see [missing]",
    ),
    "empty text": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003,7003,7003,\n"},
        "in.csv: device=b: column 'note' has 1 null or non-finite values: fill them, or see [missing]",
    ),
    "NA": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003,NA,7003,secret\n"},
        "in.csv: column 'speed' has 1 values that are not float64, the first of device b: correct them or its type",
    ),
    "not a number": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003,nan,7003,secret\n"},
        "in.csv: device=b: column 'speed' has 1 null or non-finite values: fill them, or see [missing]",
    ),
    "infinite": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003,7003,-inf,secret\n"},
        "in.csv: device=b: column 'flow' has 1 null or non-finite values: fill them, or see [missing]",
    ),
    "no device id": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + ",7003,7003,7003,secret\n"},
        "in.csv: device column 'pump' has 1 empty values: fill them first",
    ),
    "quoted empty device id": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + '"",7003,7003,7003,secret\n'},
        (
            "in.csv: device column 'pump' has no device's id in 1 of the rows, "
            "the first is empty: rename these devices, or name another column"
        ),
    ),
    "unsafe device id": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "../b,7003,7003,7003,secret\n"},
        (
            "in.csv: device column 'pump' has no device's id in 1 of the rows, "
            "the first starts with a dot: rename these devices, or name another column"
        ),
    ),
    "long device id": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "x" * 101 + ",7003,7003,7003,secret\n"},
        (
            "in.csv: device column 'pump' has no device's id in 1 of the rows, "
            "the first has 101 characters, more than 100: rename these devices, or name another column"
        ),
    ),
    "device ids by case": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + lines("B")},
        "in.csv: device ids 'B' and 'b' are the same, at most up to case: keep one, or rename it",
    ),
    "wrong separator": (
        IMPORT,
        {"in.csv": (HEADER + lines("a")).replace(",", ";")},
        ("in.csv: 5 columns ('pump', 'hour', 'speed', 'flow', 'note') are missing: correct the file, its [file] section, or [columns]"),
    ),
    "null bytes": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "b") + "b,7003,70\0003,7003,secret\n"},
        "in.csv: column 'speed' has 1 values that are not float64, the first of device b: correct them or its type",
    ),
    "label of no part": (
        "import in.csv --dataset labelled",
        {"in.csv": HEADER + "a,7000,7000,7000,train\na,7000,7000,7000,secret\n"},
        "in.csv: device=a: column 'note' has 1 values other than train, validation and test: correct them",
    ),
    "nothing to train": (
        "import in.csv --dataset labelled",
        {"in.csv": HEADER + "a,7000,7000,7000,test\n"},
        "in.csv: device=a: the split leaves 0 of 1 rows to train: add rows, or change [split]",
    ),
    "constant target to scale": (
        "import in.csv --dataset scaled",
        {"in.csv": HEADER + "a,7000,7000,7000,secret\na,7001,7001,7000,secret\n"},
        ("in.csv: device=a: column 'flow' is constant over the 2 rows that set its range: turn its scaling off, or leave the device out"),
    ),
    "decimal points where commas are declared": (
        "import in.csv --dataset comma",
        {"in.csv": "pump;hour;speed;flow;note\na;7000;7000,5;7000,5;secret\na;7001;7000.5;7.000,5;secret\n"},
        "in.csv: column 'speed' has 1 values that are not float64, the first of device a: correct them or its type",
    ),
    "header of another width": (
        "import in.csv --dataset bare",
        {"in.csv": "a,7000,7000\n"},
        "in.csv: expected 5 columns as [file] header says, got 3: correct the header or the separator",
    ),
    "partitions there": (
        "import in.csv --dataset pumps",
        {"in.csv": HEADER + lines("4")},
        "data set 'pumps' has partitions already: choose another name, or remove its device folders first",
    ),
    "contract that is wrong": (
        "import in.csv --dataset wrong",
        {"in.csv": HEADER + lines("4")},
        "wrong/dataset.toml: columns.hour.type: Input should be 'float64', 'int64' or 'string'",
    ),
    "contract that is no TOML": (
        "import in.csv --dataset no-toml",
        {"in.csv": HEADER + lines("4")},
        "no-toml/dataset.toml: not TOML: Invalid value (at line 1, column 10)",
    ),
    "another device column asked": (
        IMPORT + " --device hour",
        {"in.csv": HEADER + lines("4")},
        "data set 'new' has a contract with device 'pump': leave device out, or change the contract",
    ),
    "another target asked": (
        IMPORT + " --target speed",
        {"in.csv": HEADER + lines("4")},
        "data set 'new' has a contract with target 'flow': leave target out, or change the contract",
    ),
    "unsafe data set name": (
        "import in.csv --dataset ../new",
        {"in.csv": HEADER + lines("4")},
        "data set name '../new' starts with a dot: choose another name",
    ),
    "no such file": ("import nowhere.csv --dataset new", {}, "nowhere.csv: cannot be read: No such file or directory"),
    "another kind of file": (
        "import in.xlsx --dataset new",
        {"in.xlsx": b"PK7000"},
        "in.xlsx: expected a .csv, .txt or .parquet file: convert it, or rename it",
    ),
    "first: no device column named": (
        "import in.csv --dataset first --target flow",
        {"in.csv": HEADER + lines("4")},
        "data set 'first' has no contract yet: name the device column and the target (--device, --target)",
    ),
    "first: no target named": (
        "import in.csv --dataset first --device pump",
        {"in.csv": HEADER + lines("4")},
        "data set 'first' has no contract yet: name the device column and the target (--device, --target)",
    ),
    "first: no such device column": (
        "import in.csv --dataset first --device unit --target flow",
        {"in.csv": HEADER + lines("4")},
        "in.csv: device 'unit' is not among its 5 columns: check the name, the header line and the separator",
    ),
    "first: no such target": (
        "import in.csv --dataset first --device pump --target head",
        {"in.csv": HEADER + lines("4")},
        "in.csv: target 'head' is not among its 5 columns: check the name, the header line and the separator",
    ),
    "first: column of text": (
        FIRST,
        {"in.csv": HEADER + lines("4")},
        (
            "in.csv: column 'note' is not numeric: write the contract first (fedlin data infer FILE... --dataset first --target flow), "
            "and say there which are categories or the split column"
        ),
    ),
    "parquet: empty": (
        IMPORT_PARQUET,
        {"in.parquet": b""},
        "in.parquet: not a readable parquet file (0 bytes, empty, cut short or damaged): write it again",
    ),
    "parquet: wrong magic": (
        IMPORT_PARQUET,
        {"in.parquet": b"PAR2" + b"7000" * 9 + b"PAR2"},
        "in.parquet: not a readable parquet file (44 bytes, empty, cut short or damaged): write it again",
    ),
    "parquet: cut short": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f)[:-9]},
        "in.parquet: not a readable parquet file (1871 bytes, empty, cut short or damaged): write it again",
    ),
    "parquet: damaged": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f)[:30] + bytes(40) + parquet(lambda f: f)[70:]},
        "in.parquet: not a readable parquet file (1880 bytes, empty, cut short or damaged): write it again",
    ),
    "parquet: no rows": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.clear())},
        "in.parquet: no device: expected at least one device with rows",
    ),
    "parquet: float for a whole number": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(pl.col("hour").cast(pl.Float64)))},
        (
            "in.parquet: device=4: column 'hour' is float64: the contract says int64: "
            "convert the column, or correct its type in the contract"
        ),
    ),
    "parquet: number for text": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(note=7000))},
        ("in.parquet: device=4: column 'note' is int64: the contract says string: convert the column, or correct its type in the contract"),
    ),
    "parquet: fractions in decimals for a whole number": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(hour=pl.col("speed").cast(pl.Decimal(10, 2))))},
        "in.parquet: column 'hour' has 3 values that are not int64, the first of device 4: correct them or its type",
    ),
    "parquet: decimals for text": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(note=pl.col("speed").cast(pl.Decimal(10, 2))))},
        (
            "in.parquet: device=4: column 'note' is decimal: the contract says string: "
            "convert the column, or correct its type in the contract"
        ),
    ),
    "parquet: decimals for ids": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(pump=pl.col("speed").cast(pl.Decimal(10, 2))))},
        "in.parquet: device column 'pump' is neither text nor whole numbers: convert it first",
    ),
    "parquet: decimals of many digits": (
        IMPORT_PARQUET,
        {"in.parquet": arrow_parquet(flow=pa.array([7 * Decimal(10) ** 60 + 7000] * 3, pa.decimal256(70, 2)))},
        "in.parquet: column 'flow' has decimals of more than 38 digits: convert it to float64 first",
    ),
    "parquet: time with a zone": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(pl.col("hour").cast(pl.Datetime("us", "UTC"))))},
        "in.parquet: column 'hour' is timestamp: expected float64, int64 or string: convert it to a number, such as hours since a start",
    ),
    "parquet: date for an id": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(pump=pl.date(7000, 7, 7)))},
        "in.parquet: column 'pump' is date32: expected float64, int64 or string: convert it to a number, such as hours since a start",
    ),
    "parquet: duration": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(pl.col("hour").cast(pl.Duration("ms"))))},
        "in.parquet: column 'hour' is duration: expected float64, int64 or string: convert it to a number, such as hours",
    ),
    "parquet: boolean": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(speed=pl.col("speed") > 7000))},
        "in.parquet: column 'speed' is bool: expected float64, int64 or string: convert it to the numbers 0 and 1",
    ),
    "parquet: bytes": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(pl.col("note").cast(pl.Binary)))},
        "in.parquet: column 'note' is large_binary: expected float64, int64 or string: convert it",
    ),
    "parquet: list": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(speed=pl.concat_list("speed")))},
        "in.parquet: column 'speed' is large_list: expected float64, int64 or string: give each of its elements a column of its own",
    ),
    "parquet: struct": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(speed=pl.struct("speed", "flow")))},
        "in.parquet: column 'speed' is struct: expected float64, int64 or string: give each of its elements a column of its own",
    ),
    "parquet: whole numbers beyond int64": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(hour=pl.lit(2**64 - 7000, pl.UInt64)))},
        "in.parquet: column 'hour' has 3 values that are not int64, the first of device 4: correct them or its type",
    ),
    "parquet: whole numbers that float64 would round": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(flow=2**53 + pl.col("hour") - 7000))},
        "in.parquet: column 'flow' has 1 values that are not float64, the first of device 4: correct them or its type",
    ),
    "parquet: a name that is no text": (
        IMPORT_PARQUET,
        {"in.parquet": NO_TEXT},
        f"in.parquet: not a readable parquet file ({len(NO_TEXT)} bytes, empty, cut short or damaged): write it again",
    ),
    "parquet: a name that is long": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(pl.lit(True).alias("x" * 9999)))},
        f"in.parquet: column '{'x' * 40}...' is bool: expected float64, int64 or string: convert it to the numbers 0 and 1",
    ),
    "id that means a missing value": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "__HIVE_DEFAULT_PARTITION__")},
        (
            "in.csv: device column 'pump' has no device's id in 3 of the rows, "
            "the first means a missing value to other tools: rename these devices, or name another column"
        ),
    ),
    "URL-encoded id": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "a%20b")},
        (
            "in.csv: device column 'pump' has no device's id in 3 of the rows, "
            "the first looks URL-encoded, which is not undone: rename these devices, or name another column"
        ),
    ),
    "id of two parts": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "site=1")},
        (
            "in.csv: device column 'pump' has no device's id in 3 of the rows, "
            "the first holds characters other than A-Z a-z 0-9 . _ -: rename these devices, or name another column"
        ),
    ),
    "id with an accent, composed": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "caf\u00e9")},
        (
            "in.csv: device column 'pump' has no device's id in 3 of the rows, "
            "the first holds characters other than A-Z a-z 0-9 . _ -: rename these devices, or name another column"
        ),
    ),
    "id with an accent, decomposed": (
        IMPORT,
        {"in.csv": HEADER + lines("a", "cafe\u0301")},
        (
            "in.csv: device column 'pump' has no device's id in 3 of the rows, "
            "the first holds characters other than A-Z a-z 0-9 . _ -: rename these devices, or name another column"
        ),
    ),
    "parquet: fractions for ids": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(pump=7000.5))},
        "in.parquet: device column 'pump' is neither text nor whole numbers: convert it first",
    ),
    "parquet: nulls": (
        IMPORT_PARQUET,
        {"in.parquet": parquet(lambda f: f.with_columns(speed=pl.when(pl.col("hour") > 7000).then("speed")))},
        "in.parquet: device=4: column 'speed' has 1 null or non-finite values: fill them, or see [missing]",
    ),
    "folder: empty": (FOLDER, {"folder": None}, "folder: no files: expected one .csv, .txt or .parquet file a device"),
    "folder: another kind of file": (
        FOLDER,
        {"folder/1.csv": HEADER + lines("1"), "folder/notes.md": "secret"},
        "notes.md: expected a .csv, .txt or .parquet file: convert it, or rename it",
    ),
    "folder: one id twice": (
        FOLDER,
        {"folder/1.csv": HEADER + lines("1"), "folder/1.txt": HEADER + lines("1")},
        "device ids '1' and '1' are the same, at most up to case: keep one, or rename it",
    ),
    "folder: unsafe name": (
        FOLDER,
        {"folder/a b.csv": HEADER + lines("1")},
        "device id 'a b' holds characters other than A-Z a-z 0-9 . _ -: rename the device",
    ),
    "folder: a folder within": (
        FOLDER,
        {"folder/1.csv": HEADER + lines("1"), "folder/2.csv": None},
        "2.csv: cannot be read: Is a directory",
    ),
    "folder: rows of another device": (
        FOLDER,
        {"folder/1.csv": HEADER + lines("1", "2")},
        "1.csv: device column 'pump' names other devices than '1' in 3 rows: split the file",
    ),
    "folder: other columns in one file": (
        "import folder --dataset first --target flow",
        {"folder/1.csv": "hour,flow\n7000,7000\n", "folder/2.csv": "hour,speed,flow\n7000,7000,7000\n"},
        "2.csv: its columns are not those of 1.csv: give both the same header line",
    ),
    "folder: one broken file": (
        FOLDER,
        {"folder/1.csv": HEADER + lines("1"), "folder/2.csv": HEADER + lines("2") + "2,secret,7003,7003,secret\n"},
        "2.csv: column 'hour' has 1 values that are not int64, the first of device 2: correct them or its type",
    ),
    "folder: one incomplete device": (
        FOLDER,
        {"folder/1.csv": HEADER + lines("1"), "folder/2.csv": HEADER + lines("2") + "2,7003,,7003,secret\n"},
        "folder: device=2: column 'speed' has 1 null or non-finite values: fill them, or see [missing]",
    ),
    "infer: contract there": (
        "infer in.csv --dataset pumps --device pump --target flow",
        {"in.csv": HEADER + lines("4")},
        "data set 'pumps' has a dataset.toml already: edit that one, or choose another name",
    ),
    "infer: no device column named": (
        "infer in.csv --dataset first --target flow",
        {"in.csv": HEADER + lines("4")},
        "data set 'first' has no contract yet: name the device column and the target (--device, --target)",
    ),
    "infer: no such device column": (
        "infer in.csv --dataset first --device unit --target flow",
        {"in.csv": HEADER + lines("4")},
        "in.csv: device 'unit' is not among its 5 columns: check the name, the header line and the separator",
    ),
    "infer: target of text": (
        "infer in.csv --dataset first --device pump --target note",
        {"in.csv": HEADER + lines("4")},
        "in.csv: target 'note' has cells that are no numbers: correct them, or state the decimal mark",
    ),
    "infer: device for target": (
        "infer in.csv --dataset first --device pump --target pump",
        {"in.csv": HEADER + lines("4")},
        "first/dataset.toml: targets: 'pump' is not declared: add [columns.pump] with its type",
    ),
    "infer: no numeric column": (
        INFER,
        {"in.csv": "pump,flow,note\n1,7000,secret\n"},
        (
            "in.csv: 2 columns beside the device, and no numeric one beside the target: "
            "check the header line, the separator and the decimal mark"
        ),
    ),
    "infer: ragged": (
        INFER,
        {"in.csv": HEADER + lines("a", "b") + "a,7000,7000,7000,secret,secret\n"},
        "in.csv: no table: it is empty, a line has more fields than the first, or a quote is left open: see line 8",
    ),
    "infer: empty": (
        INFER,
        {"in.csv": ""},
        "in.csv: no table: it is empty, a line has more fields than the first, or a quote is left open",
    ),
    "add: unknown data set": (
        "add in.csv --dataset valves --device 4",
        {"in.csv": HEADER + lines("4")},
        (
            "no data set 'valves' with a dataset.toml: "
            "choose one of those there (bare, comma, labelled, new, no-toml, pumps, scaled, wrong), or bring it with fedlin data import"
        ),
    ),
    "add: unsafe id": (
        "add in.csv --dataset pumps --device a/b",
        {"in.csv": HEADER + lines("4")},
        "device id 'a/b' holds characters other than A-Z a-z 0-9 . _ -: rename the device",
    ),
    "add: id of another case": (
        "add in.csv --dataset pumps --device b",
        {"in.csv": HEADER + lines("b")},
        "device ids 'B' and 'b' are the same, at most up to case: keep one, or rename it",
    ),
    "add: device there": (
        "add in.csv --dataset pumps --device 2",
        {"in.csv": HEADER + lines("2", start=7003)},
        "data set 'pumps' has device '2' with other rows already: add --append, or remove the device first",
    ),
    "add: device not there": (
        "add in.csv --dataset pumps --device 4 --append",
        {"in.csv": HEADER + lines("4")},
        "data set 'pumps' has no device '4' to append to: leave --append out",
    ),
    "add: rows of others": (
        ADD,
        {"in.csv": HEADER + lines("4") + lines("1", "2")},
        "in.csv: device column 'pump' names other devices than '4' in 6 rows: split the file",
    ),
    "add: missing column": (
        ADD,
        {"in.csv": "pump,hour,speed,flow\n4,7000,1,7000\n"},
        "in.csv: column 'note' is missing: correct the file, its [file] section, or [columns]",
    ),
    "add: undeclared column": (
        ADD,
        {"in.csv": "pump,hour,speed,flow,note,heat\n4,7000,7000,7000,secret,7000\n"},
        "in.csv: column 'heat' is not in the contract: declare under [columns], or drop from the file",
    ),
    "add: word for a number": (
        ADD,
        {"in.csv": HEADER + lines("4") + "4,7003,secret,7003,secret\n4,7003,secret,7003,secret\n"},
        "in.csv: column 'speed' has 2 values that are not float64, the first of device 4: correct them or its type",
    ),
    "add: empty cell": (
        ADD,
        {"in.csv": HEADER + lines("4") + "4,7003,,7003,secret\n"},
        "in.csv: device=4: column 'speed' has 1 null or non-finite values: fill them, or see [missing]",
    ),
    "add: long line": (
        ADD,
        {"in.csv": HEADER + lines("4") + "4,7003,7003,7003,secret,secret\n"},
        "in.csv: no table: it is empty, a line has more fields than the first, or a quote is left open: see line 5",
    ),
    "add: header line only": (ADD, {"in.csv": HEADER}, "in.csv: no rows below the header line: nothing to import"),
    "add: parquet without rows": (ADD_PARQUET, {"in.parquet": parquet(lambda f: f.clear())}, "in.parquet: no rows: nothing to add"),
    "add: parquet cut short": (
        ADD_PARQUET,
        {"in.parquet": parquet(lambda f: f)[:-9]},
        "in.parquet: not a readable parquet file (1871 bytes, empty, cut short or damaged): write it again",
    ),
    "a column of words for the device": (
        "import in.csv --dataset first --device note --target flow",
        {"in.csv": "note,hour,flow\nsecret words,7000,7001\nsecret words,7002,7003\n"},
        (
            "in.csv: device column 'note' has no device's id in 2 of the rows, "
            "the first holds characters other than A-Z a-z 0-9 . _ -: rename these devices, or name another column"
        ),
    ),
    "parquet: a column without a name": (
        "import in.parquet --dataset first --device pump --target flow",
        {"in.parquet": arrow_parquet(**{"": pa.array([7000.0] * 3)})},
        "in.parquet: a column has no name: give it one",
    ),
    "infer: a separator of two characters": (
        f"{INFER} --separator ;;",
        {"in.csv": HEADER + lines("4")},
        'separator: expected one ASCII character other than a quote or a line end, or "whitespace"',
    ),
    "infer: a decimal mark that separates": (
        f"{INFER} --separator , --decimal ,",
        {"in.csv": HEADER + lines("4")},
        "decimal: ',' is the separator too: numbers could not be told apart, change one of the two",
    ),
    "infer: a target with decimal commas": (
        INFER,
        {"in.csv": "pump;speed;flow\n4;7000;7000,5\n"},
        "in.csv: target 'flow' has cells that are no numbers: correct them, or state the decimal mark",
    ),
    "add: an empty folder": (
        "add folder --dataset pumps --device 4",
        {"folder": None},
        "folder: no rows: nothing to add",
    ),
    "add: a folder with another kind of file": (
        "add folder --dataset pumps --device 4",
        {"folder": None, "folder/1.csv": HEADER + "4,7000,1,7000,a\n", "folder/notes.md": "7000"},
        "notes.md: expected a .csv, .txt or .parquet file: convert it, or rename it",
    ),
    "add: a folder with two headers": (
        "add folder --dataset pumps --device 4",
        {"folder": None, "folder/1.csv": HEADER + "4,7000,1,7000,a\n", "folder/2.csv": "pump,hour\n4,7000\n"},
        "2.csv: 3 columns ('speed', 'flow', 'note') are missing: correct the file, its [file] section, or [columns]",
    ),
    "append: empty cell": (
        APPEND,
        {"in.csv": HEADER + "2,7003,,7003,secret\n"},
        "in.csv: device=2: column 'speed' has 1 null or non-finite values: fill them, or see [missing]",
    ),
    "append: rows of others": (
        APPEND,
        {"in.csv": HEADER + lines("4")},
        "in.csv: device column 'pump' names other devices than '2' in 3 rows: split the file",
    ),
    "append: to a damaged partition": (
        APPEND,
        {"in.csv": HEADER + lines("2", start=7003), "datasets/pumps/device=2/part-0.parquet": b"7000"},
        "device=2/part-0.parquet: not a readable parquet file (4 bytes, empty, cut short or damaged): write it again",
    ),
    "append: to a device without files": (
        "add in.csv --dataset pumps --device 9 --append",
        {"in.csv": HEADER + lines("9"), "datasets/pumps/device=9": None},
        "device=9: no part-*.parquet: import the device again, or remove its folder",
    ),
    "append: to a partition with decimals": (
        APPEND,
        {
            "in.csv": HEADER + lines("2", start=7003),
            "datasets/pumps/device=2/part-0.parquet": parquet(lambda f: f.with_columns(pl.col("flow").cast(pl.Decimal(10, 2)))),
        },
        "device=2/part-0.parquet: column 'flow' is decimal128: expected float64, int64 or string: cast it to float64 first",
    ),
    "append: to a partition with numbers beyond int64": (
        APPEND,
        {
            "in.csv": HEADER + lines("2", start=7003),
            "datasets/pumps/device=2/part-0.parquet": parquet(lambda f: f.with_columns(hour=pl.lit(2**64 - 7000, pl.UInt64))),
        },
        ("device=2/part-0.parquet: column 'hour' has 3 numbers beyond int64: store them as text where they are names, else as float64"),
    ),
    "append: to a partition that float64 would round": (
        APPEND,
        {
            "in.csv": HEADER + lines("2", start=7003),
            "datasets/pumps/device=2/part-0.parquet": parquet(lambda f: f.drop("pump").with_columns(flow=2**53 + pl.col("hour") - 7000)),
        },
        (
            "device=2/part-0.parquet: column 'flow' has 1 whole numbers that float64 does not hold exactly: "
            "store float64, or smaller numbers"
        ),
    ),
    "append: to a file that is a folder": (
        APPEND,
        {"in.csv": HEADER + lines("2", start=7003), "datasets/pumps/device=2/part-1.parquet": None},
        "device=2/part-1.parquet: not a regular file: remove it",
    ),
    "add: id that means a missing value": (
        "add in.csv --dataset pumps --device __HIVE_DEFAULT_PARTITION__",
        {"in.csv": HEADER + lines("4")},
        "device id '__HIVE_DEFAULT_PARTITION__' means a missing value to other tools: give these rows a device",
    ),
    "folder: URL-encoded name": (
        FOLDER,
        {"folder/a%20b.csv": HEADER + lines("1")},
        "device id 'a%20b' looks URL-encoded, which is not undone: rename the device",
    ),
    "check: folder with a URL-encoded name": (
        "check pumps",
        {"datasets/pumps/device=a%20b": None},
        "device id 'a%20b' looks URL-encoded, which is not undone: rename the device",
    ),
    "check: folder without a value": (
        "check pumps",
        {"datasets/pumps/device=__HIVE_DEFAULT_PARTITION__": None},
        "device id '__HIVE_DEFAULT_PARTITION__' means a missing value to other tools: give these rows a device",
    ),
    "units: of another kind": (
        f"{ADD} --unit speed=K",
        {"in.csv": HEADER + lines("4"), PUMPS: evolved(1, speed=SPEED)},
        "in.csv: column 'speed' is in 'K' and the contract says 'm/s': the one does not convert to the other: correct the unit",
    ),
    "units: unknown": (
        f"{ADD} --unit speed=knotz",
        {"in.csv": HEADER + lines("4"), PUMPS: evolved(1, speed=SPEED)},
        (
            "in.csv: column 'speed' is in 'knotz' and the contract says 'm/s': "
            "'knotz' is no unit known to convert: write it as pint does, such as degC, kPa or m^3/h"
        ),
    ),
    "units: without end": (
        f"{ADD} --unit speed=9**9**9",
        {"in.csv": HEADER + lines("4"), PUMPS: evolved(1, speed=SPEED)},
        (
            "in.csv: column 'speed' is in '9**9**9' and the contract says 'm/s': "
            "'9**9**9' is no unit known to convert: write it as pint does, such as degC, kPa or m^3/h"
        ),
    ),
    "units: of whole numbers": (
        "import in.csv --dataset new --unit hour=s",
        {
            "in.csv": HEADER + lines("4"),
            "datasets/new/dataset.toml": evolved(1, hour=('type = "int64"', 'type = "int64"\nunit = "h"')),
        },
        (
            "in.csv: column 'hour' is in 's' and the contract says 'h': only float64 is converted: "
            "declare it as that, or bring the file in that unit"
        ),
    ),
    "units: a column without one": (
        f"{ADD} --unit speed=m/s",
        {"in.csv": HEADER + lines("4")},
        "option unit: 'speed' has no unit to convert to: state it in [columns.speed]",
    ),
    "units: an undeclared column": (
        f"{ADD} --unit heat=K",
        {"in.csv": HEADER + lines("4")},
        "option unit: 'heat' is not declared: name one of [columns]",
    ),
    "units: none named": (
        f"{ADD} --unit speed=",
        {"in.csv": HEADER + lines("4"), PUMPS: evolved(1, speed=SPEED)},
        "option unit: 'speed' is given no unit: name one, or leave the column out",
    ),
    "units: no column named": (
        f"{ADD} --unit km/h",
        {"in.csv": HEADER + lines("4")},
        "option unit: 'km/h' is not COL=UNIT, or comes second for its column: give each column one unit",
    ),
    "units: two for a column": (
        f"{ADD} --unit speed=km/h --unit speed=m/s",
        {"in.csv": HEADER + lines("4"), PUMPS: evolved(1, speed=SPEED)},
        "option unit: 'speed=m/s' is not COL=UNIT, or comes second for its column: give each column one unit",
    ),
    "units: before there is a contract": (
        f"{FIRST} --unit speed=km/h",
        {"in.csv": HEADER + lines("4")},
        "data set 'first' has no contract yet, and so no units to convert to: infer one first, and state them there",
    ),
    "version: one column under two names": (
        ADD,
        {
            "in.csv": "pump,hour,speed,rpm,flow,note\n4,7000,7000,7000,7000,secret\n",
            PUMPS: evolved(speed=(SPEED[0], SPEED[0] + '\naliases = ["rpm"]')),
        },
        "in.csv: columns 'speed' and 'rpm' are one column under two names: keep one",
    ),
    "version: a younger column left out of a new file": (
        ADD,
        {
            "in.csv": HEADER + lines("4"),
            PUMPS: evolved().replace("[file]", '[missing]\npolicy = "mean"\n[columns.heat]\ntype = "float64"\nsince = 2\n[file]'),
        },
        "in.csv: column 'heat' is missing: correct the file, its [file] section, or [columns]",
    ),
    "version: a younger column without a policy for gaps": (
        ADD,
        {"in.csv": HEADER + lines("4"), PUMPS: evolved(speed=(SPEED[0], SPEED[0] + "\nsince = 2"))},
        (
            "pumps/dataset.toml: columns.speed.since: older part files have gaps in 'speed', "
            "and policy = 'refuse' in [missing] allows none: choose another policy"
        ),
    ),
    "version: a target that is younger": (
        ADD,
        {"in.csv": HEADER + lines("4"), PUMPS: evolved(flow=(SPEED[0], SPEED[0] + "\nsince = 2"))},
        (
            "pumps/dataset.toml: columns.flow.since: 'flow' is a target or splits the rows, "
            "and older part files lack it: import those again with it"
        ),
    ),
    "version: a unit that old files do not state": (
        APPEND,
        {"in.csv": HEADER + lines("2", start=7003), PUMPS: evolved(speed=SPEED)},
        "device=2/part-0.parquet: column 'speed' states no unit and the contract says 'm/s': see unstated_unit in [columns]",
    ),
    "version: a file without a mark": (
        APPEND,
        {"in.csv": HEADER + lines("2", start=7003), PUMPS: evolved(), PART: parquet(lambda f: f.drop("pump"))},
        (
            "device=2/part-0.parquet: does not say its contract's version, "
            "and the present one is 2: remove the device and add its rows again"
        ),
    ),
    "version: a damaged mark": (
        APPEND,
        {"in.csv": HEADER + lines("2", start=7003), PART: encode(pl.DataFrame({"hour": [7000]}), b"\xff\xfe7000")},
        "device=2/part-0.parquet: its mark, which says contract version and units, is damaged: write the file again",
    ),
    "version: a file of a later contract": (
        APPEND,
        {"in.csv": HEADER + lines("2", start=7003), PART: encode(pl.DataFrame({"hour": [7000]}), b'{"version": 3, "units": {}}')},
        "device=2/part-0.parquet: written under version 3 of the contract, and this is 1: bring dataset.toml up to date",
    ),
    "remove: unknown device": ("remove pumps --device 4", {}, "data set 'pumps' has no device '4': choose one of its device= folders"),
    "remove: unsafe id": ("remove pumps --device ../new", {}, "device id '../new' starts with a dot: rename the device"),
    "remove: unknown data set": (
        "remove valves --device 1",
        {},
        (
            "no data set 'valves' with a dataset.toml: "
            "choose one of those there (bare, comma, labelled, new, no-toml, pumps, scaled, wrong), or bring it with fedlin data import"
        ),
    ),
    "check: no partitions": (
        "check new",
        {},
        "data set 'new' has a contract but no partitions: bring its source file with fedlin data import",
    ),
    "check: unknown data set": (
        "check valves",
        {},
        (
            "no data set 'valves' with a dataset.toml: "
            "choose one of those there (bare, comma, labelled, new, no-toml, pumps, scaled, wrong), or bring it with fedlin data import"
        ),
    ),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLIN_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    sets = {
        "pumps": contract(),
        "new": contract(),
        "comma": contract('separator = ";"\ndecimal = ","'),
        "bare": contract(HEADERLESS),
        "labelled": contract(split='kind = "column"\ncolumn = "note"'),
        "scaled": contract().replace("[file]", '[scaling]\ntarget = "train"\n[file]'),
        "wrong": contract().replace("int64", "integer"),
        "no-toml": "device = pump",
    }
    for name, text in sets.items():
        (tmp_path / "datasets" / name).mkdir(parents=True)
        (tmp_path / "datasets" / name / "dataset.toml").write_text(text)
    (tmp_path / "start.csv").write_text(HEADER + lines("1", "2", "B"))
    monkeypatch.setattr(sys, "argv", ["fedlin", "data", "import", "start.csv", "--dataset", "pumps"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_input_is_refused_in_one_line(
    case: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, files, message = CASES[case]
    for name, content in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = snapshot(home)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["fedlin", "data", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.err == f"fedlin: error: {message}\n"
    assert "\n" not in message
    assert said.out == ""
    assert DIGITS not in said.err
    assert WORD not in said.err
    assert snapshot(home) == before


def test_there_are_sixty_cases_and_more() -> None:
    assert len(CASES) >= 60
