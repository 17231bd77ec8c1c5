"""fedlin's mathematics: federated linear models, their rounds, and the edge to the data."""

from fedcore.algorithm import Outcome
from fedcore.ditto import Ditto
from fedcore.errors import DataError, DeviceFailure, FedlinError, Misuse
from fedcore.fedavg import FedAvg
from fedcore.fit import FitResult, fit
from fedcore.hm1 import Hm1
from fedcore.pooled import Pooled
from fedcore.rows import DeviceData, Rows
from fedcore.separate import Separate

__all__ = [
    "DataError",
    "DeviceData",
    "DeviceFailure",
    "Ditto",
    "FedAvg",
    "FedlinError",
    "FitResult",
    "Hm1",
    "Misuse",
    "Outcome",
    "Pooled",
    "Rows",
    "Separate",
    "fit",
]
