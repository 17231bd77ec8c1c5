from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fedcore.data import Column, Contract, Dataset, add_partition, create_dataset, import_file, import_frame, open_dataset, write_contract
from fedcore.data.checks import checked_frame
from fedcore.data.contract import parse_contract
from fedcore.data.evolution import Mark, mark_for, present_rows, read_mark
from fedcore.data.parquet import decode, encode, mark_in
from fedcore.data.splits import Parts, row_draws, split_rows
from fedcore.data.units import in_unit
from fedcore.errors import DataError, Misuse

RANDOM = {"kind": "random", "train": 0.9, "validation": 0.3}

# Under version 1, `temp` was in degF; since version 2 it is `temperature`, in K, and there is `speed` too.
FIRST: dict[str, Any] = {
    "device": "unit",
    "target": "y",
    "features": ["i", "temp"],
    "columns": {"i": {"type": "int64"}, "temp": {"type": "float64", "unit": "degF"}, "y": {"type": "float64"}},
}
SECOND: dict[str, Any] = FIRST | {
    "version": 2,
    "features": ["i", "temperature", "speed"],
    "missing": {"policy": "mean"},
    "disclosure": {"rows": 1, "level_rows": 1},
    "columns": {
        "i": {"type": "int64"},
        "temperature": {"type": "float64", "unit": "K", "aliases": ["temp"]},
        "speed": {"type": "float64", "unit": "m/s", "since": 2},
        "y": {"type": "float64"},
    },
}


def contract(document: Mapping[str, Any], **columns: Any) -> Contract:
    """The contract, with changes to columns; None takes one out."""
    changed = {name: column for name, column in (document["columns"] | columns).items() if column is not None}
    return Contract.model_validate({**document, "columns": changed})


def frame(n: int = 6, start: int = 0) -> pl.DataFrame:
    """n rows under version 1."""
    rows = range(start, start + n)
    return pl.DataFrame({"i": list(rows), "temp": [32.0 + 9 * i for i in rows], "y": [7000.125 + i for i in rows]})


def marked(version: int, **units: str) -> bytes:
    return json.dumps({"version": version, "units": units}).encode()


def refused(call: Callable[[], object], kind: type[Misuse] = DataError) -> str:
    """The message, after a look that it is one line without a value, and carries no other exception."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert "700" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return message


def parts_of(dataset: Dataset, device: str = "1") -> dict[int, str]:
    """By i, the first feature, the part that a device's row is in."""
    return {int(i): name for name, rows in zip(Parts._fields, dataset.load(device), strict=True) for i in rows.X[:, 0]}


# The mark


def test_a_mark_reads_back_and_survives_the_file() -> None:
    for document in (FIRST, SECOND):
        stored = mark_in(encode(frame(), mark_for(contract(document))))
        units = {name: column["unit"] for name, column in document["columns"].items() if "unit" in column}
        assert read_mark(stored, "here") == Mark(version=document.get("version", 1), units=units)


def test_a_mark_changes_no_row_and_none_is_no_mark() -> None:
    assert decode(encode(frame(), b"\xff\xfe"), "here").equals(frame())
    assert mark_in(encode(frame(), b"\xff\xfe")) == b"\xff\xfe"
    assert mark_in(encode(frame())) is None
    assert read_mark(None, "here") is None


@given(st.binary(max_size=40) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda tree: json.dumps(tree).encode()))
def test_any_other_mark_is_damaged(stored: bytes) -> None:
    message = refused(lambda: read_mark(stored, "here"))
    assert message == "here: its mark, which says contract version and units, is damaged: write the file again"


@pytest.mark.parametrize(
    "stored",
    [
        b'{"version": 1}',
        b'{"version": 0, "units": {}}',
        b'{"version": "1", "units": {}}',
        b'{"version": true, "units": {}}',
        b'{"version": 1.0, "units": {}}',
        b'{"version": 99999999999999999999, "units": {}}',
        b'{"version": 1, "units": []}',
        b'{"version": 1, "units": {"temp": 3}}',
        b'{"version": 1, "units": {"temp": "' + b"m" * 101 + b'"}}',
        b'{"version": 1, "units": {}, "more": 1}',
        b'{"version": 1, "units": {}',
        b'{"version": 1, "units": {"\xff": "K"}}',
        b"[" * 100_000,
    ],
)
def test_a_mark_of_another_form_is_damaged(stored: bytes) -> None:
    assert refused(lambda: read_mark(stored, "here")).startswith("here: its mark")


