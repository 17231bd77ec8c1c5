"""Import: a source with all devices becomes one partition a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

import polars as pl

from fedcore.data.checks import listed
from fedcore.data.contract import CONTRACT_FILE, Contract, SourceFile, read_contract
from fedcore.data.conversion import pieces
from fedcore.data.creation import check_vacant, create_dataset
from fedcore.data.inference import first_contract
from fedcore.data.places import Place, is_file, stored
from fedcore.data.sources import Source, open_sources, open_table
from fedcore.data.spool import spooled
from fedcore.data.staging import staging_folder
from fedcore.data.store import Dataset
from fedcore.errors import DataError, Misuse


def import_file(
    root: Place,
    path: Place,
    name: str,
    *,
    device: str | None = None,
    target: str | None = None,
    units: Mapping[str, str] = MappingProxyType({}),
) -> Dataset:
    """Split a source by device into the partitions of a new data set. Memory holds a batch of rows, and then a device.

    Parameters
    ----------
    root
        The datasets folder.
    path
        `.csv`, `.txt` or `.parquet` with a device column; or a folder of such files, one a device, named by the device's id.
    name
        The data set. Where `root/name/dataset.toml` is there already, it says how to read the file; otherwise a first contract is
        written: every other column is a feature (a category where it is text), no intercept, no scaling, all rows train.
    device, target
        The columns of that first contract. Leave them out where there is a contract. A folder needs no device column.
    units
        By column, the unit in which this source brings it, in place of what [file] says. A first contract has no units.

    Raises
    ------
    Misuse
        Where the options do not go with the contract, the source cannot be read, or the data set has partitions already.
    DataError
        Where source and contract disagree, or a device breaks the contract; nothing is written then.
    """
    check_vacant(root, name)
    contract = _contract_there(root, name, device, target)
    if contract is None:
        if units:
            raise Misuse(f"data set {name!r} has no contract yet, and so no units to convert to: infer one first, and state them there")
        target = _needed(target, name)
        sources = open_sources(path, None, device)
        contract = _numeric_contract(sources, path.name, name, device, target)
    else:
        sources = open_sources(path, contract.source_file(units), contract.device)
    return _imported(root, name, contract, sources, path.name)


def import_frame(root: Place, frame: object, name: str, *, device: str | None = None, target: str | None = None) -> Dataset:
    """Split a table in memory by its device column into the partitions of a new data set.

    Parameters
    ----------
    frame
        A Polars data frame, an Arrow table, or any table that speaks Arrow's C stream interface; numbers and text only.
    root, name, device, target
        As for `import_file`.

    Raises
    ------
    Misuse, DataError
        As `import_file`; errors call the table "data frame".
    """
    check_vacant(root, name)
    contract = _contract_there(root, name, device, target)
    source = open_table(frame, "data frame", SourceFile() if contract is None else contract.file)
    if contract is None:
        contract = _numeric_contract([source], source.where, name, device, _needed(target, name))
    return _imported(root, name, contract, [source], source.where)


def _contract_there(root: Place, name: str, device: str | None, target: str | None) -> Contract | None:
    if not is_file(root / name / CONTRACT_FILE):
        return None
    contract = read_contract(root / name)
    for option, asked, declared in (("device", device, contract.device), ("target", target, contract.target)):
        if asked not in (None, declared):
            raise Misuse(f"data set {name!r} has a contract with {option} {declared!r}: leave {option} out, or change the contract")
    return contract


def _needed(target: str | None, name: str) -> str:
    if target is None:
        raise Misuse(f"data set {name!r} has no contract yet: name the device column and the target (--device, --target)")
    return target


def _numeric_contract(sources: Sequence[Source], where: str, name: str, device: str | None, target: str) -> Contract:
    contract = first_contract(sources, where, name, device, target)
    if texts := [column for column, declared in contract.columns.items() if declared.type == "string"]:
        # Nobody has looked at the contract yet, so a number that is misspelt must not pass for text.
        command = f"fedlin data infer FILE... --dataset {name} --target {target}"
        way = f"write the contract first ({command}), and say there which are categories or the split column"
        raise DataError(f"{where}: {listed(texts)} not numeric: {way}")
    return contract


def _imported(root: Place, name: str, contract: Contract, sources: Sequence[Source], where: str) -> Dataset:
    rows = chain.from_iterable(pieces(source, contract) for source in sources)
    return stored(name, lambda: _spool(root, name, contract, rows, where))


def _spool(root: Place, name: str, contract: Contract, rows: Iterable[tuple[str, pl.DataFrame]], where: str) -> Dataset:
    with staging_folder(root) as staging:
        frames = spooled(staging, rows)
        try:
            return create_dataset(root, name, contract, frames)
        except DataError as error:
            failure = str(error)
    raise DataError(f"{where}: {failure}")
