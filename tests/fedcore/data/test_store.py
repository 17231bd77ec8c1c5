from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedcore.data import Dataset, DeviceCard, create_dataset, list_datasets, open_dataset, write_contract
from fedcore.data.parquet import decode, encode
from fedcore.errors import DataError, Misuse

NOBODY = 65534


def checked_message(error: BaseException) -> str:
    """The message, after a look that it is one line, shows no value of y, and carries no foreign exception."""
    message = str(error)
    assert len(message.splitlines()) == 1
    assert "700" not in message
    assert error.__cause__ is None
    assert error.__context__ is None
    return message


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Reading


def test_what_is_created_reads_back(make: Callable[..., Dataset], demo: Any, tmp_path: Path) -> None:
    make()
    dataset = open_dataset(tmp_path, "demo")
    assert dataset.device_ids == ("1", "2", "3")
    assert dataset.design_names == ("a", "b")
    frame = demo.frame(start=20)
    data, card = dataset.loaded("2")
    assert np.array_equal(data.train.X, frame.select("a", "b").to_numpy())
    assert np.array_equal(data.train.y, frame["y"].to_numpy())
    content = (tmp_path / "demo/device=2/part-0.parquet").read_bytes()
    assert card == DeviceCard("2", 6, 0, 0, hashlib.sha256(content).hexdigest())
    assert dataset.card("2") == card
    assert np.array_equal(dataset.load("2").train.y, data.train.y)


def test_part_files_are_read_by_name_and_other_files_ignored(make: Callable[..., Dataset], demo: Any, tmp_path: Path) -> None:
    dataset = make()
    folder = tmp_path / "demo/device=1"
    (folder / "part-1.parquet").write_bytes(encode(demo.frame(start=50).select("note", "y", "b", "a")))
    (folder / ".part-2.parquet.tmp").write_bytes(b"half a file")
    (folder / "notes.txt").write_text("hello")
    data, card = dataset.loaded("1")
    assert data.train.X[:, 0].tolist() == [*range(10, 16), *range(50, 56)]
    both = (folder / "part-0.parquet").read_bytes() + (folder / "part-1.parquet").read_bytes()
    assert card.sha256 == hashlib.sha256(both).hexdigest()


def test_whole_numbers_may_stand_for_float64(make: Callable[..., Dataset], demo: Any, tmp_path: Path) -> None:
    dataset = make()
    frame = demo.frame(start=10)
    (tmp_path / "demo/device=1/part-0.parquet").write_bytes(encode(frame.with_columns(pl.col("b").cast(pl.Int64))))
    assert dataset.load("1").train.X[:, 1].tolist() == [int(0.5 * i) for i in range(10, 16)]


def test_files_of_other_writers_are_read(make: Callable[..., Dataset], demo: Any, tmp_path: Path) -> None:
    dataset = make()
    expected = dataset.load("1")
    demo.frame(start=10).write_parquet(tmp_path / "demo/device=1/part-0.parquet")
    assert np.array_equal(dataset.load("1").train.X, expected.train.X)


def test_ids_are_text(demo: Any, tmp_path: Path) -> None:
    frames = [(device, demo.frame(start=start)) for device, start in (("1", 10), ("001", 20), ("1.0", 30), ("1e0", 40))]
    dataset = create_dataset(tmp_path, "demo", demo.contract(), frames)
    assert dataset.device_ids == ("001", "1", "1.0", "1e0")
    assert [dataset.load(device).train.X[0, 0] for device in dataset.device_ids] == [20, 10, 30, 40]


def test_a_device_does_not_need_the_others(make: Callable[..., Dataset], tmp_path: Path) -> None:
    dataset = make()
    expected = dataset.load("2")
    for other in ("1", "3"):
        (tmp_path / f"demo/device={other}/part-0.parquet").write_bytes(b"PAR1 broken PAR1")
    assert np.array_equal(open_dataset(tmp_path, "demo").load("2").train.X, expected.train.X)


_opened: list[str] | None = None


