"""The horseshoe: theta_ki ~ N(0, (sigma / lambda)^2 kappa_ki^2), kappa_ki half-Cauchy. It shrinks what is small more than the lasso
does, and what is large hardly at all.

With x = log kappa, of density sech(x) / pi, the prior is a mixture of normal distributions over x, taken at evenly spaced points: for
integrands that are smooth and vanish at both ends that is precise. The prior is not convex, so inner sites may be negative. Its variance is
infinite, and where a device says nothing of a coefficient the joint normal approximation has (sigma / lambda)^2 for it.

Source: Carvalho, Polson and Scott (2010), "The horseshoe estimator for sparse signals".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.compression import Compressed
from fedcore.gaussian import product
from fedcore.hm2.coefficients import Coefficients, Joint, Marginals
from fedcore.hm2.grid import Nodes
from fedcore.hm2.inner import Inner
from fedcore.hm2.laplace import Tilt
from fedcore.hm2.natural import LOG_2PI
from fedcore.hm2.penalised import NEGLIGIBLE, Prepared
from fedcore.hm2.scale_mixture import variational
from fedcore.hm2.sited import Sited, most_evidence, scale_ratio
from fedcore.rows import Floats

LOG_KAPPA = np.linspace(-15.0, 15.0, 61)
LOG_SHARES = -np.log(np.cosh(LOG_KAPPA)) - np.log((1.0 / np.cosh(LOG_KAPPA)).sum())


@dataclass(frozen=True)
class Horseshoe(Sited):
    """theta_ki ~ N(0, (sigma / lambda)^2 kappa_ki^2), kappa_ki half-Cauchy with scale 1.

    For devices with more rows than columns means agree with the exact ones to about 0.1 posterior standard deviations, and ever better the
    more rows. With no more rows than columns, or with columns that are nearly alike, the posterior has several modes. There means may be
    off by one and sometimes several, and the run may not converge: `CAUTION` says so in its outcome.
    """

    CONVEX = False
    CAUTION = "with a horseshoe, means of a device whose rows do not tell its columns apart may be off by some standard deviations"
    INFORMATION = 0.5

    def inner(self, private: Prepared, phi: Floats) -> Inner:
        """At phi of shape (m, J, 2); variational where expectation propagation has run away.

        It has if the evidence is none, or more than it can be.
        """
        found, rows, noise = super().inner(private, phi), private.rows, np.exp(phi[..., 1])
        explained = (rows.y**2).sum(axis=1)[:, None] / noise
        tilt = self.tilt(found.cavity_mean, found.cavity_variance, scale_ratio(phi)[..., None])
        left = ((rows.y[:, None] - product(rows.R[:, None], tilt.mean)) ** 2).sum(axis=2) / noise
        lost = ~((found.log_evidence <= most_evidence(private, phi)) & (left <= explained))
        if not lost.any():
            return found
        device, node = np.nonzero(lost)
        few, at = Compressed(*(np.asarray(part)[device] for part in rows)), phi[device, node][:, None]
        instead = variational(few, noise[device, node][:, None], scale_ratio(at), LOG_KAPPA, LOG_SHARES)
        for part, by in zip(found, instead, strict=True):
            part[device, node] = by[:, 0]
        return found

    def variance(self, phi: Floats) -> Floats:
        return scale_ratio(phi) ** 2

    def scales(self, phi: Floats) -> tuple[Floats, ...]:
        return (scale_ratio(phi),)

    @staticmethod
    def tilt(mean: Floats, variance: Floats, *scales: Floats) -> Tilt:
        (scale,) = scales
        log_share, share, shrunk, narrow = _components(mean, variance, scale)
        centre = (share * shrunk).sum(axis=-1)
        spread = (share * (narrow + (shrunk - centre[..., None]) ** 2)).sum(axis=-1)
        return Tilt(log_share, centre, spread)

    def mixtures(self, private: Prepared, found: Nodes) -> list[Coefficients]:
        inner, noise = self.inner(private, found.phi), np.exp(found.phi[..., 1])
        _, share, mean, variance = _components(inner.cavity_mean, inner.cavity_variance, scale_ratio(found.phi)[..., None])
        results: list[Coefficients] = []
        for k, weight in enumerate(found.weight):
            kept = weight > NEGLIGIBLE
            nodes = weight[kept] / weight[kept].sum()
            parts = np.maximum(nodes[:, None, None] * share[k, kept], np.finfo(float).tiny)
            each = _by_coefficient(parts / parts.sum(axis=(0, 2))[:, None])
            marginals = Marginals(each, _by_coefficient(mean[k, kept]), _by_coefficient(variance[k, kept]), np.full_like(each, np.inf))
            results.append(Coefficients(marginals, Joint(nodes, inner.mean[k, kept], inner.covariance[k, kept], noise[k, kept])))
        return results


def _components(mean: Floats, variance: Floats, scale: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """log of the integral of N(t; mean, variance) times the prior; and weights, means and variances over kappa, with an axis of 61 more."""
    prior = scale[..., None] ** 2 * np.exp(2.0 * LOG_KAPPA)
    both = variance[..., None] + prior
    log_weight = LOG_SHARES - 0.5 * (np.log(both) + mean[..., None] ** 2 / both)
    top = log_weight.max(axis=-1)
    weight = np.exp(log_weight - top[..., None])
    total = weight.sum(axis=-1)
    share = prior / both
    return top + np.log(total) - 0.5 * LOG_2PI, weight / total[..., None], mean[..., None] * share, variance[..., None] * share


def _by_coefficient(parts: Floats) -> Floats:
    """Of shape (J, d, 61): shape (61 J, d)."""
    return np.ascontiguousarray(parts.swapaxes(1, 2).reshape(-1, parts.shape[1]))