def test_every_part_file_that_is_written_says_its_version_and_units(tmp_path: Path) -> None:
    dataset = create_dataset(tmp_path, "demo", contract(FIRST), [("1", frame())])
    frame(start=10).write_csv(tmp_path / "rows.csv")
    for device in ("1", "2"):
        add_partition(tmp_path, tmp_path / "rows.csv", "demo", device, append=device == "1")
    files = list(dataset.path.rglob("*.parquet"))
    assert len(files) == 3
    assert {mark_in(file.read_bytes()) for file in files} == {b'{"version":1,"units":{"temp":"degF"}}'}
    assert (dataset.versions("1"), dataset.versions("2")) == ((1, 1), (1,))


# Contracts

REFUSED_CONTRACTS: list[tuple[dict[str, Any], str]] = [
    ({"version": 0}, "version: Input should be greater than or equal to 1 (and 1 more)"),
    ({"speed": {"type": "float64", "since": 3}}, "columns.speed.since: version 3 is later than the contract's version 2: raise that one"),
    ({"speed": {"type": "float64", "since": 0}}, "columns.speed.since: Input should be greater than or equal to 1"),
    (
        {"y": {"type": "float64", "since": 2}, "missing": {"policy": "drop"}},
        "columns.y.since: 'y' is a target or splits the rows, and older part files lack it: import those again with it",
    ),
    (
        {"i": {"type": "int64", "since": 2}, "split": {"kind": "time", "column": "i", "train": 0.5}},
        "columns.i.since: 'i' is a target or splits the rows, and older part files lack it: import those again with it",
    ),
    (
        {"missing": {"policy": "refuse"}},
        (
            "columns.speed.since: older part files have gaps in 'speed', and policy = 'refuse' in [missing] allows none: "
            "choose another policy"
        ),
    ),
    (
        {"speed": {"type": "float64", "aliases": ["temp"]}},
        "columns.temperature.aliases: 'temp' is another name of this contract too: use each name once",
    ),
    (
        {"speed": {"type": "float64", "aliases": ["v", "v"]}},
        "columns.speed.aliases: 'v' is another name of this contract too: use each name once",
    ),
    (
        {"speed": {"type": "float64", "aliases": ["y"]}},
        "columns.speed.aliases: 'y' is another name of this contract too: use each name once",
    ),
    (
        {"speed": {"type": "float64", "aliases": ["unit"]}},
        "columns.speed.aliases: 'unit' is another name of this contract too: use each name once",
    ),
    (
        {"speed": {"type": "float64", "unstated_unit": "m/s"}},
        "columns.speed.unstated_unit: the column has no unit: state it too",
    ),
    ({"file": {"units": {"temp": "degF"}}}, "file.units: 'temp' is not declared: name one of [columns]"),
    ({"file": {"units": {"y": "K"}}}, "file.units: 'y' has no unit to convert to: state it in [columns.y]"),
    ({"file": {"units": {"speed": ""}}}, "file.units: 'speed' is given no unit: name one, or leave the column out"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED_CONTRACTS)
def test_a_contract_that_cannot_be_kept_is_refused(changes: dict[str, Any], message: str) -> None:
    columns = SECOND["columns"] | {name: change for name, change in changes.items() if name in SECOND["columns"]}
    document = SECOND | {name: change for name, change in changes.items() if name not in columns} | {"columns": columns}
    assert refused(lambda: parse_contract(document, "demo/dataset.toml")) == f"demo/dataset.toml: {message}"


def test_the_worked_example_is_a_next_version() -> None:
    readme = (Path(__file__).parents[3] / "datasets" / "README.md").read_text(encoding="utf-8")
    first, changes = (tomllib.loads(block.split("```")[0]) for block in readme.split("```toml\n")[1:])
    columns = first["columns"] | changes["columns"]
    pressure = columns.pop("pressure")
    rows = {"hour": range(4), "speed": [60.0] * 4, "maker": ["A"] * 4, "pressure": [1.5] * 4, "flow": [2.5] * 4}
    stored = mark_for(Contract.model_validate(first))
    renamed = {"target": "discharge_pressure", "targets": ["discharge_pressure", "flow"], "columns": columns}
    read = present_rows(pl.DataFrame(rows), stored, Contract.model_validate(first | changes | renamed), "here")
    assert read["speed"].to_list() == pytest.approx([1.0] * 4)
    assert read["discharge_pressure"].to_list() == [1.5] * 4
    assert read["temperature"].null_count() == 4
    assert pressure["unit"] == columns["discharge_pressure"]["unit"]


def test_an_evolved_contract_reads_back_as_it_was_written(tmp_path: Path) -> None:
    evolved = contract(SECOND | {"file": {"units": {"temperature": "degF"}}})
    write_contract(tmp_path, evolved)
    assert parse_contract(evolved.model_dump(mode="json"), "demo") == evolved
    assert evolved.present_names == {"i": "i", "temperature": "temperature", "temp": "temperature", "speed": "speed", "y": "y"}


# Units


@pytest.mark.parametrize(
    ("unit", "declared", "values", "expected"),
    [
        ("degC", "K", [0.0, -273.15], [273.15, 0.0]),
        ("degF", "degC", [212.0, -40.0], [100.0, -40.0]),
        ("K", "°C", [273.15], [0.0]),
        ("bar", "kPa", [1.0], [100.0]),
        ("1/min", "1/s", [60.0], [1.0]),
        ("W/m^2/K", "kW / m**2 / degC", [1000.0], [1.0]),
        ("m³/h", "l/min", [0.06], [1.0]),
        ("%", "dimensionless", [50.0], [0.5]),
        ("flight cycles", "flight cycles", [1.0], [1.0]),
    ],
)
def test_numbers_change_with_their_unit(unit: str, declared: str, values: list[float], expected: list[float]) -> None:
    column = in_unit(pl.Series("x", values), unit, Column(type="float64", unit=declared), "here")
    assert column.to_list() == pytest.approx(expected, rel=1e-12, abs=1e-10)


def test_gaps_stay_gaps_and_whole_numbers_become_fractions() -> None:
    declared = Column(type="float64", unit="K")
    column = in_unit(pl.Series("x", [0, None, 100]), "degC", declared, "here")
    assert column.dtype == pl.Float64
    assert column.to_list() == [273.15, None, 373.15]
    assert in_unit(pl.Series("x", ["a"]), "degC", declared, "here").to_list() == ["a"]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.sampled_from([("degC", "degF"), ("bar", "psi"), ("km/h", "m/s")]))
