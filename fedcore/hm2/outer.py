"""Tilted moments where the noise variance is unknown: an outer rule on s = log sigma^2, with the moments of `axis` or `line` at each node.

Rules are placed anew, device by device, while the moments that they find are far from where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedcore.compression import Compressed
from fedcore.hm2.axis import Split, TiltedMoments, split
from fedcore.hm2.natural import NaturalParams, inverse, moments
from fedcore.hm2.quadrature import gauss_hermite
from fedcore.hm2.start import own_noise
from fedcore.rows import Booleans, Floats, Indices

NODES, WEIGHTS = gauss_hermite(5)
"""The rule on log sigma^2. Three nodes diverge."""

REFINEMENTS, FAR = 4, 0.3
"""How often rules are placed at most, and the shift from which on they are placed anew."""

LONGEST_STEP, MOST_SCALE = 3.0, 3.0
"""How many scales a centre moves at most, and by which factor a scale changes."""

LONGEST_NOISE_STEP, LEAST_NOISE_VARIANCE, MOST_NOISE_VARIANCE = 2.0, 0.2, 5.0

COUNTS = 1e-3
"""Weight from which on a node's inner rule matters."""

Inner = Callable[[Compressed, Floats, Split, Floats, Floats], TiltedMoments]


class NoisePrior(NamedTuple):
    """What the cavity, or a device's own prior, says of s = log sigma^2.

    Attributes
    ----------
    kind
        "known", "shared" (then s is the last of phi) or "device".
    mean, variance
        Shape (m,) each; the variance is 0 where the noise is known.
    """

    kind: str
    mean: Floats
    variance: Floats

    @property
    def known(self) -> bool:
        """Whether there is nothing to integrate over."""
        return self.kind == "known"


class Integrated(NamedTuple):
    """Tilted moments of (mu, t) and, unless the noise is known, s.

    Attributes
    ----------
    log_evidence, mean, covariance, error, proper
        As `TiltedMoments` has them, for p values instead of d + T.
    noise_centre, noise_scale
        Where the outer rule stood, shape (m,).
    """

    log_evidence: Floats
    mean: Floats
    covariance: Floats
    error: Floats
    proper: Booleans
    noise_centre: Floats
    noise_scale: Floats


@np.errstate(all="ignore")  # what is not finite is improper
def integrated(
    inner: Inner, prior: NoisePrior, rows: Compressed, q: NaturalParams, cavity: NaturalParams, d: int, T: int, rule: Sequence[Floats]
) -> Integrated:
    """Tilted moments of m devices.

    Parameters
    ----------
    inner
        The moments for known noise.
    prior
        Of s.
    rows
        Of m devices.
    q
        The approximation, one for all: where rules are placed first.
    cavity
        m of them.
    d, T
        Lengths of mu and t.
    rule
        Centre and scale of the outer rule, shape (m,) each; a scale of 0 stands for none yet.
    """
    m, J, p = len(rows.y), 1 if prior.known else len(NODES), d + T + (not prior.known)
    centre, scale = _outer_rule(prior, rows, rule)
    nodes = centre[:, None] + scale[:, None] * (np.zeros(1) if prior.known else NODES)
    inner_centre, inner_scale = _inner_rules(prior, q, nodes, d, T)
    result = Integrated(np.empty(m), np.empty((m, p)), np.empty((m, p, p)), np.empty((m, d)), np.empty(m, dtype=bool), centre, scale)
    left: Indices = np.arange(m)
    for _ in range(REFINEMENTS):
        own = Compressed(*(np.repeat(np.asarray(part)[left], J, axis=0) for part in rows))
        s = (result.noise_centre[left, None] + result.noise_scale[left, None] * (np.zeros(1) if prior.known else NODES)).reshape(-1)
        parts, sound = split(_given_noise(prior, cavity, left, s, J, d + T), d)
        flat = (inner_centre[left].reshape(-1, T), inner_scale[left].reshape(-1, T))
        found = inner(own, np.exp(s), parts, *flat)
        combined, shift, moved = _combined(prior, found, sound & found.proper, s.reshape(-1, J), left, result)
        for whole, part in zip(result[:5], combined, strict=True):
            whole[left] = part
        step = np.clip(found.mean[:, d:] - flat[0], -LONGEST_STEP * flat[1], LONGEST_STEP * flat[1])
        fits = np.where(np.isfinite(found.sd), found.sd, flat[1])
        far = ~(shift <= FAR)
        again = left[far]
        if not len(again):
            break
        inner_centre[again] = (flat[0] + np.where(np.isfinite(step), step, 0.0)).reshape(-1, J, T)[far]
        inner_scale[again] = np.clip(fits, flat[1] / MOST_SCALE, flat[1] * MOST_SCALE).reshape(-1, J, T)[far]
        result.noise_centre[again], result.noise_scale[again] = (part[far] for part in moved)
        left = again
    return result


