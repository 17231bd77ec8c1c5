"""Groups of devices that are alike, read off the correlations that a run has learned between them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

from fedcore.covariance import correlations
from fedcore.rows import Floats
from tasks.report.found import Found

MOST = 1000
"""Devices that are looked at; of a larger fleet evenly spaced ones."""

GROUPS = 8
CLEAR = 0.25
"""The mean silhouette below which groups are not called groups (Kaufman and Rousseeuw: no substantial structure)."""


class Clusters(NamedTuple):
    """Devices by how they are correlated.

    Attributes
    ----------
    devices
        Their ids, in the order of the clustering.
    correlation
        In this order, shape (m, m).
    group
        The group of each, numbered from 0 in this order; -1 for an outlier, which is in none.
    silhouette
        How clear the groups are, in [-1, 1].
    """

    devices: tuple[str, ...]
    correlation: Floats
    group: np.ndarray[tuple[int], np.dtype[np.intp]]
    silhouette: float

    @property
    def groups(self) -> list[list[str]]:
        """The ids of each group."""
        return [[self.devices[i] for i in np.flatnonzero(self.group == g)] for g in range(int(self.group.max(initial=-1)) + 1)]

    @property
    def outliers(self) -> list[str]:
        """The ids of those in none."""
        return [self.devices[i] for i in np.flatnonzero(self.group == -1)]


def clusters(found: Found) -> Clusters | None:
    """Average linkage on 1 - correlation, with as many groups as have the largest mean silhouette; one group where none are clear.

    A group of one device is an outlier. None for an algorithm without a covariance between devices, and fewer than three devices.
    """
    if found.Omega is None or len(found.fleet) < 3:
        return None
    K = len(found.fleet)
    chosen = np.unique(np.linspace(0, K - 1, min(K, MOST)).round().astype(int))
    correlation = correlations(found.Omega, chosen.tolist())
    if not np.isfinite(correlation).all():
        return None
    distance = 1.0 - correlation
    np.fill_diagonal(distance, 0.0)
    condensed = squareform(distance, checks=False)
    tree = linkage(condensed, "average")
    if len(chosen) <= 200:
        tree = optimal_leaf_ordering(tree, condensed)
    order = leaves_list(tree)
    best, label = CLEAR, np.zeros(len(chosen), dtype=int)
    for count in range(2, min(GROUPS, len(chosen) - 1) + 1):
        found_label = fcluster(tree, count, "maxclust")
        if (value := silhouette(distance, found_label)) > best:
            best, label = value, found_label
    names = tuple(found.fleet[chosen[i]] for i in order)
    return Clusters(names, correlation[np.ix_(order, order)], _numbered(label[order]), best if label.any() else np.nan)


def silhouette(distance: Floats, label: np.ndarray) -> float:
    """The mean over devices of (b - a) / max(a, b): a is the mean distance to the others of the own group, b that to the nearest other
    group; 0 for a group of one (Rousseeuw 1987)."""
    names = np.unique(label)
    member = (label[:, None] == names).astype(float)
    size = member.sum(axis=0)
    total = distance @ member
    own = label[:, None] == names
    mine = size[own.argmax(axis=1)]
    a = total[own] / np.maximum(mine - 1.0, 1.0)
    b = np.where(own, np.inf, total / size).min(axis=1)
    with np.errstate(invalid="ignore"):
        value = np.where(mine > 1, (b - a) / np.maximum(a, b), 0.0)
    return float(np.nan_to_num(value).mean())


def _numbered(label: np.ndarray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Groups numbered as they come, -1 for those of one device."""
    found = np.full(len(label), -1, dtype=np.intp)
    seen: dict[int, int] = {}
    for i, each in enumerate(label.tolist()):
        if (label == each).sum() > 1:
            found[i] = seen.setdefault(each, len(seen))
    return found
