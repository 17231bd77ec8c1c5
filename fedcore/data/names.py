"""Names that become folders, data sets, devices and runs; and names in messages."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fedcore.errors import DataError, Misuse

_SAFE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_LONGEST = 100
# What hive, spark and arrow call the folder of rows that have no value.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def checked_device_id(device_id: str) -> str:
    """The id itself, where it is safe as a folder name.

    Raises
    ------
    DataError
        With the reason, where it is not.
    """
    if reason := unsafe_id(device_id):
        remedy = "give these rows a device" if device_id == _HIVE_NULL else "rename the device"
        raise DataError(f"device id {_shown(device_id)} {reason}: {remedy}")
    return device_id


def unsafe_id(device_id: str) -> str:
    """Why an id is not safe as a folder name, to follow it in a sentence; empty where it is."""
    return "means a missing value to other tools" if device_id == _HIVE_NULL else _unsafe(device_id)


def checked_dataset_name(name: str) -> str:
    """The name itself, where it is safe as a folder name.

    Raises
    ------
    Misuse
        With the reason, where it is not.
    """
    if reason := _unsafe(name):
        raise Misuse(f"data set name {_shown(name)} {reason}: choose another name")
    return name


def checked_run_id(run_id: str) -> str:
    """The id itself, where it is safe as a folder name.

    Raises
    ------
    Misuse
        With the reason, where it is not.
    """
    if reason := _unsafe(run_id):
        raise Misuse(f"run id {_shown(run_id)} {reason}: choose another id")
    return run_id


def checked_distinct(device_ids: Iterable[str]) -> tuple[str, ...]:
    """Safe device ids, sorted.

    Raises
    ------
    DataError
        On an unsafe id, or two that are equal or differ only by case (some file systems cannot tell those apart).
    """
    ids = sorted(checked_device_id(device_id) for device_id in device_ids)
    seen: dict[str, str] = {}
    for device_id in ids:
        if other := seen.get(device_id.lower()):
            raise DataError(f"device ids {other!r} and {device_id!r} are the same, at most up to case: keep one, or rename it")
        seen[device_id.lower()] = device_id
    return tuple(ids)


def shown(name: str) -> str:
    """A column's name for a message: quoted, on one line, and cut where it is longer than a contract allows."""
    # What cannot be printed takes up to ten characters.
    longest, kept = (_LONGEST, 40) if name.isprintable() else (20, 20)
    return repr(name if len(name) <= longest else f"{name[:kept]}...")


def _unsafe(name: str) -> str:
    if not name:
        return "is empty"
    if len(name) > _LONGEST:
        return f"has {len(name)} characters, more than {_LONGEST}"
    if name.startswith("."):
        return "starts with a dot"
    if _ENCODED.search(name):
        return "looks URL-encoded, which is not undone"
    if not _SAFE.fullmatch(name):
        return "holds characters other than A-Z a-z 0-9 . _ -"
    return ""


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 40 else f"{name[:40]}...")
