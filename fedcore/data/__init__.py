"""The data edge: contracts, the partition store, import. The only room that knows polars and files of rows."""

from fedcore.data.contract import (
    Category,
    Column,
    ColumnSplit,
    Contract,
    Disclosure,
    LinearMap,
    Missing,
    NoSplit,
    PolynomialMap,
    RandomSplit,
    Scaling,
    SourceFile,
    TimeSplit,
    read_contract,
    write_contract,
)
from fedcore.data.creation import create_dataset
from fedcore.data.fitted import Fitted
from fedcore.data.fleet import fit_fleet, load_fleet
from fedcore.data.importing import import_file, import_frame
from fedcore.data.inference import infer_contract
from fedcore.data.partitions import Added, add_partition, remove_device
from fedcore.data.preprocess import DeviceSummary, fit_preprocessing, summarise
from fedcore.data.simulated import create_simulated
from fedcore.data.store import Dataset, DeviceCard, Stamp, list_datasets, open_contract, open_dataset
from fedcore.data.summary import ColumnSummary, Summary, describe_dataset

__all__ = [
    "Added",
    "Category",
    "Column",
    "ColumnSplit",
    "ColumnSummary",
    "Contract",
    "Dataset",
    "DeviceCard",
    "DeviceSummary",
    "Disclosure",
    "Fitted",
    "LinearMap",
    "Missing",
    "NoSplit",
    "PolynomialMap",
    "RandomSplit",
    "Scaling",
    "SourceFile",
    "Stamp",
    "Summary",
    "TimeSplit",
    "add_partition",
    "create_dataset",
    "create_simulated",
    "describe_dataset",
    "fit_fleet",
    "fit_preprocessing",
    "import_file",
    "import_frame",
    "infer_contract",
    "list_datasets",
    "load_fleet",
    "open_contract",
    "open_dataset",
    "read_contract",
    "remove_device",
    "summarise",
    "write_contract",
]
