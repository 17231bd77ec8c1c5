"""What the models with normal coefficients have in common: theta_k ~ N(mu, diag tau), with one tau for each coefficient or one for all.

phi = (mu, log tau), and log sigma^2 where devices share an unknown sigma. Its prior has independent normal entries. Where each device has
its own sigma_k, that has a normal prior on log sigma_k^2, and is integrated out on the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from scipy.special import polygamma, psi

from fedcore.compression import Compressed, compress
from fedcore.gaussian import unexplained
from fedcore.hm2 import warm
from fedcore.hm2.cholesky import diagonal, inverse
from fedcore.hm2.coefficients import Coefficients
from fedcore.hm2.conditional import Cavity, Conditional, Integral, independent, rows_of, split
from fedcore.hm2.factor import log_density, log_density_own_noise, own_noise
from fedcore.hm2.hierarchy import Tilted
from fedcore.hm2.natural import NaturalParams, log_partition, moments, natural
from fedcore.hm2.natural import log_density as log_normal_density
from fedcore.hm2.nodes import cube, mixture, mixture_at
from fedcore.hm2.outer import NODES, Found, Rules, tilted_moments
from fedcore.hm2.units import Units
from fedcore.hm2.warm import Hyperprior, Point, Statistics
from fedcore.options import choice, number
from fedcore.rows import DeviceData, Floats
from fedcore.semidefinite import EPSILON

WIDENED = 100.0
"""By how much tau is widened in the first phase of the start: there devices fit their own rows, as far as these determine a fit. It is the
prior's tau, or that of coefficients each of which could explain a device's targets alone, if these are larger: with one that is too small
a fit would leave the targets to the noise, which further rounds could not take back."""

FAR = 4.0
"""Prior standard deviations that a mean of mu is from the prior's, from where on another mode is possible. With tau profiled out, K
devices around M have a second mode near the prior's mean, which takes them for widely scattered, only if M is more than 2 sqrt(K)
standard deviations away; 4 is that for K = 4. Two or three devices may have one from nearer on, which is not looked for."""

STEPS = 40
"""Of Newton's method for where a rule on log sigma^2 starts, each at most 1."""

FEW, MANY, FEW_NUMBERS = 30, 1000, 60
"""Devices up to which an approximation is worth a check; those up to which it is where their rows tell little; and how many numbers in phi
there may be. That of a larger fleet is nearly exact, and in more dimensions there are too few draws near the posterior to say anything."""

VAGUE_SPREAD = 0.25
"""Standard deviation of log tau from which on rows tell little: 30 devices that know their coefficients leave that much."""

VAGUE = 4.0
"""Variance of a guess at log sigma^2 from rows without residual degrees of freedom."""


class Private(NamedTuple):
    """What m devices keep.

    Attributes
    ----------
    rows
        Their compressed rows.
    noise, noise_scale
        log sigma^2 and how uncertain it is, shape (m,). What the rows alone say of it, where sigma is shared; where the rule on it was
        last, where it is the device's own; what it is, and 0, where sigma is known.
    """

    rows: Compressed
    noise: Floats
    noise_scale: Floats


