"""Empirical Bayes: y_k = X_k theta_k + e, e ~ N(0, sigma^2 I), theta_k ~ N(mu, Sigma), with mu, Sigma and sigma^2 learned from all devices.

Maximised is the marginal log likelihood sum_k log N(y_k; X_k mu, X_k Sigma X_k' + sigma^2 I), by EM. A round:

- the server sends (mu, A, sigma^2), A A' = Sigma;
- device k takes the posterior of its theta_k, normal with mean m_k and covariance V_k, and sends its part of the sums below;
- the server sets mu <- mean m_k, Sigma <- mean (m_k m_k' + V_k) - mu mu' (its diagonal, or mean diagonal, where that is asked for) and
  sigma^2 <- sum E|y_k - X_k theta_k|^2 / sum n_k.

No update lowers the likelihood. Where the likelihood rises towards variances of zero, as for devices that are all alike, plain EM
takes forever. So with a diagonal or isotropic Sigma, in a round that all devices answered, the server also fits a factor a_j, or one
for all, to the deviations from the old mu, by regression of the rows on the expected ones: theta <- mu + a (theta - mu). By that the
likelihood does not fall either (parameter expansion). A full Sigma would need factors that also rotate, d^2 of them: without,
directions die out before they have turned to where they belong. There the steps are plain EM.

Pooled least squares finds the start, in one round, or in as many as it takes to hear of ten devices, up to ten.

Then devices send the difference between their part now and what the server last took of them. So the server's sums hold the last
part of every device that ever answered, its memory does not grow with their number, and a round of some devices is a step of
incremental EM. Devices that have not answered yet count as draws from the parameters as they are: their rows are missing.

Sources: Dempster, Laird and Rubin (1977) for EM; Laird and Ware (1982) for this model; Neal and Hinton (1998) for incremental EM;
Liu, Rubin and Wu (1998) for parameter expansion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from fedcore.algorithm import Aggregated, BatchedAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.compression import Compressed, compress
from fedcore.errors import Misuse
from fedcore.gaussian import Expected, expected, product
from fedcore.messages import DeviceInfo, Empty, Stacked, all_finite, stacked
from fedcore.options import choice, number
from fedcore.posterior import Posterior
from fedcore.rows import DeviceData, Floats, Scalar
from fedcore.semidefinite import EPSILON, factor, packed, solve, symmetric, triangular
from fedcore.sums import Part, Pooled, added, changed, expansion, no_part, part, pooled, repeated, scaled, squares

FLOOR = 1e-12
"""Least noise variance, as a share of the variance that the pooled fit leaves: there the rows count as fitted exactly."""

STARTERS, START_ROUNDS = 10, 10
"""How many devices, if the fleet has them, the start waits for, and how many rounds at most. A start from one device alone knows
nothing of the differences between devices."""

LEAST_BETWEEN = 0.1
"""Least share of that variance that the start ascribes to differences between devices: EM leaves a Sigma near zero slowly."""


class Server(NamedTuple):
    """What the server knows.

    Attributes
    ----------
    mean, covariance
        mu, shape (d,), and Sigma, shape (d, d).
    noise, floor
        sigma^2, and the least value that it may take; where devices have their own, what the start took it for. 0 until there is a start.
    pooled, rounds
        What the start is made from, and how many rounds it took so far.
    origin
        What `sums` are relative to, shape (d,): the mean of the start.
    sums
        Of the last parts of all devices that have answered.
    fleet
        K.
    gain
        What the last round added to the log likelihood, where all devices answered it and the one before; else inf.
    complete
        Whether all devices answered the last round.
    failed
        Whether a message or an update was not finite.
    """

    mean: Floats
    covariance: Floats
    noise: float
    floor: float
    pooled: Pooled
    rounds: int
    origin: Floats
    sums: Part
    fleet: int
    gain: float
    complete: bool
    failed: bool


class Prior(NamedTuple):
    """To a device: mu, shape (d,); A, packed; sigma^2; the origin of sums, shape (d,); and the fleet's degrees of freedom."""

    mean: Floats
    factor: Floats
    noise: Scalar
    origin: Floats
    freedom: Scalar


