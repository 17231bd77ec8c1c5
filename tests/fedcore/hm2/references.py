"""Fleets with reference posteriors, and how far ours are from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedcore.fit import FitResult, fit
from fedcore.hm2.hm2 import Hm2
from fedcore.hm2.state import phi
from fedcore.rows import DeviceData

FOLDER = Path(__file__).parents[2] / "reference"


def reference(name: str, folder: Path = FOLDER) -> tuple[dict[str, Any], dict[str, DeviceData]]:
    """What an independent program found, and the devices in the order of its arrays."""
    table = pl.read_parquet(folder / f"{name}.parquet")
    columns = [column for column in table.columns if column not in ("device", "y")]
    parts = table.group_by("device", maintain_order=True)
    devices = {f"{k:04d}": DeviceData.of(rows.select(columns).to_numpy(), rows["y"].to_numpy()) for k, (_, rows) in enumerate(parts)}
    return json.loads((folder / f"{name}.json").read_text()), devices


def compared(found: dict[str, dict[str, list[float]]], posterior: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Differences of means in the reference's standard deviations, and ratios of standard deviations, over all blocks of phi."""
    errors: list[float] = []
    ratios: list[float] = []
    for block, ours in found.items():
        mean, sd = (np.atleast_1d(posterior[block][name]) for name in ("mean", "sd"))
        errors += ((np.array(ours["mean"]) - mean) / sd).tolist()
        ratios += (np.array(ours["sd"]) / sd).tolist()
    return np.array(errors), np.array(ratios)


def phi_of(result: FitResult, algorithm: Hm2) -> dict[str, dict[str, list[float]]]:
    """phi by block."""
    d = len(next(iter(result.theta.values())))
    return phi(result.server, algorithm.hierarchy.blocks(d), algorithm.hierarchy.prior(d))


def fitted(name: str, algorithm: Hm2, rounds: int = 60) -> tuple[FitResult, np.ndarray, np.ndarray]:
    """A reference's fleet, fitted and compared."""
    told, devices = reference(name)
    result = fit(algorithm, devices, rounds=rounds)
    return result, *compared(phi_of(result, algorithm), told["posterior"])
