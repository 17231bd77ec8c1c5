"""Bounds of options, checked once when an algorithm or a schedule is made; each refusal is one line."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from fedcore.errors import Misuse


def whole(name: str, value: Any, low: int, high: int) -> None:
    """Raise Misuse unless `value` is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise Misuse(f"{name} is a whole number from {low:,} to {high:,}, got {_short(value)}")


def number(
    name: str, value: Any, low: float, high: float, *, above: bool = False, below: bool = False, words: tuple[str, ...] = ()
) -> None:
    """Raise Misuse unless `value` is one of `words`, or a number from `low` to `high`; `above` and `below` leave the ends out."""
    if isinstance(value, str) and value in words:
        return
    fits = not isinstance(value, bool) and isinstance(value, Real)
    fits = fits and (low < float(value) if above else low <= float(value)) and (float(value) < high if below else float(value) <= high)
    if not fits:
        interval = f"{'(' if above else '['}{low:g}, {high:g}{')' if below else ']'}"
        also = "".join(f' or "{word}"' for word in words)
        raise Misuse(f"{name} is a number in {interval}{also}, got {_short(value)}")


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise Misuse unless `value` is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise Misuse(f"{name} is one of {', '.join(allowed)}, got {_short(value)}")


def _short(value: object) -> str:
    # A number of many thousand digits cannot even be printed.
    text = f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 200 else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
