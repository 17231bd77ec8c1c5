from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data import (
    Contract,
    fit_preprocessing,
    import_file,
    import_frame,
    infer_contract,
    open_dataset,
    parquet,
    places,
    read_contract,
    write_contract,
)
from fedcore.errors import DataError, Misuse

HEADER = ["pump", "hour", "speed", "flow"]
LINES = [["001", "1", "10.5", "7000.5"], ["1", "2", "11.5", "7001.5"], ["001", "3", "12.5", "7002.5"], ["b", "4", "13", "7003"]]


def write(folder: Path, content: str | bytes, name: str = "pumps.csv") -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def text(separator: str, lines: list[list[str]], end: str = "\n") -> str:
    return end.join(separator.join(line) for line in lines) + end


def pumps_contract(**changes: Any) -> Contract:
    kinds = {"hour": "int64", "speed": "float64", "flow": "float64"}
    fields = {"device": "pump", "target": "flow", "features": ["hour", "speed"], "columns": {k: {"type": v} for k, v in kinds.items()}}
    return Contract.model_validate(fields | changes)


def checked_message(error: BaseException) -> str:
    message = str(error)
    assert len(message.splitlines()) == 1
    assert "700" not in message
    assert "secret" not in message
    assert error.__context__ is None
    return message


@pytest.mark.parametrize(
    ("separator", "name", "content"),
    [
        (",", "pumps.csv", text(",", [HEADER, *LINES])),
        (";", "pumps.csv", text(";", [HEADER, *LINES], end="\r\n")),
        ("\t", "pumps.txt", text("\t", [HEADER, *LINES])),
        ("whitespace", "pumps.TXT", text("   ", [HEADER, *LINES], end="  \r\n")),
        (",", "pumps.csv", "\ufeff\n" + text(",", [HEADER, *LINES])),
        (",", "pumps.csv", "\n" + text(",", [HEADER, *LINES], end="\n\n")),
        (",", "pumps.csv", text(",", [HEADER, *LINES]).replace("pump", '"pump"').replace("11.5", '" 11.5"')),
    ],
    ids=["comma", "semicolon", "tab", "whitespace", "byte order mark", "blank lines", "quotes"],
)
def test_a_first_import_finds_separator_types_and_devices(tmp_path: Path, separator: str, name: str, content: str) -> None:
    dataset = import_file(tmp_path / "sets", write(tmp_path, content, name), "pumps", device="pump", target="flow")
    assert dataset == open_dataset(tmp_path / "sets", "pumps")
    expected = pumps_contract(description=f"Imported from {name}", file={"separator": separator})
    assert read_contract(tmp_path / "sets/pumps") == expected
    assert dataset.device_ids == ("001", "1", "b")
    assert dataset.load("001").train.X.tolist() == [[1, 10.5], [3, 12.5]]
    assert dataset.load("001").train.y.tolist() == [7000.5, 7002.5]
    assert dataset.load("1").train.X.tolist() == [[2, 11.5]]


FLOAT = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["1", "01", "x"]), FLOAT, FLOAT), min_size=1, max_size=12),
    st.sampled_from([",", ";", "\t", " "]),
)
def test_numbers_come_back_to_the_bit(rows: list[tuple[str, float, float]], separator: str) -> None:
    lines = [["id", "x", "y"], *([device, repr(x), repr(y)] for device, x, y in rows)]
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder), text(separator, lines))
        dataset = import_file(Path(folder), file, "demo", device="id", target="y")
        assert dataset.device_ids == tuple(sorted({device for device, _, _ in rows}))
        for device in dataset.device_ids:
            train = dataset.load(device).train
            assert train.X[:, 0].tolist() == [x for d, x, _ in rows if d == device]
            assert train.y.tolist() == [y for d, _, y in rows if d == device]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pl.Series([1, 10, 10], dtype=pl.UInt8), ("1", "10")),
        (pl.Series([-1, 2, 2], dtype=pl.Int64), ("-1", "2")),
        (pl.Series(["001", "1", "1"]), ("001", "1")),
    ],
)
def test_parquet_ids_are_their_text(tmp_path: Path, ids: pl.Series, expected: tuple[str, ...]) -> None:
    frame = pl.DataFrame({"id": ids, "x": pl.Series([1, 2, 3], dtype=pl.Int16), "y": pl.Series([0.5, 1.5, 2.5], dtype=pl.Float32)})
    frame.write_parquet(tmp_path / "demo.parquet")
    dataset = import_file(tmp_path, tmp_path / "demo.parquet", "demo", device="id", target="y")
    assert dataset.device_ids == expected
    assert {name: column.type for name, column in dataset.contract.columns.items()} == {"x": "int64", "y": "float64"}
    assert [dataset.load(device).train.y.tolist() for device in expected] == [[0.5], [1.5, 2.5]]


