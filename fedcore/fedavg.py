"""FedAvg: one global model. Devices step from it, and the server averages what they reach.

Objective: sum_k n_k f_k(theta) with f_k(theta) = |y_k - X_k theta|^2 / n_k, or with equal weights sum_k f_k(theta).

A round: each device takes T local gradient steps from theta to theta_k; the server sets theta <- sum_k w_k theta_k over
those who answered, with w_k in proportion to n_k ("rows") or equal (the paper's).

Only one full-batch step with a rate that is the same on all devices descends that objective exactly. With more steps each
device goes further towards its own least squares, and the fixed point goes from the minimiser towards the average of those;
safe rates, which differ by device, weigh each device by its own. No average of stable steps is unstable.

A mean goes wherever a single device pulls it. With aggregation=median each coordinate of theta is the median over devices, with
trimmed_mean the mean of what is left without the largest and the smallest values: whatever fewer than half of the devices send, or no
more than are trimmed at each end, theta stays within what the others reached. Both count devices alike, since a device says itself how
many rows it has; and where devices differ they are not the minimiser of the objective.

Source: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", 2017, Algorithm 1; with equal weights as in Yue, Al Kontar and Estrada Gomez, "Federated Data Analytics: A Study on
Linear Models", section 6.2. Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed
Learning: Towards Optimal Statistical Rates", 2018, definitions 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from fedcore.algorithm import Aggregated, BatchedAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.linear import LocalProblem, LocalSteps
from fedcore.messages import DeviceInfo, Stacked, stacked
from fedcore.options import choice, number
from fedcore.rows import DeviceData, Floats, Scalar

TINY = float(np.finfo(float).tiny)

ROUNDING = 1e-9
"""What a number of devices may be short of a whole one by rounding: 0.29 of 100 are 29."""


class Server(NamedTuple):
    """What the server knows.

    Attributes
    ----------
    theta
        The global coefficients, shape (d,).
    devices
        K, how many devices the fleet has.
    change
        Relative change in the last round, where every device answered it; else inf.
    failed
        Whether an update was not finite, which ends the run with the last theta from before it.
    """

    theta: Floats
    devices: int
    change: float
    failed: bool


class Down(NamedTuple):
    """To every device: the global coefficients, shape (d,)."""

    theta: Floats


class Up(NamedTuple):
    """From device k: the coefficients that its steps reached, shape (d,), and its number of training rows."""

    theta: Floats
    n: Scalar


class Info(NamedTuple):
    """Of a round: the relative change."""

    change: float


@dataclass(frozen=True)
class GlobalModel(LocalSteps):
    """The server's side of an algorithm with one averaged global model. Methods are those of `fedcore.algorithm.Algorithm`.

    Attributes
    ----------
    weights
        Whether devices weigh in the mean by their training "rows", or all "equal".
    aggregation
        "mean", or by coordinate the "median" or "trimmed_mean", in which devices count alike whatever `weights` is.
    trimmed
        Share in [0, 0.5) of the devices that a trimmed mean leaves out at each end, rounded down.
    tolerance
        The run has converged once the relative change (largest change of a coefficient by the largest coefficient) is below
        this in a round that every device answered.
    """

    weights: Literal["rows", "equal"] = "rows"
    aggregation: Literal["mean", "median", "trimmed_mean"] = "mean"
    trimmed: float = 0.1
    tolerance: float = 1e-8

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        super().__post_init__()
        choice("weights", self.weights, ("rows", "equal"))
        choice("aggregation", self.aggregation, ("mean", "median", "trimmed_mean"))
        number("trimmed", self.trimmed, 0, 0.5, below=True)
        number("tolerance", self.tolerance, 0, 1, below=True)

    def init_server(self, spec: FleetSpec) -> Server:
        return Server(np.zeros(spec.d), len(spec.device_ids), np.inf, False)

    def broadcasts(self, server: Server, cohort: Sequence[int]) -> Sequence[Down]:
        return Stacked(Down(np.tile(server.theta, (len(cohort), 1))), len(cohort))

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is found below, and named
    def averaged(self, server: Server, up: Up, personal: Floats | None = None) -> Aggregated:
        """The updates of m devices, stacked, taken into the global model.

        Parameters
        ----------
        server
            The state before.
        up
            Their coefficients, shape (m, d), and numbers of rows, shape (m,).
        personal
            The relative changes of what the devices keep for themselves, shape (m,), where they do.
        """
        theta = self._global(up)
        changes = [relative_change(theta, server.theta), *(() if personal is None else personal)]
        if not (np.isfinite(theta).all() and np.isfinite(changes).all()):
            return Aggregated(server._replace(failed=True), 1.0, Info(np.inf))
        change = float(max(changes))
        settled = change if len(up.theta) == server.devices else np.inf
        return Aggregated(Server(theta, server.devices, settled, False), 1.0, Info(change))

    def _global(self, up: Up) -> Floats:
        if self.aggregation == "median":
            return np.median(up.theta, axis=0)
        if self.aggregation == "trimmed_mean":
            return trimmed_mean(up.theta, self.trimmed)
        weight = np.asarray(up.n) if self.weights == "rows" else np.ones(len(up.theta))
        return (weight / weight.sum()) @ up.theta

    def status(self, server: Server) -> Continue | Outcome:
        if server.failed:
            advice = "try a smaller eta, eta=safe or batch=full"
            return Outcome("diverged", f"a device's update was not finite, its local steps overflowed: {advice}", ok=False)
        if server.change < self.tolerance:
            return Outcome("converged", f"the coefficients' relative change in the last round is below {self.tolerance:g}", ok=True)
        return Continue()


@dataclass(frozen=True)
class FedAvg(GlobalModel, BatchedAlgorithm[Server, LocalProblem, Down, Up]):
    """One global model for all devices, the average of their local steps."""

    STEADY: ClassVar[bool] = True
    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {"weights": ("rows", "equal"), "eta": ("safe", 0.1, 0.03, 0.01, 0.003)}

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[LocalProblem]:
        return Stacked(self.prepare(datas), len(datas))

    def local_steps(
        self, downs: Sequence[Down], devices: Sequence[LocalProblem], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[LocalProblem], Sequence[Up], Sequence[DeviceInfo]]:
        problem, m = stacked(devices), len(devices)
        theta = self.run(stacked(downs).theta, problem, datas, rngs)
        return devices, Stacked(Up(theta, problem.n), m), Stacked(DeviceInfo(self.loss(theta, problem)), m)

    def form(self, spec: FleetSpec, server: Server) -> Up:
        return Up(server.theta, 0.0)

    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Up]) -> Aggregated:
        return self.averaged(server, stacked(ups))

    def newcomer(self, server: Server) -> Down:
        return self.broadcast(server, 0)

    def finalize(self, down: Down, device: LocalProblem, data: DeviceData) -> DeviceResult:
        return DeviceResult(down.theta)


def trimmed_mean(values: Floats, share: float) -> Floats:
    """By column, the mean without the largest and the smallest values, this share of them each, rounded down.

    Parameters
    ----------
    values
        Shape (m, d).
    share
        In [0, 0.5).
    """
    m = len(values)
    out = min(int(share * m + ROUNDING), (m - 1) // 2)
    return np.sort(values, axis=0)[out : m - out].mean(axis=0)


@np.errstate(over="ignore", invalid="ignore")
def relative_change(new: Floats, old: Floats) -> Floats:
    """Largest change of a coefficient by the largest coefficient, over the last axis, shape (m, d) to (m,); not finite where `new` is not.

    Unlike a norm's, there are no squares in it that under- or overflow.
    """
    return np.abs(new - old).max(axis=-1) / np.maximum(np.abs(new).max(axis=-1), TINY)
