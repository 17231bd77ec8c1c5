"""HM1, correlated devices: Theta ~ MN(0, I, Omega), with Omega (K, K) learned on the server.

Objective, at a given Omega: sum_k |y_k - X_k theta_k|^2 / sigma_k^2 + tr(Theta Omega^-1 Theta'). (Jointly in Theta and
Omega it has no minimum: it falls without bound as both go to zero. So nothing here claims to minimise it jointly.)

A round: device k starts at theta_k, takes T local gradient steps to v_k, and is then shrunk towards the prior:

- `explicit`, the paper's step, on the device: theta_k <- v_k - 2 eta c_k, with the aggregate c_k = sum_i theta_i
  (Omega^-1)_ik that the server sent;
- `proximal`, on the server: Theta <- V - V (Omega + 2 D)^-1 2 D with D the diagonal of the prior rates. It solves the
  same step implicitly, agrees with it where that is stable, and has no step size beyond which it blows up.

The server then sets Omega <- (1 - alpha) Omega + (alpha / d) Theta' Theta.

Omega starts at I in the paper, and does so here for prior rates that are tied or given. A calibrated prior rate has the
units of the targets, squared, and a start without units would shrink large coefficients to zero at once and small ones
not at all; so Omega then starts at u I, with u the mean square of the coefficients that the first round's local steps
reach. That makes the estimate equivariant: targets in other units give the same coefficients in those units. Its floor is a
multiple of the same u over all devices' first answers, since one device's coefficients may happen to be small.

The prior rate that is consistent with the objective is g_k sigma_k^2 / n_k (`calibrated`), with g_k = T rate for small
steps, and less where T steps come near the device's own least squares (`LocalProblem.gain`): then the fixed point is the
posterior mean, exactly for T = 1 and, where all directions of a design have one eigenvalue, for any T. The paper ties the
prior rate to the learning rate eta (`tied`), which shrinks far more.

A run may go on from an ended one with Theta and Omega as they are and further devices. A device that joins starts at 0, the prior's mean,
and Omega is extended block-diagonally: it has the fleet's mean variance, and no covariance with others until its own coefficients
show one. What the others have learned from a device is in all of Theta and cannot be taken back, so none may leave.

Source: Yue, Al Kontar and Estrada Gomez, "Federated Data Analytics: A Study on Linear Models", section 3, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.linalg.lapack import dposv, dpotrf

from fedcore.algorithm import Aggregated, BatchedAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.covariance import TINY, Covariance, LowRank, extended, identity, raised, scaled, shrunk, updated
from fedcore.errors import Misuse
from fedcore.linear import LocalProblem, LocalSteps
from fedcore.messages import Columns, DeviceInfo, Stacked, columns, stacked
from fedcore.options import choice, number
from fedcore.rows import DeviceData, Floats

DEFAULT_FLOOR, CALIBRATED_FLOOR = 1e-2, 1e-1
"""Added to Omega's diagonal where it is inverted: in absolute terms, and as a share of Omega's start. Without a floor,
devices that are silent for long are shrunk to zero and stay there, and a large alpha shrinks everybody too much."""


class Server(NamedTuple):
    """What the server knows.

    Attributes
    ----------
    Theta
        Coefficients, shape (d, K).
    Omega
        Device covariance: a matrix (K, K), or in a large fleet `fedcore.covariance.LowRank`, whose entries
        `fedcore.covariance.block` gives. With the explicit step always a matrix.
    prior_rate
        Each device's last prior rate, shape (K,); 0 before its first answer.
    pull
        The aggregates c_k as columns of Theta Omega^-1, shape (d, K); (0, K) where the shrinkage is proximal.
    change
        Relative change of Theta in the last round, where every device answered it; else inf.
    unit
        What Omega's start and floor are multiples of: 1, or with a calibrated proximal step the mean square of what the
        devices' local steps reached when each first answered; 0 before the first round.
    least
        A lower bound of Omega's eigenvalues, what is left of its start: (1 - alpha)^c times the first unit after c rounds.
    failure
        0, or the `Failure` that ended the run.
    """

    Theta: Floats
    Omega: Covariance
    prior_rate: Floats
    pull: Floats
    change: float
    unit: float
    least: float
    failure: int


class Failure(IntEnum):
    """Why a run diverged."""

    UNSTABLE_STEP = 1
    NOT_FINITE = 2


NOT_FINITE = "a device's update was not finite, its local steps overflowed: try a smaller eta, eta=safe or batch=full"

ADVICE = {
    Failure.UNSTABLE_STEP: "the explicit shrinkage step is unstable, its prior rate exceeds the smallest eigenvalue of Omega: "
    "try shrinkage=proximal (the default), a smaller eta or alpha, or a floor above the prior rate",
    Failure.NOT_FINITE: NOT_FINITE,
}


class Down(NamedTuple):
    """To device k: its coefficients theta_k, shape (d,), and, for the explicit step, its aggregate c_k, shape (d,),
    else (0,)."""

    theta: Floats
    pull: Floats


class Up(NamedTuple):
    """From device k: its coefficients, shape (d,), and its prior rate."""

    theta: Floats
    prior_rate: Floats


class Info(NamedTuple):
    """Of a round: the relative change of Theta in the Frobenius norm."""

    change: float


@dataclass(frozen=True)
class Hm1(LocalSteps, BatchedAlgorithm[Server, LocalProblem, Down, Up]):
    """Devices that borrow strength through a learned covariance between them.

    Attributes
    ----------
    alpha
        Weight in (0, 1] of the newest Theta' Theta / d in Omega.
    shrinkage
        "proximal", or the paper's "explicit", which can diverge and says so.
    prior_rate
        Step size of the shrinkage: "calibrated" from the device's own residual variance, "tied" to eta as in the paper,
        or a number, in squared target units. "default" is calibrated for proximal and tied for explicit.
    prior_weight
        Factor of the prior rate: above 1 coefficients are shrunk more.
    floor
        Added to Omega's diagonal where it is inverted, as a multiple of Omega's start. "default" is 0.1 for calibrated
        prior rates, else 0.01, and 0 for explicit.
    tolerance
        The run has converged once Theta's relative change (Frobenius norm) is below this in a round that every device
        answered.
    """

    STEADY: ClassVar[bool] = True
    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {
        "prior_weight": (1.0, 3.0, 10.0, 30.0),
        "alpha": (0.1, 0.3),
        "eta": ("safe", 0.1, 0.03, 0.01),
    }

    alpha: float = 0.1
    shrinkage: Literal["proximal", "explicit"] = "proximal"
    prior_rate: float | Literal["calibrated", "tied", "default"] = "default"
    prior_weight: float = 1.0
    floor: float | Literal["default"] = "default"
    tolerance: float = 1e-8

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        super().__post_init__()
        number("alpha", self.alpha, 0, 1, above=True)
        choice("shrinkage", self.shrinkage, ("proximal", "explicit"))
        number("prior_rate", self.prior_rate, 0, np.inf, below=True, words=("calibrated", "tied", "default"))
        number("prior_weight", self.prior_weight, 0, np.inf, above=True, below=True)
        number("floor", self.floor, 0, np.inf, below=True, words=("default",))
        number("tolerance", self.tolerance, 0, 1, below=True)

    @property
    def _proximal(self) -> bool:
        return self.shrinkage == "proximal"

    @property
    def _rate(self) -> float | str:
        if self.prior_rate == "default":
            return "calibrated" if self._proximal else "tied"
        return self.prior_rate

    @property
    def _floor(self) -> float:
        if self.floor == "default":
            return CALIBRATED_FLOOR if self._scaled else DEFAULT_FLOOR if self._proximal else 0.0
        return self.floor

    @property
    def _scaled(self) -> bool:
        """Whether Omega's start and floor are in units of the coefficients."""
        return self._proximal and self._rate == "calibrated"

    def init_server(self, spec: FleetSpec) -> Server:
        K = len(spec.device_ids)
        pull = np.zeros((0 if self._proximal else spec.d, K))
        unit = 0.0 if self._scaled else 1.0
        Omega = identity(K, spec.d) if self._proximal else np.eye(K)
        return Server(np.zeros((spec.d, K)), Omega, np.zeros(K), pull, np.inf, unit, unit, 0)

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[LocalProblem]:
        return Stacked(self.prepare(datas), len(datas))

    def broadcasts(self, server: Server, cohort: Sequence[int]) -> Sequence[Down]:
        chosen = columns(cohort, len(server.prior_rate))
        # Contiguous, as messages are that went to a device and back: arithmetic on strides may round otherwise.
        theta, pull = (np.ascontiguousarray(matrix.T[chosen]) for matrix in (server.Theta, server.pull))
        return Stacked(Down(theta, pull), len(cohort))

    def local_steps(
        self, downs: Sequence[Down], devices: Sequence[LocalProblem], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[LocalProblem], Sequence[Up], Sequence[DeviceInfo]]:
        down, problem = stacked(downs), stacked(devices)
        theta = self.run(down.theta, problem, datas, rngs)
        rate = self._prior_rates(problem)
        loss = self.loss(theta, problem)
        if not self._proximal:
            theta = theta - 2.0 * rate[:, None] * down.pull
        m = len(devices)
        return devices, Stacked(Up(theta, rate), m), Stacked(DeviceInfo(loss), m)

    def _prior_rates(self, problem: LocalProblem) -> Floats:
        if self._rate == "calibrated":
            return self.prior_weight * problem.calibrated_rate
        return self.prior_weight * (problem.eta if self._rate == "tied" else np.full_like(problem.eta, self._rate))

    def form(self, spec: FleetSpec, server: Server) -> Up:
        return Up(np.zeros(len(server.Theta)), np.zeros(()))

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is found below, and named
    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Up]) -> Aggregated:
        up, chosen = stacked(ups), columns(cohort, len(server.prior_rate))
        if not (np.isfinite(up.theta).all() and np.isfinite(up.prior_rate).all()):
            return self._failed(server, Failure.NOT_FINITE)
        V, prior_rate = server.Theta.copy(), server.prior_rate.copy()
        V[:, chosen], prior_rate[chosen] = up.theta.T, up.prior_rate
        unit, start = server.unit, server.Omega
        if self._scaled:
            unit = self._first_answers(server, chosen, up)
            start = start if server.unit else scaled(start, unit)
        floor = self._floor * unit
        if self._proximal or isinstance(start, LowRank):  # only a proximal run has one
            Theta = shrunk(V, start, prior_rate, floor)
        elif self._stable(server, start, chosen, up.prior_rate):
            Theta = V
        else:
            return self._failed(server, Failure.UNSTABLE_STEP)
        Omega = updated(start, Theta, self.alpha, floor + 2.0 * float(prior_rate.min()))
        if Omega is None:
            return self._failed(server, Failure.NOT_FINITE)
        pull = server.pull if self._proximal or isinstance(Omega, LowRank) else self._pull(Theta, Omega)
        change = relative_change(Theta, server.Theta)
        settled = change if len(cohort) == len(prior_rate) else np.inf
        least = (1.0 - self.alpha) * (server.least or unit)
        return Aggregated(Server(Theta, Omega, prior_rate, pull, settled, unit, least, 0), 1.0, Info(change))

    def _first_answers(self, server: Server, chosen: Columns, up: Up) -> float:
        """The unit once these devices have answered too; those whose rows are free of noise are not told from new ones, and do
        not count."""
        new = (server.prior_rate[chosen] == 0.0) & (up.prior_rate > 0.0)
        before, added = np.count_nonzero(server.prior_rate), np.count_nonzero(new)
        if not added:
            return server.unit or 1.0
        reached = float(np.mean(up.theta[new] ** 2))
        return (server.unit + (reached - server.unit) * (added / (before + added))) or 1.0

    def _stable(self, server: Server, Omega: Floats, chosen: Columns, prior_rate: Floats) -> bool:
        """Whether the explicit step that was just used contracts: Omega - D is positive definite, D the rates of those
        who took the step.

        With one rate for all this says: prior rate / lambda_min(Omega) < 1.
        """
        if prior_rate.max() < self._floor + server.least:
            return True
        added = np.full(len(Omega), self._floor)
        added[chosen] -= prior_rate
        return bool(dpotrf(raised(Omega, added), overwrite_a=1)[1] == 0)

    def _pull(self, Theta: Floats, Omega: Floats) -> Floats:
        """The aggregates, Theta Omega^-1. Where Omega is singular they are of no use, and `_stable` ends the run if a
        step takes them."""
        _, solved, _ = dposv(raised(Omega, self._floor), Theta.T, overwrite_a=1)
        return solved.T

    def _failed(self, server: Server, failure: Failure) -> Aggregated:
        """The run ends with the last estimate from before the failure."""
        return Aggregated(server._replace(failure=int(failure)), 1.0, Info(np.inf))

    def status(self, server: Server) -> Continue | Outcome:
        if server.failure:
            return Outcome("diverged", ADVICE[Failure(server.failure)], ok=False)
        if server.change < self.tolerance:
            return Outcome("converged", f"Theta's relative change in the last round is below {self.tolerance:g}", ok=True)
        return Continue()

    def finalize(self, down: Down, device: LocalProblem, data: DeviceData) -> DeviceResult:
        return self.finalize_devices([down], [device], [data])[0]

    def finalize_devices(
        self, downs: Sequence[Down], devices: Sequence[LocalProblem], datas: Sequence[DeviceData]
    ) -> Sequence[DeviceResult]:
        return [DeviceResult(theta) for theta in stacked(downs).theta]

    def continued_server(self, server: Server, places: Sequence[int | None], spec: FleetSpec) -> Server:
        """Theta and Omega, with those who join at 0 and the fleet's mean variance.

        Raises
        ------
        Misuse
            Where a device has left.
        """
        stayed = [k for k, place in enumerate(places) if place is not None]
        if gone := len(server.prior_rate) - len(stayed):
            raise Misuse(f"a run of hm1 cannot take back what was learned from {gone} devices that have left: train anew, or use hm2")
        before = [place for place in places if place is not None]
        Theta, prior_rate = np.zeros((spec.d, len(places))), np.zeros(len(places))
        Theta[:, stayed], prior_rate[stayed] = server.Theta[:, before], server.prior_rate[before]
        Omega = extended(server.Omega, places)
        pull = np.zeros((0, len(places))) if self._proximal or isinstance(Omega, LowRank) else self._pull(Theta, Omega)
        return Server(Theta, Omega, prior_rate, pull, np.inf, server.unit, server.least, 0)

    def continued_device(self, device: LocalProblem, initial: LocalProblem) -> LocalProblem:
        return initial


def relative_change(Theta: Floats, before: Floats) -> float:
    """Of Theta since `before`, shape (d, K) each, in the Frobenius norm."""
    size, moved = (float(np.sqrt(np.vdot(matrix, matrix))) for matrix in (Theta, Theta - before))
    return moved / max(size, TINY)
