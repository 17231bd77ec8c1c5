"""What the paper reports: means (standard deviations) over 30 runs, or figures of one run, to three decimals."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A figure of the paper: mean and standard deviation over its runs, in target units or as a share; None where it is of one run."""

    mean: float
    sd: float | None


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

TABLE_2 = {
    "Case I": {
        "A-RMSE": Published(0.055, 0.001),
        "correct inclusion": Published(0.880, 0.003),
        "false inclusion": Published(0.095, 0.001),
    },
    "Case II": {
        "A-RMSE": Published(0.062, 0.002),
        "correct inclusion": Published(0.875, 0.004),
        "false inclusion": Published(0.101, 0.001),
    },
    "Case III": {
        "A-RMSE": Published(0.088, 0.001),
        "correct inclusion": Published(0.891, 0.005),
        "false inclusion": Published(0.115, 0.001),
    },
}
"""The table of section 5.2: selection on simulated fleets by HM2's lasso."""

STUDENT = {
    "HM2 lasso": {"A-RMSE": Published(0.825, None), "school 1": Published(21.0, None), "school 2": Published(23.0, None)},
    "HM2 ridge": {"A-RMSE": Published(0.817, None), "school 1": Published(21.0, None), "school 2": Published(22.0, None)},
    "Centralised lasso": {"A-RMSE": Published(0.820, None), "school 1": Published(21.0, None), "school 2": Published(21.0, None)},
    "Centralised ridge": {"A-RMSE": Published(0.815, None), "school 1": Published(21.0, None), "school 2": Published(21.0, None)},
}
"""The table of section 6.1: grades in two schools, and how many of 38 predictors are included; of the centralised methods one number for
both schools."""