def test_text_is_a_category_where_the_inferred_contract_is_edited_to_say_so(tmp_path: Path) -> None:
    lines = [[*line, drug] for line, drug in zip([HEADER, *LINES], ["drug", "p", "q", "q", "p"], strict=True)]
    source = write(tmp_path, text(",", lines))
    contract = infer_contract(tmp_path / "sets", source, "pumps", device="pump", target="flow")
    assert contract.features == ("hour", "speed")
    write_contract(tmp_path / "sets/pumps", contract.model_copy(update={"features": ("hour", "speed", "drug")}))
    dataset = import_file(tmp_path / "sets", source, "pumps")
    assert dataset.contract.categorical == ("drug",)
    fitted = fit_preprocessing(dataset.contract, [dataset.summary(device, gated=False) for device in dataset.device_ids])
    assert dataset.with_fitted(fitted).load("001").train.X.tolist() == [[1, 10.5, 0], [3, 12.5, 1]]


def test_a_contract_says_how_to_read(tmp_path: Path) -> None:
    (tmp_path / "pumps").mkdir()
    contract = pumps_contract(file={"separator": "|", "header": HEADER}, intercept=True)
    write_contract(tmp_path / "pumps", contract)
    dataset = import_file(tmp_path, write(tmp_path, text("|", LINES)), "pumps")
    assert dataset.contract == contract
    assert dataset.load("001").train.X.tolist() == [[1, 1, 10.5], [1, 3, 12.5]]


def test_string_columns_are_kept_as_written_where_a_contract_declares_them(tmp_path: Path) -> None:
    (tmp_path / "pumps").mkdir()
    columns = {"hour": {"type": "int64"}, "speed": {"type": "string"}, "flow": {"type": "float64"}}
    split = {"kind": "column", "column": "speed"}
    write_contract(tmp_path / "pumps", pumps_contract(columns=columns, features=["hour"], split=split))
    lines = [[line[0], line[1], part, line[3]] for line, part in zip(LINES, ["train", "train", "test", "train"], strict=True)]
    dataset = import_file(tmp_path, write(tmp_path, text(",", [HEADER, *lines])), "pumps")
    assert [part.n for part in dataset.load("001")] == [1, 0, 1]


@pytest.mark.parametrize("option", [{"device": "hour"}, {"target": "speed"}])
def test_options_that_contradict_the_contract_are_refused(tmp_path: Path, option: dict[str, str]) -> None:
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract())
    name = next(iter(option))
    with pytest.raises(Misuse, match=rf"^data set 'pumps' has a contract with {name} '.*': leave {name} out"):
        import_file(tmp_path, write(tmp_path, text(",", [HEADER, *LINES])), "pumps", **option)


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "missing column": (text(",", [line[:3] for line in [HEADER, *LINES]]), "column 'flow' is missing"),
    "missing device": (text(",", [line[1:] for line in [HEADER, *LINES]]), "column 'pump' is missing"),
    "extra column": (text(",", [[*line, "c"] for line in [HEADER, *LINES]]), "column 'c' is not in the contract"),
    "no header": (text(",", LINES), "4 columns ('pump', 'hour', 'speed', 'flow') are missing"),
    "double name": (
        text(",", [[*HEADER, "flow"], *([*line, "1"] for line in LINES)]),
        "the first line has to name the 5 columns, each once",
    ),
    "empty name": (text(",", [[*HEADER, ""], *([*line, "1"] for line in LINES)]), "the first line has to name the 5 columns, each once"),
    "long line": (text(",", [HEADER, *LINES, [*LINES[0], "secret"]]), "no table: it is empty, a line has more fields"),
    "short line": (text(",", [HEADER, *LINES, ["001", "5"]]), "device=001: column 'speed' has 1 null or non-finite values"),
    "open quote": (text(",", [HEADER, *LINES, ["001", '"secret', "1", "7000"]]), "no table: it is empty"),
    "empty": ("", "no table: it is empty"),
    "blank": (" \n\n", "no table: it is empty"),
    "header only": (text(",", [HEADER]), "no rows"),
    "no text": (b"\xff\xfe\x00", "not UTF-8 text from byte 0 on"),
    "word": (text(",", [HEADER, *LINES, ["b", "5", "secret", "1"]]), "column 'speed' has 1 values that are not float64"),
    "fraction": (text(",", [HEADER, *LINES, ["b", "5.5", "1", "1"]]), "column 'hour' has 1 values that are not int64"),
    "too large": (text(",", [HEADER, *LINES, ["b", "9" * 20, "1", "1"]]), "column 'hour' has 1 values that are not int64"),
    "empty cell": (text(",", [HEADER, *LINES, ["b", "5", "", "1"]]), "device=b: column 'speed' has 1 null or non-finite values"),
    "not finite": (text(",", [HEADER, *LINES, ["b", "5", "inf", "nan"]]), "device=b: column 'speed' has 1 null or non-finite values"),
    "no id": (text(",", [HEADER, *LINES, ["", "5", "1", "1"]]), "device column 'pump' has 1 empty values"),
    "unsafe id": (
        text(",", [HEADER, *LINES, ["a/b", "5", "1", "1"]]),
        "device column 'pump' has no device's id in 1 of the rows, the first holds",
    ),
    "ids by case": (text(",", [HEADER, *LINES, ["B", "5", "1", "1"]]), "device ids 'B' and 'b' are the same, at most up to case"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_that_breaks_its_contract_is_refused_and_nothing_written(tmp_path: Path, case: str) -> None:
    content, message = REFUSED[case]
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract())
    file = write(tmp_path, content)
    with pytest.raises(DataError) as caught:
        import_file(tmp_path, file, "pumps")
    assert checked_message(caught.value).startswith(f"pumps.csv: {message}")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dataset.toml", "pumps", "pumps.csv"]


