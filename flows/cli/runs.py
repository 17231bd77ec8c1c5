"""`fedlin runs`: what runs were and what came of them, side by side, as MLflow holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedcore.errors import Misuse
from flows.cli import options
from flows.cli.shown import age, figure
from flows.terminal import console
from flows.workspace import Workspace

if TYPE_CHECKING:
    from tasks.tracking.found import FoundRun

EXAMPLES = options.examples(
    "fedlin runs",
    "fedlin runs --dataset pumps --sort a_rmse  # the best first",
    "fedlin runs --algorithm hm2 --where \"metrics.a_rmse < 0.5 and params.seed = '0'\"",
)

ENDINGS = {"RUNNING": "not ended"}
"""MLflow's words that say too much: whether such a run goes on or was interrupted is for `fedlin status` to tell."""

Dataset = Annotated[str | None, typer.Option(help="Of this data set alone.", show_default=False)]
Algorithm = Annotated[str | None, typer.Option(help="Of this algorithm alone.", show_default=False)]
Where = Annotated[
    str | None, typer.Option(help="A condition as MLflow takes it: \"metrics.a_rmse < 0.5 and params.seed = '0'\".", show_default=False)
]
Sort = Annotated[str | None, typer.Option(help="A metric; the lowest comes first. By default the newest run.", show_default=False)]
Last = Annotated[int, typer.Option(help="The most runs that are shown.", min=1)]


def command(
    dataset: Dataset = None,
    algorithm: Algorithm = None,
    where: Where = None,
    sort: Sort = None,
    last: Last = 20,
    as_json: options.AsJson = False,
) -> None:
    """Compare runs: settings and figures, from the MLflow store."""
    from tasks.tracking.found import find_runs

    asked = {"dataset": dataset, "algorithm": algorithm}
    conditions = [f"params.{name} = '{_quoted(name, value)}'" for name, value in asked.items() if value is not None]
    store, condition = Workspace.find().mlflow_store, " and ".join([*conditions, *([where] if where else [])])
    found = find_runs(store, condition, _metric(sort), last)
    if sort and not found and (others := find_runs(store, condition, None, 1)):
        raise Misuse(f"none of these runs has a metric {sort!r}: --sort takes one such as {', '.join(sorted(others[0].metrics)[:5])}")
    if as_json:
        print(json.dumps({"runs": [_told(each) for each in found]}, allow_nan=False), flush=True)
    else:
        _show(console(), found, sort)


def _quoted(name: str, value: str) -> str:
    if "'" in value or not value:
        raise typer.BadParameter("a name without quotes is expected", param_hint=f"--{name}")
    return value


def _metric(name: str | None) -> str | None:
    if name is not None and (not name or "`" in name):
        raise typer.BadParameter("the name of a metric is expected, as in a_rmse", param_hint="--sort")
    return name


def _show(out: Console, runs: Sequence[FoundRun], sort: str | None) -> None:
    if not runs:
        out.print("no run: fedlin train leaves one; with --dataset, --algorithm, --where or --sort those are shown that match")
        return
    figures = ["a_rmse", "a_rmse_separate", *([sort] if sort and sort not in ("a_rmse", "a_rmse_separate") else [])]
    table = Table(
        "run",
        "data set",
        "what",
        "K",
        "rounds",
        *("alone" if name == "a_rmse_separate" else name for name in figures),
        "age",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in table.columns:
        column.no_wrap = column.header in ("run", "age")  # the first is what one copies
        column.overflow = "fold"
    now = datetime.now(UTC)
    for run in runs:
        options_ = ", ".join(_chosen(run))
        values = [figure(run.metrics.get(name)) for name in figures]
        rounds = f"{run.metrics['rounds']:.0f}" if "rounds" in run.metrics else "-"
        what = " ".join(part for part in (run.params.get("algorithm", run.params.get("algorithms", "")), options_) if part)
        status = "" if run.status == "FINISHED" else f" ({ENDINGS.get(run.status, run.status.lower())})"
        table.add_row(
            run.run_id,
            run.params.get("dataset", "-"),
            what + status,
            run.params.get("K", "-"),
            rounds,
            *values,
            age((now - run.began).total_seconds()),
        )
    out.print(table)


def _chosen(run: FoundRun) -> list[str]:
    """Values of the options that tell methods of one name apart."""
    return [value for name, value in run.params.items() if name in ("option.prior", "option.covariance")]


def _told(run: FoundRun) -> dict[str, Any]:
    return run._asdict() | {"began": run.began.isoformat(timespec="seconds"), "params": dict(run.params), "metrics": dict(run.metrics)}
