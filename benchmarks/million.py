"""What a million devices would take, from what was measured of growth: for the page of the documents on it."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.results import Part

MILLION = 1_000_000

COLUMNS = ("run", "measured up to", "enrolment", "a round", "memory", "sent a round", "received a round")


def tables(part: Part) -> str:
    """Two tables in Markdown of the part `growth`: what one device more costs, and what a million of them do.

    Costs are taken on by the powers that were fitted. Where one is below 1, what does not grow with a fleet has not yet ceased to matter;
    then it is the line through the fitted costs at both ends of the range.
    """
    measured, taken_on = [], []
    for name, axis, reach, *pairs in part.rows:
        if axis != "K":
            continue
        least, most = (int(end) for end in str(reach).replace(",", "").split(" to "))
        costs = [Cost(float(str(cost)), float(str(power)), least, most) for cost, power in zip(pairs[::2], pairs[1::2], strict=True)]
        enrolment, a_round, memory, up, down = (cost.each for cost in costs)
        each = (_micro(1e6 * enrolment), _micro(1e3 * a_round), f"{1024 * memory:.3g} KiB", *(_bytes(way) for way in (up, down)))
        measured.append((str(name), f"{most:,}", *each))
        enrolment, a_round, memory, up, down = (cost.at(MILLION) for cost in costs)
        at = (_time(enrolment), _time(a_round / 1e3), f"{memory / 1024:.3g} GiB", _size(up), _size(down))
        taken_on.append((str(name), f"{most:,}", *at))
    return f"For each device:\n\n{_table(measured)}\n\nAt a million devices:\n\n{_table(taken_on)}\n"


class Cost(NamedTuple):
    """What a fleet of `most` devices costs, and the power of the number of devices that this is from `least` on."""

    cost: float
    power: float
    least: int
    most: int

    @property
    def each(self) -> float:
        """What one device costs, fixed costs apart."""
        if self.power >= 1.0:
            return self.cost / self.most
        return self.cost * (1.0 - (self.least / self.most) ** self.power) / (self.most - self.least)

    def at(self, K: int) -> float:
        """What a fleet of K devices would."""
        if self.power >= 1.0:
            return self.cost * (K / self.most) ** self.power
        return self.cost + self.each * (K - self.most)


def _table(rows: list[tuple[str, ...]]) -> str:
    head = (COLUMNS, ("---", *["--:"] * (len(COLUMNS) - 1)))
    return "\n".join(f"| {' | '.join(row)} |" for row in (*head, *rows))


def _micro(seconds: float) -> str:
    return f"{seconds:,.0f} µs" if seconds >= 100 else f"{seconds:.3g} µs"


def _bytes(kilobytes: float) -> str:
    return f"{1e3 * kilobytes:,.0f} bytes"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.3g} min" if seconds >= 100 else f"{seconds:.3g} s"


def _size(kilobytes: float) -> str:
    return f"{kilobytes / 1e6:.3g} GB" if kilobytes >= 1e6 else f"{kilobytes / 1e3:.3g} MB"
