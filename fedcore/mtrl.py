"""MTRL, multi-task relationship learning: a covariance between devices of given trace, in closed form.

Objective: sum_k |y_k - X_k theta_k|^2 / sigma_k^2 + strength tr(Theta Omega^-1 Theta'), over Theta and all Omega with
trace u. The best Omega for a Theta is u (Theta' Theta)^1/2 / tr (Theta' Theta)^1/2, and put in it leaves strength / u times the
square of Theta's trace norm. So the problem is convex and has a best value, unlike HM1's; it prefers few directions that all
devices share.

A round: device k takes T local gradient steps from theta_k to v_k. The server then minimises sum_k |theta_k - v_k|^2 / (2 D_kk)
+ tr(Theta Omega^-1 Theta'), D_kk being strength times the calibrated prior rate of a device that answered, and 0 for a silent
one, which stays where it is. It alternates between the proximal step of HM1, Theta <- V - V (Omega + 2 D)^-1 2 D, and the best
Omega. At T = 1 the fixed point is the objective's minimum; for more steps it is near it, as HM1's is.

Two choices are ours. The source has trace 1; here it is u, the mean square of the coefficients that the first round's local
steps reach, so that targets in other units give the same coefficients in those units. And Theta' Theta stands for Theta' Theta
+ floor d u I, a smoothed trace norm: without it a direction that is lost once has no variance and can never come back.

Source: Zhang and Yeung, "A convex formulation for learning task relationships in multi-task learning", 2010, sections 2.2
and 2.3, with strength for their second regularisation parameter and without the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator

from fedcore.algorithm import Aggregated, BatchedAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.covariance import LowRank, shrunk
from fedcore.hm1 import NOT_FINITE, Info, Up, relative_change
from fedcore.linear import LocalProblem, LocalSteps
from fedcore.messages import DeviceInfo, Stacked, columns, stacked
from fedcore.options import number
from fedcore.rows import DeviceData, Floats

SWEEPS = 10
"""Alternations between Theta and Omega a round. They go on where the last round ended, so more change little."""


class Server(NamedTuple):
    """What the server knows.

    Attributes
    ----------
    Theta
        Coefficients, shape (d, K).
    Omega
        Device covariance, of trace `unit`; its factor has at most d rows.
    change
        Relative change of Theta in the last round, where every device answered it; else inf.
    unit
        The mean square of the coefficients that the first round's local steps reached; 0 before that.
    overflowed
        Whether a device's update, or its square, was not finite, which ends the run.
    """

    Theta: Floats
    Omega: LowRank
    change: float
    unit: float
    overflowed: bool


class Down(NamedTuple):
    """To device k: its coefficients theta_k, shape (d,)."""

    theta: Floats


@dataclass(frozen=True)
class Mtrl(LocalSteps, BatchedAlgorithm[Server, LocalProblem, Down, Up]):
    """Devices that borrow strength through a covariance of given trace between them.

    Attributes
    ----------
    strength
        Weight of the penalty; 0 leaves every device on its own.
    floor
        Smooths the trace norm: what is added to Theta' Theta / d, as a share of the mean square coefficient u.
    tolerance
        The run has converged once Theta's relative change (Frobenius norm) is below this in a round that every device
        answered.
    """

    STEADY: ClassVar[bool] = True
    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {"eta": ("safe", 0.1), "strength": (1.0, 3.0, 0.3, 10.0, 0.1)}

    strength: float = 1.0
    floor: float = 1e-3
    tolerance: float = 1e-8

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        super().__post_init__()
        number("strength", self.strength, 0, np.inf, below=True)
        number("floor", self.floor, 0, np.inf, above=True, below=True)
        number("tolerance", self.tolerance, 0, 1, below=True)

    def init_server(self, spec: FleetSpec) -> Server:
        K = len(spec.device_ids)
        return Server(np.zeros((spec.d, K)), LowRank(np.empty((0, K)), 0.0), np.inf, 0.0, False)

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[LocalProblem]:
        return Stacked(self.prepare(datas), len(datas))

    def broadcasts(self, server: Server, cohort: Sequence[int]) -> Sequence[Down]:
        theta = server.Theta.T[columns(cohort, server.Theta.shape[1])]
        return Stacked(Down(np.ascontiguousarray(theta)), len(cohort))

    def local_steps(
        self, downs: Sequence[Down], devices: Sequence[LocalProblem], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[LocalProblem], Sequence[Up], Sequence[DeviceInfo]]:
        problem, m = stacked(devices), len(devices)
        theta = self.run(stacked(downs).theta, problem, datas, rngs)
        return devices, Stacked(Up(theta, problem.calibrated_rate), m), Stacked(DeviceInfo(self.loss(theta, problem)), m)

    def form(self, spec: FleetSpec, server: Server) -> Up:
        return Up(np.zeros(len(server.Theta)), np.zeros(()))

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is found at once, and named
    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Up]) -> Aggregated:
        up, K = stacked(ups), server.Theta.shape[1]
        V, rate, chosen = server.Theta.copy(), np.zeros(K), columns(cohort, K)
        V[:, chosen], rate[chosen] = up.theta.T, self.strength * up.prior_rate
        if not (np.isfinite(np.vdot(V, V)) and np.isfinite(rate).all()):
            return Aggregated(server._replace(overflowed=True), 1.0, Info(np.inf))
        unit = server.unit or float(np.mean(up.theta**2)) or 1.0
        # A device that is new starts from its own estimate: from 0 it would have next to no variance, and be shrunk for long.
        Theta = np.where(server.Theta.any(axis=0), server.Theta, V)
        for _ in range(SWEEPS):
            Theta = shrunk(V, self._best(Theta, unit), rate, 0.0)
        change = relative_change(Theta, server.Theta)
        settled = change if len(cohort) == K else np.inf
        return Aggregated(Server(Theta, self._best(Theta, unit), settled, unit, False), 1.0, Info(change))

    def _best(self, Theta: Floats, unit: float) -> LowRank:
        """The covariance of trace `unit` that makes the penalty of Theta least."""
        d, K = Theta.shape
        # Without units, so that LAPACK rescales nothing and targets in other units give the same bits.
        singular, directions = np.linalg.svd(Theta / np.sqrt(unit), full_matrices=False)[1:]
        smoothing = float(np.sqrt(self.floor * d))
        roots = np.hypot(singular, smoothing)
        total = float(roots.sum()) + (K - len(roots)) * smoothing
        share = np.maximum(roots - smoothing, 0.0) / total
        return LowRank(np.sqrt(unit * share)[:, None] * directions, unit * smoothing / total)

    def status(self, server: Server) -> Continue | Outcome:
        if server.overflowed:
            return Outcome("diverged", NOT_FINITE, ok=False)
        if server.change < self.tolerance:
            return Outcome("converged", f"Theta's relative change in the last round is below {self.tolerance:g}", ok=True)
        return Continue()

    def finalize(self, down: Down, device: LocalProblem, data: DeviceData) -> DeviceResult:
        return DeviceResult(down.theta)
