"""Devices' coefficients as draws from N(mu, diag tau): one tau for each coefficient (`Gaussian`) or one for all (`Isotropic`).

phi = (mu, log tau), and log sigma^2 where the noise is unknown and shared. A noise that is a device's own is integrated out on the device,
by the same outer rule as a shared one; only log sigma_k^2's prior, N(0, 3^2), is the same for all, and nothing of it leaves the device.

The start is three rounds of federated EM for the largest posterior density, and sites by expected information there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from fedcore.compression import Compressed, compress
from fedcore.hm2.axis import Split, TiltedMoments, axis_moments
from fedcore.hm2.coefficients import Coefficients
from fedcore.hm2.given import coefficients, log_factors, without_own_noise
from fedcore.hm2.hierarchy import Hierarchy, Tilted
from fedcore.hm2.line import line_moments
from fedcore.hm2.natural import NaturalParams, moments, natural
from fedcore.hm2.outer import Integrated, NoisePrior, integrated
from fedcore.hm2.start import Point, Sums, information_sites, own_noise, own_noise_at, sums, updated
from fedcore.options import choice, number
from fedcore.rows import DeviceData, Floats

ANOTHER_MODE = 4.0
"""How many of its prior's standard deviations a mean of mu is from the prior's where phi may have two modes: one that takes mu there, and
one that stays with the prior and takes the distance for variance between devices."""


class Private(NamedTuple):
    """What a device keeps: its rows, and the centre and scale of the outer rule on log sigma^2, 0 where there is none yet."""

    rows: Compressed
    noise_centre: Floats
    noise_scale: Floats


@dataclass(frozen=True)
class Normal(Hierarchy[Private, Point, Sums]):
    """What both models share.

    Attributes
    ----------
    sigma
        Standard deviation of the noise, where it is known.
    noise
        Where it is not: "shared" by all devices and in phi, or each "device"'s own.
    mean_sd, log_tau_sd, log_noise_sd
        Standard deviations of the priors of mu, log tau and log sigma^2, all normal around 0.
    """

    START: ClassVar[tuple[str, ...]] = ("em1", "em2", "em3")
    CHEAP: ClassVar[bool] = True

    sigma: float | Literal["unknown"] = "unknown"
    noise: Literal["shared", "device"] = "shared"
    mean_sd: float = 1.0
    log_tau_sd: float = 1.0
    log_noise_sd: float = 3.0

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        number("sigma", self.sigma, 0, np.inf, above=True, below=True, words=("unknown",))
        choice("noise", self.noise, ("shared", "device"))
        for name in ("mean_sd", "log_tau_sd", "log_noise_sd"):
            number(name, getattr(self, name), 0, np.inf, above=True, below=True)

    def taus(self, d: int) -> int:
        """T, the length of log tau."""
        raise NotImplementedError

    def inner(self, rows: Compressed, noise: Floats, cavity: Split, centre: Floats, scale: Floats) -> TiltedMoments:
        """Tilted moments of (mu, log tau) for known noise."""
        raise NotImplementedError

    @property
    def _kind(self) -> str:
        return self.noise if self.sigma == "unknown" else "known"

    def _prior_sd(self, d: int) -> Floats:
        return np.repeat([self.mean_sd, self.log_tau_sd], [d, self.taus(d)])

    def blocks(self, d: int) -> dict[str, int]:
        return {"mu": d, "log_tau": self.taus(d)} | ({"log_sigma2": 1} if self._kind == "shared" else {})

    def prior(self, d: int) -> NaturalParams:
        sd = self._prior_sd(d)
        sd = np.append(sd, self.log_noise_sd) if self._kind == "shared" else sd
        return natural(np.zeros(len(sd)), np.diag(1.0 / sd**2))

    def prepare(self, datas: Sequence[DeviceData]) -> Private:
        return Private(compress(datas), np.zeros(len(datas)), np.zeros(len(datas)))

    def loss(self, private: Private) -> Floats:
        return np.asarray(private.rows.rss) / np.asarray(private.rows.n)

    def start(self, d: int) -> Point:
        return Point(np.zeros(d), np.zeros(self.taus(d)), self.sigma**2 if self.sigma != "unknown" else 0.0)

    def start_statistics(self, phase: str, point: Point, private: Private) -> Sums:
        first = phase == self.START[0]
        return sums(private.rows, point, self._noise_at(point, private.rows, first_round=first), first_round=first)

    def _noise_at(self, point: Point, rows: Compressed, *, first_round: bool = False) -> Floats:
        if self._kind == "device":
            return own_noise(rows) if first_round else own_noise_at(rows, point)
        return np.full(len(rows.y), float(point.noise)) if point.noise else own_noise(rows)

    def started(self, phase: str, point: Point, total: Sums, devices: int, fleet: int) -> Point:
        d, first = len(point.mean), phase == self.START[0]
        sd = self._prior_sd(d)
        return updated(point, total, devices / fleet, np.zeros(len(sd)), sd, first_round=first, noise=self._kind)

    def start_sites(self, point: Point, private: Private) -> NaturalParams:
        return information_sites(private.rows, point, self._noise_at(point, private.rows), with_noise=self._kind == "shared")

    def another_mode(self, q: NaturalParams) -> bool:
        mean = moments(q).mean
        d = next(d for d in range(1, len(mean) + 1) if sum(self.blocks(d).values()) == len(mean))
        return bool(np.abs(mean[:d]).max() > ANOTHER_MODE * self.mean_sd)

    def tilted(self, private: Private, q: NaturalParams, cavity: NaturalParams) -> tuple[Private, Tilted]:
        found = self._integrated(private, q, cavity)
        p = len(q.shift)
        loss = (np.asarray(private.rows.rss) + (found.error**2).sum(axis=1)) / np.asarray(private.rows.n)
        tilted = Tilted(found.mean[:, :p], found.covariance[:, :p, :p], found.log_evidence, found.proper, loss)
        return private._replace(noise_centre=found.noise_centre, noise_scale=found.noise_scale), tilted

    def _integrated(self, private: Private, q: NaturalParams, cavity: NaturalParams) -> Integrated:
        d = private.rows.y.shape[1]
        return integrated(self.inner, self._noise_prior(cavity), private.rows, q, cavity, d, self.taus(d), private[1:])

    def _noise_prior(self, cavity: NaturalParams) -> NoisePrior:
        m = len(cavity.shift)
        if self.sigma != "unknown":
            return NoisePrior("known", np.full(m, 2.0 * np.log(self.sigma)), np.zeros(m))
        if self.noise == "device":
            return NoisePrior("device", np.zeros(m), np.full(m, self.log_noise_sd**2))
        at = moments(cavity)
        return NoisePrior("shared", at.mean[:, -1], at.covariance[:, -1, -1])

    def coefficients(self, private: Private, q: NaturalParams, cavity: NaturalParams) -> list[Coefficients]:
        found = self._integrated(private, q, cavity)
        d = private.rows.y.shape[1]
        return coefficients(self._noise_prior(cavity), private.rows, cavity, found, d, self.taus(d))

    def log_factor(self, private: Private, phi: Floats) -> Floats:
        d = private.rows.y.shape[1]
        T = self.taus(d)
        if self._kind == "device":
            return without_own_noise(private.rows, phi[:, :d], phi[:, d : d + T], self.log_noise_sd)
        noise = np.exp(phi[:, -1]) if self._kind == "shared" else np.full(len(phi), float(self.sigma) ** 2)
        return log_factors(private.rows, phi[:, :d], phi[:, d : d + T], np.broadcast_to(noise, (len(private.rows.y), len(phi))))


@dataclass(frozen=True)
class Gaussian(Normal):
    """theta_k ~ N(mu, diag tau)."""

    def taus(self, d: int) -> int:
        return d

    def inner(self, rows: Compressed, noise: Floats, cavity: Split, centre: Floats, scale: Floats) -> TiltedMoments:
        return axis_moments(rows, noise, cavity, centre, scale)


@dataclass(frozen=True)
class Isotropic(Normal):
    """theta_k ~ N(mu, tau I), for coefficients of one scale."""

    def taus(self, d: int) -> int:
        return 1

    def inner(self, rows: Compressed, noise: Floats, cavity: Split, centre: Floats, scale: Floats) -> TiltedMoments:
        return line_moments(rows, noise, cavity, centre, scale)
