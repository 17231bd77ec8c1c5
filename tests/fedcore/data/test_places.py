from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedcore.data.places import read_file, write_durably


def test_a_file_is_replaced_and_never_written_over(tmp_path: Path) -> None:
    file, reader = tmp_path / "part-0.parquet", tmp_path / "reader"
    write_durably(file, b"old")
    reader.hardlink_to(file)
    write_durably(file, b"new")
    assert (file.read_bytes(), reader.read_bytes()) == (b"new", b"old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part-0.parquet", "reader"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "part-0.parquet"
    write_durably(file, b"old")

    def full(handle: int) -> None:
        assert [path.name for path in tmp_path.glob("*.parquet")] == ["part-0.parquet"]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(file, b"new")
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["part-0.parquet"]


def test_a_link_in_the_place_of_what_a_killed_process_half_wrote_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"others'")
    (tmp_path / ".state.tmp").symlink_to(elsewhere)
    write_durably(tmp_path / "state", b"ours")
    assert (elsewhere.read_bytes(), (tmp_path / "state").read_bytes()) == (b"others'", b"ours")
    assert not (tmp_path / "state").is_symlink()


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state")
    assert read_file(tmp_path / "state") == b""