def _outer_rule(prior: NoisePrior, rows: Compressed, rule: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Where it stood, or a first place: what the prior and the residual degrees of freedom say together."""
    if prior.known:
        return prior.mean.copy(), np.zeros_like(prior.mean)
    told = 0.5 * np.asarray(rows.freedom)
    precision = 1.0 / prior.variance + told
    own = np.log(own_noise(rows))
    first = (prior.mean / prior.variance + told * own) / precision
    stands = np.asarray(rule[1]) > 0
    return np.where(stands, rule[0], first), np.where(stands, rule[1], 1.0 / np.sqrt(precision))


def _inner_rules(prior: NoisePrior, q: NaturalParams, nodes: Floats, d: int, T: int) -> tuple[Floats, Floats]:
    """Centres and scales in t for each device and node, shape (m, J, T): what q says of t, given s where s is in phi."""
    at = moments(q)
    t = slice(d, d + T)
    precision, _ = inverse(at.covariance[t, t])
    scale = 1.0 / np.sqrt(np.diagonal(precision))
    centre = np.broadcast_to(at.mean[t], (*nodes.shape, T)).copy()
    if prior.kind == "shared":
        centre += (nodes - at.mean[-1])[..., None] * at.covariance[t, -1] / at.covariance[-1, -1]
    return centre, np.broadcast_to(scale, centre.shape).copy()


def _given_noise(prior: NoisePrior, cavity: NaturalParams, left: Indices, s: Floats, J: int, length: int) -> NaturalParams:
    """The cavity of (mu, t) for each device that is left and node."""
    shift, precision = (np.repeat(part[left], J, axis=0) for part in cavity)
    if prior.kind != "shared":
        return NaturalParams(shift, precision)
    crossed = slice(length * (length + 1) // 2, -1)  # the last row of the packed triangle, without its diagonal
    return NaturalParams(shift[:, :-1] - precision[:, crossed] * s[:, None], precision[:, : crossed.start])


def _combined(
    prior: NoisePrior, found: TiltedMoments, sound: Booleans, s: Floats, left: Indices, so_far: Integrated
) -> tuple[tuple[Floats | Booleans, ...], Floats, tuple[Floats, Floats]]:
    """Moments over the nodes of the outer rule, how far rules are off, and where the outer one should stand."""
    if prior.known:
        return (
            (found.log_evidence, found.mean, found.covariance, found.error, sound),
            np.where(sound, found.shift, np.inf),
            (s[:, 0], np.zeros(len(s))),
        )
    (n, J), length = s.shape, found.mean.shape[1]
    centre, scale, mean, variance = (part[left] for part in (so_far.noise_centre, so_far.noise_scale, prior.mean, prior.variance))
    density = found.log_evidence.reshape(n, J) - 0.5 * (s - mean[:, None]) ** 2 / variance[:, None] + 0.5 * NODES**2
    usable = sound.reshape(n, J) & np.isfinite(density)
    density = np.where(usable, density, -np.inf)
    highest = density.max(axis=1, keepdims=True)
    weight = WEIGHTS * np.exp(density - highest)
    mass = weight.sum(axis=1, keepdims=True)
    weight = np.where(usable, weight / mass, 0.0)
    log_evidence = (highest + np.log(mass))[:, 0] + np.log(scale) - 0.5 * np.log(variance)

    values = np.where(usable[..., None], np.concatenate([found.mean.reshape(n, J, length), s[..., None]], axis=2), 0.0)
    total = (weight[:, None] @ values)[:, 0]
    away = np.where(usable[..., None], values - total[:, None], 0.0)
    covariance = (away * weight[..., None]).swapaxes(1, 2) @ away
    within = np.where(usable[..., None, None], found.covariance.reshape(n, J, length, length), 0.0)
    covariance[:, :length, :length] += (weight[:, None] @ within.reshape(n, J, -1))[:, 0].reshape(n, length, length)
    error = (weight[:, None] @ np.where(usable[..., None], found.error.reshape(n, J, -1), 0.0))[:, 0]

    step, spread = (weight * NODES).sum(axis=1), (weight * NODES**2).sum(axis=1)
    spread = spread - step**2
    shift = np.maximum(np.abs(step), np.abs(0.5 * np.log(np.maximum(spread, 1e-3))))
    matters = np.where(usable & (weight > COUNTS), found.shift.reshape(n, J), 0.0).max(axis=1)
    moved = centre + scale * np.clip(step, -LONGEST_NOISE_STEP, LONGEST_NOISE_STEP)
    fits = scale * np.sqrt(np.clip(spread, LEAST_NOISE_VARIANCE, MOST_NOISE_VARIANCE))
    proper = usable.any(axis=1) & np.isfinite(log_evidence)
    shift = np.where(proper, np.maximum(shift, matters), np.inf)
    return (log_evidence, total, covariance, error, proper), shift, (moved, fits)
