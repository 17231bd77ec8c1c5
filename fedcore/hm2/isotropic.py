"""Isotropic: coefficients theta_k ~ N(mu, tau I), with one variance between devices. Meant for columns of one scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from fedcore.compression import Compressed
from fedcore.gaussian import product
from fedcore.hm2.conditional import Conditional, Integral, explained, repeat
from fedcore.hm2.normal import Normal
from fedcore.rows import Floats

NODES, WEIGHTS = hermegauss(7)
LOG_WEIGHTS = np.log(WEIGHTS) + 0.5 * NODES**2
"""Of an integral over x, rather than one over the standard normal distribution."""

NARROWEST = 1e-4
"""Least standard deviation of log tau, in units of the nodes' scale, that is told from zero."""


COLLAPSED = 1e-3
"""Standard deviation, in units of the rule's scale, below which moments by the rule mean nothing."""


@dataclass(frozen=True)
class Isotropic(Normal):
    """theta_k ~ N(mu, tau I); phi = (mu, log tau), of lengths d and 1, and log sigma^2 where it is shared. Options as in `Normal`."""

    def axes(self, d: int) -> int:
        """One for all coefficients."""
        return 1

    @np.errstate(all="ignore")  # what is not finite is found below, device by device
    def integrate(self, rows: Compressed, noise: Floats, cavity: Conditional, centre: Floats, scale: Floats) -> Integral:
        """By a Gauss-Hermite rule on log tau; mu given log tau is exact."""
        (B, d), J = cavity.mu.shape, len(NODES)
        t = centre + scale * NODES
        nodes = Conditional(*(repeat(each, J) for each in cavity))
        offset = t.reshape(-1, 1) - nodes.t
        prior_mean = nodes.mu + product(nodes.G, offset)
        pairs = Compressed(*(repeat(np.asarray(each), J) for each in rows))
        S = nodes.C + np.exp(t).reshape(-1, 1, 1) * np.eye(d)
        log_density, W, u, proper = explained(pairs, prior_mean, S, repeat(noise, J))
        mu, CW = prior_mean + product(nodes.C, u), nodes.C @ W
        covariance = nodes.C - CW @ nodes.C

        value = (log_density + nodes.log_density(offset)).reshape(B, J) + LOG_WEIGHTS
        value = np.where(proper.reshape(B, J) & np.isfinite(value), value, -np.inf)
        top = value.max(axis=1)
        weight = np.exp(value - top[:, None])
        total = weight.sum(axis=1)
        weight /= total[:, None]
        nodes_mean = np.concatenate([mu.reshape(B, J, d), t[:, :, None]], axis=2)
        mean = (weight[:, None] @ nodes_mean)[:, 0]
        deviation = nodes_mean - mean[:, None]
        joint = (deviation * weight[:, :, None]).swapaxes(1, 2) @ deviation
        joint[:, :d, :d] += (weight[:, None] @ covariance.reshape(B, J, -1)).reshape(B, d, d)
        sd = np.sqrt(np.maximum(joint[:, -1:, -1], (NARROWEST * scale) ** 2))
        log_evidence = top + np.log(total) + np.log(scale[:, 0])
        finite = np.isfinite(log_evidence) & np.isfinite(mean).all(axis=1) & np.isfinite(joint).all(axis=(1, 2))
        # All weight on one node says that the rule sees no more of the density than a point.
        return Integral(log_evidence, mean, joint, sd, finite & (joint[:, -1, -1] > (COLLAPSED * scale[:, 0]) ** 2))
