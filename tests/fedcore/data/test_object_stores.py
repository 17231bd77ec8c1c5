"""The data edge over an object store: the same data sets, the same promises, through the same functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from upath import UPath

from fedcore.data import (
    Dataset,
    add_partition,
    create_dataset,
    describe_dataset,
    import_file,
    infer_contract,
    list_datasets,
    open_dataset,
    remove_device,
)
from fedcore.data.places import create_file, discard, entries, is_file, is_folder, place, read_file, write_durably
from fedcore.data.staging import claimed
from fedcore.errors import DataError, Misuse, PlaceAway

Bucket = Callable[[], UPath]


@pytest.fixture
def root(s3: Bucket) -> UPath:
    return s3() / "datasets"


def contents(root: UPath) -> dict[str, bytes]:
    """Every object below the place, by its path."""
    return {str(name): root.fs.cat_file(name) for name in root.fs.find(root.path)}


def rows(dataset: Dataset) -> dict[str, list[list[float]]]:
    return {device: dataset.load(device).train.X.tolist() for device in dataset.device_ids}


@pytest.fixture
def stored(root: UPath, demo: Any) -> Dataset:
    return create_dataset(root, "demo", demo.contract(), [(device, demo.frame(start=10 * int(device))) for device in ("1", "2", "3")])


def test_a_data_set_is_the_one_that_this_machine_would_hold(stored: Dataset, make: Callable[..., Dataset], root: UPath) -> None:
    local = make()
    opened = open_dataset(root, "demo")
    assert rows(opened) == rows(local)
    assert [opened.card(device) for device in opened.device_ids] == [local.card(device) for device in local.device_ids]
    assert describe_dataset(opened) == describe_dataset(local)
    assert list_datasets(root) == ("demo",)
    below = len(f"{root.path}/demo/")
    assert sorted(name[below:] for name in contents(root)) == ["dataset.toml", *(f"device={k}/part-0.parquet" for k in "123")]


def test_import_add_append_and_remove(root: UPath, demo: Any, tmp_path: Path) -> None:
    text = "unit,a,y\n" + "".join(f"{unit},{i},{i / 2}\n" for unit in ("u", "v") for i in range(5))
    source = root.parent / "raw" / "rows.csv"
    write_durably(source, text.encode())
    assert infer_contract(root, source, "pumps", device="unit", target="y").features == ("a",)
    assert import_file(root, source, "pumps").device_ids == ("u", "v")

    file = tmp_path / "w.csv"
    file.write_text("a,y\n7,1\n8,2\n9,3\n")
    assert add_partition(root, file, "pumps", "w").changed
    held = contents(root)
    assert not add_partition(root, file, "pumps", "w").changed
    with pytest.raises(Misuse, match="no device 'x' to append to"):
        add_partition(root, file, "pumps", "x", append=True)
    assert contents(root) == held
    file.write_text("a,y\n10,4\n")
    add_partition(root, file, "pumps", "w", append=True)
    assert sorted(open_dataset(root, "pumps").load("w").train.X.ravel()) == [7, 8, 9, 10]
    write_durably(root.parent / "of-x" / "2.csv", b"a,y\n3,1\n")
    write_durably(root.parent / "of-x" / "1.csv", b"a,y\n1,1\n2,1\n")
    add_partition(root, root.parent / "of-x", "pumps", "x")
    assert open_dataset(root, "pumps").load("x").train.X.ravel().tolist() == [1, 2, 3]
    remove_device(root, "pumps", "x")
    remove_device(root, "pumps", "w")
    assert open_dataset(root, "pumps").device_ids == ("u", "v")
    assert not is_folder(root / "pumps" / "device=w")


def test_a_prefix_with_one_file_a_device(root: UPath) -> None:
    for device in ("a", "b"):
        write_durably(root.parent / "raw" / f"{device}.csv", b"x,y\n1,2\n2,3\n3,5\n")
    assert import_file(root, root.parent / "raw", "pumps", target="y").device_ids == ("a", "b")


def test_what_is_refused_leaves_the_store_as_it_was(stored: Dataset, root: UPath, tmp_path: Path) -> None:
    held = contents(root)
    file = tmp_path / "bad.csv"
    file.write_text("a,b,y,note\n1,x,3,train\n")
    with pytest.raises(DataError, match="column 'b' has 1 values that are not float64"):
        add_partition(root, file, "demo", "4")
    with pytest.raises(Misuse, match="has partitions already"):
        import_file(root, file, "demo")
    with pytest.raises(Misuse, match="no device '9'"):
        remove_device(root, "demo", "9")
    with pytest.raises(Misuse, match="no data set 'other'"):
        open_dataset(root, "other")
    assert contents(root) == held


def test_a_damaged_partition_is_named(stored: Dataset, root: UPath) -> None:
    write_durably(root / "demo" / "device=2" / "part-0.parquet", b"PAR1")
    with pytest.raises(DataError, match=r"^device=2/part-0\.parquet: not a readable parquet file \(4 bytes"):
        stored.load("2")
    assert stored.load("1").train.n == 6


def test_a_store_that_is_away_or_closed_is_one_line(s3: Bucket, demo: Any) -> None:
    nowhere = place("s3://no-such-bucket/datasets")
    with pytest.raises(Misuse, match=r"^cannot write data set 'demo': ") as caught:
        create_dataset(nowhere, "demo", demo.contract(), [("1", demo.frame())])
    assert "\n" not in str(caught.value)
    assert list_datasets(nowhere) == ()
    with pytest.raises(Misuse, match=r"^no way to nothing:// places"):
        place("nothing://bucket/prefix")


def test_places_keep_their_promises(s3: Bucket) -> None:
    folder = s3()
    assert not is_folder(folder)
    assert entries(folder) == []
    write_durably(folder / "one", b"1")
    write_durably(folder / "more" / "two", b"22")
    assert sorted(entries(folder)) == [("more", True), ("one", False)]
    assert is_file(folder / "one")
    assert is_folder(folder / "more")
    with pytest.raises(FileNotFoundError, match="No such file"):
        read_file(folder / "three")
    with pytest.raises(FileExistsError):
        create_file(folder / "one", b"other")
    assert read_file(folder / "one") == b"1"
    discard(folder / "more")
    discard(folder / "more")
    assert entries(folder) == [("one", False)]


def test_a_claim_is_taken_over_on_its_own_machine_only(s3: Bucket) -> None:
    claim = s3() / "run.lock"
    with claimed(claim, "run 7"):
        assert is_file(claim)
        with pytest.raises(Misuse, match=r"^run 7 goes on in another process"), claimed(claim, "run 7"):
            pass
        left = read_file(claim)
    assert not is_file(claim)
    write_durably(claim, left)  # what a killed process leaves
    with claimed(claim, "run 7"):
        pass
    write_durably(claim, b'{"host": "elsewhere"}')
    with pytest.raises(Misuse, match=r"^run 7 goes on at machine elsewhere: .*delete s3://"), claimed(claim, "run 7"):
        pass
    assert is_file(claim)


# Kills itself before or after the n-th request that changes the store.
KILLED = """
import os, signal, sys
import s3fs
from pathlib import Path
from fedcore.data import add_partition, import_file, remove_device
from fedcore.data.places import place