class Update(NamedTuple):
    """From a device: how its part of the sums has changed, and what the factors a are fitted by, with b = theta_k - mu.

    Attributes
    ----------
    change
        Its part less the one that the server took last.
    slope
        E[b_j x_j'(y - X theta)] / sigma^2, shape (d,); summed over j, (1,), for an isotropic Sigma, and (0,) for a full one.
    curvature
        E[b_i b_j] x_i'x_j / sigma^2, packed, for the same.
    """

    change: Part
    slope: Floats
    curvature: Floats


class Device(NamedTuple):
    """A device's compressed rows, its part as the server has it, its own noise variance, and 1 where it has told its part of the
    start, else 0."""

    rows: Compressed
    part: Part
    noise: Scalar
    told: Scalar


class Info(NamedTuple):
    """Of a round: the devices' marginal log likelihoods, summed, each at the parameters that the device was last sent. NaN in the start."""

    log_likelihood: float


@dataclass(frozen=True)
class Eb(BatchedAlgorithm[Server, Device, Any, Any]):
    """Devices whose coefficients are draws from one normal distribution, which they learn together.

    Attributes
    ----------
    covariance
        "full", "diagonal" or "isotropic" Sigma. Isotropic is meant for columns of one scale.
    mean
        "free", or "zero", which shrinks towards zero as ridge regression does.
    noise
        "shared" by all devices, or each device's "own", which its server is not told.
    tolerance
        The run has converged once a round changes the log likelihood by less than this, in nats; all devices must have answered it
        and the one before.
    """

    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {"covariance": ("full", "diagonal", "isotropic"), "mean": ("free", "zero")}

    covariance: Literal["full", "diagonal", "isotropic"] = "full"
    mean: Literal["free", "zero"] = "free"
    noise: Literal["shared", "own"] = "shared"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        choice("covariance", self.covariance, ("full", "diagonal", "isotropic"))
        choice("mean", self.mean, ("free", "zero"))
        choice("noise", self.noise, ("shared", "own"))
        number("tolerance", self.tolerance, 0, np.inf, below=True)

    def init_server(self, spec: FleetSpec) -> Server:
        d, K = spec.d, len(spec.device_ids)
        zero, none = np.zeros(d), Pooled(0.0, 0.0, 0.0, np.zeros(d * (d + 1) // 2), np.zeros(d), 0.0, 0.0)
        return Server(zero, np.zeros((d, d)), 0.0, 0.0, none, 0, zero, no_part(d), K, np.inf, complete=False, failed=False)

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Device]:
        """As `Algorithm.init_device`, of m devices.

        Raises
        ------
        Misuse
            Where a device is to have a noise variance of its own and its targets are all zero.
        """
        rows, m = compress(datas), len(datas)
        if self.noise == "own" and not np.all(rows.power > 0):
            raise Misuse("all targets of this device are zero, which gives no noise variance of its own: use noise=shared, or leave it out")
        noise = np.where(rows.freedom > 0, rows.rss / np.maximum(rows.freedom, 1.0), rows.power)
        nothing = repeated(no_part(spec.d), m)
        return Stacked(Device(rows, nothing, np.maximum(noise, FLOOR * rows.power), np.zeros(m)), m)

    def broadcasts(self, server: Server, cohort: Sequence[int]) -> Sequence[Any]:
        m = len(cohort)
        if not server.noise:
            return Stacked(Empty(), m)
        prior = Prior(server.mean, packed(factor(server.covariance)), server.noise, server.origin, server.sums.freedom)
        return Stacked(repeated(prior, m), m)

    def local_steps(
        self, downs: Sequence[Any], devices: Sequence[Device], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[Device], Sequence[Any], Sequence[DeviceInfo]]:
        prior, device, m = stacked(downs), stacked(devices), len(devices)
        rows = device.rows
        if not isinstance(prior, Prior):
            up = scaled(pooled(rows), 1.0 - np.asarray(device.told))
            return Stacked(device._replace(told=np.ones(m)), m), Stacked(up, m), Stacked(DeviceInfo(rows.power), m)
        found = self._expected(prior, device)
        noise = np.maximum(found.residual / rows.n, FLOOR * rows.power) if self.noise == "own" else np.asarray(prior.noise)
        told = part(rows, found, prior.mean + found.b - prior.origin)
        up = Update(changed(told, device.part), *self._expansion(rows, found, noise))
        loss = ((found.error**2).sum(axis=1) + rows.rss) / rows.n
        return Stacked(device._replace(part=told, noise=noise), m), Stacked(up, m), Stacked(DeviceInfo(loss), m)

    def _expected(self, prior: Prior, device: Device) -> Expected:
        noise = device.noise if self.noise == "own" else prior.noise
        return expected(device.rows, prior.mean, triangular(prior.factor, prior.mean.shape[1]), np.asarray(noise))

    def _expansion(self, rows: Compressed, found: Expected, noise: Floats) -> tuple[Floats, Floats]:
        """Slope and curvature of `Update`."""
        b, m = found.b, len(found.b)
        if self.covariance == "full":
            return np.empty((m, 0)), np.empty((m, 0))
        transposed = rows.R.swapaxes(1, 2)
        gram = transposed @ rows.R
        slope = (b * product(transposed, found.error) - (found.covariance * gram).sum(axis=2)) / noise[:, None]
        curvature = (found.covariance + squares(b)) * gram / noise[:, None, None]
        if self.covariance == "isotropic":
            return slope.sum(axis=1, keepdims=True), curvature.reshape(m, -1).sum(axis=1, keepdims=True)
        return slope, packed(curvature)

    def form(self, spec: FleetSpec, server: Server) -> Any:
        if not server.noise:
            return server.pooled
        d = {"full": 0, "diagonal": len(server.mean), "isotropic": 1}[self.covariance]
        return Update(server.sums, np.zeros(d), np.zeros(d * (d + 1) // 2))

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is found below, and named
    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Any]) -> Aggregated:
        up = stacked(ups)
        if not all_finite(up):
            return Aggregated(server._replace(failed=True), 1.0, Info(np.nan))
        if isinstance(up, Update):
            updated = self._updated(server, up, complete=len(cohort) == server.fleet)
            info = Info(float(updated.sums.log_likelihood))
        else:
            updated, info = self._started(server._replace(pooled=added(server.pooled, up), rounds=server.rounds + 1)), Info(np.nan)
        finite = all_finite((updated.mean, updated.covariance, updated.noise))
        return Aggregated(updated if finite else server._replace(failed=True), 1.0, info)

    def _started(self, server: Server) -> Server:
        """Mean by pooled least squares; what that leaves unexplained is the devices' own noise, and differences between them, which
        all columns share in equally."""
        sums, d = server.pooled, len(server.mean)
        if sums.devices < min(server.fleet, STARTERS) and server.rounds < START_ROUNDS:
            return server
        gram = symmetric(sums.gram, d)
        mean = solve(gram, sums.moment) if self.mean == "free" else server.mean
        left = max(float(sums.power - mean @ sums.moment), 0.0) / float(sums.n)
        within = min(float(sums.rss / sums.freedom), left) if sums.freedom > 0 else left / 2.0
        between = max(left - within, LEAST_BETWEEN * left)
        power = gram.diagonal() / sums.n
        if self.covariance == "isotropic":
            power = np.full(d, power.mean())
        variances = np.where(power > 0, between / d / np.where(power > 0, power, 1.0), 0.0)
        floor = max(FLOOR * left, EPSILON**2 * float(sums.power / sums.n)) or FLOOR
        return server._replace(mean=mean, covariance=np.diag(variances), noise=max(within, floor), floor=floor, origin=mean)

    def _updated(self, server: Server, up: Update, *, complete: bool) -> Server:
        sums, d = added(server.sums, up.change), len(server.mean)
        heard, before = float(sums.devices) / server.fleet, server.mean - server.origin
        moved = heard * sums.first / sums.devices + (1.0 - heard) * before if self.mean == "free" else np.zeros(d)
        second = heard * symmetric(sums.second, d) / sums.devices + (1.0 - heard) * (server.covariance + np.outer(before, before))
        mean, covariance = server.origin + moved, self._structured(second - np.outer(moved, moved))
        residual = heard * float(sums.residual) + (1.0 - heard) * server.noise * float(sums.n)
        if complete and self.covariance != "full":
            slope = up.slope.sum(axis=0)
            factors, rise = expansion(slope, symmetric(up.curvature.sum(axis=0), len(slope)))
            mean, covariance = server.mean + factors * (mean - server.mean), covariance * factors**2
            residual -= server.noise * rise
        noise = max(residual / float(sums.n), server.floor) if self.noise == "shared" else server.noise
        gain = float(sums.log_likelihood - server.sums.log_likelihood) if complete and server.complete else np.inf
        return server._replace(mean=mean, covariance=covariance, noise=noise, sums=sums, gain=gain, complete=complete)

    def _structured(self, covariance: Floats) -> Floats:
        if self.covariance == "full":
            return covariance
        diagonal = np.maximum(covariance.diagonal(), 0.0)
        return np.diag(diagonal if self.covariance == "diagonal" else np.full_like(diagonal, diagonal.mean()))

    def status(self, server: Server) -> Continue | Outcome:
        if server.failed:
            return Outcome("diverged", "a device's statistics or their sums were not finite: scale features and target", ok=False)
        if not server.noise:
            return Continue("start")
        if self.noise == "shared" and server.noise <= server.floor:
            advice = "if the targets are noisy there are too few rows for this covariance, so try covariance=diagonal or isotropic"
            message = f"the rows are fitted without residual, and intervals and tests mean nothing then; {advice}"
            return Outcome("exact_fit", message, ok=True)
        if abs(server.gain) < self.tolerance:
            return Outcome("converged", f"the log likelihood changed by less than {self.tolerance:g} in the last round", ok=True)
        return Continue()

    def newcomer(self, server: Server) -> Any:
        return self.broadcast(server, 0)

    def continued_server(self, server: Server, places: Sequence[int | None], spec: FleetSpec) -> Server:
        """Parameters and sums as they are; a device that joins counts as a draw from the parameters until it answers.

        Raises
        ------
        Misuse
            Where a device has left, whose part of the sums is not known.
        """
        if gone := server.fleet - sum(place is not None for place in places):
            raise Misuse(f"a run of eb keeps sums alone, from which {gone} devices that have left cannot be taken: train anew, or use hm2")
        return server._replace(fleet=len(places), gain=np.inf, complete=False)

    def continued_device(self, device: Device, initial: Device) -> Device:
        return device._replace(rows=initial.rows)

    def caution(self, server: Server) -> str:
        if server.noise > server.floor and not server.sums.freedom > 0:
            return "no device has more rows than columns, so little tells the noise, and intervals may be far too narrow"
        return ""

    def finalize(self, down: Prior | Empty, device: Device, data: DeviceData) -> DeviceResult:
        return self.finalize_devices([down], [device], [data])[0]

    def finalize_devices(self, downs: Sequence[Any], devices: Sequence[Device], datas: Sequence[DeviceData]) -> Sequence[DeviceResult]:
        prior, device = stacked(downs), stacked(devices)
        if not isinstance(prior, Prior):  # the run failed before it had a start
            return [DeviceResult(np.zeros(data.train.d)) for data in datas]
        found = self._expected(prior, device)
        noise, freedom = (device.noise, device.rows.freedom) if self.noise == "own" else (prior.noise, prior.freedom)
        each = zip(prior.mean + found.b, found.covariance, np.asarray(noise).tolist(), np.asarray(freedom).tolist(), strict=True)
        return [DeviceResult(theta, Posterior(theta, *rest)) for theta, *rest in each]