def test_a_header_list_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract(file={"header": HEADER}))
    with pytest.raises(DataError, match=r"^pumps.csv: expected 4 columns as \[file\] header says, got 3: correct"):
        import_file(tmp_path, write(tmp_path, text(",", [line[:3] for line in LINES])), "pumps")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "data set 'pumps' has no contract yet: name the device column and the target (--device, --target)"),
        ({"device": "pump"}, "data set 'pumps' has no contract yet: name the device column and the target (--device, --target)"),
        ({"device": "unit", "target": "flow"}, "pumps.csv: device 'unit' is not among its 4 columns: check"),
        ({"device": "pump", "target": "head"}, "pumps.csv: target 'head' is not among its 4 columns: check"),
        ({"device": "pump", "target": "pump"}, "pumps/dataset.toml: targets: 'pump' is not declared"),
        ({"device": "hour", "target": "pump"}, "pumps.csv: target 'pump' has cells that are no numbers"),
    ],
)
def test_a_first_import_needs_a_device_a_target_and_numbers(tmp_path: Path, options: dict[str, str], message: str) -> None:
    file = write(tmp_path, text(",", [HEADER, *LINES]))
    with pytest.raises(Misuse) as caught:
        import_file(tmp_path / "sets", file, "pumps", **options)
    assert checked_message(caught.value).startswith(message)
    assert not (tmp_path / "sets").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pumps.xlsx", b"", "pumps.xlsx: expected a .csv, .txt or .parquet file"),
        ("pumps.parquet", b"pump,hour\n", r"pumps.parquet: not a readable parquet file \(10 bytes"),
        ("pumps.csv", None, "pumps.csv: cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Misuse, match=rf"^{message}") as caught:
        import_file(tmp_path, file, "pumps", device="pump", target="flow")
    checked_message(caught.value)


def test_parquet_columns_keep_their_kind(tmp_path: Path) -> None:
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract())
    frame = pl.DataFrame({"pump": ["a"], "hour": [1.0], "speed": [1.0], "flow": [7000.5]})
    frame.write_parquet(tmp_path / "pumps.parquet")
    with pytest.raises(DataError, match=r"^pumps.parquet: device=a: column 'hour' is float64: the contract says int64: convert the column"):
        import_file(tmp_path, tmp_path / "pumps.parquet", "pumps")
    frame.with_columns(pump=1.5, hour=1).write_parquet(tmp_path / "pumps.parquet")
    with pytest.raises(DataError, match=r"^pumps.parquet: device column 'pump' is neither text nor whole numbers"):
        import_file(tmp_path, tmp_path / "pumps.parquet", "pumps")


def test_a_folder_holds_one_file_a_device(tmp_path: Path) -> None:
    folder = tmp_path / "readings"
    folder.mkdir()
    write(folder, "hour,speed,flow\n1,10.5,7000.5\n3,12.5,7002.5\n", "001.csv")
    write(folder, "flow,hour,speed\n7001.5,2,11.5\n", "1.txt")
    pl.DataFrame({"pump": ["b"], "hour": [4], "speed": [13.0], "flow": [7003.0]}).write_parquet(folder / "b.parquet")
    write(folder, "secret", ".hidden")
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract())
    dataset = import_file(tmp_path, folder, "pumps")
    assert dataset.device_ids == ("001", "1", "b")
    assert [dataset.load(device).train.X.tolist() for device in dataset.device_ids] == [[[1, 10.5], [3, 12.5]], [[2, 11.5]], [[4, 13]]]


