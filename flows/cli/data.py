"""`fedlin data`: contracts and partitions, from the source file on."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table

from fedcore.data import (
    Dataset,
    DeviceCard,
    SourceFile,
    add_partition,
    describe_dataset,
    import_file,
    infer_contract,
    list_datasets,
    open_dataset,
    read_contract,
    remove_device,
)
from fedcore.data.places import place
from fedcore.errors import DataError, Misuse
from flows.cli import options
from flows.events import owed, tell
from flows.inspection import inspect_devices, rows_by_device
from flows.terminal import console
from flows.workspace import Workspace
from tasks.keeping import erase

app = typer.Typer(cls=options.Commands, no_args_is_help=True, help="Data sets: contracts and partitions.")

Name = Annotated[str, typer.Argument(help="Name of the data set.", show_default=False)]

Units = Annotated[
    list[str] | None,
    typer.Option(metavar="COL=UNIT", help="The unit in which the file brings a column, where it is not the usual one.", show_default=False),
]


@app.command(epilog=options.examples("fedlin data infer pumps.csv --dataset pumps --device pump --target pressure"))
def infer(
    file: Annotated[
        str, typer.Argument(help="Source file (.csv, .txt or .parquet), or a folder of one file a device.", show_default=False)
    ],
    dataset: Annotated[str, typer.Option(help="Name of the data set.", show_default=False)],
    target: Annotated[str, typer.Option(help="Target column.", show_default=False)],
    device: Annotated[str | None, typer.Option(help="Device column; a folder's files need none.", show_default=False)] = None,
    separator: Annotated[str | None, typer.Option(help='One character, or "whitespace".', show_default=False)] = None,
    decimal: Annotated[str | None, typer.Option(help="The decimal mark, a point by default, or a comma.", show_default=False)] = None,
    header: Annotated[
        str | None, typer.Option(help="Names of the columns, where no line has them.", metavar="A,B,...", show_default=False)
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the first contract of a data set, for you to edit before the import."""
    form = _form(separator, decimal, header)
    contract = infer_contract(Workspace.find().datasets, place(file), dataset, device=device, target=target, form=form)
    features = f"{len(contract.features)} of {len(contract.columns)} columns are features"
    if as_json:
        told = {"name": dataset, "target": contract.target, "features": contract.features, "columns": list(contract.columns)}
        print(json.dumps(told), flush=True)
        return
    _say(f"datasets/{dataset}/dataset.toml: {features}, the target is {contract.target}: edit it, then fedlin data import")


@app.command(
    "import",
    epilog=options.examples(
        "fedlin data import pumps.csv --dataset pumps --device pump --target pressure",
        "fedlin data import train_FD001.txt --dataset cmapss-fd001",
        "fedlin data import s3://bucket/raw/pumps.parquet --dataset pumps --unit speed=rpm",
    ),
)
def import_(
    file: Annotated[
        str, typer.Argument(help="Source file (.csv, .txt or .parquet), or a folder of one file a device.", show_default=False)
    ],
    dataset: Annotated[str, typer.Option(help="Name of the data set.", show_default=False)],
    device: Annotated[str | None, typer.Option(help="Device column, where there is no contract yet.", show_default=False)] = None,
    target: Annotated[str | None, typer.Option(help="Target column, where there is no contract yet.", show_default=False)] = None,
    unit: Units = None,
    as_json: options.AsJson = False,
) -> None:
    """Split a source by device into the partitions of a data set."""
    workspace = Workspace.find()
    with owed(workspace, dataset) as rows:
        imported, cards = inspect_devices(
            import_file(workspace.datasets, place(file), dataset, device=device, target=target, units=_units(unit)), typer.echo
        )
        rows.update(rows_by_device(cards))
    _tell(workspace)
    _show(imported, cards, as_json=as_json)


@app.command(
    epilog=options.examples(
        "fedlin data add pump-17.csv --dataset pumps --device 17", "fedlin data add december.csv --dataset pumps --device 17 --append"
    )
)
def add(
    file: Annotated[str, typer.Argument(help="The device's rows: a .csv, .txt or .parquet file, or a folder of them.", show_default=False)],
    dataset: Annotated[str, typer.Option(help="Name of the data set.", show_default=False)],
    device: Annotated[str, typer.Option(help="Id of the device.", show_default=False)],
    append: Annotated[bool, typer.Option("--append", help="The device is there already: these are further rows.")] = False,
    unit: Units = None,
    as_json: options.AsJson = False,
) -> None:
    """Add a device to a data set, or rows to a device. Adding the same file twice changes nothing."""
    workspace = Workspace.find()
    with owed(workspace, dataset) as rows:
        added = add_partition(workspace.datasets, place(file), dataset, device, append=append, units=_units(unit))
        if added.changed:
            rows[added.device] = added.rows
    _tell(workspace)
    where = f"data set {dataset}: device={added.device}/{added.file}"
    if as_json:
        print(json.dumps({"name": dataset, **added._asdict()}), flush=True)
        return
    _say(f"{where} with {added.rows} rows" if added.changed else f"{where} holds these {added.rows} rows already: nothing changed")


