"""Tilted moments of phi = (mu, t, s): an outer Gauss-Hermite rule on s = log sigma^2, integrals over (mu, t) at each of its nodes.

Both rules start from a guess, and are moved to where the mass turns out to be, up to five times, while they are off by more than .3 of
their scale. A device that is done stays as it is while others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from fedcore.compression import Compressed
from fedcore.deadline import check_deadline
from fedcore.hm2.cholesky import cholesky
from fedcore.hm2.conditional import Cavity, Conditional, Integral, repeat, rows_of
from fedcore.rows import Booleans, Floats

NODES, WEIGHTS = hermegauss(5)
LOG_WEIGHTS = np.log(WEIGHTS) + 0.5 * NODES**2
"""Of an integral over x, rather than one over the standard normal distribution."""

PASSES, TOLERANCE, MISPLACED = 12, 0.3, 1.0
"""How often rules are placed at most, by what share of their scale they may be off, and from which on moments by them mean nothing."""

REACH, GROWTH = 3.0, 3.0
"""How far a rule on t moves in one pass at most, in units of its scale, and by what factor its scale changes: nodes see no farther."""

NOISE_REACH, NOISE_GROWTH = 2.0, 2.2
"""The same for the rule on s, at whose nodes those on t may still be off."""

NARROWEST = 1e-3
"""Least standard deviation of s, in units of its rule's scale, that is told from zero."""

COUNTS = 1e-3
"""Nodes of s with less weight need not have their rule on t in place."""

Integrate = Callable[[Compressed, Floats, Conditional, Floats, Floats], Integral]


class Rules(NamedTuple):
    """Where the rules of m devices are.

    Attributes
    ----------
    noise, noise_scale
        Centre and scale of the rule on s, shape (m,); a scale of 0 where s is known.
    t, scale
        Centres and scales of the rules on t, at each node of s, shape (m, J, a).
    """

    noise: Floats
    noise_scale: Floats
    t: Floats
    scale: Floats


class Found(NamedTuple):
    """Of m devices, what `Tilted` has of (mu, t, s), and where the rule on s was last.

    Attributes
    ----------
    mean, covariance
        Shapes (m, d + a + 1) and (m, d + a + 1, d + a + 1); s has variance 0 where it is known.
    log_evidence, proper
        Shape (m,).
    noise, noise_scale
        Centre and scale that fit s, shape (m,).
    """

    mean: Floats
    covariance: Floats
    log_evidence: Floats
    proper: Booleans
    noise: Floats
    noise_scale: Floats


@np.errstate(all="ignore")  # what is not finite is found below, device by device
def tilted_moments(integrate: Integrate, rows: Compressed, cavity: Cavity, start: Rules) -> Found:
    """Moments of m devices.

    Parameters
    ----------
    integrate
        The rule on t.
    rows, cavity, start
        Of m devices. J is 1 where s is known, at `start.noise`, and else the number of `NODES`.
    """
    active, rules = np.arange(len(start.noise)), start
    found, rules, off = _passed(integrate, rows, cavity, rules)
    for _ in range(PASSES - 1):
        check_deadline()
        going = ~(off <= TOLERANCE)
        if not going.any():
            break
        active, rules = active[going], Rules(*(each[going] for each in rules))
        again, rules, off = _passed(integrate, rows_of(rows, active), cavity.of(active), rules)
        for kept, new in zip(found, again, strict=True):
            kept[active] = new
    found.proper[active] &= off <= MISPLACED
    return found


