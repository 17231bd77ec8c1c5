"""What a million devices would take, from what was measured of growth: for the page of the documents on it."""

from __future__ import annotations

from benchmarks.results import Part

MILLION = 1_000_000

COLUMNS = ("run", "measured up to", "enrolment", "a round", "memory", "sent a round", "received a round")


def tables(part: Part) -> str:
    """Two tables in Markdown of the part `growth`: the constants a device, as measured, and a million times them.

    Costs are taken on by the powers that were fitted, or in proportion where these are below 1: what does not grow with a fleet has
    then not yet ceased to matter.
    """
    measured, taken_on = [], []
    for name, axis, reach, *pairs in part.rows:
        if axis != "K":
            continue
        K = int(str(reach).rpartition(" ")[2].replace(",", ""))
        costs, powers = [float(str(each)) for each in pairs[::2]], [max(1.0, float(str(each))) for each in pairs[1::2]]
        enrolment, a_round, memory, up, down = costs
        each = (1e6 * enrolment / K, 1e3 * a_round / K, 1024 * memory / K, 1e3 * up / K, 1e3 * down / K)
        units = ("µs", "µs", "KiB", "bytes", "bytes")
        figures = (f"{figure:,.3g} {unit}" if figure < 1000 else f"{figure:,.0f} {unit}" for figure, unit in zip(each, units, strict=True))
        measured.append((str(name), f"{K:,}", *figures))
        at = [cost * (MILLION / K) ** power for cost, power in zip(costs, powers, strict=True)]
        taken_on.append((str(name), f"{K:,}", _time(at[0]), _time(at[1] / 1e3), f"{at[2] / 1024:.3g} GiB", _size(at[3]), _size(at[4])))
    return f"For each device:\n\n{_table(measured)}\n\nAt a million devices:\n\n{_table(taken_on)}\n"


def _table(rows: list[tuple[str, ...]]) -> str:
    head = (COLUMNS, ("---", *["--:"] * (len(COLUMNS) - 1)))
    return "\n".join(f"| {' | '.join(row)} |" for row in (*head, *rows))


def _time(seconds: float) -> str:
    return f"{seconds / 60:.3g} min" if seconds >= 100 else f"{seconds:.3g} s"


def _size(kilobytes: float) -> str:
    return f"{kilobytes / 1e6:.3g} GB" if kilobytes >= 1e6 else f"{kilobytes / 1e3:.3g} MB"
