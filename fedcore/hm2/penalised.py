"""Coefficients that a prior shrinks towards zero, by a strength that the devices learn together.

y_k ~ N(X_k theta_k, sigma^2 I) and phi = (log lambda, log sigma^2), with independent theta_ki:

- `Ridge`: normal with variance sigma / lambda;
- `sited.Lasso`: Laplace with scale sigma / lambda;
- `sited.ElasticNet`: density proportional to exp(-a |z| - (1 - a) z^2 / 2), z = theta lambda / sigma;
- `horseshoe.Horseshoe`.

Ridge's factors f_k are known in closed form; the others' are the evidence of `inner`. phi's two numbers are integrated over on `grid`.

The start takes sigma^2 from the devices' pooled residuals, or, where there are too few degrees of freedom, half the targets' mean square;
and then lambda from a rough profile of the evidence, with normal priors of the same variance. Sites start as a part of the expected
information.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np

from fedcore.compression import Compressed, compress
from fedcore.gaussian import product
from fedcore.hm2 import half_cauchy
from fedcore.hm2.coefficients import Coefficients, Joint, Marginals
from fedcore.hm2.grid import Indices, Nodes, OnGrid, on_grid
from fedcore.hm2.hierarchy import Tilted
from fedcore.hm2.natural import Moments, NaturalParams, log_density, log_partition, moments, natural
from fedcore.hm2.units import Squares, Units, squares, units_of
from fedcore.messages import Stacked
from fedcore.options import choice, number
from fedcore.rows import DeviceData, Floats, Scalar

FIRST = np.array([1.0, 0.0, 0.0])
"""The entry of log lambda in a packed precision of phi."""

PROFILE, SDS, REACH = 31, 3.0, 9.0
"""At how many values of log lambda the start looks, and how far to both sides: so many standard deviations around its prior's mean, and
so far around where coefficients are as large as the columns can use."""

FAR = 4.0
"""Standard deviations of the prior, from which on a mean of phi is said to be far from it."""

ENOUGH = 5.0
"""Fewest residual degrees of freedom, of the fleet, that the start takes sigma^2 from."""

FLOOR = 1e-12
"""Least sigma^2 of the start, as a share of the targets' mean square."""

TRUST = 0.3
"""Share of the expected information that sites start with."""

WIDE = 0.15
"""Standard deviation of log lambda from which on the approximation is worth a check: where coefficients are too few, or too weak, to say
more of lambda, its posterior falls off slowly on the side where they are nothing."""

LOOSE = 4.0
"""Factor of the variance of log sigma^2 where log lambda is not where it is thought to be."""

NEGLIGIBLE = 1e-12
"""Weight below which a node is left out of a mixture."""

BLOCK = 2**21
"""Largest number of matrix entries that log f_k is taken for at once."""


class Prepared(NamedTuple):
    """What a device keeps; with a leading axis m where it stands for m devices.

    Attributes
    ----------
    rows
        Compressed.
    singular, directions, targets
        Of R = U diag(singular) directions: shapes (d,) and (d, d), and U'y, shape (d,).
    """

    rows: Compressed
    singular: Floats
    directions: Floats
    targets: Floats


class Start(NamedTuple):
    """Where the start has got to; the size of coefficients is what the columns can use."""

    log_lambda: Scalar
    log_sigma2: Scalar
    log_size: Scalar


class Residuals(NamedTuple):
    """A device's part of the first phase: residual sum of squares, degrees of freedom, and what units are found from, as in `Squares`;
    `columns` has shape (d,)."""

    rss: Scalar
    freedom: Scalar
    target: Scalar
    columns: Floats
    n: Scalar


class Profile(NamedTuple):
    """A device's part of the second phase: log f_k at values of log lambda, shape (31,)."""

    log_factor: Floats