root, source, action, fatal, after = place(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5] == "after"
call, calls = s3fs.S3FileSystem._call_s3, []

async def counted(self, method, *args, **options):
    changes = method.startswith(("put", "delete"))
    calls.extend([1] * changes)
    last = changes and len(calls) == fatal
    if last and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    answer = await call(self, method, *args, **options)
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

s3fs.S3FileSystem._call_s3 = counted
if action == "import":
    import_file(root, source, "demo")
elif action == "remove":
    remove_device(root, "demo", "2")
else:
    add_partition(root, source, "demo", "4" if action == "new" else "2", append=action == "append")
print(len(calls))
"""


@pytest.mark.slow
@pytest.mark.parametrize("action", ["import", "new", "append", "remove"])
def test_a_kill_at_any_request_leaves_the_old_or_the_new_state(s3: Bucket, demo: Any, tmp_path: Path, action: str) -> None:
    source = tmp_path / "rows.csv"
    if action == "import":
        source.write_text("unit,a,y\n" + "".join(f"{unit},{i},{i / 2}\n" for unit in ("u", "v", "w") for i in range(5)))
    else:
        demo.frame(start=100).write_csv(source)

    def fresh() -> UPath:
        root = s3() / "datasets"
        if action == "import":
            infer_contract(root, source, "demo", device="unit", target="y")
        else:
            create_dataset(root, "demo", demo.contract(), [(device, demo.frame(start=10 * int(device))) for device in ("1", "2", "3")])
            # A second file of the device that goes, so that there are two deletions.
            demo.frame(start=50).write_csv(tmp_path / "more.csv")
            add_partition(root, tmp_path / "more.csv", "demo", "2", append=True)
        return root

    def state(root: UPath) -> dict[str, list[list[float]]]:
        try:
            return rows(open_dataset(root, "demo"))
        except Misuse:  # it has no partitions
            return {}

    def act(root: UPath, fatal: int, when: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", KILLED, str(root), str(source), action, str(fatal), when]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3], check=False)

    root = fresh()
    old = state(root)
    whole = act(root, 0, "before")
    assert whole.returncode == 0, whole.stderr
    new = state(root)
    assert old != new
    # Nothing changes between two requests, so only after the last is a kill of its own.
    last = int(whole.stdout)
    steps = [*((fatal, "before") for fatal in range(1, last + 1)), (last, "after")]
    found = []
    for fatal, when in steps:
        root = fresh()
        assert act(root, fatal, when).returncode == -9
        found.append(state(root))
        if found[-1] == old:
            assert act(root, 0, "before").returncode == 0, "what was left is no obstacle"
        assert state(root) == new
    changed = found.index(new)
    assert all(reached == old for reached in found[:changed])
    assert all(reached == new for reached in found[changed:])


def test_a_removal_that_was_begun_is_finished_by_whoever_writes_next(s3: Bucket, demo: Any, tmp_path: Path) -> None:
    def begun() -> UPath:
        root = s3() / "datasets"
        create_dataset(root, "demo", demo.contract(), [(device, demo.frame(start=10 * int(device))) for device in ("1", "2")])
        write_durably(root / "demo" / ".removed" / "device=2", b"")
        assert open_dataset(root, "demo").device_ids == ("1",)
        return root

    def left(root: UPath) -> list[str]:
        return [name for name in contents(root) if "device=2" in name]

    root = begun()
    remove_device(root, "demo", "2")
    assert left(root) == []
    with pytest.raises(Misuse, match="no device '2'"):
        remove_device(root, "demo", "2")

    root = begun()
    demo.frame(start=40).write_csv(tmp_path / "rows.csv")
    add_partition(root, tmp_path / "rows.csv", "demo", "4")
    assert left(root) == []

    root = begun()
    remove_device(root, "demo", "1")
    write_durably(root / "demo" / ".removed" / "device=2", b"")
    demo.frame(start=10).with_columns(unit=pl.lit("2")).write_csv(tmp_path / "rows.csv")
    assert import_file(root, tmp_path / "rows.csv", "demo").device_ids == ("2",)
    assert open_dataset(root, "demo").load("2").train.n == 6


def test_a_store_that_fails_once_is_no_answer(stored: Dataset, root: UPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that fails is neither a yes nor a no: nothing is taken for missing, and no row for broken."""
    import s3fs

    async def closed(self: Any, method: str, *arguments: Any, **options: Any) -> None:
        raise PermissionError("Forbidden")

    held = contents(root)
    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_call_s3", closed)
        for act in (
            lambda: is_file(root / "demo" / "dataset.toml"),
            lambda: is_folder(root / "demo"),
            lambda: list_datasets(root),
            lambda: open_dataset(root, "demo"),
            lambda: stored.load("1"),
            lambda: remove_device(root, "demo", "1"),
        ):
            with pytest.raises(PlaceAway, match=r"^the object store cannot be used now \(PermissionError Forbidden\): see that it is up"):
                act()
    assert contents(root) == held


def test_a_damaged_claim_is_somebody_elses(s3: Bucket) -> None:
    claim = s3() / "run.lock"
    for content in (b"", b"[1]", b"{}"):
        write_durably(claim, content)
        with pytest.raises(Misuse, match=r"^run 7 goes on at machine unknown: "), claimed(claim, "run 7"):
            pass