@app.command(epilog=options.examples("fedlin data remove pumps --device 17"))
def remove(
    name: Name,
    device: Annotated[str, typer.Option(help="Id of the device.", show_default=False)],
    as_json: options.AsJson = False,
) -> None:
    """Delete a device's rows, and the state that it keeps of runs; not while a run of the project goes on, which would write it anew."""
    from flows.runs import going_on

    workspace = Workspace.find()
    datasets = workspace.datasets
    for run_id in going_on(workspace, name):
        raise Misuse(f"run {run_id} goes on with data set {name!r}: wait for it, or end it and resume it afterwards")
    erase(datasets, name, device)  # first: a removal that is cut short can be asked for again
    remove_device(datasets, name, device)
    if as_json:
        print(json.dumps({"name": name, "removed": device}), flush=True)
        return
    _say(f"data set {name}: device={device} removed")


@app.command()
def check(name: Name, as_json: options.AsJson = False) -> None:
    """Read every device of a data set and hold it against the contract."""
    _show(*inspect_devices(open_dataset(Workspace.find().datasets, name), typer.echo), as_json=as_json)


@app.command()
def describe(
    name: Name,
    as_json: options.AsJson = False,
) -> None:
    """Tell of a data set what may be told: counts, and ranges of devices' means, of no device and no row on its own."""
    dataset = open_dataset(Workspace.find().datasets, name)
    summary = describe_dataset(dataset)
    if as_json:
        columns = [column._asdict() for column in summary.columns]
        print(json.dumps({"name": name, "target": dataset.contract.target} | summary._asdict() | {"columns": columns}))
        return
    parts = f"{summary.n_train} train, {summary.n_validation} validate, {summary.n_test} test"
    table = Table("column", "type", "unit", "missing", "range of device means", title=f"{name}: {summary.devices} devices; rows: {parts}")
    for column in summary.columns:
        told = "" if column.low is None else f"{column.low:g} to {column.high:g}"
        missing = "not told" if column.missing is None else str(column.missing)
        table.add_row(column.name, column.type, column.unit, missing, told)
    console().print(table)


@app.command("list")
def list_(as_json: options.AsJson = False) -> None:
    """List the data sets that have a contract, and what is wrong with a contract that cannot be used."""
    root, found = Workspace.find().datasets, list[dict[str, str]]()
    for name in list_datasets(root):
        try:
            contract = read_contract(root / name)
            found.append({"name": name, "target": contract.target, "description": contract.description})
        except DataError as error:
            found.append({"name": name, "target": "", "description": f"cannot be used: {error}"})
    if as_json:
        print(json.dumps({"datasets": found}), flush=True)
        return
    if not found:
        _say("no data sets yet: fedlin data import brings one, fedlin simulate makes one up")
        return
    table = Table("data set", "target", "description")
    for each in found:
        table.add_row(*each.values())
    console().print(table)


def _say(text: str) -> None:
    console().print(text, soft_wrap=True)


def _units(given: list[str] | None) -> dict[str, str]:
    units: dict[str, str] = {}
    for option in given or ():
        column, equals, unit = option.rpartition("=")
        if not equals or column in units:
            raise Misuse(f"option unit: {option!r} is not COL=UNIT, or comes second for its column: give each column one unit")
        units[column] = unit
    return units


def _form(separator: str | None, decimal: str | None, header: str | None) -> SourceFile | None:
    """How text is read, None where nothing is said of it. With decimal commas the usual separator is a semicolon."""
    if separator is decimal is header is None:
        return None
    usual = ";" if decimal == "," else ","
    said = {"separator": separator or usual, "decimal": decimal or ".", "header": tuple(header.split(",")) if header else True}
    try:
        return SourceFile.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    field = f"{first['loc'][0]}: " if first["loc"] else ""
    raise Misuse(f"{field}{first['msg'].removeprefix('Value error, ')}")


def _tell(workspace: Workspace) -> None:
    if failure := tell(workspace, os.environ.get("PREFECT_API_URL")):
        typer.echo(f"fedlin: warning: {failure}", err=True)


def _show(dataset: Dataset, cards: list[DeviceCard], *, as_json: bool) -> None:
    changed = dataset.contract.version > 1
    versions = Counter(version for device_id in dataset.device_ids for version in dataset.versions(device_id)) if changed else {}
    rows = {name: sum(getattr(card, name) for card in cards) for name in ("n_train", "n_validation", "n_test")}
    if as_json:
        told = {"name": dataset.name, "devices": len(cards), **rows, "design": dataset.design_names, "target": dataset.contract.target}
        print(json.dumps(told | ({"part_files": dict(sorted(versions.items()))} if changed else {})), flush=True)
        return
    table = Table("", "", show_header=False, title=dataset.name, title_justify="left")
    table.add_row("devices", str(len(cards)))
    for part, count in zip(("training", "validation", "test"), rows.values(), strict=True):
        table.add_row(f"{part} rows", str(count))
    table.add_row("features", ", ".join(dataset.design_names))
    table.add_row("target", dataset.contract.target)
    for version, files in sorted(versions.items()):
        table.add_row(f"part files of version {version}", str(files))
    console().print(table)
