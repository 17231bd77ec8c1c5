"""Expectation propagation as in a textbook: all devices in every round, no messages, no receipts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from fedcore.hm2.hierarchy import Hierarchy
from fedcore.hm2.natural import Moments, NaturalParams, flat, inverse, moments, natural
from fedcore.rows import DeviceData

REFERENCE = Path(__file__).parents[2] / "reference"


class Fit(NamedTuple):
    """q, its moments, what devices keep, their cavities, the rounds taken and whether all quadratures succeeded in the last."""

    q: NaturalParams
    phi: Moments
    private: Any
    cavity: NaturalParams
    rounds: int
    proper: bool


def propagate(model: Hierarchy[Any, Any, Any], datas: Sequence[DeviceData], *, warm: bool = True, limit: int = 60) -> Fit:
    d, K = datas[0].train.d, len(datas)
    private, prior, point = model.prepare(datas), model.prior(d), model.start(d)
    if warm:
        for phase in model.START:
            each = model.start_statistics(phase, point, private)
            point = model.started(phase, point, type(each)(*(np.asarray(part).sum(axis=0) for part in each)), K, K)
        sites = model.start_sites(point, private)
    else:
        m = prior.shift.shape[0]
        sites = NaturalParams(*(np.tile(part, (K, 1)) for part in flat(m)))
    q = prior.plus(sites.total())
    rounds, moved = 0, np.inf
    while moved >= 1e-3 and rounds < limit:
        rounds += 1
        cavity = q.minus(sites)
        able = moments(cavity).proper
        private, tilted = model.tilted(private, q, cavity)
        able &= tilted.proper
        new = natural(tilted.mean, inverse(tilted.covariance)[0]).minus(q)
        change = NaturalParams(*(np.where(able[:, None], part, 0.0) for part in new))
        before, total = moments(q), change.total()
        root = np.linalg.cholesky(q.matrix)
        least = np.linalg.eigvalsh(np.linalg.solve(root, np.linalg.solve(root, total.matrix).T))[0]
        eta = min(1.0, 0.8 / -least) if least < 0 else 1.0
        sites, q = sites.plus(change, eta), q.plus(total, eta)
        after = moments(q)
        old, sd = np.sqrt(before.covariance.diagonal()), np.sqrt(after.covariance.diagonal())
        moved = max(np.abs((after.mean - before.mean) / sd).max(), np.abs(np.log(sd / old)).max())
    return Fit(q, moments(q), private, q.minus(sites), rounds, bool(able.all()))


def reference(name: str) -> tuple[list[DeviceData], dict[str, Any]]:
    """Devices and the independent program's answer."""
    table = pq.read_table(REFERENCE / f"{name}.parquet").to_pydict()
    device, y = np.array(table.pop("device")), np.array(table.pop("y"))
    X = np.column_stack([np.array(column) for column in table.values()])
    return [DeviceData.of(X[device == k], y[device == k]) for k in np.unique(device)], json.loads((REFERENCE / f"{name}.json").read_text())


def against(fit: Fit, posterior: dict[str, Any]) -> tuple[float, np.ndarray]:
    """The largest error of a mean, in reference sds, and all ratios of sds."""
    mean = np.concatenate([np.atleast_1d(block["mean"]) for block in posterior.values()])
    sd = np.concatenate([np.atleast_1d(block["sd"]) for block in posterior.values()])
    return float(np.abs((fit.phi.mean - mean) / sd).max()), np.sqrt(fit.phi.covariance.diagonal()) / sd
