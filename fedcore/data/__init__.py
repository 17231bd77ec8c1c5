"""The data edge: contracts, the partition store, import. The only room that knows polars and files of rows."""

from fedcore.data.contract import (
    Column,
    ColumnSplit,
    Contract,
    LinearMap,
    NoSplit,
    PolynomialMap,
    RandomSplit,
    Scaling,
    SourceFile,
    TimeSplit,
    read_contract,
    write_contract,
)
from fedcore.data.importing import import_file
from fedcore.data.simulated import create_simulated
from fedcore.data.store import Dataset, DeviceCard, create_dataset, list_datasets, open_dataset

__all__ = [
    "Column",
    "ColumnSplit",
    "Contract",
    "Dataset",
    "DeviceCard",
    "LinearMap",
    "NoSplit",
    "PolynomialMap",
    "RandomSplit",
    "Scaling",
    "SourceFile",
    "TimeSplit",
    "create_dataset",
    "create_simulated",
    "import_file",
    "list_datasets",
    "open_dataset",
    "read_contract",
    "write_contract",
]
