"""Rows on their way from a source to the devices, on the disk and not in memory."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl


def spooled(folder: Path, pieces: Iterable[tuple[str, pl.DataFrame]]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Pieces of devices in any order, as one frame a device, sorted by id.

    All pieces are read before this returns. Memory holds one piece, and then one device.

    Parameters
    ----------
    folder
        An empty folder for one file a device, in the same place as the data set: rows are not to lie about elsewhere.
    pieces
        Device ids with some of their rows.
    """
    # Ids may differ by case only, which a file system may not tell apart: numbers name the files.
    files: dict[str, Path] = {}
    for device_id, rows in pieces:
        file = files.setdefault(device_id, folder / str(len(files)))
        content = io.BytesIO()
        rows.write_ipc_stream(content, compression="lz4")
        # Opened for each piece, since a fleet may be larger than the number of files that a process may hold open.
        with file.open("ab") as stream:
            stream.write(len(content.getbuffer()).to_bytes(8, "little"))
            stream.write(content.getbuffer())
    return ((device_id, pl.concat(_frames(files[device_id]))) for device_id in sorted(files))


def _frames(file: Path) -> Iterator[pl.DataFrame]:
    with file.open("rb") as stream:
        while size := stream.read(8):
            yield pl.read_ipc_stream(stream.read(int.from_bytes(size, "little")))