def _passed(integrate: Integrate, rows: Compressed, cavity: Cavity, rules: Rules) -> tuple[Found, Rules, Floats]:
    """Moments with the rules as they are, better rules, and how far they were off."""
    m, J, a = rules.t.shape
    d = rows.R.shape[1]
    nodes = NODES if J > 1 else np.zeros(1)
    s = rules.noise[:, None] + rules.noise_scale[:, None] * nodes
    pairs = Compressed(*(repeat(np.asarray(each), J) for each in rows))
    centre, scale = rules.t.reshape(m * J, a), rules.scale.reshape(m * J, a)
    each = integrate(pairs, np.exp(s).reshape(-1), cavity.given(s, d), centre, scale)

    step = np.where(np.isfinite(each.mean[:, d:]), each.mean[:, d:] - centre, 0.0)
    width = np.where(np.isfinite(each.scale), each.scale, scale)
    off = np.maximum(np.abs(step) / scale, np.abs(np.log(width / scale))).max(axis=1).reshape(m, J)
    t = (centre + np.clip(step, -REACH * scale, REACH * scale)).reshape(m, J, a)
    # With the mass at the edge of a rule nodes see little of its width.
    narrowest = np.where(np.abs(step) > scale, scale, scale / GROWTH)
    resized = np.clip(width, narrowest, scale * GROWTH).reshape(m, J, a)

    mean = np.concatenate([each.mean.reshape(m, J, -1), s[:, :, None]], axis=2)
    inner = (0.5 * (each.covariance + each.covariance.swapaxes(1, 2))).reshape(m, J, d + a, d + a)
    usable = each.proper.reshape(m, J)
    if J == 1:
        covariance = np.zeros((m, d + a + 1, d + a + 1))
        covariance[:, :-1, :-1] = inner[:, 0]
        proper = usable[:, 0] & cavity.proper & _definite(inner[:, 0])
        off = np.where(usable[:, 0], off[:, 0], np.inf)
        found = Found(mean[:, 0].copy(), covariance, each.log_evidence, proper, rules.noise.copy(), rules.noise_scale.copy())
        return found, rules._replace(t=t, scale=resized), off

    log_weight = _log_weights(each.log_evidence.reshape(m, J), usable, s, cavity, rules)
    top = np.where(usable.any(axis=1), log_weight.max(axis=1), 0.0)
    weight = np.exp(log_weight - top[:, None])
    total = weight.sum(axis=1)
    weight /= np.where(total > 0, total, 1.0)[:, None]
    mean, inner = np.where(usable[:, :, None], mean, 0.0), np.where(usable[:, :, None, None], inner, 0.0)
    average = (weight[:, None] @ mean)[:, 0]
    from_average = np.where(usable[:, :, None], mean - average[:, None], 0.0)
    covariance = (from_average * weight[:, :, None]).swapaxes(1, 2) @ from_average
    covariance[:, :-1, :-1] += (weight[:, None] @ inner.reshape(m, J, -1)).reshape(m, d + a, d + a)
    covariance = 0.5 * (covariance + covariance.swapaxes(1, 2))

    moved = (weight * nodes).sum(axis=1)
    spread = np.sqrt(np.maximum((weight * (nodes - moved[:, None]) ** 2).sum(axis=1), NARROWEST**2))
    noise = rules.noise + rules.noise_scale * np.clip(moved, -NOISE_REACH, NOISE_REACH)
    noise_scale = rules.noise_scale * np.clip(spread, np.where(np.abs(moved) > 1.0, 1.0, 1.0 / NOISE_GROWTH), NOISE_GROWTH)
    off = np.where(weight > COUNTS, off, 0.0).max(axis=1)
    off = np.where(total > 0, np.maximum(off, np.maximum(np.abs(moved), np.abs(np.log(spread)))), np.inf)
    proper = (total > 0) & cavity.proper & np.isfinite(average).all(axis=1) & _definite(covariance)
    found = Found(average, covariance, top + np.log(total), proper, noise, noise_scale)
    return found, Rules(noise, noise_scale, t, resized), off


def _log_weights(log_evidence: Floats, usable: Booleans, s: Floats, cavity: Cavity, rules: Rules) -> Floats:
    """Of the nodes of s, such that they sum to the integral; -inf where a node is of no use."""
    variance = cavity.noise_variance[:, None]
    prior = -0.5 * ((s - cavity.noise_mean[:, None]) ** 2 / variance + np.log(2.0 * np.pi * variance))
    value = log_evidence + prior + LOG_WEIGHTS + np.log(rules.noise_scale)[:, None]
    return np.where(usable & np.isfinite(value), value, -np.inf)


def _definite(covariance: Floats) -> Booleans:
    return cholesky(covariance)[1]
