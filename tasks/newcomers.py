"""What a run has learned of devices that were not in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcore.algorithm import AnyAlgorithm, DeviceResult, FleetSpec
from fedcore.errors import Misuse
from fedcore.rows import DeviceData, Rows


def fleet_prior(algorithm: AnyAlgorithm, spec: FleetSpec, server: Any) -> DeviceResult | None:
    """What a device would be given whose one row is all zeros, and so says nothing of its coefficients; None where the algorithm has
    nothing for other devices."""
    d = spec.d
    nobody = DeviceData(Rows(np.zeros((1, d)), np.zeros(1)), Rows.empty(d), Rows.empty(d))
    try:
        return algorithm.finalize(algorithm.newcomer(server), algorithm.init_device(spec, nobody), nobody)
    except Misuse:
        return None