def test_a_folder_of_files_without_header_or_device(tmp_path: Path) -> None:
    folder = tmp_path / "readings"
    folder.mkdir()
    write(folder, "1|10.5|7000.5\n", "a.csv")
    write(folder, "2|b|11.5|7001.5\n", "b.csv")
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract(file={"separator": "|", "header": ["hour", "pump", "speed", "flow"]}))
    dataset = import_file(tmp_path, folder, "pumps")
    assert [dataset.load(device).train.X.tolist() for device in ("a", "b")] == [[[1, 10.5]], [[2, 11.5]]]


def test_decimal_commas_are_read_where_the_contract_says_so(tmp_path: Path) -> None:
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract(file={"separator": ";", "decimal": ","}))
    dataset = import_file(tmp_path, write(tmp_path, "pump;hour;speed;flow\na;1;10,5;-7,0005e3\na;2; 11 ;,5\n"), "pumps")
    assert dataset.load("a").train.X.tolist() == [[1, 10.5], [2, 11]]
    assert dataset.load("a").train.y.tolist() == [-7000.5, 0.5]


@pytest.mark.parametrize(("decimal", "cell"), [(",", "7000.5"), (",", "7.000,5"), (",", "7,000,5"), (".", "7000,5"), (".", "7.000,5")])
def test_the_other_decimal_mark_is_never_guessed(tmp_path: Path, decimal: str, cell: str) -> None:
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract(file={"separator": ";", "decimal": decimal}))
    with pytest.raises(DataError) as caught:
        import_file(tmp_path, write(tmp_path, f"pump;hour;speed;flow\na;1;1;1\na;1;{cell};1\n"), "pumps")
    remedy = "correct them or its type" if decimal == "," else "state [file] decimal, or correct them"
    expected = f"pumps.csv: column 'speed' has 1 values that are not float64, the first of device a: {remedy}"
    assert checked_message(caught.value) == expected


FRAME = pl.DataFrame({"pump": ["001", "1", "001"], "hour": [1, 2, 3], "speed": [10.5, 11.5, 12.5], "flow": [7000.5, 7001.5, 7002.5]})


@pytest.mark.parametrize(
    "kind",
    [lambda frame: frame, lambda frame: frame.to_arrow(), lambda frame: frame.to_arrow().to_reader()],
    ids=["polars", "arrow", "stream"],
)
def test_frames_of_other_libraries_are_imported(tmp_path: Path, kind: Callable[[pl.DataFrame], object]) -> None:
    dataset = import_frame(tmp_path, kind(FRAME), "pumps", device="pump", target="flow")
    assert dataset.contract == pumps_contract(description="Imported from data frame")
    assert dataset.device_ids == ("001", "1")
    assert dataset.load("001").train.X.tolist() == [[1, 10.5], [3, 12.5]]


def test_a_frame_keeps_the_contract_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "pumps").mkdir()
    write_contract(tmp_path / "pumps", pumps_contract(intercept=True))
    assert import_frame(tmp_path, FRAME, "pumps").design_names == ("intercept", "hour", "speed")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.with_columns(hour=pl.lit(True)), "data frame: column 'hour' is bool: expected float64, int64 or string: convert"),
        (
            FRAME.with_columns(hour=pl.lit("secret")),
            "data frame: column 'hour' is not numeric: write the contract first (fedlin data infer",
        ),
        (FRAME.with_columns(speed=pl.lit(float("nan"))), "data frame: device=001: column 'speed' has 2 null or non-finite values"),
        (FRAME.clear(), "data frame: no device: expected at least one device with rows"),
        ([[7000]], "data frame: expected an Arrow table or a Polars data frame, got list: convert it first"),
    ],
    ids=["boolean", "text", "nan", "no rows", "list"],
)
def test_a_frame_that_breaks_its_contract_is_refused(tmp_path: Path, frame: object, message: str) -> None:
    with pytest.raises(Misuse) as caught:
        import_frame(tmp_path / "sets", frame, "pumps", device="pump", target="flow")
    assert checked_message(caught.value).startswith(message)
    assert not list((tmp_path / "sets").glob("*"))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 7))
def test_a_file_may_be_read_in_any_pieces(size: int, devices: int) -> None:
    lines = [[f"d{i % devices}", str(i), f"{i}.5", f"{7000 + i}"] for i in range(20)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "_BLOCK", size)
        patch.setattr(parquet, "_CELLS", size)
        file = write(Path(folder), text(",", [HEADER, *lines]))
        pl.read_csv(file).write_parquet(Path(folder) / "pumps.parquet")
        for number, source in enumerate((file, Path(folder) / "pumps.parquet")):
            dataset = import_file(Path(folder) / str(number), source, "pumps", device="pump", target="flow")
            for k in range(devices):
                assert dataset.load(f"d{k}").train.X.tolist() == [[i, i + 0.5] for i in range(20) if i % devices == k]
