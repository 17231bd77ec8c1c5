"""What the paper reports: A-RMSE as mean (standard deviation) over 30 runs, to three decimals."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A figure of the paper: mean and standard deviation over its runs, in target units."""

    mean: float
    sd: float


RUNS = 30
ROUNDING = 0.0005
"""Half a unit of the last decimal that is printed."""

TABLE_1 = {
    "Case I": {"HM1": Published(0.081, 0.001), "Separate": Published(0.094, 0.001)},
    "Case II": {"HM1": Published(0.050, 0.000), "Separate": Published(0.056, 0.001)},
    "Case III": {"HM1": Published(0.044, 0.002), "Separate": Published(0.072, 0.004)},
    "Case IV": {"HM1": Published(0.035, 0.000), "Separate": Published(0.035, 0.000)},
}
"""Table 1, section 5.1: simulated fleets."""

TABLE_4 = {
    "sensor 2": {
        "HM1": Published(0.270, 0.001),
        "Separate": Published(0.299, 0.003),
        "FedAvg": Published(0.450, 0.013),
        "Ditto": Published(0.281, 0.001),
    },
    "sensor 3": {
        "HM1": Published(0.218, 0.002),
        "Separate": Published(0.223, 0.001),
        "FedAvg": Published(0.303, 0.009),
        "Ditto": Published(0.220, 0.001),
    },
    "sensor 7": {
        "HM1": Published(0.369, 0.004),
        "Separate": Published(0.405, 0.003),
        "FedAvg": Published(0.628, 0.011),
        "Ditto": Published(0.388, 0.005),
    },
    "sensor 8": {
        "HM1": Published(0.267, 0.001),
        "Separate": Published(0.307, 0.001),
        "FedAvg": Published(0.395, 0.008),
        "Ditto": Published(0.289, 0.001),
    },
}
"""Table 4, section 6.2: C-MAPSS FD001."""