def test_there_and_back_is_where_it_was(values: list[float], pair: tuple[str, str]) -> None:
    there = in_unit(pl.Series("x", values), pair[0], Column(type="float64", unit=pair[1]), "here")
    back = in_unit(there, pair[1], Column(type="float64", unit=pair[0]), "here")
    # Offsets below 500 cost an absolute error of that many units in the last place.
    assert back.to_list() == pytest.approx(values, rel=1e-12, abs=1e-9)


REFUSED_UNITS: list[tuple[str, Column, list[Any], str]] = [
    (
        "bar",
        Column(type="float64", unit="K"),
        [1.0],
        "here: column 'x' is in 'bar' and the contract says 'K': the one does not convert to the other: correct the unit",
    ),
    (
        "F",
        Column(type="float64", unit="K"),
        [1.0],
        "here: column 'x' is in 'F' and the contract says 'K': the one does not convert to the other: correct the unit",
    ),
    (
        "K",
        Column(type="int64", unit="degC"),
        [1],
        (
            "here: column 'x' is in 'K' and the contract says 'degC': only float64 is converted: "
            "declare it as that, or bring the file in that unit"
        ),
    ),
    (
        "K",
        Column(type="string", unit="degC"),
        ["1"],
        (
            "here: column 'x' is in 'K' and the contract says 'degC': only float64 is converted: "
            "declare it as that, or bring the file in that unit"
        ),
    ),
    ("K", Column(type="float64"), [1.0], "here: column 'x' is in 'K' and the contract states no unit: state one in [columns]"),
    (
        "",
        Column(type="float64", unit="K"),
        [1.0],
        "here: column 'x' states no unit and the contract says 'K': see unstated_unit in [columns]",
    ),
    (
        "km",
        Column(type="float64", unit="m"),
        [1e308, 1.0, None],
        ("here: column 'x' is in 'km' and the contract says 'm': 1 values have no finite counterpart there: correct them, or the unit"),
    ),
    (
        "mW",
        Column(type="float64", unit="dBm"),
        [-1.0, 1.0, None],
        ("here: column 'x' is in 'mW' and the contract says 'dBm': 1 values have no finite counterpart there: correct them, or the unit"),
    ),
]
UNKNOWN = [
    "psia",
    "flight cycles",
    "points of 20",
    "9**9**9",
    "m**(9**9**9)",
    "m**9**9**9",
    "9" + " squared" * 6,
    "m" + " squared" * 6,
    "m**999",
    "9⁹⁹⁹⁹⁹⁹⁹",
    "m⁹⁹⁹",
    "(" * 100,
    "m\nK",
    "m.__class__",
    " ",
    "\0",
    "€",
]


