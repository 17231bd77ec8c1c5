"""What a partition may look like: encodings that mean the same, ids, files that change or break, and who else is looked at (nobody)."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data import Dataset, add_partition, create_dataset, import_file, import_frame, infer_contract, open_dataset
from fedcore.data.checks import exact_floats
from fedcore.data.conversion import typed
from fedcore.data.names import checked_device_id
from fedcore.data.parquet import decode, encode
from fedcore.errors import DataError, Misuse

PART = "device=2/part-0.parquet"
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())


def written(table: pa.Table, **options: Any) -> bytes:
    content = io.BytesIO()
    pq.write_table(table, content, **options)
    return content.getvalue()


def read(table: pa.Table) -> pl.DataFrame:
    return decode(written(table), "here")


def refusal(run: Callable[[], object], kind: type[Misuse] = DataError) -> str:
    """The message: one short line without a value of y, and no foreign exception beside it."""
    with pytest.raises(kind) as caught:
        run()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.isprintable()
    assert len(message) < 300
    assert "700" not in message
    assert caught.value.__context__ is None
    return message


def put(dataset: Dataset, columns: dict[str, pa.Array], part: str = PART) -> None:
    (dataset.path / part).write_bytes(written(pa.table(columns)))


def arrow(frame: pl.DataFrame, **changes: pa.Array) -> dict[str, pa.Array]:
    columns = {name: pa.array(frame[name].to_list()) for name in frame.columns}
    return columns | changes


# One meaning, many encodings


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_whole_numbers_of_any_width_are_int64(kind: pa.DataType) -> None:
    bits = kind.bit_width - (0 if pa.types.is_unsigned_integer(kind) else 1)
    ends = [0 if pa.types.is_unsigned_integer(kind) else -(2**bits), None, min(2**bits, 2**63) - 1]
    for numbers in (ends, [None], []):
        column = read(pa.table({"a": pa.array(numbers, kind)}))["a"]
        assert column.dtype == pl.Int64
        assert column.to_list() == numbers


def test_whole_numbers_beyond_int64_are_counted() -> None:
    beyond = pa.array([2**63 - 1, 2**63, None, 2**64 - 1], pa.uint64())
    expected = "here: column 'a' has 2 numbers beyond int64: store them as text where they are names, else as float64"
    assert refusal(lambda: read(pa.table({"a": beyond}))) == expected


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_fractions_of_any_width_are_float64(kind: pa.DataType) -> None:
    numbers = [0.5, -0.0, float("inf"), 2.0**-24, 65504.0]
    array = pa.array(np.array(numbers, kind.to_pandas_dtype()), mask=np.array([False, True, False, False, False]))
    column = read(pa.table({"a": array}))["a"]
    assert column.dtype == pl.Float64
    assert column.to_list() == [0.5, None, *numbers[2:]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_text_of_any_kind_is_text(kind: pa.DataType) -> None:
    column = read(pa.table({"a": pa.array(["x", None, "", "ü"], kind)}))["a"]
    assert column.dtype == pl.String
    assert column.to_list() == ["x", None, "", "ü"]


@pytest.mark.parametrize("index", INTEGERS, ids=str)
@pytest.mark.parametrize("values", [pa.string(), pa.large_string()], ids=str)
def test_dictionaries_of_text_are_text(index: pa.DataType, values: pa.DataType) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1], index), pa.array(["x", "001"], values))
    table = pa.table({"a": pa.chunked_array([words, words[1:2]])})
    assert pa.types.is_dictionary(pq.read_table(io.BytesIO(written(table))).schema.field("a").type)
    assert read(table)["a"].to_list() == ["001", "x", None, "001", "x"]


def test_categories_of_other_libraries_are_text(tmp_path: Path) -> None:
    frame = pl.DataFrame({"unit": ["001", "1", "001"], "y": [1.5, 2.5, 3.5], "a": [1, 2, 3]})
    for kind in (pl.Categorical(), pl.Enum(["1", "001"])):
        dataset = import_frame(tmp_path / str(kind)[:4], frame.with_columns(pl.col("unit").cast(kind)), "demo", device="unit", target="y")
        assert dataset.device_ids == ("001", "1")
    views = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["001", "1"], pa.string_view()))
    table = pa.table({"unit": views, "y": frame["y"].to_list(), "a": frame["a"].to_list()})
    assert import_frame(tmp_path / "views", table, "demo", device="unit", target="y").load("001").train.y.tolist() == [1.5, 3.5]
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(frame.to_dict(as_series=False)).astype({"unit": "category"}).to_parquet(tmp_path / "rows.parquet")
    assert import_file(tmp_path, tmp_path / "rows.parquet", "demo", device="unit", target="y").device_ids == ("001", "1")


def test_parts_of_different_widths_are_one_partition(make: Callable[..., Dataset], demo: Any) -> None:
    dataset = make()
    first, second, third = (demo.frame(n=3, start=start) for start in (0, 3, 6))
    for part, frame in enumerate((first, second, third)):
        (dataset.path / f"device=2/part-{part}.parquet").write_bytes(encode(frame))
    uniform = dataset.load("2").train
    narrow = {"a": pa.array(second["a"].to_list(), pa.uint8()), "b": pa.array(second["b"].to_numpy().astype(np.float16))}
    put(dataset, arrow(second, **narrow, note=pa.array(second["note"].to_list()).dictionary_encode()), "device=2/part-1.parquet")
    whole = third["b"].to_numpy() % 1 == 0
    assert not whole.all()
    put(dataset, arrow(third, a=pa.array(third["a"].to_list(), pa.uint64()), note=pa.array(third["note"].to_list(), pa.string_view())))
    put(dataset, arrow(first, a=pa.array(first["a"].to_list(), pa.int32())))
    put(dataset, arrow(third, a=pa.array(third["a"].to_list(), pa.uint64())), "device=2/part-2.parquet")
    mixed = dataset.load("2").train
    assert np.array_equal(mixed.X, uniform.X)
    assert np.array_equal(mixed.y, uniform.y)


WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(2**53 - 3, 2**53 + 3) | st.integers(2**63 - 2000, 2**63 - 1)


@given(st.lists(WHOLE | st.none(), max_size=8))
def test_float64_holds_a_whole_number_exactly_or_not_at_all(numbers: list[int | None]) -> None:
    expected = [float(x) if x is not None and int(float(x)) == x else None for x in numbers]
    assert exact_floats(pl.Series("a", numbers, dtype=pl.Int64)).to_list() == expected


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(2**64 - 5000, 2**64 - 1), max_size=8))
def test_so_it_does_without_a_sign(numbers: list[int]) -> None:
    expected = [float(x) if int(float(x)) == x else None for x in numbers]
    assert exact_floats(pl.Series("a", numbers, dtype=pl.UInt64)).to_list() == expected


def test_whole_numbers_that_float64_would_round_are_counted(make: Callable[..., Dataset], demo: Any) -> None:
    dataset, frame = make(), demo.frame()
    exact = [2**53, -(2**53), 2**53 + 2, 0, 1, -(2**63)]
    put(dataset, arrow(frame, b=pa.array(exact)))
    assert dataset.load("2").train.X[:, 1].tolist() == exact
    put(dataset, arrow(frame, b=pa.array([2**53 + 1, -(2**53) - 1, 2**63 - 1, 0, 1, 2])))
    counted = f"{PART}: column 'b' has 3 whole numbers that float64 does not hold exactly: store float64, or smaller numbers"
    assert refusal(lambda: dataset.load("2")) == counted
    gaps = make_again(dataset, missing={"policy": "mean"})
    put(dataset, arrow(frame, b=pa.array([2**53 + 1, None, 0, None, 1, 2])))
    assert "column 'b' has 1 whole numbers" in refusal(lambda: gaps.summary("2"))


def make_again(dataset: Dataset, **changes: Any) -> Dataset:
    contract = type(dataset.contract).model_validate(dataset.contract.model_dump() | changes)
    return Dataset(dataset.name, dataset.path, contract)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("a", pa.array([0.0] * 6), "column 'a' is float64: the contract says int64"),
        ("b", pa.array(["7000"] * 6), "column 'b' is string: the contract says float64"),
        ("a", pa.array(["7000"] * 6).dictionary_encode(), "column 'a' is string: the contract says int64"),
        ("note", pa.array([7000] * 6, pa.uint16()), "column 'note' is int64: the contract says string"),
    ],
)
def test_another_type_than_declared_has_a_remedy(
    make: Callable[..., Dataset], demo: Any, column: str, values: pa.Array, message: str
) -> None:
    dataset = make()
    put(dataset, arrow(demo.frame(), **{column: values}))
    assert refusal(lambda: dataset.load("2")) == f"{PART}: {message}: convert the column, or correct its type in the contract"


HOUR = "convert it to a number, such as hours since a start"
EACH = "give each of its elements a column of its own"
OTHER_KINDS = {
    "decimal128": (pa.array([Decimal("7000.5")]), "decimal128", "cast it to float64 first"),
    "decimal256": (pa.array([Decimal(7)], pa.decimal256(60, 2)), "decimal256", "cast it to float64 first"),
    "timestamp": (pa.array([7000], pa.timestamp("us")), "timestamp", HOUR),
    "timestamp with a zone": (pa.array([7000], pa.timestamp("us", "Europe/Zurich")), "timestamp", HOUR),
    "date": (pa.array([7000], pa.date32()), "date32", HOUR),
    "time": (pa.array([7000], pa.time64("us")), "time64", HOUR),
    "duration": (pa.array([7000], pa.duration("ms")), "duration", "convert it to a number, such as hours"),
    "boolean": (pa.array([True]), "bool", "convert it to the numbers 0 and 1"),
    "list": (pa.array([[7000]]), "list", EACH),
    "list of fixed size": (pa.array([[7000]], pa.list_(pa.int64(), 1)), "fixed_size_list", EACH),
    "struct": (pa.array([{"7000": 7000}]), "struct", EACH),
    "map": (pa.array([[("7000", 7000)]], pa.map_(pa.string(), pa.int64())), "map", EACH),
    "binary": (pa.array([b"7000"]), "binary", "convert it"),
    "binary of fixed size": (pa.array([b"7000"], pa.binary(4)), "fixed_size_binary", "convert it"),
    "null": (pa.array([None]), "null", "write its gaps as one of these"),
}


@pytest.mark.parametrize("case", OTHER_KINDS)
def test_other_kinds_are_refused_each_with_its_remedy(case: str) -> None:
    values, kind, remedy = OTHER_KINDS[case]
    message = refusal(lambda: read(pa.table({"a": pa.array([1]), "when": values})))
    assert message == f"here: column 'when' is {kind}: expected float64, int64 or string: {remedy}"


@pytest.mark.parametrize(
    "values",
    [
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([b"7000"])),
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([Decimal("7000.5")])),
        pa.RunEndEncodedArray.from_arrays(pa.array([1]), pa.array(["7000"])),
        pa.array([None], pa.month_day_nano_interval()),
    ],
    ids=["dictionary of bytes", "dictionary of decimals", "runs", "interval"],
)
def test_odd_kinds_of_tables_in_memory_are_refused(values: pa.Array, tmp_path: Path) -> None:
    table = pa.table({"unit": ["1"], "y": [1.5], "a": values})
    assert ": column 'a' is " in refusal(lambda: import_frame(tmp_path, table, "demo", device="unit", target="y"))


# Decimals, which an import converts


DECIMAL = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=9)


@settings(deadline=None)
@given(st.lists(DECIMAL | st.none(), min_size=1, max_size=6))
def test_a_decimal_becomes_the_nearest_float64(numbers: list[Decimal | None]) -> None:
    for kind in (pa.decimal128(38, 9), pa.decimal256(38, 9), pa.decimal256(70, 9)):
        with tempfile.TemporaryDirectory() as folder:
            table = pa.table({"unit": ["1"] * len(numbers), "x": pa.array(numbers, kind), "z": [1.5] * len(numbers)})
            pq.write_table(table, Path(folder) / "rows.parquet")
            contract = infer_contract(Path(folder), Path(folder) / "rows.parquet", "demo", device="unit", target="z")
            whole = all(x is None or (x == int(x) and -(2**63) <= x < 2**63) for x in numbers)
            assert contract.columns["x"].type == ("int64" if whole else "float64")
        column = pl.from_arrow(pa.table({"x": pa.array(numbers, pa.decimal128(38, 9))}))["x"]
        assert typed(column, "float64", ".").to_list() == [None if x is None else float(x) for x in numbers]


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        (["1000.00", "-3.00", "0.00", "9223372036854775807.00"], pa.decimal128(38, 2)),
        (["1000.0", "-3.0", "0.0"], pa.decimal64(12, 1)),
        (["1000", "-3", "0"], pa.decimal32(9, 0)),
        (["1000.00", "-3.00", "0.00"], pa.decimal256(76, 30)),
        (["1000", "-3000", "0"], pa.decimal128(9, -3)),
    ],
)
def test_whole_decimals_become_int64(tmp_path: Path, numbers: list[str], kind: pa.DataType) -> None:
    column = pa.array(numbers).cast(pa.decimal128(38, 6)).cast(kind)
    table = pa.table({"unit": ["1"] * len(numbers), "x": column, "y": [1.5] * len(numbers)})
    dataset = import_frame(tmp_path, table, "demo", device="unit", target="y")
    assert dataset.contract.columns["x"].type == "int64"
    assert decode((dataset.path / "device=1/part-0.parquet").read_bytes(), "here")["x"].to_list() == [int(Decimal(x)) for x in numbers]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([Decimal("7000.5"), Decimal("1.0"), Decimal("7.5")], "data frame: column 'a' has 2 values that are not int64"),
        ([Decimal(2) ** 63, Decimal(1), Decimal(-(10**30))], "data frame: column 'a' has 2 values that are not int64"),
        ([Decimal(10**40), Decimal(1), Decimal(1)], "data frame: column 'a' has decimals of more than 38 digits: convert it to float64"),
    ],
)
def test_decimals_that_do_not_fit_are_counted(
    tmp_path: Path, make: Callable[..., Dataset], demo: Any, numbers: list[Decimal], message: str
) -> None:
    (tmp_path / "sets/demo").mkdir(parents=True)
    (tmp_path / "sets/demo/dataset.toml").write_bytes((make().path / "dataset.toml").read_bytes())
    table = pa.table(arrow(demo.frame(n=3), a=pa.array(numbers, pa.decimal256(60, 1)), unit=pa.array(["1"] * 3)))
    assert refusal(lambda: import_frame(tmp_path / "sets", table, "demo")).startswith(message)


def test_decimals_are_neither_ids_nor_text(tmp_path: Path, make: Callable[..., Dataset], demo: Any) -> None:
    ones = pa.array([Decimal("1.0")] * 3)
    table = pa.table({"unit": ones, "y": [1.5, 2.5, 3.5], "a": [1, 2, 3]})
    expected = "data frame: device column 'unit' is neither text nor whole numbers: convert it first"
    assert refusal(lambda: import_frame(tmp_path / "sets", table, "demo", device="unit", target="y")) == expected
    (tmp_path / "text/demo").mkdir(parents=True)
    (tmp_path / "text/demo/dataset.toml").write_bytes((make().path / "dataset.toml").read_bytes())
    table = pa.table(arrow(demo.frame(n=3), note=ones, unit=pa.array(["1"] * 3)))
    assert "column 'note' is decimal: the contract says string: convert" in refusal(lambda: import_frame(tmp_path / "text", table, "demo"))


def test_numbers_beyond_int64_are_ids_but_no_values(tmp_path: Path) -> None:
    names = [2**64 - 1, 2**63, 2**64 - 1]
    columns = {"unit": pa.array(names, pa.uint64()), "y": pa.array([1.5, 2.5, 3.5]), "a": pa.array([1, 2, 3])}
    dataset = import_frame(tmp_path, pa.table(columns), "demo", device="unit", target="y")
    assert dataset.device_ids == tuple(sorted({str(name) for name in names}))
    columns["a"] = columns["unit"]
    expected = (
        "data frame: column 'a' has 2 values that are not float64, the first of device 18446744073709551615: correct them or its type"
    )
    assert refusal(lambda: import_frame(tmp_path, pa.table(columns), "other", device="unit", target="y")) == expected


# Sizes and names


def test_huge_cells_are_read_and_never_quoted(make: Callable[..., Dataset], demo: Any) -> None:
    dataset, frame = make(), demo.frame()
    huge = pa.array(["700" * 2_000_000, *frame["note"][1:].to_list()])
    put(dataset, arrow(frame, note=huge))
    assert dataset.load("2").train.n == 6
    labelled = make_again(dataset, split={"kind": "column", "column": "note"})
    assert refusal(lambda: labelled.load("2")).startswith("device=2: column 'note' has 1 values other than train")
    for column, values in {"y": huge, "note": pa.array([None, *huge[1:].to_pylist()]), "more": huge}.items():
        put(dataset, arrow(frame, **{column: values}))
        assert f"column '{column}' " in refusal(lambda: dataset.load("2"))


@pytest.mark.parametrize("name", ["x" * 101, "x" * 1_000_000, "a\nb", "\x1b[31m" * 1000, "\u202e" * 200, " ", "ü" * 500, "'" * 200])
def test_a_name_of_any_kind_makes_a_short_message(make: Callable[..., Dataset], demo: Any, name: str) -> None:
    dataset, frame = make(), demo.frame()
    put(dataset, arrow(frame, **{name: pa.array([1] * 6)}))
    assert "not in the contract" in refusal(lambda: dataset.load("2"))
    put(dataset, arrow(frame, **{name: pa.array([True] * 6)}))
    assert "is bool: expected" in refusal(lambda: dataset.load("2"))
    put(dataset, arrow(frame, **{name: pa.array([2**64 - 1] * 6, pa.uint64())}))
    assert "has 6 numbers beyond int64" in refusal(lambda: dataset.load("2"))


def test_a_column_has_a_name(make: Callable[..., Dataset], demo: Any) -> None:
    dataset = make()
    put(dataset, arrow(demo.frame(), **{"": pa.array([1] * 6)}))
    assert refusal(lambda: dataset.load("2")) == f"{PART}: a column has no name: give it one"


def test_a_name_that_is_no_utf8_is_damage(make: Callable[..., Dataset], demo: Any, tmp_path: Path) -> None:
    dataset = make()
    raw = written(pa.table(arrow(demo.frame(), noted=pa.array([1] * 6))), store_schema=False).replace(b"noted", b"n\xff\xfeed")
    (dataset.path / PART).write_bytes(raw)
    assert refusal(lambda: dataset.load("2")).startswith(f"{PART}: not a readable parquet file")
    (tmp_path / "rows.parquet").write_bytes(raw)
    message = refusal(lambda: import_file(tmp_path, tmp_path / "rows.parquet", "other", device="a", target="y"))
    assert message.startswith("rows.parquet: not a readable parquet file")


# Device ids, through every door


UNSAFE = {
    "a b": "holds characters",
    " 1": "holds characters",
    "ü": "holds characters",
    "caf\u00e9": "holds characters",
    "cafe\u0301": "holds characters",
    "１": "holds characters",
    "a=b": "holds characters",
    "a%b": "holds characters",
    "a%20b": "looks URL-encoded, which is not undone",
    "%2e%2E": "looks URL-encoded, which is not undone",
    ".": "starts with a dot",
    "..": "starts with a dot",
    ".a": "starts with a dot",
    "__HIVE_DEFAULT_PARTITION__": "means a missing value to other tools",
}
NO_FILE_NAME = {"a/b": "holds characters", "/": "holds characters", "../1": "starts with a dot", "a\\b": "holds characters"}


def rows_of(*ids: str) -> str:
    return "unit,a,y\n" + "".join(f'"{device}",{i},{7000 + i}.5\n' for i, device in enumerate(ids))


@pytest.mark.parametrize("device", [*UNSAFE, *NO_FILE_NAME])
def test_an_unsafe_id_is_refused_at_every_door(device: str, tmp_path: Path) -> None:
    reason = (UNSAFE | NO_FILE_NAME)[device]
    rows = tmp_path / "rows.csv"
    rows.write_text(rows_of("1", device))
    attempts: list[Callable[[], object]] = [lambda: import_file(tmp_path / "new", rows, "demo", device="unit", target="y")]
    table = pa.table({"unit": pa.array(["1", device]).dictionary_encode(), "a": [1, 2], "y": [1.5, 2.5]})
    attempts.append(lambda: import_frame(tmp_path / "new", table, "demo", device="unit", target="y"))
    if device in UNSAFE:
        folder = tmp_path / "folder"
        folder.mkdir()
        for name in ("1", device):
            (folder / f"{name}.csv").write_text("a,y\n1,7000.5\n")
        if not device.startswith("."):  # a hidden file is left aside
            attempts.append(lambda: import_file(tmp_path / "new", folder, "demo", device="unit", target="y"))
    rows_one = tmp_path / "one.csv"
    rows_one.write_text(rows_of("1"))
    import_file(tmp_path, rows_one, "there", device="unit", target="y")
    attempts.append(lambda: add_partition(tmp_path, rows, "there", device))
    there = open_dataset(tmp_path, "there")
    attempts.append(lambda: there.load(device))
    for attempt in attempts:
        assert reason in refusal(attempt)
    assert not [*(tmp_path / "new").glob("*")]
    assert there.device_ids == ("1",)
    if device in UNSAFE and device.strip("."):
        (tmp_path / f"there/device={device}").mkdir()
        assert reason in refusal(lambda: there.device_ids)
        assert reason in refusal(lambda: open_dataset(tmp_path, "there"))


SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"


@given(st.text(max_size=12) | st.text(SAFE, max_size=6) | st.text("aA1._-%=/ é\u0301", max_size=6))
def test_an_id_that_is_taken_is_plain_ascii_and_itself(device: str) -> None:
    if device.isascii() and device and not set(device) - set(SAFE) and not device.startswith("."):
        assert checked_device_id(device) == device
    else:
        refusal(lambda: checked_device_id(device))


@pytest.mark.parametrize("device", ["001", "1", "1.0", "1e0", "-1", "CON", "nan", "null", "None", "a.b", "A_b-c", "__HIVE__", "x" * 100])
def test_an_id_is_kept_as_it_is_written(device: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(rows_of(device, "other"))
    assert device in import_file(tmp_path, tmp_path / "rows.csv", "column", device="unit", target="y").device_ids
    (tmp_path / "files").mkdir()
    for name in (device, "other"):
        (tmp_path / f"files/{name}.csv").write_text("a,y\n1,7000.5\n")
    assert device in import_file(tmp_path, tmp_path / "files", "folder", device="unit", target="y").device_ids
    (tmp_path / "one.csv").write_text("a,y\n5,7005.5\n")
    (tmp_path / "rows.csv").write_text(rows_of("first"))
    import_file(tmp_path, tmp_path / "rows.csv", "added", device="unit", target="y")
    assert add_partition(tmp_path, tmp_path / "one.csv", "added", device).device == device
    assert open_dataset(tmp_path, "added").load(device).train.X.tolist() == [[5]]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([1, 10, 1], pa.int8()), ("1", "10")),
        (pa.array([1, 2**64 - 1, 1], pa.uint64()), ("1", str(2**64 - 1))),
        (pa.array(["1", "001", "1"]).dictionary_encode(), ("001", "1")),
        (pa.array([1.0, 2.0, 1.0]), None),
        (pa.array([1.0, 2.0, 1.0], pa.float32()), None),
        (pa.array([1, 2, 1], pa.timestamp("s")), None),
        (pa.array([True, False, True]), None),
        (pa.array([b"1", b"2", b"1"]), None),
    ],
)
def test_ids_in_parquet_are_text_or_whole_numbers(tmp_path: Path, ids: pa.Array, expected: tuple[str, ...] | None) -> None:
    pq.write_table(pa.table({"unit": ids, "a": [1, 2, 3], "y": [1.5, 2.5, 3.5]}), tmp_path / "rows.parquet")
    run = lambda: import_file(tmp_path / "sets", tmp_path / "rows.parquet", "demo", device="unit", target="y")  # noqa: E731
    if expected is None:
        assert "column 'unit' is " in refusal(run)
        assert not [*(tmp_path / "sets").glob("*")]
    else:
        assert run().device_ids == expected


# Part files


def test_a_file_that_is_cut_anywhere_is_refused(make: Callable[..., Dataset]) -> None:
    dataset = make()
    file = dataset.path / PART
    raw = file.read_bytes()
    for length in range(len(raw)):
        with pytest.raises(DataError, match=rf"^{PART}: not a readable parquet file \({length} bytes"):
            decode(raw[:length], PART)
    for length in (0, 3, len(raw) // 2, len(raw) - 1):
        file.write_bytes(raw[:length])
        assert refusal(lambda: dataset.load("2")).startswith(f"{PART}: not a readable parquet file (")
    file.write_bytes(raw + b"PAR1")
    assert "not a readable parquet file" in refusal(lambda: dataset.load("2"))


@pytest.mark.parametrize("magic", [b"PAR2", b"PARE", b"ORC\0", b"\x89PNG", b"PK\x03\x04", b"\x1f\x8b\x08\0"])
@pytest.mark.parametrize("place", ["start", "end", "both"])
def test_a_file_with_another_magic_is_refused(make: Callable[..., Dataset], magic: bytes, place: str) -> None:
    dataset = make()
    raw = (dataset.path / PART).read_bytes()
    raw = (magic if place != "end" else raw[:4]) + raw[4:-4] + (magic if place != "start" else raw[-4:])
    (dataset.path / PART).write_bytes(raw)
    if place == "start":  # a reader that starts from the end need not look there
        assert dataset.load("2").train.n == 6
    else:
        assert "not a readable parquet file" in refusal(lambda: dataset.load("2"))


def _to_other_device(dataset: Dataset) -> None:
    (dataset.path / PART).unlink()
    (dataset.path / PART).symlink_to("../device=1/part-0.parquet")


def _folder_to_other_device(dataset: Dataset) -> None:
    (dataset.path / "device=2").rename(dataset.path / "old")
    (dataset.path / "device=2").symlink_to("device=1")


def _folder_inside(dataset: Dataset) -> None:
    (dataset.path / "device=2").rename(dataset.path / "old")
    (dataset.path / "device=2").symlink_to("old")


def _to_shorter_id(dataset: Dataset) -> None:
    (dataset.path / "device=22").mkdir()
    (dataset.path / PART).rename(dataset.path / "device=22/part-0.parquet")
    (dataset.path / PART).symlink_to("../device=22/part-0.parquet")


@pytest.mark.parametrize(
    ("link", "where"),
    [(_to_other_device, PART), (_folder_to_other_device, "device=2"), (_folder_inside, "device=2"), (_to_shorter_id, PART)],
)
def test_no_link_leads_a_device_out_of_its_own_folder(make: Callable[..., Dataset], link: Callable[[Dataset], None], where: str) -> None:
    dataset = make()
    link(dataset)
    expected = f"{where}: leads out of the device's own folder: replace the link by the file itself"
    assert refusal(lambda: dataset.load("2")) == expected


def test_links_to_the_data_set_and_within_a_device_are_followed(make: Callable[..., Dataset], tmp_path: Path) -> None:
    dataset = make()
    expected = dataset.load("2").train.X
    (dataset.path / PART).rename(dataset.path / "device=2/rows")
    (dataset.path / PART).symlink_to("rows")
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/demo").symlink_to(dataset.path)
    assert np.array_equal(open_dataset(tmp_path / "sets", "demo").load("2").train.X, expected)


@pytest.mark.parametrize("target", ["nowhere", "part-0.parquet"])
def test_a_link_to_nothing_is_refused(make: Callable[..., Dataset], target: str) -> None:
    dataset = make()
    (dataset.path / PART).unlink()
    (dataset.path / PART).symlink_to(target)
    assert refusal(lambda: dataset.load("2")).startswith(f"{PART}: cannot be read: ")


@pytest.mark.parametrize("closed", [PART, "device=2", "."])
def test_what_may_not_be_read_is_said_so(closed: str, demo: Any, unprivileged: Callable[[], AbstractContextManager[None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        dataset = create_dataset(Path(folder), "demo", demo.contract(), [("1", demo.frame()), ("2", demo.frame())])
        place = dataset.path / closed
        place.chmod(0)
        with unprivileged():
            message = refusal(lambda: dataset.load("2"), Misuse)
            if closed != ".":
                assert dataset.load("1").train.n == 6
        place.chmod(0o755)
    expected = {
        PART: f"{PART}: cannot be read: Permission denied",
        "device=2": "device=2: cannot be listed: Permission denied",
        ".": "data set 'demo' has no device '2': choose one of its device= folders",
    }
    assert message == expected[closed]


def test_thousands_of_part_files_are_one_partition(make: Callable[..., Dataset], demo: Any) -> None:
    dataset = make()
    folder = dataset.path / "device=2"
    frame = demo.frame(n=3000)
    (dataset.path / PART).unlink()
    for i in range(3000):
        (folder / f"part-{i:04}.parquet").write_bytes(encode(frame[i : i + 1]))
    data, card = dataset.loaded("2")
    assert card.n_train == 3000
    assert data.train.X[:, 0].tolist() == list(range(3000))


def test_a_file_that_vanishes_while_it_is_read_is_said_so(make: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make()
    stat, opened = Path.stat, os.open

    def gone_before(self: Path, **options: Any) -> os.stat_result:
        if self.name == "part-0.parquet":
            self.unlink(missing_ok=True)
        return stat(self, **options)

    def gone_after(path: Path, flags: int) -> int:
        path.unlink()
        return opened(path, flags)

    for device, (owner, name, replacement) in {"1": (Path, "stat", gone_before), "2": (os, "open", gone_after)}.items():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replacement)
            message = refusal(lambda device=device: dataset.load(device))
        assert message == f"device={device}/part-0.parquet: cannot be read: No such file or directory"


# A partition that changes while it is read


def versions(demo: Any) -> tuple[bytes, bytes]:
    """Two contents of many pages, and of different lengths."""
    one, other = demo.frame(n=2000), demo.frame(n=3000, start=50_000)
    return tuple(written(frame.to_arrow(), row_group_size=200, write_page_checksum=True) for frame in (one, other))


@contextmanager
def restless(change: Callable[[int], None]) -> Iterator[None]:
    """`change` again and again in another thread, with the number of times."""
    stop, failures = threading.Event(), []

    def work() -> None:
        times = 0
        try:
            while not stop.is_set():
                change(times)
                times += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_a_partition_that_is_replaced_is_read_as_one_of_the_two(make: Callable[..., Dataset], demo: Any) -> None:
    dataset, contents = make(), versions(demo)
    file = dataset.path / PART
    seen: dict[str, tuple[float, float, int]] = {}
    for content in contents:
        file.write_bytes(content)
        data, card = dataset.loaded("2")
        seen[card.sha256] = (data.train.X.sum(), data.train.y.sum(), data.train.n)

    def replace(times: int) -> None:
        beside = file.with_name(".new")
        beside.write_bytes(contents[times % 2])
        os.replace(beside, file)

    read_as: list[str] = []
    failures: list[str] = []

    def reader() -> None:
        for _ in range(150):
            try:
                data, card = dataset.loaded("2")
            except Exception as error:
                failures.append(str(error))
                return
            read_as.append(card.sha256)
            if seen.get(card.sha256) != (data.train.X.sum(), data.train.y.sum(), data.train.n):
                failures.append("a mixture")

    with restless(replace):
        readers = [threading.Thread(target=reader) for _ in range(3)]
        for thread in readers:
            thread.start()
        for thread in readers:
            thread.join()
    assert failures == []
    assert len(read_as) == 450
    assert set(read_as) == set(seen)


def test_a_partition_that_is_written_in_place_is_read_whole_or_refused(make: Callable[..., Dataset], demo: Any) -> None:
    dataset, contents = make(), versions(demo)
    file = dataset.path / PART
    whole = []
    for content in contents:
        file.write_bytes(content)
        whole.append(dataset.load("2").train.y.tolist())

    def overwrite(times: int) -> None:
        content = contents[times % 2]
        with file.open("wb", buffering=0) as stream:
            for start in range(0, len(content), 4096):
                stream.write(content[start : start + 4096])

    read_as: list[list[float]] = []
    refusals: list[str] = []
    with restless(overwrite):
        for times in range(10_000):
            if times >= 300 and refusals:
                break
            try:
                read_as.append(dataset.load("2").train.y.tolist())
            except DataError as error:
                refusals.append(str(error))
    assert all(rows in whole for rows in read_as)
    assert refusals
    assert all(message.startswith(f"{PART}: not a readable parquet file (") for message in refusals)


def test_a_torn_page_is_noticed(demo: Any) -> None:
    contents = [written(frame.to_arrow(), write_page_checksum=True, compression="none", use_dictionary=False, write_statistics=False)
                for frame in (demo.frame(n=60), demo.frame(n=60, start=10))]  # fmt: skip
    frames = [decode(content, "here") for content in contents]
    assert len({len(content) for content in contents}) == 1
    pages = differing = 0
    for k in range(len(contents[0])):
        try:
            mixed = decode(contents[1][:k] + contents[0][k:], "here")
        except DataError:
            differing += 1
            continue
        # What is left are tears between pages, where each column is of one version as a whole.
        for column in mixed.iter_columns():
            assert any(column.equals(frame[column.name]) for frame in frames)
        pages += 1
    assert differing
    assert pages


# Nobody else is looked at


LOOK = """
import json, os, sys
from pathlib import Path
from fedcore import Hm1, Separate
from fedcore.algorithm import FleetSpec
from fedcore.data import open_dataset
from tasks.cohort import asked
from tasks.device import device_check, device_enrol
from tasks.ground import Station

