"""Penalised models whose factors f_k are the evidence of expectation propagation within the device: lasso and elastic net.

See `fedcore.hm2.penalised` for phi, and `fedcore.hm2.inner` for the sites within a device.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcore.hm2.coefficients import Coefficients
from fedcore.hm2.grid import Nodes
from fedcore.hm2.inner import Inner, inner_ep
from fedcore.hm2.laplace import Tilt, elastic_net_tilt, laplace_tilt
from fedcore.hm2.natural import LOG_2PI
from fedcore.hm2.penalised import Penalised, Prepared, mixture_of
from fedcore.options import number
from fedcore.rows import Floats

ROUNDING = 1e-6
"""Of an evidence, as a share of it."""


@dataclass(frozen=True)
class Sited(Penalised):
    """Models whose f_k is the evidence of `inner`: what they share."""

    CONVEX: ClassVar[bool] = True

    def log_factors(self, private: Prepared, phi: Floats) -> Floats:
        """log f_k of m devices at S values of phi, shape (m, S).

        It is held to hardly more than any evidence can be: with fewer rows than columns, and little noise, what is found may be.
        """
        most = most_evidence(private, phi)
        return np.minimum(self.inner(private, phi).log_evidence, most + 2.0 * rounding(most))

    def bound(self, private: Prepared, phi: Floats) -> Floats:
        most = most_evidence(private, np.repeat(phi[None], len(private.rows.y), axis=0))
        return most + rounding(most)

    def estimates(self, private: Prepared, phi: Floats) -> Floats:
        mean = self.inner(private, phi).mean[:, 0]
        return np.where(np.isfinite(mean), mean, 0.0)

    def inner(self, private: Prepared, phi: Floats) -> Inner:
        """At phi of shape (m, J, 2)."""
        return inner_ep(private.rows, np.exp(phi[..., 1]), self.tilt, self.scales(phi), self.variance(phi), convex=self.CONVEX)

    @abstractmethod
    def scales(self, phi: Floats) -> tuple[Floats, ...]:
        """Of the prior, at phi of shape (..., 2)."""

    @staticmethod
    @abstractmethod
    def tilt(mean: Floats, variance: Floats, *scales: Floats) -> Tilt:
        """Moments of N(t; mean, variance) times the prior; all of one shape, or one that broadcasts to it."""


@dataclass(frozen=True)
class Lasso(Sited):
    """theta_ki ~ Laplace(0, scale sigma / lambda)."""

    INFORMATION = 1.0

    def variance(self, phi: Floats) -> Floats:
        return 2.0 * scale_ratio(phi) ** 2

    def scales(self, phi: Floats) -> tuple[Floats, ...]:
        return (scale_ratio(phi),)

    @staticmethod
    def tilt(mean: Floats, variance: Floats, *scales: Floats) -> Tilt:
        return laplace_tilt(mean, variance, *scales)

    def mixtures(self, private: Prepared, found: Nodes) -> list[Coefficients]:
        inner = self.inner(private, found.phi)
        scale = np.repeat(scale_ratio(found.phi)[..., None], inner.mean.shape[2], axis=2)
        return with_kinks(found, inner, inner.cavity_mean, inner.cavity_variance, scale)


@dataclass(frozen=True)
class ElasticNet(Sited):
    """theta_ki with a density proportional to exp(-a |z| - (1 - a) z^2 / 2), z = theta lambda / sigma.

    So sigma / lambda is a scale, as the lasso's is, which this is for a = 1; for a = 0 it would be ridge with variance (sigma / lambda)^2.

    Attributes
    ----------
    l1_ratio
        a, above 0 and below 1.
    """

    INFORMATION = 1.0

    l1_ratio: float = 0.5

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        super().__post_init__()
        number("l1_ratio", self.l1_ratio, 0, 1, above=True, below=True)

    def variance(self, phi: Floats) -> Floats:
        scale, width = self.scales(phi)
        return laplace_tilt(np.zeros_like(width), width, scale).variance

    def scales(self, phi: Floats) -> tuple[Floats, ...]:
        ratio = scale_ratio(phi)
        return ratio / self.l1_ratio, ratio**2 / (1.0 - self.l1_ratio)

    @staticmethod
    def tilt(mean: Floats, variance: Floats, *scales: Floats) -> Tilt:
        return elastic_net_tilt(mean, variance, *scales)

    def mixtures(self, private: Prepared, found: Nodes) -> list[Coefficients]:
        inner = self.inner(private, found.phi)
        scale, width = (np.repeat(each[..., None], inner.mean.shape[2], axis=2) for each in self.scales(found.phi))
        share = width / (inner.cavity_variance + width)  # the cavity times the prior's normal part
        return with_kinks(found, inner, share * inner.cavity_mean, share * inner.cavity_variance, scale)


def most_evidence(private: Prepared, phi: Floats) -> Floats:
    """The largest log p(y) that is possible, of m devices at phi of shape (m, J, 2): shape (m, J).

    With a prior that is a mixture of normal distributions around zero, p(y) is one of N(y; 0, V), V - sigma^2 I positive semi-definite, the
    largest of which has y's direction alone in V - sigma^2 I.
    """
    rows, noise = private.rows, np.exp(phi[..., 1])
    explained = (rows.y**2).sum(axis=1)[:, None] / noise
    squares = np.log(np.maximum(explained, 1.0)) + np.minimum(explained, 1.0) + np.asarray(rows.rss)[:, None] / noise
    return -0.5 * (np.asarray(rows.n)[:, None] * (LOG_2PI + phi[..., 1]) + squares)


def rounding(evidence: Floats) -> Floats:
    """Of an evidence, of any shape."""
    return ROUNDING * (1.0 + np.abs(evidence))


def scale_ratio(phi: Floats) -> Floats:
    """sigma / lambda, of phi of shape (..., 2)."""
    return np.exp(0.5 * phi[..., 1] - phi[..., 0])


def with_kinks(found: Nodes, inner: Inner, mean: Floats, variance: Floats, scale: Floats) -> list[Coefficients]:
    """Mixtures whose marginals have a Laplace factor, shape (m, J, d), at each node."""
    noise = np.exp(found.phi[..., 1])
    parts = (found.weight, mean, variance, scale, inner.mean, inner.covariance, noise)
    return [mixture_of(*each) for each in zip(*parts, strict=True)]