@dataclass(frozen=True)
class Normal(ABC):
    """Devices whose coefficients are independent draws from normal distributions, with a posterior of their means and variances.

    Methods are those of `fedcore.hm2.hierarchy.Hierarchy`.

    Attributes
    ----------
    sigma
        Standard deviation of the noise, in target units, or "unknown".
    noise
        Where sigma is unknown: "shared" by all devices, or each "device" its own.
    mu_mean, mu_sd
        Of the prior of each entry of mu.
    log_tau_mean, log_tau_sd
        Of each log tau.
    log_sigma2_mean, log_sigma2_sd
        Of log sigma^2.
    units
        That these are stated in; None for those of the data.
    """

    sigma: float | Literal["unknown"] = "unknown"
    noise: Literal["shared", "device"] = "shared"
    mu_mean: float = 0.0
    mu_sd: float = 1.0
    log_tau_mean: float = 0.0
    log_tau_sd: float = 1.0
    log_sigma2_mean: float = 0.0
    log_sigma2_sd: float = 3.0
    units: Units | None = None

    START: ClassVar[tuple[str, ...]] = ("em1", "em2", "em3")
    CAUTION: ClassVar[str] = ""
    POINTS: ClassVar[int] = 1500

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        number("sigma", self.sigma, 1e-100, 1e100, words=("unknown",))
        choice("noise", self.noise, ("shared", "device"))
        for name in ("mu", "log_tau", "log_sigma2"):
            number(f"{name}_mean", getattr(self, f"{name}_mean"), -np.inf, np.inf, above=True, below=True)
            number(f"{name}_sd", getattr(self, f"{name}_sd"), 0, np.inf, above=True, below=True)

    @abstractmethod
    def axes(self, d: int) -> int:
        """Number of entries of log tau, for d coefficients."""

    @abstractmethod
    def integrate(self, rows: Compressed, noise: Floats, cavity: Conditional, centre: Floats, scale: Floats) -> Integral:
        """The integral over (mu, log tau) given sigma^2, shape (B,), by a rule on log tau with centre and scale of shape (B, a)."""

    @property
    def _known(self) -> bool:
        return not isinstance(self.sigma, str)

    @property
    def _shared(self) -> bool:
        return not self._known and self.noise == "shared"

    def _hyperprior(self, d: int) -> Hyperprior:
        size = np.ones(d) if self.units is None else self.units.coefficients
        each = warm.spread(d, self.axes(d))
        offset = 2.0 * (np.log(size) @ each) / each.sum(axis=0)
        return Hyperprior(self.mu_mean * size, self.mu_sd * size, self.log_tau_mean + offset, self.log_tau_sd + 0.0 * offset)

    @property
    def _noise_mean(self) -> float:
        """The mean of log sigma^2, in squared target units."""
        return self.log_sigma2_mean + (0.0 if self.units is None else 2.0 * float(np.log(self.units.target)))

    def at(self, units: Units) -> Self:
        """This model, with its hyper-prior stated in these units."""
        return replace(self, units=units)

    def blocks(self, d: int) -> dict[str, int]:
        """The blocks of phi."""
        return {"mu": d, "log_tau": self.axes(d)} | ({"log_sigma2": 1} if self._shared else {})

    def prior(self, d: int) -> NaturalParams:
        """The prior of phi."""
        mean, sd = self._prior_moments(d)
        return natural(mean, np.diag(1.0 / sd**2))

    def _prior_moments(self, d: int) -> tuple[Floats, Floats]:
        of = self._hyperprior(d)
        mean, sd = np.append(of.mu_mean, of.log_tau_mean), np.append(of.mu_sd, of.log_tau_sd)
        return (np.append(mean, self._noise_mean), np.append(sd, self.log_sigma2_sd)) if self._shared else (mean, sd)

    def prior_refreshed(self, q: NaturalParams, site: NaturalParams) -> NaturalParams:
        """The prior is normal, so its part in q stays what it is."""
        return site

    def prior_evidence(self, q: NaturalParams, site: NaturalParams) -> float:
        """Of a normal prior."""
        return -float(log_partition(site))

    def log_prior(self, phi: Floats) -> Floats:
        """log of its density."""
        return log_normal_density(self.prior(self._columns(phi.shape[1])), phi)

    def prepare(self, datas: Sequence[DeviceData]) -> Private:
        """Compressed rows, and what they say of the noise.

        Raises
        ------
        Misuse
            Where a device has no training rows, or values so large that their squares overflow.
        """
        rows = compress(datas)
        if not isinstance(self.sigma, str):
            return Private(rows, np.full(len(datas), 2.0 * np.log(self.sigma)), np.zeros(len(datas)))
        centre, variance = _own_noise(rows, self.log_sigma2_mean)
        if self.noise == "device":  # the rule on it is for the rows and the prior together
            variance = variance * self.log_sigma2_sd**2 / (variance + self.log_sigma2_sd**2)
        return Private(rows, centre, np.sqrt(variance))

    def start(self, d: int) -> Point:
        """The prior's means."""
        prior = self._hyperprior(d)
        return Point(prior.mu_mean, prior.log_tau_mean, self._noise_mean)

    def start_statistics(self, phase: str, point: Point, private: Private) -> Statistics:
        """Sums of expectation maximisation. In its first phase sigma^2 is each device's own guess, for want of a better one."""
        rows, d = private.rows, len(point.mu)
        tau = np.broadcast_to(np.exp(warm.spread(d, self.axes(d)) @ point.log_tau), rows.y.shape)
        if phase != self.START[0]:
            return warm.statistics(rows, point.mu, tau, self._noise(point, private))
        squares = (rows.R**2).sum(axis=1)
        explained = (np.asarray(rows.power) * rows.n)[:, None]
        alone = np.where(squares > 0, explained / np.where(squares > 0, squares, 1.0), 0.0)
        return warm.statistics(rows, point.mu, WIDENED * np.maximum(tau, alone), np.exp(private.noise))

    def start_form(self, phase: str, d: int) -> Statistics:
        """Of every phase."""
        return Statistics(np.zeros(d), np.zeros(d), 0.0, 0.0)

    def started(self, phase: str, point: Point, total: Statistics, devices: int, fleet: int) -> Point:
        """The maximum over mu, tau and sigma^2. Devices that have not answered count as like those that have."""
        share = fleet / devices
        return warm.maximised(point, Statistics(*(np.asarray(each) * share for each in total)), fleet, self._hyperprior(len(point.mu)))

    def start_sites(self, point: Point, private: Private) -> NaturalParams:
        """Sites from score and Fisher information."""
        return warm.fisher_sites(private.rows, point, self._noise(point, private), shared=self._shared)

    def tilted(self, private: Private, q: NaturalParams, cavity: NaturalParams) -> tuple[Private, Tilted]:
        """Tilted moments of m devices."""
        found = self._found(private, q, self._cavity(private, cavity))
        if not self._known and not self._shared:
            private = private._replace(
                noise=np.where(found.proper, found.noise, private.noise),
                noise_scale=np.where(found.proper, found.noise_scale, private.noise_scale),
            )
        p = found.mean.shape[1] - (not self._shared)
        mean, covariance = np.ascontiguousarray(found.mean[:, :p]), np.ascontiguousarray(found.covariance[:, :p, :p])
        return private, Tilted(mean, covariance, found.log_evidence, found.proper, self._loss_at(private.rows, found))

    def _loss_at(self, rows: Compressed, found: Found) -> Floats:
        """Mean squared training error of the coefficients that are expected at the tilted means; of least squares where there are none."""
        d = rows.R.shape[1]
        axes = self.axes(d)
        mean = np.where(found.proper[:, None], found.mean, 0.0)
        sd = np.exp(0.5 * mean[:, d : d + axes] @ warm.spread(d, axes).T)
        error = unexplained(rows, np.ascontiguousarray(mean[:, :d]), sd[:, :, None] * np.eye(d), np.exp(mean[:, -1]))
        explained = np.where(found.proper, (error**2).sum(axis=1), 0.0)
        return (explained + rows.rss) / np.asarray(rows.n)

    def loss(self, private: Private) -> Floats:
        """Mean squared training error of least squares."""
        return np.asarray(private.rows.rss) / np.asarray(private.rows.n)

    def log_factor(self, private: Private, phi: Floats) -> Floats:
        """log f_k(phi), exact up to rounding, and up to quadrature over sigma_k where it is the device's own."""
        d = private.rows.R.shape[1]
        axes = self.axes(d)
        mu, tau = np.ascontiguousarray(phi[:, :d]), np.exp(phi[:, d : d + axes] @ warm.spread(d, axes).T)
        values: list[Floats] = []
        for k in range(len(private.noise)):
            rows, noise = rows_of(private.rows, slice(k, k + 1)), private.noise[k]
            if self._known or self._shared:
                values.append(log_density(rows, mu, tau, self._noise_at(phi, noise)))
            else:
                values.append(log_density_own_noise(rows, mu, tau, noise, self._noise_mean, self.log_sigma2_sd**2))
        return np.array(values)

    def bound(self, private: Private, phi: Floats) -> Floats:
        """None: they are exact."""
        return np.array(np.inf)

    def _noise_at(self, phi: Floats, noise: float) -> Floats:
        return np.exp(phi[:, -1]) if self._shared else np.full(len(phi), np.exp(noise))

    def coefficients(self, private: Private, q: NaturalParams, cavity: NaturalParams) -> list[Coefficients]:
        """The posterior of each device's coefficients, as a mixture of normal distributions."""
        d, m = private.rows.R.shape[1], len(private.noise)
        axes, conditional = self.axes(d), self._cavity(private, cavity)
        found = self._found(private, q, conditional)
        each, last = warm.spread(d, axes), slice(d, d + axes + 1)
        whole = moments(q)
        results: list[Coefficients] = []
        for k in range(m):
            mean, covariance = found.mean[k, last], found.covariance[k, last, last]
            if not found.proper[k]:
                # Weights correct any distribution that values are drawn from; q is the best left.
                mean, covariance = np.append(whole.mean[d : d + axes], private.noise[k]), np.zeros((axes + 1, axes + 1))
                covariance[:axes, :axes] = whole.covariance[d : d + axes, d : d + axes]
                covariance[axes, axes] = private.noise_scale[k] ** 2
            one = slice(k, k + 1)
            results.append(mixture(rows_of(private.rows, one), conditional.of(one), mean, covariance, each, known=self._known))
        return results

    def coefficients_at(self, private: Private, phi: Floats, log_weight: Floats) -> list[Coefficients]:
        """The same, over values of phi, and one value for each of the noise where that is the device's own."""
        d = private.rows.R.shape[1]
        axes = self.axes(d)
        mu, tau = np.ascontiguousarray(phi[:, :d]), np.exp(phi[:, d : d + axes] @ warm.spread(d, axes).T)
        results: list[Coefficients] = []
        for k, guess in enumerate(private.noise):
            rows = rows_of(private.rows, slice(k, k + 1))
            if self._known or self._shared:
                noise = self._noise_at(phi, guess)
            else:
                levels = cube(len(phi), 1)[:, 0]
                noise = np.exp(own_noise(rows, mu, tau, guess, self._noise_mean, self.log_sigma2_sd**2, levels))
            results.append(mixture_at(rows, mu, tau, noise, log_weight[k]))
        return results

    def elsewhere(self, q: NaturalParams) -> NaturalParams | None:
        """All of the prior: noise may explain what the spread between devices does, and the other way round."""
        return None

    def doubtful(self, q: NaturalParams, devices: int) -> bool:
        """Whether there are few devices, or more with rows that tell little; and few numbers."""
        d = self._columns(q.shift.shape[-1])
        variance = np.diagonal(moments(q).covariance)[d : d + self.blocks(d)["log_tau"]]
        few = devices <= FEW or (devices <= MANY and bool(variance.max() > VAGUE_SPREAD**2))
        return few and q.shift.shape[-1] <= FEW_NUMBERS

    def another_mode(self, q: NaturalParams) -> bool:
        """Whether a mean of mu is far from its prior's."""
        d = self._columns(q.shift.shape[-1])
        prior = self._hyperprior(d)
        return bool((np.abs(moments(q).mean[:d] - prior.mu_mean) > FAR * prior.mu_sd).any())

    def far(self, q: NaturalParams) -> bool:
        """Whether a mean of phi is far from its prior's."""
        mean, sd = self._prior_moments(self._columns(q.shift.shape[-1]))
        return bool((np.abs(moments(q).mean - mean) > FAR * sd).any())

    def _columns(self, length: int) -> int:
        """d, of the length of phi."""
        return next(d for d in range(1, length) if sum(self.blocks(d).values()) == length)

    def _noise(self, point: Point, private: Private) -> Floats:
        return np.full(len(private.noise), np.exp(point.log_sigma2)) if self._shared else np.exp(private.noise)

    def _cavity(self, private: Private, cavity: NaturalParams) -> Cavity:
        """Of (mu, t, s), whether s is in phi or not; where it is known, any distribution does."""
        d = private.rows.R.shape[1]
        return split(cavity, d) if self._shared else independent(cavity, d, self._noise_mean, self.log_sigma2_sd**2)

    def _found(self, private: Private, q: NaturalParams, cavity: Cavity) -> Found:
        """Rules start where q is, but for the noise: by residuals and cavity if shared, and where it was last if the device's own."""
        m, d = len(private.noise), private.rows.R.shape[1]
        axes = self.axes(d)
        noise, scale = private.noise, private.noise_scale
        if self._shared:
            noise, scale = _placed(private, cavity.noise_mean, cavity.noise_variance)
        whole = moments(q)
        t = slice(d, d + axes)
        J = 1 if self._known else len(NODES)
        centre = np.broadcast_to(whole.mean[t], (m, J, axes))
        if self._shared:
            slope = whole.covariance[t, -1] / whole.covariance[-1, -1]
            s = noise[:, None] + scale[:, None] * NODES
            centre = centre + (s - whole.mean[-1])[:, :, None] * slope
        width = 1.0 / np.sqrt(diagonal(inverse(whole.covariance[None, t, t]).matrix))
        start = Rules(noise, scale, np.ascontiguousarray(centre), np.broadcast_to(width[0], (m, J, axes)).copy())
        return tilted_moments(self.integrate, private.rows, cavity, start)