dataset = open_dataset(Path(sys.argv[1]), "many")
ids = dataset.device_ids
station = Station("run", "uuid", dataset, Separate(), FleetSpec(ids, len(dataset.design_names)), 0)
dataset.load(ids[0])
device_check(station, ids[0])
asked(device_enrol, station, ids[0], None)

looked, inside = [], False

def note(event, arguments):
    if inside and event in ("open", "os.listdir", "os.scandir"):
        looked.append(os.path.abspath(os.fsdecode(arguments[0])) if isinstance(arguments[0], (str, bytes, os.PathLike)) else None)

sys.addaudithook(note)
told = {}
for name, act in {
    "load": lambda: dataset.load("0042"),
    "summary": lambda: dataset.summary("0042"),
    "check": lambda: device_check(station, "0042"),
    "enrol": lambda: asked(device_enrol, station, "0042", None),
}.items():
    looked.clear()
    inside = True
    act()
    inside = False
    told[name] = list(looked)
print(json.dumps(told))
"""


def test_no_path_of_another_device_is_opened_or_listed(demo: Any, tmp_path: Path) -> None:
    first = create_dataset(tmp_path, "many", demo.contract(), [("0000", demo.frame(n=10))]).path / "device=0000/part-0.parquet"
    for k in range(1, 500):
        (tmp_path / f"many/device={k:04}").mkdir()
        (tmp_path / f"many/device={k:04}/part-0.parquet").write_bytes(first.read_bytes())
    words = [sys.executable, "-c", LOOK, str(tmp_path)]
    told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    own = str(tmp_path / "many/device=0042")
    for act, looked in told.items():
        assert own in looked, act
        assert f"{own}/part-0.parquet" in looked, act
        assert [path for path in looked if path and path.startswith(str(tmp_path)) and path != own and not path.startswith(f"{own}/")] == []
