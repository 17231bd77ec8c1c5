"""A file that is written over and over: of its two slots the newer whole one counts.

A rename in place of an old file makes the system look for new blocks, write its journal and flush, at several times the cost of the write
itself. Here a content goes over the older slot, in blocks that are there, and is on the disk when the write returns. What a crash
tears does not fit its checksum, and the content before it counts, as if nothing had been written.

Where a content does not fit, or the file is not one to be written over (see `write_over`), it is replaced whole, as in an object store.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from fedcore.data.places import Place, read_file, sync_folder, write_durably, write_over

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
    heads = [head for at in (0, room) if (head := _head(raw, at, room))]
    for head in sorted(heads, key=lambda head: head.turn.number, reverse=True):
        begins = head.turn.at + _HEAD.size
        content = memoryview(raw)[begins : begins + head.length]
        if head.checksum == _checksum(head.turn.number, content):
            return bytes(content), head.turn
    return raw, None


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
        As the operating system says; the file then has its content as before, or the new one.
    """
    if not isinstance(path, Path):
        write_durably(path, content)
        return None
    number = turn.number + 1 if turn else 0
    slot = _HEAD.pack(_MARK, number, len(content), _checksum(number, content)) + content
    if turn and len(slot) <= turn.room:
        now = Turn(number, turn.room - turn.at, turn.room)
        if write_over(path, slot, now.at, 2 * turn.room):
            return now
    room = -(-len(slot) // _BLOCK) * _BLOCK
    write_durably(path, slot.ljust(2 * room, b"\0"))
    sync_folder(path.parent)  # what is written over later brings no name to the disk
    return Turn(number, 0, room)


class _Head(NamedTuple):
    """Of a slot: where its content is, how long, and its checksum."""

    turn: Turn
    length: int
    checksum: int


def _head(raw: bytes, at: int, room: int) -> _Head | None:
    if len(raw) - at < _HEAD.size:
        return None
    mark, number, length, checksum = _HEAD.unpack_from(raw, at)
    return _Head(Turn(number, at, room), length, checksum) if mark == _MARK and _HEAD.size + length <= room else None


def _checksum(number: int, content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(b"%d %d " % (number, len(content))))
