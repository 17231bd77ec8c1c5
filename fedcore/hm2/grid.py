"""Tilted moments of a phi of two numbers, by a 3 x 3 Gauss-Hermite rule.

The rule starts at the current approximation q, which each tilted distribution is close to in a fleet of some size. A device that finds its
tilted distribution elsewhere moves the rule there and looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.deadline import check_deadline
from fedcore.gaussian import product
from fedcore.hm2.natural import NaturalParams, moments
from fedcore.rows import Booleans, Floats

POINTS = 3
SHIFT, LOOKS = 0.5, 8
"""The rule moves where the mean is off by this many of its standard deviations, or the log of a variance by this; and so often at most."""

FURTHEST, NARROWEST, WIDEST = 1.5, 0.25, 3.0
"""Bounds of one move: of the mean, in standard deviations, and of the variances' factors."""

LEAST = 1e-4
"""Of a variance in the rule's units, for moments to mean anything."""

Indices = NDArray[np.intp]


def _rule() -> tuple[Floats, Floats]:
    points, weights = np.polynomial.hermite_e.hermegauss(POINTS)
    one, other = np.meshgrid(points, points, indexing="ij")
    return np.column_stack([one.ravel(), other.ravel()]), np.outer(weights, weights).ravel() / weights.sum() ** 2


NODES, WEIGHTS = _rule()
"""For a standard normal distribution, shapes (9, 2) and (9,)."""


class Nodes(NamedTuple):
    """Values of phi of m devices, shape (m, J, 2), and their weights, shape (m, J), which sum to 1."""

    phi: Floats
    weight: Floats


class OnGrid(NamedTuple):
    """The tilted distributions of m devices.

    Attributes
    ----------
    phi, weight
        Nodes, shape (m, 9, 2), and their weights, shape (m, 9), which sum to 1; those of q where a device has no tilted distribution.
    mean, covariance, log_evidence, proper
        As in `hierarchy.Tilted`.
    """

    phi: Floats
    weight: Floats
    mean: Floats
    covariance: Floats
    log_evidence: Floats
    proper: Booleans


def on_grid(log_factor: Callable[[Indices, Floats], Floats], q: NaturalParams, cavity: NaturalParams) -> OnGrid:
    """Moments of f_k(phi) N(phi; cavity) for m devices.

    Parameters
    ----------
    log_factor
        log f_k of the devices at these positions, shape (c,), at phi of shape (c, 9, 2): shape (c, 9). Not finite counts as f_k = 0.
    q
        Where the rule starts, one for all.
    cavity
        Of m devices.
    """
    m = len(cavity.shift)
    start, outside, precision = moments(q), moments(cavity), cavity.matrix
    centre, root = np.repeat(start.mean[None], m, axis=0), np.repeat(np.linalg.cholesky(start.covariance)[None], m, axis=0)
    found = OnGrid(np.empty((m, 9, 2)), np.empty((m, 9)), np.empty((m, 2)), np.empty((m, 2, 2)), np.empty(m), np.empty(m, dtype=bool))
    normaliser = 0.5 * np.linalg.slogdet(outside.covariance)[1]
    live: Indices = np.arange(m, dtype=np.intp)
    for _ in range(LOOKS):
        check_deadline()
        scale = np.asarray(root[live], dtype=np.float64)
        phi = centre[live, None] + NODES @ scale.swapaxes(1, 2)
        log_f = log_factor(live, phi)
        away = phi - outside.mean[live, None]
        log_weight = log_f - 0.5 * ((away @ precision[live]) * away).sum(axis=2) + 0.5 * (NODES**2).sum(axis=1)
        log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
        top = log_weight.max(axis=1)
        mass = WEIGHTS * np.exp(log_weight - np.where(np.isfinite(top), top, 0.0)[:, None])
        total = mass.sum(axis=1)
        weight = np.where((total > 0)[:, None], mass / np.where(total > 0, total, 1.0)[:, None], WEIGHTS)
        drift = (weight[:, None] @ NODES)[:, 0]
        apart = NODES - drift[:, None]
        spread = (apart * weight[:, :, None]).swapaxes(1, 2) @ apart
        values, vectors = np.linalg.eigh(spread)
        determinants = np.log(scale[:, 0, 0] * scale[:, 1, 1]) - normaliser[live]
        found.phi[live], found.weight[live] = phi, weight
        found.mean[live] = centre[live] + product(scale, drift)
        found.covariance[live] = scale @ spread @ scale.swapaxes(1, 2)
        found.log_evidence[live] = np.where(total > 0, top + np.log(np.where(total > 0, total, 1.0)) + determinants, np.nan)
        found.proper[live] = (total > 0) & (values[:, 0] > LEAST)
        shift = np.maximum(np.abs(drift).max(axis=1), np.abs(np.log(np.maximum(values, LEAST))).max(axis=1))
        moved = (shift > SHIFT) & (total > 0)
        if not moved.any():
            break
        centre[live[moved]] += product(scale[moved], np.clip(drift[moved], -FURTHEST, FURTHEST))
        bounded = vectors[moved] * np.clip(values[moved], NARROWEST, WIDEST)[:, None] @ vectors[moved].swapaxes(1, 2)
        root[live[moved]] = scale[moved] @ np.linalg.cholesky(bounded)
        live = live[moved]
    return found
