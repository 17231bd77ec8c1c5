"""How commands show a run's end on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.filesize import decimal

from fedcore.data.places import Place, place
from flows.terminal import console, counted

OF_A_RUN = (
    "devices_missing",
    "wall_s",
    "round_s",
    "uplink_bytes",
    "artifacts",
    "mlflow_run_id",
    "flow_run_id",
    "task_runs",
    "task_runs_recorded",
)
"""What `--json` tells of every run."""


def conclude(
    result: Mapping[str, Any], reported: Sequence[str], show: Callable[[Console, Mapping[str, Any]], None], *, as_json: bool
) -> None:
    """Tell how a run ended, as its last line or with what `show` shows of it, and end with status 3 where its result is not one to use.

    Parameters
    ----------
    result
        `result.json`.
    reported
        What the line tells of it, where it is there.
    show
        Shows a command's own part of the result.
    as_json
        Whether the line is wanted.
    """
    if as_json:
        print(json.dumps({key: result[key] for key in (*reported, *OF_A_RUN) if key in result}, allow_nan=False), flush=True)
    else:
        out = console()
        show(out, result)
        _show_end(out, result)
    if not result["ok"]:
        raise typer.Exit(3)


def _show_end(out: Console, result: Mapping[str, Any]) -> None:
    """Who is missing, how the run ended, what it took, and where its results are."""
    if missing := result["devices_missing"]:
        out.print(f"no result of {counted(len(missing), 'device')}: {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}")
    rounds = result["rounds"]
    out.print(f"{result['outcome']} after {rounds} round{'' if rounds == 1 else 's'}: {result['message']}")
    out.print(f"run {result['run_id']}, {result['wall_s']:.1f} s, {decimal(result['uplink_bytes'])} sent by the devices")
    out.print(f"Prefect recorded {result['task_runs_recorded']} of {result['task_runs']} task runs")
    out.print(f"results in {near(place(result['artifacts']))}")


def figure(value: float | None) -> str:
    """A figure with four decimals, or where these say little four digits; a dash for none."""
    return "-" if value is None else f"{value:{_form(value)}}"


def difference(value: float | None, se: float | None) -> str:
    """A difference with its sign, and its standard error where there is one."""
    if value is None:
        return "-"
    form = _form(value if se is None else max(abs(value), se))
    return f"{value:+{form}}" if se is None else f"{value:+{form}} ({se:{form}})"


def _form(value: float) -> str:
    return ".4f" if value == 0 or 1e-3 <= abs(value) < 1e5 else ".3e"


def settings(options: Mapping[str, Any]) -> str:
    """Options in short; numbers to four digits."""
    return " ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in options.items())


def age(seconds: float) -> str:
    """A time in its largest whole unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0) // 1:.0f} s"


def near(path: Place) -> Place:
    """A path from here, where it is below."""
    return path.relative_to(Path.cwd()) if isinstance(path, Path) and path.is_relative_to(Path.cwd()) else path