def _own_noise(rows: Compressed, fallback: float) -> tuple[Floats, Floats]:
    """Mean and variance of log sigma^2 that the residuals of least squares speak for; without any, half of the targets' power."""
    freedom, power = np.asarray(rows.freedom), np.asarray(rows.power)
    some = freedom > 0
    half = np.where(some, freedom, 1.0) / 2.0
    least = EPSILON**2 * power * rows.n
    with np.errstate(divide="ignore"):
        fitted = np.log(np.maximum(rows.rss, least) / 2.0) - psi(half)
        vague = np.log(power / 2.0)
    centre = np.where(power > 0, np.where(some, fitted, vague), fallback)
    return centre, np.where(some, polygamma(1, half), VAGUE)


def _placed(private: Private, mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Mode of log sigma^2 given a normal distribution and residuals, and the standard deviation by the curvature there.

    The residuals' likelihood is no normal one: seen from a fleet with less noise, a noisy device's falls off like an exponential's. Where
    there are no residual degrees of freedom, the device's guess counts for a normal one.
    """
    rows, guess = private.rows, 1.0 / private.noise_scale**2
    some = np.asarray(rows.freedom) > 0
    half_freedom = np.where(some, 0.5 * np.asarray(rows.freedom), 0.0)
    half_rss = np.where(some, half_freedom * np.exp(private.noise), 0.0)
    normal = np.where(some, 0.0, guess)
    s = np.maximum(mean, private.noise)  # from above steps never overshoot by an exponential
    for _ in range(STEPS):
        exponential = half_rss * np.exp(-s)
        slope = exponential - half_freedom - (s - mean) / variance - normal * (s - private.noise)
        bend = exponential + 1.0 / variance + normal
        s = s + np.clip(slope / bend, -1.0, 1.0)
    return s, 1.0 / np.sqrt(half_rss * np.exp(-s) + 1.0 / variance + normal)
