"""`fedlin data`: import a source file, check the partitions, list the data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from fedcore.data import Dataset, DeviceCard, fit_preprocessing, import_file, list_datasets, open_dataset, read_contract
from fedcore.errors import DataError, Misuse
from flows.workspace import Workspace

T = TypeVar("T")

_SHOWN_FAILURES = 10

app = typer.Typer(no_args_is_help=True, help="Data sets: import, check, list.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="Source file: .csv, .txt or .parquet.", show_default=False)],
    dataset: Annotated[str, typer.Option(help="Name of the data set.", show_default=False)],
    device: Annotated[str | None, typer.Option(help="Device column, where there is no contract yet.", show_default=False)] = None,
    target: Annotated[str | None, typer.Option(help="Target column, where there is no contract yet.", show_default=False)] = None,
) -> None:
    """Split a source file by device into the partitions of a data set."""
    _show(*_checked(import_file(Workspace.find().datasets, file, dataset, device=device, target=target)))


@app.command()
def check(name: Annotated[str, typer.Argument(help="Name of the data set.", show_default=False)]) -> None:
    """Read every device of a data set and hold it against the contract."""
    _show(*_checked(open_dataset(Workspace.find().datasets, name)))


@app.command("list")
def list_() -> None:
    """List the data sets that have a contract."""
    root = Workspace.find().datasets
    table = Table("data set", "target", "description")
    for name in list_datasets(root):
        contract = read_contract(root / name)
        table.add_row(name, contract.target, contract.description)
    _print(table)


def _checked(dataset: Dataset) -> tuple[Dataset, list[DeviceCard]]:
    if dataset.contract.needs_fit:
        # It stays here: an import or a check tells nobody, so the disclosure rules are for the run to hold.
        summaries = _of_all(dataset, lambda dataset, device_id: dataset.summary(device_id, gated=False))
        dataset = dataset.with_fitted(fit_preprocessing(dataset.contract, summaries))
    return dataset, _of_all(dataset, Dataset.card)


def _of_all(dataset: Dataset, read: Callable[[Dataset, str], T]) -> list[T]:
    found: list[T] = []
    failures: list[str] = []
    for device_id in dataset.device_ids:
        try:
            found.append(read(dataset, device_id))
        except DataError as error:
            failures.append(str(error))
    for failure in failures[:_SHOWN_FAILURES]:
        typer.echo(failure)
    if failures:
        total = len(found) + len(failures)
        raise Misuse(f"data set {dataset.name!r}: {len(failures)} of {total} devices break the contract: correct or import them again")
    return found


def _show(dataset: Dataset, cards: list[DeviceCard]) -> None:
    table = Table("", "", show_header=False, title=dataset.name, title_justify="left")
    table.add_row("devices", str(len(cards)))
    table.add_row("training rows", str(sum(card.n_train for card in cards)))
    table.add_row("validation rows", str(sum(card.n_validation for card in cards)))
    table.add_row("test rows", str(sum(card.n_test for card in cards)))
    table.add_row("features", ", ".join(dataset.design_names))
    table.add_row("target", dataset.contract.target)
    _print(table)


def _print(table: Table) -> None:
    # Names and descriptions are the user's text, not markup.
    Console(markup=False, highlight=False).print(table)
