"""What a run found, as files: estimates, one row a device, and figures."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedcore.data import Fitted
from fedcore.data.places import Place, make_folder, write_durably
from fedcore.data.trajectory import Trajectory
from fedcore.metrics import LEVELS, a_rmse
from fedcore.posterior import AnyPosterior, Posterior, Summary, coefficient_summary
from fedcore.trees import Arrays, npz, pack
from tasks.device import DeviceReport

FLEET = "device-ids"
"""Under what name the fleet's ids are beside the server's state. No part of a state can have it: those are names of Python."""

COURSE = ("time", "observed", "predicted", "tested")
"""Columns of a trajectory."""


def write_results(
    folder: Place,
    reports: Sequence[DeviceReport],
    coefficients: Sequence[str],
    server: Any,
    *,
    device_ids: Sequence[str],
    fitted: Fitted | None = None,
    gaps: Mapping[str, Mapping[str, int | None]],
) -> None:
    """Write `theta.npz`, `server.npz`, `devices.parquet`; where the algorithm has posteriors `posterior.npz` and `posteriors.parquet`,
    with the first table's columns `theta_sd` and `covered.<level>` (see `DeviceReport`); where devices told them, `trajectories.parquet`;
    and, where the data were prepared by it, `preprocessing.json`.

    `posterior.npz` holds posteriors as they are where they are normal. Mixtures, whose components differ in number, it holds by `mean`,
    `covariance` (of the joint distribution as a whole) and `noise` (its mean). `posteriors.parquet` has a row for each device and
    coefficient: see `posterior_table`.

    Parameters
    ----------
    folder
        Made where it is missing.
    reports
        One a device that gave its result, sorted by id; the columns of Theta in `theta.npz`.
    coefficients
        Names of the d design columns.
    server
        The algorithm's server state; its arrays are stored by name (`Theta`, `Omega`, ...).
    device_ids
        All devices of the run, sorted: the columns of the server's arrays.
    fitted
        The fleet's preprocessing. Where it scales features, `theta.npz` also holds `Theta_original` and
        `coefficients_original`, per unit of each feature, and `posterior.npz` `covariance_original`.
    gaps
        By device and column, the number of missing values, None where it may not be told; devices and columns without are left out.
        Each column that comes up is one of the table of devices, `missing.<column>`.
    """
    make_folder(folder)
    Theta = np.array([report.theta for report in reports]).T
    estimates = {"Theta": Theta, "coefficients": np.array(list(coefficients)), "devices": np.array([report.device for report in reports])}
    if fitted:
        write_durably(folder / "preprocessing.json", json.dumps(fitted.model_dump(mode="json"), indent=1, allow_nan=False).encode())
        if fitted.scales:
            estimates |= {"Theta_original": fitted.original(Theta), "coefficients_original": np.array(fitted.original_design)}
    write_durably(folder / "theta.npz", npz(estimates))
    known = {report.device: report.posterior for report in reports if report.posterior}
    if known:
        write_durably(folder / "posterior.npz", npz(_posteriors(known, coefficients, fitted)))
        write_durably(folder / "posteriors.parquet", _parquet(posterior_table(known, coefficients)))
    write_durably(folder / "server.npz", npz({**pack(server), FLEET: np.array(list(device_ids))}))
    levels = list(enumerate(LEVELS)) if known else []
    table = pa.table(
        {
            "device": [report.device for report in reports],
            "n_train": [report.n_train for report in reports],
            "n_test": [report.test.n for report in reports],
            "rmse_test": [finite(report.test.rmse) for report in reports],
            "rmse_separate": [finite(report.test_separate.rmse) for report in reports],
            "hurt": [report.hurt for report in reports],
            **{f"covered.{level:g}": [report.covered[i] if report.covered else None for report in reports] for i, level in levels},
            "theta": [report.theta.tolist() for report in reports],
            **({"theta_sd": [report.posterior.sd.tolist() if report.posterior else None for report in reports]} if known else {}),
            **{f"missing.{name}": _missing(reports, gaps, name) for name in sorted({name for told in gaps.values() for name in told})},
        }
    )
    write_durably(folder / "devices.parquet", _parquet(table))
    if courses := [_course(report.device, report.trajectory) for report in reports if report.trajectory]:
        write_durably(folder / "trajectories.parquet", _parquet(pa.concat_tables(courses)))


def write_phi(folder: Place, phi: Mapping[str, Mapping[str, Sequence[float]]], coefficients: Sequence[str]) -> None:
    """Write `phi.parquet`, a row for each hyper-parameter: `block`, `feature` (the design column; "" for one that all share), `mean`, `sd`,
    `lower` and `upper` (the equal-tailed interval at 90 %), `prior_mean` and `prior_sd`."""
    columns: dict[str, list[Any]] = {name: [] for name in ("block", "feature", *next(iter(phi.values())))}
    for block, found in phi.items():
        count = len(found["mean"])
        columns["block"] += [block] * count
        columns["feature"] += coefficients if count == len(coefficients) else [""] * count
        for name, values in found.items():
            columns[name] += values
    write_durably(folder / "phi.parquet", _parquet(pa.table(columns)))


def posterior_table(known: Mapping[str, AnyPosterior], coefficients: Sequence[str]) -> pa.Table:
    """Posteriors as a table with a row for each device and coefficient.

    All is in units of the design, whose columns may be scaled. Posteriors are taken as they stand (`reference="normal"`), which for devices
    with few rows and noise of their own is narrow: `fedcore.posterior`.

    Parameters
    ----------
    known
        Posteriors by device id.
    coefficients
        Names of the d design columns.

    Returns
    -------
    pa.Table
        `device`, `feature` (the design column), `mean`, `sd`, `lower` and `upper` (the equal-tailed interval at 90 %), `p_positive`
        and `included` (whether the interval leaves out zero).
    """
    summaries = [coefficient_summary(posterior) for posterior in known.values()]
    names, fields = list(coefficients), zip(*summaries, strict=True)
    ids = pa.array([device for device in known for _ in names], pa.string())
    columns = {name: np.concatenate(column) for name, column in zip(Summary._fields, fields, strict=True)}
    return pa.table({"device": ids, "feature": pa.array(names * len(known), pa.string()), **columns})


def _posteriors(known: Mapping[str, AnyPosterior], coefficients: Sequence[str], fitted: Fitted | None) -> Arrays:
    """Posteriors as arrays with a leading axis of devices: `mean`, `covariance`, `noise` and, where they have it, `freedom`."""
    stored = [_stored(posterior) for posterior in known.values()]
    arrays: Arrays = {name: np.array([each[name] for each in stored]) for name in stored[0]}
    if fitted and fitted.scales:
        # Coefficients in original units are U'theta, so their covariance is U'VU.
        arrays["covariance_original"] = np.array([fitted.original(fitted.original(each["covariance"]).T) for each in stored])
        arrays["coefficients_original"] = np.array(fitted.original_design)
    return arrays | {"coefficients": np.array(list(coefficients)), "devices": np.array(list(known))}


def _stored(posterior: AnyPosterior) -> dict[str, Any]:
    if isinstance(posterior, Posterior):
        return posterior._asdict()
    joint = posterior.joint
    return {"mean": posterior.mean, "covariance": joint.total_covariance, "noise": joint.weight @ joint.noise}


def _course(device: str, told: Trajectory) -> pa.Table:
    """A device's trajectory, a row for each block."""
    blocks = len(told.time)
    return pa.table({"device": [device] * blocks, "rows": [told.rows] * blocks} | {name: getattr(told, name) for name in COURSE})


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _missing(reports: Sequence[DeviceReport], gaps: Mapping[str, Mapping[str, int | None]], column: str) -> pa.Array:
    return pa.array([gaps.get(report.device, {}).get(column, 0) for report in reports], pa.int64())


def figures(reports: Sequence[DeviceReport]) -> dict[str, float | int | None]:
    """What federation bought, over the devices that have test rows; None where no device has any, or a figure is not
    finite.

    Returns
    -------
    dict
        `a_rmse` and `a_rmse_separate`; the median and the largest device RMSE of both; how many devices were scored,
        and how many of them federation made better.
    """
    scored = [report for report in reports if report.test.n]
    ours, alone = [report.test.rmse for report in scored], [report.test_separate.rmse for report in scored]
    return {
        "a_rmse": finite(a_rmse(report.test for report in reports)),
        "a_rmse_separate": finite(a_rmse(report.test_separate for report in reports)),
        "median_rmse": finite(float(np.median(ours))) if scored else None,
        "median_rmse_separate": finite(float(np.median(alone))) if scored else None,
        "worst_rmse": finite(max(ours)) if scored else None,
        "worst_rmse_separate": finite(max(alone)) if scored else None,
        "devices_scored": len(scored),
        "devices_better": sum(one < other for one, other in zip(ours, alone, strict=True)),
    }


def finite(value: float) -> float | None:
    """The value, or None where it is not finite: JSON has no NaN."""
    return value if math.isfinite(value) else None