def _note_open(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event in ("open", "os.listdir", "os.scandir"):
        _opened.append(str(arguments[0]))


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Paths that Python opens or lists while the test runs. (An audit hook cannot be taken out again, so it only looks when asked.)"""
    global _opened
    if not getattr(sys, "_fedlin_test_hook", False):
        sys.addaudithook(_note_open)
        sys._fedlin_test_hook = True  # type: ignore[attr-defined]
    _opened = []
    yield _opened
    _opened = None


def test_reading_a_device_opens_its_own_folder_and_nothing_else(make: Callable[..., Dataset], tmp_path: Path, opened: list[str]) -> None:
    dataset = make()
    dataset.load("1")
    opened.clear()
    dataset.loaded("2")
    own = str(tmp_path / "demo/device=2")
    assert opened == [own, f"{own}/part-0.parquet"]
    opened.clear()
    _ = dataset.device_ids
    assert opened == [str(tmp_path / "demo")]


def test_a_file_is_read_once_for_rows_and_card(make: Callable[..., Dataset], opened: list[str]) -> None:
    dataset = make()
    opened.clear()
    dataset.loaded("1")
    assert sum(path.endswith(".parquet") for path in opened) == 1


# Opening


def test_target_and_its_scaling_are_chosen_at_opening(make: Callable[..., Dataset], tmp_path: Path) -> None:
    make(targets=["y", "b"], features=["a"])
    dataset = open_dataset(tmp_path, "demo", target="b", target_scaling="train")
    assert dataset.load("1").train.y.tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert open_dataset(tmp_path, "demo").load("1").train.y[0] == 7010.125


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("other", {}, r"no data set 'other' with a dataset.toml: choose one of those there \(demo\), or bring it with fedlin data import"),
        ("../demo", {}, "data set name '../demo' starts with a dot"),
        ("a/b", {}, "data set name 'a/b' holds characters other than"),
        (".", {}, "data set name '.' starts with a dot"),
        ("demo", {"target": "z"}, "data set 'demo' has no target 'z': choose one of y, b"),
        ("demo", {"target_scaling": "max"}, "no target scaling 'max': choose one of none, train, own"),
    ],
)
def test_what_is_not_there_is_answered_by_what_is(
    make: Callable[..., Dataset], tmp_path: Path, name: str, options: dict[str, str], message: str
) -> None:
    make(targets=["y", "b"], features=["a"])
    with pytest.raises(Misuse, match=rf"^{message}") as caught:
        open_dataset(tmp_path, name, **options)
    checked_message(caught.value)


def test_a_contract_without_partitions_says_where_they_come_from(demo: Any, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    write_contract(tmp_path / "demo", demo.contract(source="the works"))
    with pytest.raises(
        Misuse, match=r"^data set 'demo' has a contract but no partitions: bring its source file with fedlin data import \(the works\)$"
    ):
        open_dataset(tmp_path, "demo")
    assert list_datasets(tmp_path) == ("demo",)


def test_no_datasets_at_all(tmp_path: Path) -> None:
    assert list_datasets(tmp_path / "nowhere") == ()
    with pytest.raises(Misuse, match="none yet"):
        open_dataset(tmp_path / "nowhere", "demo")


@pytest.mark.parametrize("device", ["4", "", "..", "../demo/device=1", "1/../2", ".", "a b", "x" * 101, "ü", "1\n"])
def test_an_unknown_or_unsafe_device_is_refused(make: Callable[..., Dataset], device: str) -> None:
    with pytest.raises(Misuse) as caught:
        make().load(device)
    assert "device" in checked_message(caught.value)


# Refusals


def _replace(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        file = folder / "device=2/part-0.parquet"
        change(decode(file.read_bytes(), "here")).write_parquet(file)

    return spoil


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        file = folder / "device=2/part-0.parquet"
        file.write_bytes(change(file.read_bytes()))

    return spoil


def _link_out(folder: Path) -> None:
    file = folder / "device=2/part-0.parquet"
    file.rename(folder.parent / "elsewhere.parquet")
    file.symlink_to("../../elsewhere.parquet")


def _folder_out(folder: Path) -> None:
    (folder / "device=2").rename(folder.parent / "elsewhere")
    (folder / "device=2").symlink_to("../elsewhere")


def _no_file(folder: Path) -> None:
    (folder / "device=2/part-0.parquet").unlink()


def _a_folder(folder: Path) -> None:
    _no_file(folder)
    (folder / "device=2/part-0.parquet").mkdir()


def _a_pipe(folder: Path) -> None:
    _no_file(folder)
    os.mkfifo(folder / "device=2/part-0.parquet")


FILE = "device=2/part-0.parquet"
UNREADABLE = "not a readable parquet file ("
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing column": (_replace(lambda f: f.drop("b")), f"{FILE}: column 'b' is missing"),
    "missing columns": (_replace(lambda f: f.drop("a", "b")), f"{FILE}: 2 columns ('a', 'b') are missing"),
    "extra column": (_replace(lambda f: f.with_columns(c=1)), f"{FILE}: column 'c' is not in the contract"),
    "extra column with an odd name": (_replace(lambda f: f.with_columns(pl.lit(1).alias("c\nd"))), f"{FILE}: column 'c\\nd' is not"),
    "text for number": (
        _replace(lambda f: f.with_columns(pl.col("y").cast(pl.String))),
        f"{FILE}: column 'y' is string: the contract says",
    ),
    "float for int": (
        _replace(lambda f: f.with_columns(pl.col("a").cast(pl.Float64))),
        f"{FILE}: column 'a' is float64: the contract says int64",
    ),
    "bool": (_replace(lambda f: f.with_columns(pl.col("a") > 3)), f"{FILE}: column 'a' is bool: expected float64, int64 or string"),
    "struct": (_replace(lambda f: f.with_columns(a=pl.struct("y", "b"))), f"{FILE}: column 'a' is struct: expected"),
    "null": (
        _replace(lambda f: f.with_columns(y=pl.when(pl.col("a") > 23).then(None).otherwise("y"))),
        f"{FILE}: column 'y' has 2 null or non-finite values",
    ),
    "null in a number": (
        _replace(lambda f: f.with_columns(a=pl.when(pl.col("a") == 23).then(None).otherwise("a"))),
        f"{FILE}: column 'a' has 1 null or non-finite values",
    ),
    "null in a text": (
        _replace(lambda f: f.with_columns(note=pl.when(pl.col("a") == 23).then(pl.lit(None, pl.String)).otherwise("note"))),
        f"{FILE}: column 'note' has 1 null or non-finite values",
    ),
    "nan": (_replace(lambda f: f.with_columns(b=pl.lit(float("nan")))), f"{FILE}: column 'b' has 6 null or non-finite values"),
    "infinite": (_replace(lambda f: f.with_columns(b=pl.lit(float("-inf")))), f"{FILE}: column 'b' has 6 null or non-finite values"),
    "all null": (_replace(lambda f: f.with_columns(b=None)), f"{FILE}: column 'b' is null: expected"),
    "no rows": (_replace(lambda f: f.clear()), f"{FILE}: no rows"),
    "no columns": (_replace(lambda f: pl.DataFrame()), f"{FILE}: "),
    "no bytes": (_bytes(lambda raw: b""), f"{FILE}: {UNREADABLE}0 bytes"),
    "cut short": (_bytes(lambda raw: raw[:-10]), f"{FILE}: {UNREADABLE}"),
    "damaged": (_bytes(lambda raw: raw[:40] + bytes(40) + raw[80:]), f"{FILE}: {UNREADABLE}"),
    "text file": (_bytes(lambda raw: b"a,b\n7000,1\n"), f"{FILE}: {UNREADABLE}"),
    "link out": (_link_out, f"{FILE}: leads out of the device's own folder"),
    "folder out": (_folder_out, "device=2: leads out of the device's own folder"),
    "no file": (_no_file, "device=2: no part-*.parquet"),
    "a folder": (_a_folder, f"{FILE}: not a regular file"),
    "a pipe": (_a_pipe, f"{FILE}: not a regular file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_partition_is_refused_and_no_value_shown(make: Callable[..., Dataset], tmp_path: Path, case: str) -> None:
    spoil, message = BROKEN[case]
    dataset = make()
    spoil(tmp_path / "demo")
    with pytest.raises(DataError) as caught:
        dataset.load("2")
    assert checked_message(caught.value).startswith(message)
    assert caught.value.__context__ is None
    assert dataset.load("1").train.n == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scaling": {"target": "train"}}, "device=2: column 'y' is constant over the 6 rows"),
        ({"split": {"kind": "column", "column": "note"}}, "device=2: column 'note' has 6 values other than train"),
    ],
)
def test_a_device_that_cannot_be_prepared_is_refused(
    make: Callable[..., Dataset], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    dataset = make(**changes)
    _replace(lambda f: f.with_columns(y=pl.lit(7000.5), note=pl.lit("7000")))(tmp_path / "demo")
    with pytest.raises(DataError) as caught:
        dataset.load("2")
    assert checked_message(caught.value).startswith(message)


def test_a_split_that_trains_on_nothing_is_refused(make: Callable[..., Dataset], tmp_path: Path) -> None:
    dataset = make(split={"kind": "column", "column": "note"})
    _replace(lambda f: f.with_columns(note=pl.lit("test")))(tmp_path / "demo")
    with pytest.raises(DataError, match=r"^device=2: the split leaves 0 of 6 rows to train"):
        dataset.load("2")


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["device=a", "device=A"], "device ids 'A' and 'a' are the same, at most up to case"),
        (["device=a b"], "device id 'a b' holds characters other than"),
        (["device="], "device id '' is empty"),
        (["device=.a"], "device id '.a' starts with a dot"),
        (["device=" + "x" * 101], "device id 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' has 101 characters, more than 100"),
        (["device=a\nb"], r"device id 'a\nb' holds characters other than"),
    ],
)
def test_odd_and_ambiguous_folders_are_refused(make: Callable[..., Dataset], tmp_path: Path, folders: list[str], message: str) -> None:
    dataset = make()
    for folder in folders:
        (tmp_path / "demo" / folder).mkdir()
    for attempt in (lambda: dataset.device_ids, lambda: open_dataset(tmp_path, "demo")):
        with pytest.raises(DataError) as caught:
            attempt()
        assert checked_message(caught.value).startswith(message)


# Creating


def test_one_bad_device_and_nothing_is_written(demo: Any, tmp_path: Path) -> None:
    frames = [("1", demo.frame()), ("2", demo.frame().with_columns(b=None))]
    with pytest.raises(DataError) as caught:
        create_dataset(tmp_path, "demo", demo.contract(), frames)
    assert checked_message(caught.value).startswith("device=2: column 'b' is null: the contract says float64")
    assert tree(tmp_path) == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["1", "1"], "device ids '1' and '1' are the same"),
        (["a", "A"], "device ids 'A' and 'a' are the same, at most up to case"),
        (["1", "a/2"], "device id 'a/2' holds characters other than"),
        ([], "no device"),
    ],
)
def test_ids_that_make_no_folders_are_refused(demo: Any, tmp_path: Path, ids: list[str], message: str) -> None:
    with pytest.raises(DataError, match=rf"^{message}"):
        create_dataset(tmp_path, "demo", demo.contract(), [(device, demo.frame()) for device in ids])
    assert tree(tmp_path) == []


def test_what_could_not_be_loaded_is_not_created(demo: Any, tmp_path: Path) -> None:
    contract = demo.contract(scaling={"target": "train"})
    with pytest.raises(DataError, match=r"^device=1: column 'y' is constant over the 1 rows"):
        create_dataset(tmp_path, "demo", contract, [("1", demo.frame(n=1))])
    assert tree(tmp_path) == []


def test_partitions_join_the_contract_that_is_there(demo: Any, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    write_contract(tmp_path / "demo", demo.contract())
    before = (tmp_path / "demo/dataset.toml").read_text()
    dataset = create_dataset(tmp_path, "demo", demo.contract(), [("1", demo.frame())])
    assert dataset.load("1").train.n == 6
    assert (tmp_path / "demo/dataset.toml").read_text() == before
    assert tree(tmp_path) == ["demo", "demo/dataset.toml", "demo/device=1", "demo/device=1/part-0.parquet"]


def test_a_failure_while_joining_takes_the_partitions_out_again(demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    write_contract(tmp_path / "demo", demo.contract())
    rename = Path.rename

    def fail_at_2(self: Path, target: Path) -> Path:
        if self.name == "device=2":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_at_2)
    with pytest.raises(Misuse, match=r"^cannot write data set 'demo': No space left on device: choose") as caught:
        create_dataset(tmp_path, "demo", demo.contract(), [(device, demo.frame()) for device in ("1", "2", "3")])
    checked_message(caught.value)
    assert tree(tmp_path) == ["demo", "demo/dataset.toml"]


def test_another_contract_in_place_is_refused(demo: Any, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    write_contract(tmp_path / "demo", demo.contract(intercept=True))
    with pytest.raises(Misuse, match=r"^data set 'demo' has another contract already"):
        create_dataset(tmp_path, "demo", demo.contract(), [("1", demo.frame())])


def test_partitions_are_never_overwritten(make: Callable[..., Dataset], tmp_path: Path) -> None:
    make()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(Misuse, match=r"^data set 'demo' has partitions already"):
        make()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[Path]:
    """A folder that the test's user may read and not write: for root, by becoming nobody for a while."""
    root = tmp_path / "datasets"
    root.mkdir()
    root.chmod(0o555)
    if os.geteuid() != 0:
        yield root
    else:
        # pytest's own folders are closed to others.
        modes = {folder: folder.stat().st_mode for folder in tmp_path.parents if folder.stat().st_uid == 0 and folder != Path("/")}
        for folder in (tmp_path, *(folder for folder, mode in modes.items() if not mode & 0o001)):
            folder.chmod(0o755)
        os.seteuid(NOBODY)
        yield root
        os.seteuid(0)
        for folder, mode in modes.items():
            folder.chmod(mode)
    root.chmod(0o755)


def test_a_folder_that_may_not_be_written_is_said_so(demo: Any, unprivileged: Path) -> None:
    with pytest.raises(Misuse) as caught:
        create_dataset(unprivileged, "demo", demo.contract(), [("1", demo.frame())])
    expected = "cannot write data set 'demo': Permission denied: choose a datasets folder that you may write to"
    assert checked_message(caught.value) == expected


def test_a_created_data_set_has_the_users_default_permissions(make: Callable[..., Dataset], tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/file").touch()
    make()
    assert (tmp_path / "demo").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "demo/device=1/part-0.parquet").stat().st_mode == (tmp_path / "plain/file").stat().st_mode


def test_hidden_leftovers_are_no_data_sets(make: Callable[..., Dataset], tmp_path: Path) -> None:
    make()
    shutil.copytree(tmp_path / "demo", tmp_path / ".demo.1234.tmp")
    assert list_datasets(tmp_path) == ("demo",)
