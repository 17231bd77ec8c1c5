"""Separate: every device on its own, with the local budget that a federated rival has. Nothing is sent up.

Objective: min |y_k - X_k theta_k|^2 on each device alone, from theta_k = 0 by T gradient steps a round.

Source: the baseline of Yue, Al Kontar and Estrada Gomez, "Federated Data Analytics: A Study on Linear Models", sections
5 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator

from fedcore.algorithm import Aggregated, AnyAlgorithm, BatchedAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.linear import LocalProblem, LocalSteps
from fedcore.messages import DeviceInfo, Empty, Stacked, stacked
from fedcore.pooled import Pooled
from fedcore.rows import DeviceData, Floats


class Device(NamedTuple):
    """A device's coefficients, shape (d,), and its compressed rows."""

    theta: Floats
    problem: LocalProblem


@dataclass(frozen=True)
class Separate(LocalSteps, BatchedAlgorithm[Empty, Device, Empty, Empty]):
    """Local gradient steps without any exchange."""

    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {"eta": ("safe", 0.1, 0.03, 0.01, 0.003, 0.001)}

    def init_server(self, spec: FleetSpec) -> Empty:
        return Empty()

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Device]:
        return Stacked(Device(np.zeros((len(datas), spec.d)), self.prepare(datas)), len(datas))

    def broadcasts(self, server: Empty, cohort: Sequence[int]) -> Sequence[Empty]:
        return Stacked(Empty(), len(cohort))

    def local_steps(
        self, downs: Sequence[Empty], devices: Sequence[Device], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[Device], Sequence[Empty], Sequence[DeviceInfo]]:
        device, m = stacked(devices), len(devices)
        theta = self.run(device.theta, device.problem, datas, rngs)
        loss = self.loss(theta, device.problem)
        return Stacked(device._replace(theta=theta), m), Stacked(Empty(), m), Stacked(DeviceInfo(loss), m)

    def form(self, spec: FleetSpec, server: Empty) -> Empty:
        return server

    def aggregate(self, server: Empty, cohort: Sequence[int], ups: Sequence[Empty]) -> Aggregated:
        return Aggregated(server, 1.0, Empty())

    def status(self, server: Empty) -> Continue | Outcome:
        return Continue()

    def finalize(self, down: Empty, device: Device, data: DeviceData) -> DeviceResult:
        return DeviceResult(device.theta)


def separate_rival(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """What a device would do on its own in place of `algorithm`, with every option that they share.

    For an algorithm of local steps that is Separate at the same rate, steps, batch and gradient; for one without, which has no budget of
    steps to compare with, the exact solution on the device's own rows: Pooled in a fleet of one.
    """
    kind = Separate if isinstance(algorithm, LocalSteps) else Pooled
    shared: dict[str, Any] = {field.name: getattr(algorithm, field.name) for field in fields(kind) if hasattr(algorithm, field.name)}
    return kind(**shared)