@dataclass(frozen=True)
class Penalised(ABC):
    """What the penalised models share. Methods are those of `fedcore.hm2.hierarchy.Hierarchy`.

    Attributes
    ----------
    log_lambda_mean, log_lambda_sd, log_sigma2_mean, log_sigma2_sd
        Of phi's normal prior; sigma^2 is in squared target units.
    lambda_prior
        "log_normal", or "half_cauchy", whose scale is exp(log_lambda_mean), and which has no use for log_lambda_sd.
    units
        That the prior is stated in; None for those of the data.
    """

    START: ClassVar[tuple[str, ...]] = ("noise", "profile")
    CAUTION: ClassVar[str] = ""
    POINTS: ClassVar[int] = 27
    INFORMATION: ClassVar[float]
    """Of one coefficient about the log of the prior's scale, sigma / lambda."""

    log_lambda_mean: float = 0.0
    log_lambda_sd: float = 3.0
    log_sigma2_mean: float = 0.0
    log_sigma2_sd: float = 3.0
    lambda_prior: Literal["log_normal", "half_cauchy"] = "log_normal"
    units: Units | None = None

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        choice("lambda_prior", self.lambda_prior, ("log_normal", "half_cauchy"))
        for name in ("log_lambda_mean", "log_sigma2_mean"):
            number(name, getattr(self, name), -100, 100)
        for name in ("log_lambda_sd", "log_sigma2_sd"):
            number(name, getattr(self, name), 0, 100, above=True)

    def blocks(self, d: int) -> dict[str, int]:
        return {"log_lambda": 1, "log_sigma2": 1}

    def at(self, units: Units) -> Self:
        return replace(self, units=units)

    def prior(self, d: int) -> NaturalParams:
        return self._prior

    def prior_refreshed(self, q: NaturalParams, site: NaturalParams) -> NaturalParams:
        if self.lambda_prior == "log_normal":
            return site
        noise, cavity = self._without_log_lambda(q, site)
        outside = moments(cavity)
        if not outside.proper:
            return site
        found, scale = self._half_cauchy(outside), float(self._log_lambda[0])
        variance = float(outside.covariance[0, 0])
        precision = 1.0 / found.variance - 1.0 / variance
        shift = (found.mean + scale) / found.variance - float(outside.mean[0]) / variance
        return noise.plus(NaturalParams(np.array([shift, 0.0]), precision * FIRST))

    def prior_evidence(self, q: NaturalParams, site: NaturalParams) -> float:
        if self.lambda_prior == "log_normal":
            return -float(log_partition(site))
        noise, cavity = self._without_log_lambda(q, site)
        outside = moments(cavity)
        if not outside.proper:
            return float("nan")
        noise_alone = -log_partition(NaturalParams(noise.shift[1:], noise.precision[2:]))
        return float(self._half_cauchy(outside).log_normaliser + log_partition(cavity) - log_partition(q) + noise_alone)

    def _without_log_lambda(self, q: NaturalParams, site: NaturalParams) -> tuple[NaturalParams, NaturalParams]:
        """Of the prior's two independent parts the noise's, which is exact; and the other's cavity, which is q without its site."""
        noise = NaturalParams(site.shift * [0.0, 1.0], site.precision * (1.0 - FIRST))
        return noise, q.minus(site).plus(noise)

    def _half_cauchy(self, outside: Moments) -> half_cauchy.Matched:
        return half_cauchy.matched(float(outside.mean[0]) - float(self._log_lambda[0]), float(outside.covariance[0, 0]))

    def log_prior(self, phi: Floats) -> Floats:
        prior = self._prior
        if self.lambda_prior == "log_normal":
            return log_density(prior, phi)
        noise = NaturalParams(prior.shift[1:], prior.precision[2:])
        return half_cauchy.log_density(phi[:, 0] - self._log_lambda[0]) + log_density(noise, phi[:, 1:])

    @property
    def _prior(self) -> NaturalParams:
        """Of phi; where it is not normal, a normal one with its moments."""
        (mean, sd), noise_sd = self._log_lambda, self.log_sigma2_sd
        return natural(np.array([mean, self._log_sigma2_mean]), np.diag([sd**-2.0, noise_sd**-2.0]))

    @property
    def _log_lambda(self) -> tuple[float, float]:
        """Mean and standard deviation of log lambda."""
        units = self.units
        offset = 0.0 if units is None else self.strength(float(np.log(units.target)), float(np.log(units.coefficient)))
        sd = self.log_lambda_sd if self.lambda_prior == "log_normal" else float(np.sqrt(half_cauchy.VARIANCE))
        return self.log_lambda_mean + offset, sd

    @property
    def _log_sigma2_mean(self) -> float:
        return self.log_sigma2_mean + (0.0 if self.units is None else 2.0 * float(np.log(self.units.target)))

    def strength(self, log_sigma: float, log_size: float) -> float:
        """log lambda at which coefficients have this size: of sigma / lambda."""
        return log_sigma - log_size

    def prepare(self, datas: Sequence[DeviceData]) -> Prepared:
        rows = compress(datas)
        left, singular, directions = np.linalg.svd(rows.R)
        return Prepared(rows, singular, directions, product(np.ascontiguousarray(left.swapaxes(1, 2)), rows.y))

    def loss(self, private: Prepared) -> Floats:
        return np.asarray(private.rows.rss) / np.asarray(private.rows.n)

    def start(self, d: int) -> Start:
        return Start(self._log_lambda[0], self._log_sigma2_mean, 0.0)

    def start_statistics(self, phase: str, point: Start, private: Prepared) -> Residuals | Profile:
        rows = private.rows
        if phase == "noise":
            return Residuals(rows.rss, rows.freedom, *squares(rows))
        phi = np.column_stack([self._log_lambdas(point), np.full(PROFILE, float(point.log_sigma2))])
        phi = np.repeat(phi[None], len(rows.y), axis=0)
        return Profile(normal_log_factor(private, self.variance(phi), np.exp(phi[..., 1])))

    def start_form(self, phase: str, d: int) -> Residuals | Profile:
        return Residuals(0.0, 0.0, 0.0, np.zeros(d), 0.0) if phase == "noise" else Profile(np.zeros(PROFILE))

    def started(self, phase: str, point: Start, total: Residuals | Profile, devices: int, fleet: int) -> Start:
        if isinstance(total, Residuals):
            mean_square = float(total.target / total.n)
            if not mean_square > 0:
                return point
            size = float(np.log(units_of(Squares(total.target, total.columns, total.n)).coefficient))
            enough = total.freedom >= ENOUGH
            noise = float(total.rss / total.freedom) if enough else mean_square / 2.0
            return point._replace(log_sigma2=float(np.log(max(noise, FLOOR * mean_square))), log_size=size)
        values, (mean, sd) = self._log_lambdas(point), self._log_lambda
        height = total.log_factor * (fleet / devices) - 0.5 * ((values - mean) / sd) ** 2
        best = int(np.argmax(np.where(np.isfinite(height), height, -np.inf)))
        return point._replace(log_lambda=float(values[best]))

    def _log_lambdas(self, point: Start) -> Floats:
        (mean, sd), useful = self._log_lambda, self.strength(0.5 * float(point.log_sigma2), float(point.log_size))
        return np.linspace(min(mean - SDS * sd, useful - REACH), max(mean + SDS * sd, useful + REACH), PROFILE)

    def start_sites(self, point: Start, private: Prepared) -> NaturalParams:
        n, d = np.asarray(private.rows.n), private.rows.y.shape[1]
        scale = np.array([-1.0, 0.5])  # of log scale = log sigma - log lambda in phi
        matrix = TRUST * self.INFORMATION * np.minimum(n, d)[:, None, None] * np.outer(scale, scale)
        matrix[:, 1, 1] += TRUST * np.maximum(n - d, 1.0)
        mean = np.array([float(point.log_lambda), float(point.log_sigma2)])
        return natural(np.repeat(mean[None], len(n), axis=0), matrix)

    def tilted(self, private: Prepared, q: NaturalParams, cavity: NaturalParams) -> tuple[Prepared, Tilted]:
        found = self._on_grid(private, q, cavity)
        error = private.rows.y - product(private.rows.R, self.estimates(private, found.mean[:, None]))
        loss = ((error**2).sum(axis=1) + private.rows.rss) / np.asarray(private.rows.n)
        return private, Tilted(found.mean, found.covariance, found.log_evidence, found.proper, loss)

    def log_factor(self, private: Prepared, phi: Floats) -> Floats:
        m, d = private.rows.y.shape
        size = max(1, BLOCK // (m * d**2))
        blocks = (np.repeat(phi[None, start : start + size], m, axis=0) for start in range(0, len(phi), size))
        return np.concatenate([self.log_factors(private, block) for block in blocks], axis=1)

    def bound(self, private: Prepared, phi: Floats) -> Floats:
        return np.array(np.inf)

    def coefficients(self, private: Prepared, q: NaturalParams, cavity: NaturalParams) -> list[Coefficients]:
        found = self._on_grid(private, q, cavity)
        return self.mixtures(private, Nodes(found.phi, found.weight))

    def coefficients_at(self, private: Prepared, phi: Floats, log_weight: Floats) -> list[Coefficients]:
        m, J = log_weight.shape
        weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        size = max(1, BLOCK // (J * private.rows.y.shape[1] ** 2))
        devices, found = Stacked(private, m), list[Coefficients]()
        for start in range(0, m, size):
            some = range(start, min(start + size, m))
            nodes = Nodes(np.repeat(phi[None], len(some), axis=0), weight[some.start : some.stop])
            found += self.mixtures(devices.take(list(some)).fields, nodes)
        return found

    def elsewhere(self, q: NaturalParams) -> NaturalParams | None:
        (mean, sd), found = self._log_lambda, moments(q)
        noise = LOOSE * float(found.covariance[1, 1])
        return natural(np.array([mean, float(found.mean[1])]), np.diag([sd**-2.0, 1.0 / noise]))

    def doubtful(self, q: NaturalParams, devices: int) -> bool:
        return bool(moments(q).covariance[0, 0] > WIDE**2)

    def another_mode(self, q: NaturalParams) -> bool:
        return False

    def far(self, q: NaturalParams) -> bool:
        prior = moments(self._prior)
        return bool((np.abs(moments(q).mean - prior.mean) > FAR * np.sqrt(np.diagonal(prior.covariance))).any())

    def _on_grid(self, private: Prepared, q: NaturalParams, cavity: NaturalParams) -> OnGrid:
        m, d = private.singular.shape
        devices = Stacked(private, m)

        def log_factors(chosen: Indices, phi: Floats) -> Floats:
            size = max(1, BLOCK // (phi.shape[1] * d**2))
            blocks = (slice(start, start + size) for start in range(0, len(chosen), size))
            return np.concatenate([self.log_factors(devices.take(chosen[block].tolist()).fields, phi[block]) for block in blocks])

        return on_grid(log_factors, q, cavity)

    @abstractmethod
    def variance(self, phi: Floats) -> Floats:
        """Of a coefficient's prior, or the size of it where the prior has none, at phi of shape (..., 2): shape (...)."""

    @abstractmethod
    def log_factors(self, private: Prepared, phi: Floats) -> Floats:
        """log f_k of m devices at phi of shape (m, J, 2): shape (m, J)."""

    @abstractmethod
    def estimates(self, private: Prepared, phi: Floats) -> Floats:
        """Posterior means of m devices' coefficients at phi of shape (m, 1, 2): shape (m, d)."""

    @abstractmethod
    def mixtures(self, private: Prepared, found: Nodes) -> list[Coefficients]:
        """Of m devices' coefficients, over the nodes."""


@dataclass(frozen=True)
class Ridge(Penalised):
    """theta_ki ~ N(0, variance sigma / lambda)."""

    INFORMATION = 0.5

    def strength(self, log_sigma: float, log_size: float) -> float:
        """Of a variance sigma / lambda."""
        return log_sigma - 2.0 * log_size

    def variance(self, phi: Floats) -> Floats:
        return np.exp(0.5 * phi[..., 1] - phi[..., 0])

    def log_factors(self, private: Prepared, phi: Floats) -> Floats:
        return normal_log_factor(private, self.variance(phi), np.exp(phi[..., 1]))

    def estimates(self, private: Prepared, phi: Floats) -> Floats:
        return self._at(private, phi)[2][:, 0]

    def _at(self, private: Prepared, phi: Floats) -> tuple[Floats, Floats, Floats]:
        """Noise, shape (m, J, 1), what a direction keeps of itself, by its noise, and means, shape (m, J, d) each."""
        noise, variance = np.exp(phi[..., 1])[..., None], self.variance(phi)[..., None]
        singular = private.singular[:, None]
        share = variance / (noise + variance * singular**2)
        transposed = np.ascontiguousarray(private.directions.swapaxes(1, 2))[:, None]
        return noise, share, product(transposed, share * singular * private.targets[:, None])

    def mixtures(self, private: Prepared, found: Nodes) -> list[Coefficients]:
        noise, share, mean = self._at(private, found.phi)
        directions = private.directions[:, None]
        transposed = np.ascontiguousarray(directions.swapaxes(2, 3))
        covariance = (transposed * (share * noise)[:, :, None]) @ directions
        no_scale = np.full(mean.shape, np.inf)
        variances = np.ascontiguousarray(np.diagonal(covariance, axis1=2, axis2=3))
        return [mixture_of(*each) for each in zip(found.weight, mean, variances, no_scale, mean, covariance, noise[..., 0], strict=True)]


def mixture_of(
    weight: Floats, mean: Floats, variance: Floats, scale: Floats, joint_mean: Floats, covariance: Floats, noise: Floats
) -> Coefficients:
    """One device's, of its q nodes, shape (q,) and (q, d), with weight."""
    kept = weight > NEGLIGIBLE
    shares = weight[kept] / weight[kept].sum()
    marginals = Marginals(np.repeat(shares[:, None], mean.shape[1], axis=1), mean[kept], variance[kept], scale[kept])
    return Coefficients(marginals, Joint(shares, joint_mean[kept], covariance[kept], noise[kept]))


def normal_log_factor(private: Prepared, variance: Floats, noise: Floats) -> Floats:
    """log N(y; 0, variance X X' + noise I) of m devices, shape (m, J), as `variance` and `noise` are."""
    rows = private.rows
    stretch = 1.0 + private.singular[:, None] ** 2 * (variance / noise)[..., None]
    squares = (private.targets[:, None] ** 2 / stretch).sum(axis=2) + np.asarray(rows.rss)[:, None]
    return -0.5 * (np.asarray(rows.n)[:, None] * np.log(2.0 * np.pi * noise) + np.log(stretch).sum(axis=2) + squares / noise)
