from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fedcore.data import Dataset, add_partition, create_dataset, import_file, load_fleet, open_dataset, remove_device, write_contract
from fedcore.errors import DataError, Misuse


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every path below the folder, with the content of files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def write_csv(file: Path, frame: pl.DataFrame) -> Path:
    frame.write_csv(file)
    return file


@pytest.fixture
def source(demo: Any, tmp_path: Path) -> Path:
    """Six rows that no device of the demo data set has."""
    return write_csv(tmp_path / "rows.csv", demo.frame(start=100))


def test_a_device_is_added(make: Callable[..., Dataset], demo: Any, source: Path, tmp_path: Path) -> None:
    make()
    added = add_partition(tmp_path, source, "demo", "4")
    assert (added.device, added.rows, added.changed) == ("4", 6, True)
    dataset = open_dataset(tmp_path, "demo")
    assert dataset.device_ids == ("1", "2", "3", "4")
    assert dataset.parts("4")[added.file].equals(demo.frame(start=100))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "rows.csv"]


def test_rows_are_appended_in_a_file_of_their_own(make: Callable[..., Dataset], demo: Any, source: Path, tmp_path: Path) -> None:
    dataset = make()
    before = snapshot(tmp_path / "demo")
    added = add_partition(tmp_path, source, "demo", "2", append=True)
    after = snapshot(tmp_path / "demo")
    assert after.keys() - before.keys() == {f"device=2/{added.file}"}
    assert {name: after[name] for name in before} == before
    assert dataset.load("2").train.n == 12
    assert dataset.parts("2")[added.file].equals(demo.frame(start=100))


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("name", ["rows.csv", "others.csv", "rows.parquet"])
def test_the_same_rows_twice_change_nothing(
    make: Callable[..., Dataset], demo: Any, source: Path, tmp_path: Path, append: bool, name: str
) -> None:
    make()
    add_partition(tmp_path, source, "demo", "2" if append else "4", append=append)
    if name.endswith("csv"):
        write_csv(tmp_path / name, demo.frame(start=100).select("note", "y", "b", "a"))
    else:
        demo.frame(start=100).write_parquet(tmp_path / name)
    before = snapshot(tmp_path)
    added = add_partition(tmp_path, tmp_path / name, "demo", "2" if append else "4", append=append)
    assert not added.changed
    assert snapshot(tmp_path) == before


def test_what_was_imported_is_not_added_again(make: Callable[..., Dataset], demo: Any, tmp_path: Path) -> None:
    make()
    file = write_csv(tmp_path / "rows.csv", demo.frame(start=20))
    before = snapshot(tmp_path)
    assert add_partition(tmp_path, file, "demo", "2", append=True) == ("2", "part-0.parquet", 6, False)
    assert snapshot(tmp_path) == before


