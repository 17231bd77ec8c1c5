"""fedlin's mathematics: federated linear models, their rounds, and the edge to the data."""

from fedcore.algorithm import Outcome
from fedcore.errors import DataError, DeviceFailure, FedlinError, Misuse
from fedcore.fit import FitResult, fit
from fedcore.hm1 import Hm1
from fedcore.mtrl import Mtrl
from fedcore.rows import DeviceData, Rows
from fedcore.separate import Separate

__all__ = [
    "DataError",
    "DeviceData",
    "DeviceFailure",
    "FedlinError",
    "FitResult",
    "Hm1",
    "Misuse",
    "Mtrl",
    "Outcome",
    "Rows",
    "Separate",
    "fit",
]