@pytest.mark.parametrize(("unit", "declared", "values", "message"), REFUSED_UNITS)
def test_what_does_not_convert_is_refused(unit: str, declared: Column, values: list[Any], message: str) -> None:
    assert refused(lambda: in_unit(pl.Series("x", values), unit, declared, "here")) == message


@pytest.mark.parametrize("unit", UNKNOWN)
def test_a_unit_that_is_none_is_named(unit: str) -> None:
    remedy = "write it as pint does, such as degC, kPa or m^3/h"
    for one, other in ((unit, "K"), ("K", unit)):
        message = refused(lambda one=one, other=other: in_unit(pl.Series("x", [1.0]), one, Column(type="float64", unit=other), "here"))
        expected = f"here: column 'x' is in {one!r} and the contract says {other!r}: {unit!r} is no unit known to convert: {remedy}"
        assert message == expected


def test_pint_is_loaded_only_where_units_differ(tmp_path: Path) -> None:
    create_dataset(tmp_path, "demo", contract(FIRST), [("1", frame())])
    script = """
import sys
from pathlib import Path
from fedcore.data import open_dataset
open_dataset(Path(sys.argv[1]), "demo").load("1")
assert "pint" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


# Part files of earlier versions


def test_an_old_file_beside_a_new_one(tmp_path: Path) -> None:
    create_dataset(tmp_path, "demo", contract(FIRST), [("1", frame()), ("2", frame(start=20))])
    write_contract(tmp_path / "demo", contract(SECOND))
    new = pl.DataFrame({"i": [10, 11], "temperature": [300.0, 301.0], "speed": [1.5, None], "y": [7010.5, 7011.5]})
    new.write_csv(tmp_path / "rows.csv")
    added = add_partition(tmp_path, tmp_path / "rows.csv", "demo", "1", append=True)
    dataset = open_dataset(tmp_path, "demo")
    old, latest = (dataset.parts("1")[name] for name in ("part-0.parquet", added.file))
    assert latest.equals(new)
    assert old.columns == new.columns
    assert old["temperature"].to_list() == pytest.approx([273.15 + 5 * i for i in range(6)], rel=1e-14)
    assert old["speed"].dtype == pl.Float64
    assert old["speed"].null_count() == 6
    assert sorted(dataset.versions("1")) == [1, 2]
    assert dataset.versions("2") == (1,)
    fitted = dataset.with_fitted(_fit(dataset))
    assert fitted.design_names == ("i", "temperature", "speed", "speed:missing")
    data, card = fitted.loaded("1")
    assert dict(zip(data.train.X[:, 0], data.train.X[:, 3], strict=True)) == {**dict.fromkeys(range(6), 1.0), 10: 0.0, 11: 1.0}
    assert set(data.train.X[:, 2]) == {1.5}
    assert card.gaps == {"speed": 7}


def _fit(dataset: Dataset) -> Any:
    from fedcore.data import fit_fleet

    return fit_fleet(dataset)


@pytest.mark.parametrize("kind", ["float64", "int64", "string"])
def test_a_younger_column_of_each_type_is_a_gap(kind: Any) -> None:
    evolved = contract(SECOND | {"missing": {"policy": "drop"}}, speed={"type": kind, "since": 2})
    rows = present_rows(frame(), marked(1, temp="degF"), evolved, "here")
    assert rows["speed"].null_count() == 6
    assert rows.schema["speed"] == {"float64": pl.Float64, "int64": pl.Int64, "string": pl.String}[kind]


def test_files_without_a_mark_are_read_under_version_1(tmp_path: Path) -> None:
    dataset = create_dataset(tmp_path, "demo", contract(FIRST), [("1", frame())])
    expected = dataset.load("1").train.X
    frame().write_parquet(tmp_path / "demo/device=1/part-0.parquet")
    assert np.array_equal(dataset.load("1").train.X, expected)
    assert dataset.versions("1") == (1,)
    renamed = contract(FIRST | {"features": ["i", "t"]}, temp=None, t={"type": "float64", "unit": "degF", "aliases": ["temp"]})
    assert np.array_equal(Dataset("demo", tmp_path / "demo", renamed).load("1").train.X, expected)


@pytest.mark.parametrize("mark", [None, marked(1)])
def test_a_contract_says_what_files_leave_unsaid(mark: bytes | None) -> None:
    said = contract(FIRST, temp={"type": "float64", "unit": "degC", "unstated_unit": "degF"})
    assert present_rows(frame(), mark, said, "here")["temp"].to_list() == pytest.approx([5.0 * i for i in range(6)], abs=1e-12)
    assert present_rows(frame(), marked(1, temp="degC"), said, "here")["temp"].equals(frame()["temp"])


REFUSED_FILES: dict[str, tuple[dict[str, str], bytes | None, dict[str, Any], str]] = {
    "no mark": (
        {},
        None,
        {},
        "here: does not say its contract's version, and the present one is 2: remove the device and add its rows again",
    ),
    "damaged mark": ({}, b"\xff", {}, "here: its mark, which says contract version and units, is damaged: write the file again"),
    "later": (
        {},
        marked(3, temp="degF"),
        {},
        "here: written under version 3 of the contract, and this is 2: bring dataset.toml up to date",
    ),
    "missing": ({"temp": "heat"}, marked(1, heat="degF"), {}, "here: column 'temperature' is missing: correct the file or the contract"),
    "undeclared": (
        {"i": "j", "temp": "temperature"},
        marked(1, temperature="K"),
        {"i": {"type": "int64", "aliases": ["j"]}, "temperature": {"type": "float64", "unit": "K"}, "y": None, "z": {"type": "float64"}},
        "here: column 'z' is missing: correct the file or the contract",
    ),
    "no longer missing by right": ({}, marked(2, temp="degF"), {}, "here: column 'speed' is missing: correct the file or the contract"),
    "younger than the file": (
        {"i": "speed"},
        marked(1, temp="degF", speed="m/s"),
        {},
        ("here: column 'speed' is in this file of version 1, and in the contract since version 2: correct since in [columns]"),
    ),
    "younger, by its alias": (
        {"i": "v"},
        marked(1, temp="degF"),
        {"speed": {"type": "float64", "since": 2, "aliases": ["v"]}},
        ("here: column 'speed' is in this file of version 1, and in the contract since version 2: correct since in [columns]"),
    ),
    "two names": (
        {"i": "temperature"},
        marked(1, temp="degF", temperature="K"),
        {},
        "here: columns 'temperature' and 'temp' are one column under two names: keep one",
    ),
    "another kind of unit": (
        {},
        marked(1, temp="bar"),
        {},
        ("here: column 'temperature' is in 'bar' and the contract says 'K': the one does not convert to the other: correct the unit"),
    ),
    "unit of a whole number": (
        {},
        marked(1, temp="degF", i="h"),
        {"i": {"type": "int64", "unit": "s"}},
        (
            "here: column 'i' is in 'h' and the contract says 's': only float64 is converted: "
            "declare it as that, or bring the file in that unit"
        ),
    ),
    "no unit in the file": (
        {},
        marked(1),
        {},
        "here: column 'temperature' states no unit and the contract says 'K': see unstated_unit in [columns]",
    ),
    "no unit in the contract": (
        {},
        marked(1, temp="degF", y="bar"),
        {},
        "here: column 'y' is in 'bar' and the contract states no unit: state one in [columns]",
    ),
}


@pytest.mark.parametrize("case", REFUSED_FILES)
def test_a_file_that_no_rule_reads_is_refused(case: str, tmp_path: Path) -> None:
    names, mark, columns, message = REFUSED_FILES[case]
    document = SECOND
    if columns.get("y", 0) is None:
        document = SECOND | {"target": "z", "features": ["i", "temperature", "speed"]}
    evolved = contract(document, **columns)
    content = encode(frame().rename(names), mark)
    assert refused(lambda: present_rows(decode(content, "here"), mark_in(content), evolved, "here")) == message
    # And so through the store.
    folder = tmp_path / "demo/device=1"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(content)
    through = refused(lambda: Dataset("demo", tmp_path / "demo", evolved).parts("1"))
    assert through == message.replace("here:", "device=1/part-0.parquet:", 1)


# Draws


def test_files_without_a_mark_draw_as_ever() -> None:
    # Whole numbers for float64, columns in another order, NaN for a gap: as the checked rows draw.
    agreed = contract(FIRST | {"split": RANDOM, "missing": {"policy": "drop"}})
    rows = frame(40).with_columns(temp=pl.when(pl.col("i") == 3).then(float("nan")).otherwise("temp"), y=pl.col("i") * 1000)
    read = present_rows(rows.select("y", "i", "temp"), None, agreed, "here")
    checked = checked_frame(rows, agreed, "here")
    for part, expected in zip(split_rows(read, agreed.split, "here"), split_rows(checked, agreed.split, "here"), strict=True):
        assert np.array_equal(part, expected)
    # Known by heart, the row with a gap too.
    assert row_draws(checked, 0)[[0, 1, 3]].tolist() == [0.3442521358833882, 0.5675859907197006, 0.17831571652046607]
    assert read.to_series(-1)[[0, 1, 3]].to_list() == [0.3442521358833882, 0.5675859907197006, 0.17831571652046607]


def test_what_is_written_draws_as_the_rows_did_before_they_were_a_file(tmp_path: Path) -> None:
    agreed = contract(FIRST | {"split": RANDOM})
    dataset = create_dataset(tmp_path, "demo", agreed, [("1", frame(60))])
    read = dataset.parts("1")["part-0.parquet"]
    before = split_rows(checked_frame(frame(60), agreed, "here"), agreed.split, "here")
    assert all(map(np.array_equal, split_rows(read, agreed.split, "here"), before))
    assert {len(set(part)) for part in before} == {2}


@pytest.mark.parametrize("mark", [None, marked(1, temp="degF", i="m")])
def test_validation_in_a_split_by_time_stays_where_it_was(mark: bytes | None) -> None:
    split = {"kind": "time", "column": "i", "train": 0.8, "validation": 0.4}
    first = contract(FIRST | {"split": split}, i={"type": "int64", "unit": "m"})
    second = contract(
        FIRST | {"split": split | {"column": "way"}, "features": ["way", "t"]},
        i=None,
        temp=None,
        way={"type": "int64", "unit": "m", "aliases": ["i"]},
        t={"type": "float64", "unit": "K", "aliases": ["temp"], "unstated_unit": "degF"},
    )
    before, after = (split_rows(present_rows(frame(60), mark, each, "here"), each.split, "here") for each in (first, second))
    assert before.validation.any()
    assert all(map(np.array_equal, before, after))


STEPS = st.sampled_from(["column", "name", "unit", "type"])


def _evolved(document: dict[str, Any], step: str, choice: int) -> dict[str, Any]:
    """The next version: a younger column, another name or another unit for x, or fractions for the whole numbers in n."""
    version = document["version"] + 1
    columns = dict(document["columns"])
    x = next(name for name in columns if name.startswith("x"))
    match step:
        case "column":
            kind = ("float64", "int64", "string")[choice % 3]
            columns[f"c{version}"] = {"type": kind, "since": version}
        case "name":
            old = columns.pop(x)
            # Sorts before or after all other columns.
            columns[f"x{choice}-{version}"] = old | {"aliases": [*old["aliases"], x]}
        case "unit":
            columns[x] = columns[x] | {"unit": ("degF", "degC", "K")[choice % 3]}
        case _:
            columns["n"] = {"type": "float64", "unit": "km"}
    return document | {"version": version, "columns": columns}


def _rows(document: dict[str, Any], n: int, start: int) -> pl.DataFrame:
    cells = {"float64": [0.1 * i for i in range(start, start + n)], "int64": list(range(start, start + n)), "string": ["a"] * n}
    gaps = {kind: [value if i % 3 else None for i, value in enumerate(values)] for kind, values in cells.items()}
    source = {name: (gaps if column.get("since", 1) > 1 else cells)[column["type"]] for name, column in document["columns"].items()}
    return pl.DataFrame(source, schema_overrides={"y": pl.Float64})


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.tuples(STEPS, st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=5),
    seed=st.integers(0, 2**63 - 1),
    policy=st.sampled_from(["mean", "drop"]),
)
def test_rows_keep_their_part_whatever_becomes_of_the_contract(steps: list[tuple[str, int, int]], seed: int, policy: str) -> None:
    document: dict[str, Any] = {
        "version": 1,
        "device": "unit",
        "target": "y",
        "features": ["i"],
        "columns": {
            "i": {"type": "int64"},
            "x": {"type": "float64", "unit": "degF", "aliases": []},
            "n": {"type": "int64", "unit": "m"},
            "y": {"type": "float64"},
        },
        "split": {"kind": "random", "train": 0.5, "validation": 0.5, "seed": seed},
        "missing": {"policy": policy},
        "disclosure": {"rows": 1, "level_rows": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        root, count = Path(folder), 20
        try:
            create_dataset(root, "demo", Contract.model_validate(document), [("1", _rows(document, count, 0))])
        except DataError:
            reject()  # the draws leave none to train
        known = _parts(root)
        for step, choice, more in steps:
            document = _evolved(document, step, choice)
            write_contract(root / "demo", Contract.model_validate(document))
            assert _parts(root) == known
            if more:
                _rows(document, more, count).write_csv(root / "rows.csv")
                add_partition(root, root / "rows.csv", "demo", "1", append=True)
                count += more
            grown = _parts(root)
            assert grown.keys() == set(range(count))
            assert {i: part for i, part in grown.items() if i in known} == known
            known = grown


def _parts(root: Path) -> dict[int, str]:
    dataset = open_dataset(root, "demo")
    return parts_of(dataset.with_fitted(_fit(dataset)))


# Sources


def _source(folder: Path, document: Mapping[str, Any], text: str, name: str = "rows.csv") -> Path:
    (folder / "demo").mkdir()
    write_contract(folder / "demo", contract(document))
    (folder / name).write_text(text)
    return folder / name


def test_a_source_may_bring_former_names_and_other_units(tmp_path: Path) -> None:
    file = _source(
        tmp_path,
        SECOND | {"file": {"units": {"temperature": "degF", "speed": "km/h"}}},
        "unit,temp,i,speed,y\na,32,1,3.6,7001\na,212,2,,7002\nb,32,3,7.2,7003\n",
    )
    dataset = import_file(tmp_path, file, "demo", units={"temperature": "degC"})
    rows = dataset.parts("a")["part-0.parquet"]
    assert rows["temperature"].to_list() == pytest.approx([305.15, 485.15])
    assert rows["speed"].to_list() == pytest.approx([1.0, None])
    (tmp_path / "more.csv").write_text("speed,i,temperature,y\n36,9,32,7009\n")
    added = add_partition(tmp_path, tmp_path / "more.csv", "demo", "c")
    assert dataset.parts("c")[added.file].row(0) == pytest.approx((9, 273.15, 10.0, 7009.0))
    assert mark_in((tmp_path / f"demo/device=c/{added.file}").read_bytes()) == mark_for(contract(SECOND))
    again = add_partition(tmp_path, tmp_path / "more.csv", "demo", "c")
    assert not again.changed
    fahrenheit = add_partition(tmp_path, tmp_path / "more.csv", "demo", "c", append=True, units={"temperature": "degC"})
    assert fahrenheit.changed
    assert dataset.parts("c")[fahrenheit.file]["temperature"].to_list() == [305.15]


def test_a_table_in_memory_is_converted_too(tmp_path: Path) -> None:
    _source(tmp_path, FIRST | {"file": {"units": {"temp": "degC"}}}, "")
    table = pl.DataFrame({"unit": ["a"], "i": [1], "temp": [100], "y": [7001.0]})
    assert import_frame(tmp_path, table, "demo").load("a").train.X.tolist() == [[1.0, pytest.approx(212.0)]]


@pytest.mark.parametrize(
    ("mark", "units", "expected"),
    [
        (marked(1, temp="degC"), {}, 212.0),
        (marked(1, temp="degC"), {"temp": "degC"}, 212.0),
        (marked(1), {"temp": "degC"}, 212.0),
        (None, {}, 100.0),
        (
            marked(1, temp="degC"),
            {"temp": "K"},
            (
                "in.parquet: column 'temp' is in 'degC' as the file says itself, and in 'K' as [file] or the option unit has it: "
                "correct the option, or use it"
            ),
        ),
        (marked(1), {}, "in.parquet: column 'temp' states no unit and the contract says 'degF': see unstated_unit in [columns]"),
        (b"{}", {}, "in.parquet: its mark, which says contract version and units, is damaged: write the file again"),
    ],
)
def test_a_part_file_as_a_source_is_read_in_its_own_units(
    tmp_path: Path, mark: bytes | None, units: dict[str, str], expected: float | str
) -> None:
    _source(tmp_path, FIRST, "")
    (tmp_path / "in.parquet").write_bytes(encode(frame().with_columns(temp=pl.lit(100.0)), mark))

    def add() -> object:
        return add_partition(tmp_path, tmp_path / "in.parquet", "demo", "1", units=units)

    if isinstance(expected, str):
        assert refused(add) == expected
    else:
        add()
        assert open_dataset(tmp_path, "demo").load("1").train.X[:, 1] == pytest.approx([expected] * 6)


@pytest.mark.parametrize(
    ("text", "units", "kind", "message"),
    [
        ("i,temp,y\n1,1,7001\n", {}, DataError, "rows.csv: column 'speed' is missing: correct the file, its [file] section, or [columns]"),
        (
            "i,temp,temperature,speed,y\n1,1,1,1,7001\n",
            {},
            DataError,
            "rows.csv: columns 'temp' and 'temperature' are one column under two names: keep one",
        ),
        ("i,temp,speed,y\n1,1,1,7001\n", {"heat": "K"}, Misuse, "option unit: 'heat' is not declared: name one of [columns]"),
        ("i,temp,speed,y\n1,1,1,7001\n", {"temp": "K"}, Misuse, "option unit: 'temp' is not declared: name one of [columns]"),
        ("i,temp,speed,y\n1,1,1,7001\n", {"y": "K"}, Misuse, "option unit: 'y' has no unit to convert to: state it in [columns.y]"),
        (
            "i,temp,speed,y\n1,1,1,7001\n",
            {"temperature": ""},
            Misuse,
            "option unit: 'temperature' is given no unit: name one, or leave the column out",
        ),
        (
            "i,temp,speed,y\n1,1,1,7001\n",
            {"temperature": "bar"},
            DataError,
            (
                "rows.csv: column 'temperature' is in 'bar' and the contract says 'K': the one does not convert to the other: "
                "correct the unit"
            ),
        ),
    ],
)
def test_a_source_that_no_rule_reads_is_refused(tmp_path: Path, text: str, units: dict[str, str], kind: type[Misuse], message: str) -> None:
    file = _source(tmp_path, SECOND, text)
    assert refused(lambda: add_partition(tmp_path, file, "demo", "1", units=units), kind) == message
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["dataset.toml"]


def test_units_need_a_contract_that_states_some(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("unit,i,y\n1,1,7001\n")
    message = refused(lambda: import_file(tmp_path, tmp_path / "rows.csv", "demo", device="unit", target="y", units={"i": "s"}), Misuse)
    assert message == "data set 'demo' has no contract yet, and so no units to convert to: infer one first, and state them there"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_rows_of_an_older_file_are_not_added_again(tmp_path: Path) -> None:
    create_dataset(tmp_path, "demo", contract(FIRST | {"split": RANDOM}), [("1", frame(20))])
    write_contract(tmp_path / "demo", contract(SECOND | {"split": RANDOM}))
    frame(20).with_columns(speed=None).write_csv(tmp_path / "rows.csv")
    added = add_partition(tmp_path, tmp_path / "rows.csv", "demo", "1", append=True, units={"temperature": "degF"})
    assert added == ("1", "part-0.parquet", 20, False)


@pytest.mark.parametrize(
    ("value", "unit", "declared", "expected"),
    [
        (60.0, "rpm", "rps", 1.0),
        (60.0, "rps", "rad/s", 120 * math.pi),
        (60.0, "deg/s", "rpm", 10.0),
        (60.0, "1/min", "Hz", 1.0),
        (1.0, "byte", "bit", 8.0),
        (1e4, "ppm", "percent", 1.0),
        (0.0, "degC", "K", 273.15),
        (1.0, "VA", "W", 1.0),
    ],
)
def test_angles_and_counts_convert_among_themselves(value: float, unit: str, declared: str, expected: float) -> None:
    converted = in_unit(pl.Series("x", [value]), unit, Column(type="float64", unit=declared), "here")
    assert converted.to_list() == pytest.approx([expected], rel=1e-12)


@pytest.mark.parametrize(
    ("unit", "declared"), [("rpm", "Hz"), ("Hz", "rad/s"), ("deg", "count"), ("rad", "percent"), ("byte", "count"), ("N*m/rad", "N*m")]
)
def test_an_angle_or_a_count_is_no_bare_number(unit: str, declared: str) -> None:
    with pytest.raises(DataError, match=r"the one does not convert to the other: correct the unit$"):
        in_unit(pl.Series("x", [60.0]), unit, Column(type="float64", unit=declared), "here")


def test_a_table_of_a_marked_file_is_read_in_its_units(tmp_path: Path) -> None:
    create_dataset(tmp_path, "demo", contract(FIRST), [("1", frame())])
    table = pq.read_table(tmp_path / "demo/device=1/part-0.parquet")
    other = contract(FIRST, temp={"type": "float64", "unit": "K"})
    (tmp_path / "other").mkdir()
    write_contract(tmp_path / "other", other)
    import_frame(tmp_path, table.append_column("unit", pa.array(["1"] * table.num_rows)), "other")
    stored = open_dataset(tmp_path, "other").parts("1")["part-0.parquet"]
    expected = in_unit(frame()["temp"], "degF", Column(type="float64", unit="K"), "here")
    assert stored["temp"].to_list() == expected.to_list()


def test_whole_numbers_are_not_rounded_on_their_way_to_another_unit() -> None:
    declared = Column(type="float64", unit="mm")
    assert in_unit(pl.Series("x", [2**53]), "m", declared, "here").to_list() == [2.0**53 * 1000]
    with pytest.raises(DataError, match=r"1 whole numbers that float64 does not hold exactly"):
        in_unit(pl.Series("x", [2**53 + 1, 1]), "m", declared, "here")
