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
from fedcore.data.importing import import_file, import_frame
from fedcore.data.inference import infer_contract
from fedcore.data.partitions import Added, add_partition, remove_device
from fedcore.data.simulated import create_simulated
from fedcore.data.store import Dataset, DeviceCard, create_dataset, list_datasets, open_dataset
from fedcore.data.summary import ColumnSummary, Summary, summarise

__all__ = [
    "Added",
    "Column",
    "ColumnSplit",
    "ColumnSummary",
    "Contract",
    "Dataset",
    "DeviceCard",
    "LinearMap",
    "NoSplit",
    "PolynomialMap",
    "RandomSplit",
    "Scaling",
    "SourceFile",
    "Summary",
    "TimeSplit",
    "add_partition",
    "create_dataset",
    "create_simulated",
    "import_file",
    "import_frame",
    "infer_contract",
    "list_datasets",
    "open_dataset",
    "read_contract",
    "remove_device",
    "summarise",
    "write_contract",
]
