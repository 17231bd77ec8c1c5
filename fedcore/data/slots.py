"""A file that is written over and over: of its two slots the newer whole one counts.

A rename in place of an old file makes the system look for new blocks, write its journal and flush, at several times the cost of the write
itself. Here a content goes over the older slot, in blocks that are there, and is on the disk when the write returns. What a crash
tears does not fit its checksum, and the content before it counts, as if nothing had been written.

In an object store, and where a content does not fit, the file is replaced whole.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from fedcore.data.places import Place, read_file, write_durably, write_over

_HEAD = Struct("<8sQQI4x")
"""Of a slot: mark, how many contents the file had before, bytes of this one, and the checksum of these two and the content."""

_MARK = b"fedslot\n"
_BLOCK = 4096


class Turn(NamedTuple):
    """Where a file has its content.

    Attributes
    ----------
    number
        How many it had before.
    at
        Where its slot begins.
    room
        Bytes of a slot, head included.
    """

    number: int
    at: int
    room: int


def read_slots(path: Place) -> tuple[bytes, Turn | None]:
    """The content of a file that `write_slots` has written, and where it is; for a file of another kind its bytes, and None.

    Raises
    ------
    OSError
        As the operating system says.
    """
    raw = read_file(path)
    room = len(raw) // 2
    found = [slot for at in (0, room) if (slot := _slot(raw, at, room))]
    return max(found, key=lambda slot: slot[1].number) if found else (raw, None)


def write_slots(path: Place, content: bytes, turn: Turn | None) -> Turn | None:
    """Give a file another content, which is there whole or not at all, and return where.

    Parameters
    ----------
    path
        The file, in a folder that is there.
    content
        Its new content.
    turn
        Where it has its content now; None to begin the file anew, whatever it holds.

    Raises
    ------
    OSError
        As the operating system says; the file then has its content as before.
    """
    if not isinstance(path, Path):
        write_durably(path, content)
        return None
    number = turn.number + 1 if turn else 0
    slot = _HEAD.pack(_MARK, number, len(content), _checksum(number, content)) + content
    if turn and len(slot) <= turn.room:
        now = Turn(number, turn.room - turn.at, turn.room)
        write_over(path, slot, now.at)
        return now
    room = -(-len(slot) // _BLOCK) * _BLOCK
    write_durably(path, slot.ljust(2 * room, b"\0"))
    return Turn(number, 0, room)


def _slot(raw: bytes, at: int, room: int) -> tuple[bytes, Turn] | None:
    """The content of one slot, where it is whole."""
    if len(raw) - at < _HEAD.size:
        return None
    mark, number, length, checksum = _HEAD.unpack_from(raw, at)
    content = raw[at + _HEAD.size : at + _HEAD.size + length]
    if mark != _MARK or len(content) != length or _HEAD.size + length > room or checksum != _checksum(number, content):
        return None
    return content, Turn(number, at, room)


def _checksum(number: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(b"%d %d " % (number, len(content))))
