"""fedlin's mathematics: federated linear models, their rounds, and the edge to the data."""

from fedcore.algorithm import Outcome
from fedcore.ditto import Ditto
from fedcore.eb import Eb
from fedcore.errors import DataError, DeviceFailure, FedlinError, Misuse
from fedcore.fedavg import FedAvg
from fedcore.fit import FitResult, fit
from fedcore.hm1 import Hm1
from fedcore.hm2.hm2 import Hm2
from fedcore.inclusion import included_signs, inclusions, refit
from fedcore.mtrl import Mtrl
from fedcore.pooled import Pooled
from fedcore.posterior import (
    Posterior,
    coefficient_draws,
    coefficient_intervals,
    coefficient_summary,
    coefficient_tests,
    combination_intervals,
    combination_tests,
    draws,
    prediction_intervals,
    prediction_ranks,
)
from fedcore.rows import DeviceData, Rows
from fedcore.separate import Separate

__all__ = [
    "DataError",
    "DeviceData",
    "DeviceFailure",
    "Ditto",
    "Eb",
    "FedAvg",
    "FedlinError",
    "FitResult",
    "Hm1",
    "Hm2",
    "Misuse",
    "Mtrl",
    "Outcome",
    "Pooled",
    "Posterior",
    "Rows",
    "Separate",
    "coefficient_draws",
    "coefficient_intervals",
    "coefficient_summary",
    "coefficient_tests",
    "combination_intervals",
    "combination_tests",
    "draws",
    "fit",
    "included_signs",
    "inclusions",
    "prediction_intervals",
    "prediction_ranks",
    "refit",
]
