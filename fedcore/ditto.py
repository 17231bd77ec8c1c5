"""Ditto: a personal model on each device, held near a global one.

Objective: theta as in FedAvg; on each device, at that theta, min f_k(v_k) + lambda / 2 |v_k - theta|^2, with f_k the mean
squared error over the rows of a step, or with gradient=sum their sum. lambda is the option `penalty` (`lambda` is a word of
the language): 0 gives separate models, infinity the global one.

A round: device k steps from theta to theta_k for the server's average, and on its own model takes as many steps, or
`personal_steps`,

    v <- (v - r grad f_k(v) + r lambda theta) / (1 + r lambda)

with r the rate of its local steps. That is the textbook's step v <- v - s (grad f_k(v) + lambda (v - theta)) at s = r / (1 + r
lambda), and also the gradient step on f_k followed by the exact (proximal) step on the penalty: it contracts for every lambda
wherever r is stable without, and at the safe r it is half of the largest stable s.

v_k starts at the first theta that the device hears, which is 0 for those who take part from the start.

Source: Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", 2021, Algorithm 1; as
a baseline in Yue, Al Kontar and Estrada Gomez, "Federated Data Analytics: A Study on Linear Models", section 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from fedcore import fedavg
from fedcore.algorithm import Aggregated, BatchedAlgorithm, DeviceResult, FleetSpec
from fedcore.fedavg import Down, GlobalModel, Server, relative_change
from fedcore.linear import LocalProblem, LocalSteps, Pull
from fedcore.messages import DeviceInfo, Stacked, stacked
from fedcore.options import number, whole
from fedcore.rows import Booleans, DeviceData, Floats, Scalar


class Device(NamedTuple):
    """What a device keeps.

    Attributes
    ----------
    v
        Its personal coefficients, shape (d,).
    started
        Whether they have taken any step.
    problem
        Its compressed rows.
    pull
        The penalty, settled for its personal steps.
    """

    v: Floats
    started: Booleans
    problem: LocalProblem
    pull: Pull


class Up(NamedTuple):
    """From device k: its part of the average, and the relative change of its personal coefficients, without which the
    server could not tell whether they have converged."""

    shared: fedavg.Up
    change: Scalar


@dataclass(frozen=True)
class Ditto(GlobalModel, BatchedAlgorithm[Server, Device, Down, Up]):
    """Personal models that a penalty holds near FedAvg's global one.

    Attributes
    ----------
    penalty
        lambda, at least 0, in the units of f_k's second derivative, which are the squared units of the features: to be
        tuned.
    personal_steps
        Steps a round on the personal model; "steps" takes as many as on the global one.
    """

    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {"eta": ("safe", 0.1), "penalty": (0.1, 0.3, 1.0, 3.0, 0.03)}

    penalty: float = 0.1
    personal_steps: int | Literal["steps"] = "steps"

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        super().__post_init__()
        number("penalty", self.penalty, 0, np.inf, below=True)
        if self.personal_steps != "steps":
            whole('personal_steps (unless "steps")', self.personal_steps, 1, 1_000_000)

    @property
    def _personal(self) -> LocalSteps:
        steps = self.steps if self.personal_steps == "steps" else self.personal_steps
        return LocalSteps(self.eta, steps, self.batch, self.gradient)

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Device]:
        m, problem = len(datas), self.prepare(datas)
        pull = self._personal.pull(problem, self.penalty)
        return Stacked(Device(np.zeros((m, spec.d)), np.zeros(m, dtype=bool), problem, pull), m)

    def local_steps(
        self, downs: Sequence[Down], devices: Sequence[Device], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[Device], Sequence[Up], Sequence[DeviceInfo]]:
        centre, device, m = stacked(downs).theta, stacked(devices), len(devices)
        if self.batch != "full":
            rngs = list(rngs)  # of each device one generator for both models, where the sequence would make a new one
        theta = self.run(centre, device.problem, datas, rngs)
        start = np.where(device.started[:, None], device.v, centre)
        v = self._personal.run_pulled(start, centre, device.problem, device.pull, datas, rngs)
        change = relative_change(v, start)
        # Steps that overflow end the run, since the server is told of their change, and are not kept.
        v = np.where(np.isfinite(change)[:, None], v, start)
        moved = device._replace(v=v, started=np.ones(m, dtype=bool))
        up = Up(fedavg.Up(theta, device.problem.n), change)
        return Stacked(moved, m), Stacked(up, m), Stacked(DeviceInfo(self.loss(v, device.problem)), m)

    def form(self, spec: FleetSpec, server: Server) -> Up:
        return Up(fedavg.Up(server.theta, 0.0), 0.0)

    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Up]) -> Aggregated:
        up = stacked(ups)
        return self.averaged(server, up.shared, np.asarray(up.change))

    def finalize(self, down: Down, device: Device, data: DeviceData) -> DeviceResult:
        return DeviceResult(device.v if device.started else down.theta)
