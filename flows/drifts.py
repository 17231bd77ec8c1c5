"""What the devices of a fleet say of their drift from a champion."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedcore.drift import Drift, median_rms
from tasks.results import finite


class Drifts(NamedTuple):
    """What devices say of their drift: by id; which of them have drifted, and whether the fleet as a whole has."""

    told: dict[str, Drift]
    drifted: list[str]
    whole: bool

    @property
    def measured(self) -> list[str]:
        """The devices that could tell anything."""
        return [device for device, drift in self.told.items() if np.isfinite(drift.rms) or np.isfinite(drift.move)]

    def figures(self) -> dict[str, Any]:
        """For `result.json` and the decision."""
        rms = {device: drift.rms for device, drift in self.told.items() if np.isfinite(drift.rms)}
        shift = [abs(drift.mean) for drift in self.told.values() if np.isfinite(drift.mean)]
        move = [drift.move for drift in self.told.values() if np.isfinite(drift.move)]
        return {
            "drift_devices": len(self.measured),
            "drift_rms_median": finite(median_rms(self.told.values())),
            "drift_rms_largest": max(rms.values()) if rms else None,
            "drift_rms_device": max(rms, key=lambda device: rms[device]) if rms else None,
            "drift_mean_largest": max(shift) if shift else None,
            "drift_move_largest": max(move) if move else None,
            "devices_drifted": len(self.drifted),
            "fleet_drifted": self.whole,
        }
