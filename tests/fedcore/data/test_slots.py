"""Files of two slots: what a crash or damage leaves is an old content or the new one, and never anything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from upath import UPath

import fedcore.data.slots
from fedcore.data.slots import read_slots, write_slots


def written(file: Path, *contents: bytes) -> None:
    for content in contents:
        write_slots(file, content, read_slots(file)[1] if file.exists() else None)


def test_the_last_content_counts(tmp_path: Path) -> None:
    file = tmp_path / "state"
    for content in (b"", b"one", b"two" * 100, b"", b"longer than a block" * 1000, b"four", b"longer still" * 3000, b"\0" * 50):
        written(file, content)
        assert read_slots(file)[0] == content
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_file_that_fits_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "state"
    written(file, b"one")
    before = file.stat()
    for i in range(10):
        written(file, b"%d" % i * 1000)
    after = file.stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)


@given(old=st.binary(max_size=50), new=st.binary(max_size=50), turns=st.integers(1, 4), share=st.floats(0, 1), backwards=st.booleans())
def test_a_torn_write_leaves_the_content_before(
    tmp_path_factory: pytest.TempPathFactory, old: bytes, new: bytes, turns: int, share: float, backwards: bool
) -> None:
    """Whichever part of the new bytes has reached the disk."""
    file = tmp_path_factory.mktemp("torn") / "state"
    written(file, *[b"before"] * turns, old)
    before = file.read_bytes()
    written(file, new)
    after = file.read_bytes()
    changed = [i for i in range(len(after)) if after[i] != before[i]]
    kept = changed[::-1] if backwards else changed
    torn = bytearray(before)
    for i in kept[: int(share * len(kept))]:
        torn[i] = after[i]
    file.write_bytes(torn)
    assert read_slots(file)[0] == (new if torn == after else old)
    written(file, b"next")
    assert read_slots(file)[0] == b"next"


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_one_damaged_byte_costs_one_content_at_most(tmp_path_factory: pytest.TempPathFactory, place: float, flip: int) -> None:
    file = tmp_path_factory.mktemp("damaged") / "state"
    written(file, b"old", b"new")
    raw = bytearray(file.read_bytes())
    raw[int(place * len(raw))] ^= flip
    file.write_bytes(raw)
    assert read_slots(file)[0] in (b"old", b"new")


def test_a_file_of_another_kind_is_given_as_it_is_and_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "state"
    for raw in (b"", b"short", bytes(5000)):
        file.write_bytes(raw)
        assert read_slots(file) == (raw, None)
        written(file, b"content")
        assert read_slots(file)[0] == b"content"


def test_a_missing_file_is_begun_and_a_missing_folder_said_to_be_missing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    file = folder / "state"
    folder.mkdir()
    with pytest.raises(FileNotFoundError):
        read_slots(file)
    written(file, b"one")
    turn = read_slots(file)[1]
    file.unlink()
    turn = write_slots(file, b"two", turn)
    assert read_slots(file)[0] == b"two"
    file.unlink()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        write_slots(file, b"three", turn)


def test_what_others_would_see_is_not_written_over(tmp_path: Path) -> None:
    """A backup by hard links keeps what it has, and a link does not lead a state out of its folder."""
    file, backup, outside = tmp_path / "state", tmp_path / "backup", tmp_path / "outside"
    written(file, b"one", b"two")
    backup.hardlink_to(file)
    written(file, b"three", b"four", b"five")
    assert (read_slots(file)[0], read_slots(backup)[0]) == (b"five", b"two")
    file.rename(outside)
    file.symlink_to(outside)
    written(file, b"six")
    assert not file.is_symlink()
    assert (read_slots(file)[0], read_slots(outside)[0]) == (b"six", b"five")


def test_a_file_that_is_not_ours_to_write_to_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's error, and not by its mode: root may open any file."""
    file, plain = tmp_path / "state", os.open
    written(file, b"one")

    def refused(path: object, flags: int, *rest: int, **more: int) -> int:
        if flags & os.O_DSYNC:
            raise PermissionError(13, "Permission denied")
        return plain(path, flags, *rest, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(os, "open", refused)
    written(file, b"two")
    assert read_slots(file)[0] == b"two"


def test_of_two_writers_one_counts(tmp_path: Path) -> None:
    """Where the other has begun the file anew meanwhile, or written over the same slot."""
    file = tmp_path / "state"
    turn = write_slots(file, b"a" * 100, None)
    write_slots(file, b"b" * 9000, turn)
    write_slots(file, b"c" * 200, turn)
    assert read_slots(file)[0] == b"c" * 200
    turn = read_slots(file)[1]
    write_slots(file, b"d", turn)
    write_slots(file, b"e", turn)
    assert read_slots(file)[0] == b"e"


def test_a_file_that_begins_brings_its_name_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written over later does not."""
    file, synced = tmp_path / "state", list[Path]()
    monkeypatch.setattr(fedcore.data.slots, "sync_folder", synced.append)
    written(file, b"one", b"two", b"three")
    assert synced == [tmp_path]
    written(file, b"longer" * 1000, b"four")
    assert synced == [tmp_path, tmp_path]


def test_a_write_that_fails_leaves_the_content_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state"
    written(file, b"one", b"two")
    whole = os.pwrite

    def half(handle: int, content: bytes, at: int) -> int:
        monkeypatch.setattr(os, "pwrite", full)
        return whole(handle, content[: len(content) // 2], at)

    def full(handle: int, content: bytes, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space left"):
        written(file, b"three")
    monkeypatch.setattr(os, "pwrite", lambda handle, content, at: whole(handle, content[:3], at))  # a few bytes at a time
    assert read_slots(file)[0] == b"two"
    written(file, b"four")
    assert read_slots(file)[0] == b"four"


def test_a_content_is_on_the_disk_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as can be seen from here: the file is opened for writes that wait for the disk."""
    file, flags = tmp_path / "state", list[int]()
    written(file, b"one")
    turn, plain = read_slots(file)[1], os.open
    monkeypatch.setattr(os, "open", lambda path, flag: (flags.append(flag), plain(path, flag))[1])
    write_slots(file, b"two", turn)
    assert [flag & os.O_DSYNC for flag in flags] == [os.O_DSYNC]


def test_in_an_object_store_a_file_is_its_content(tmp_path: Path) -> None:
    away = UPath("memory://slots/state")
    assert write_slots(away, b"one", None) is None
    assert read_slots(away) == (b"one", None)
    written(tmp_path / "state", b"old", b"new")
    fedcore.data.slots.write_durably(away, (tmp_path / "state").read_bytes())  # copied there by other means
    assert read_slots(away)[0] == b"new"