def test_a_contract_alone_takes_its_first_device(demo: Any, source: Path, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    write_contract(tmp_path / "demo", demo.contract())
    add_partition(tmp_path, source, "demo", "001")
    assert open_dataset(tmp_path, "demo").device_ids == ("001",)


@pytest.mark.parametrize("ids", [["4"] * 6, None])
def test_the_device_column_may_be_left_out(make: Callable[..., Dataset], demo: Any, tmp_path: Path, ids: list[str] | None) -> None:
    make(file={"separator": ";", "header": ["a", "unit", "b", "y", "note"]})
    frame = demo.frame(start=100)
    frame = frame.insert_column(1, pl.Series("unit", ids)) if ids else frame
    frame.write_csv(tmp_path / "rows.csv", separator=";", include_header=False)
    added = add_partition(tmp_path, tmp_path / "rows.csv", "demo", "4")
    assert open_dataset(tmp_path, "demo").parts("4")[added.file].equals(demo.frame(start=100))


def test_rows_of_another_device_are_refused(make: Callable[..., Dataset], demo: Any, tmp_path: Path) -> None:
    make()
    file = write_csv(tmp_path / "rows.csv", demo.frame().with_columns(unit=pl.Series(["4", "4", "7000", "4", "04", "4"])))
    with pytest.raises(DataError) as caught:
        add_partition(tmp_path, file, "demo", "4")
    assert str(caught.value) == "rows.csv: device column 'unit' names other devices than '4' in 2 rows: split the file"


def test_rows_are_held_against_those_that_are_there(make: Callable[..., Dataset], demo: Any, tmp_path: Path) -> None:
    make(scaling={"target": "train"})
    one = write_csv(tmp_path / "one.csv", demo.frame(n=1))
    with pytest.raises(DataError, match=r"^one.csv: device=4: column 'y' is constant over the 1 rows"):
        add_partition(tmp_path, one, "demo", "4")
    assert add_partition(tmp_path, one, "demo", "3", append=True).changed


def test_a_fleet_that_agrees_on_its_columns_takes_devices_too(
    make: Callable[..., Dataset], demo: Any, source: Path, tmp_path: Path
) -> None:
    make(features=["a", "b", "note"], scaling={"features": "global"}, split={"kind": "time", "column": "a", "train": 0.5})
    add_partition(tmp_path, source, "demo", "4")
    add_partition(tmp_path, source, "demo", "2", append=True)
    assert {device: data.train.n for device, data in load_fleet(open_dataset(tmp_path, "demo")).items()} == {"1": 3, "2": 6, "3": 3, "4": 3}
    demo.frame(n=4).with_columns(b=1e308).write_csv(tmp_path / "large.csv")
    with pytest.raises(DataError, match=r"^large.csv: device=5: the mean or variance of column 'b' overflows"):
        add_partition(tmp_path, tmp_path / "large.csv", "demo", "5")


def test_a_full_disk_leaves_what_was_there(
    make: Callable[..., Dataset], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    before = snapshot(tmp_path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for device, append in (("4", False), ("2", True)):
        with pytest.raises(Misuse, match=r"^cannot write data set 'demo': No space left on device: choose") as caught:
            add_partition(tmp_path, source, "demo", device, append=append)
        assert caught.value.__context__ is None
    assert snapshot(tmp_path) == before


def test_a_device_is_removed_with_its_state(make: Callable[..., Dataset], tmp_path: Path) -> None:
    make()
    (tmp_path / "demo/device=2/.fedlin").mkdir()
    (tmp_path / "demo/device=2/.fedlin/run.state").write_bytes(b"state")
    (tmp_path / "demo/device=3/part-0.parquet").write_bytes(b"damaged")
    for device in ("2", "3"):
        remove_device(tmp_path, "demo", device)
    assert sorted(snapshot(tmp_path)) == ["demo", "demo/dataset.toml", "demo/device=1", "demo/device=1/part-0.parquet"]


def test_removing_a_link_leaves_what_it_points_to(make: Callable[..., Dataset], tmp_path: Path) -> None:
    make()
    (tmp_path / "demo/device=4").symlink_to("device=2")
    remove_device(tmp_path, "demo", "4")
    assert open_dataset(tmp_path, "demo").load("2").train.n == 6


# Properties

TEXT = st.text(alphabet="ab é\",;.'\n\t", max_size=6)
WHOLE = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(st.tuples(st.sampled_from(["1", "01", "x"]), WHOLE, FLOAT, FLOAT, TEXT), min_size=1, max_size=12)
COLUMNS = ("unit", "a", "b", "y", "note")
SETTINGS = settings(max_examples=40, deadline=None)


def as_csv(rows: list[tuple[Any, ...]], columns: tuple[str, ...], decimal: str = ".") -> str:
    def written(value: Any) -> str:
        return repr(value).replace(".", decimal) if isinstance(value, float) else str(value)

    text = io.StringIO()
    writer = csv.writer(text, delimiter=";", quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([written(row[COLUMNS.index(column)]) for column in columns] for row in rows)
    return text.getvalue()


def stored(folder: str, text: str, demo: Any, **changes: Any) -> Dataset:
    root = Path(folder)
    (root / "demo").mkdir()
    write_contract(root / "demo", demo.contract(**{"file": {"separator": ";"}, **changes}))
    (root / "rows.csv").write_text(text, newline="")
    return import_file(root, root / "rows.csv", "demo")


def rows_of(dataset: Dataset, device: str) -> list[tuple[Any, ...]]:
    return pl.concat(dataset.parts(device).values()).rows()


@SETTINGS
@given(rows=ROWS, decimal=st.sampled_from([".", ","]))
def test_import_then_read_is_the_identity(demo: Any, rows: list[tuple[Any, ...]], decimal: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = stored(folder, as_csv(rows, COLUMNS, decimal), demo, file={"separator": ";", "decimal": decimal})
        assert dataset.device_ids == tuple(sorted({row[0] for row in rows}))
        for device in dataset.device_ids:
            assert rows_of(dataset, device) == [row[1:] for row in rows if row[0] == device]


@SETTINGS
@given(rows=ROWS, order=st.permutations(range(12)), columns=st.permutations(COLUMNS), seed=st.integers(0, 99))
def test_order_of_devices_rows_and_columns_changes_nothing(
    demo: Any, rows: list[tuple[Any, ...]], order: list[int], columns: list[str], seed: int
) -> None:
    shuffled = [rows[i] for i in order if i < len(rows)]
    split = {"kind": "random", "train": 0.9, "validation": 0.1, "seed": seed}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        try:
            first = stored(one, as_csv(rows, COLUMNS), demo, split=split)
        except DataError:
            reject()  # the draws of a device's few rows leave none to train
        second = stored(other, as_csv(shuffled, tuple(columns)), demo, split=split)
        assert first.device_ids == second.device_ids
        for device in first.device_ids:
            assert sorted(rows_of(first, device)) == sorted(rows_of(second, device))
            for part, again in zip(first.load(device), second.load(device), strict=True):
                assert sorted(zip(part.X.tolist(), part.y.tolist(), strict=True)) == sorted(
                    zip(again.X.tolist(), again.y.tolist(), strict=True)
                )


@SETTINGS
@given(rows=st.lists(st.tuples(WHOLE, FLOAT, FLOAT, TEXT), min_size=1, max_size=6))
def test_adding_a_file_twice_changes_nothing(demo: Any, rows: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        create_dataset(root, "demo", demo.contract(file={"separator": ";"}), [("1", demo.frame())])
        (root / "rows.csv").write_text(as_csv([("x", *row) for row in rows], COLUMNS[1:]), newline="")
        for device, append in (("x", False), ("1", True)):
            assert add_partition(root, root / "rows.csv", "demo", device, append=append).changed
            before = snapshot(root)
            for again in (append, True):
                assert not add_partition(root, root / "rows.csv", "demo", device, append=again).changed
            assert snapshot(root) == before


@SETTINGS
@given(old=st.integers(4, 30), new=st.integers(1, 30), seed=st.integers(0, 2**63 - 1))
def test_appended_rows_move_no_old_row(demo: Any, old: int, new: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        split = {"kind": "random", "train": 0.9, "validation": 0.2, "seed": seed}
        try:
            dataset = create_dataset(root, "demo", demo.contract(split=split), [("1", demo.frame(old))])
        except DataError:
            reject()  # the draws of few rows leave none to train
        before = dataset.load("1")
        file = write_csv(root / "rows.csv", demo.frame(new, start=old))
        add_partition(root, file, "demo", "1", append=True)
        after = dataset.load("1")
        assert sum(part.n for part in after) == old + new
        for part, grown in zip(before, after, strict=True):
            there = grown.y < 7000.125 + old
            assert np.array_equal(np.sort(part.y), np.sort(grown.y[there]))
