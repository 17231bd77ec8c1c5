"""Devices that come after a run has ended, and devices that leave: the approximation goes on from where it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedcore.algorithm import FleetSpec
from fedcore.fit import InProcess, fit
from fedcore.hm2.hm2 import Hm2
from fedcore.hm2.natural import NaturalParams, moments
from fedcore.messages import take
from fedcore.rounds import RunState, Schedule, rounds
from fedcore.rows import DeviceData
from tests.fedcore.hm2.references import reference

DEVICES = [f"{k:04d}" for k in range(100)]


class Continued(InProcess):
    """A fleet whose devices begin with the states that they ended another run with."""

    def __init__(self, algorithm: Hm2, spec: FleetSpec, devices: dict[str, DeviceData], before: dict[str, Any]) -> None:
        super().__init__(algorithm, spec, [devices[each] for each in spec.device_ids], seed=0)
        fresh = [take(self.accepted, [k])[0] for k in range(len(spec.device_ids))]
        known = zip(spec.device_ids, fresh, strict=True)
        self.accepted = [algorithm.continued_device(before[name], state) if name in before else state for name, state in known]


def ended(algorithm: Hm2, backend: InProcess, spec: FleetSpec, state: RunState, count: int) -> tuple[RunState, dict[str, Any]]:
    """The state after at most so many rounds, and what each device has accepted by then."""
    for report in rounds(algorithm, spec, backend, Schedule(rounds=count), state):
        state = report.state
    backend.results(state)  # the last receipts
    return state, dict(zip(spec.device_ids, backend.accepted, strict=True))


def trained(algorithm: Hm2, devices: dict[str, DeviceData], ids: Sequence[str]) -> tuple[RunState, dict[str, Any]]:
    """A run of these devices."""
    spec = FleetSpec(tuple(ids), 4)
    backend = InProcess(algorithm, spec, [devices[each] for each in ids], seed=0)
    return ended(algorithm, backend, spec, RunState.initial(algorithm, spec), 30)


def gone_on(
    algorithm: Hm2,
    devices: dict[str, DeviceData],
    old: Sequence[str],
    new: Sequence[str],
    state: RunState,
    before: dict[str, Any],
    count: int,
) -> NaturalParams:
    """The approximation of a new fleet so many rounds after it went on from an old one's."""
    spec = FleetSpec(tuple(new), 4)
    places = [old.index(name) if name in old else None for name in new]
    server = algorithm.continued_server(state.server, places, spec)
    backend = Continued(algorithm, spec, devices, before)
    state, accepted = ended(algorithm, backend, spec, RunState.initial(algorithm, spec)._replace(server=server), count)
    sites = np.array([device.sites.precision[state.server.which] for device in accepted.values()])
    together = state.server.approximation.prior.precision + sites.sum(axis=0)
    np.testing.assert_allclose(state.server.approximation.q.precision, together, rtol=0, atol=1e-12 * np.abs(sites).sum())
    return state.server.approximation.q


def apart(one: NaturalParams, other: NaturalParams) -> float:
    """The larger of the difference of means and of log standard deviations, in standard deviations."""
    first, second = moments(one), moments(other)
    sds = [np.sqrt(np.diagonal(each.covariance)) for each in (first, second)]
    return float(max((np.abs(first.mean - second.mean) / sds[0]).max(), np.abs(np.log(sds[0] / sds[1])).max()))


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [(DEVICES[:-1], DEVICES, 2), (DEVICES, DEVICES[1:], 2), (DEVICES[:20], DEVICES[1:20], 2), (DEVICES[:5], DEVICES[1:7], 3)],
    ids=["one joins 99", "one leaves 100", "one leaves 20", "one leaves and two join 5"],
)
def test_few_rounds_lead_to_the_refit(old: list[str], new: list[str], count: int) -> None:
    _, devices = reference("uq")
    algorithm = Hm2(sigma=0.05, certificate="off")
    state, before = trained(algorithm, devices, old)
    found = gone_on(algorithm, devices, old, new, state, before, count)
    refit = fit(algorithm, {name: devices[name] for name in new}, rounds=60)
    assert apart(refit.server.approximation.q, found) < 0.02


def test_a_newcomer_does_not_touch_the_fleet() -> None:
    """Its coefficients are those that it has in a fleet whose approximation is held fast."""
    _, devices = reference("uq")
    algorithm = Hm2(sigma=0.05)
    result = fit(algorithm, {name: devices[name] for name in DEVICES[1:]}, rounds=60)
    X, y = devices["0000"].train
    few = DeviceData.of(X[:3], y[:3])
    spec = FleetSpec(tuple(DEVICES), 4)
    found = algorithm.finalize(algorithm.newcomer(result.server), algorithm.init_device(spec, few), few)
    assert found.posterior is not None
    # With three rows and little noise, what is left open is one direction, which the fleet's distribution fills.
    at = moments(result.server.approximation.q)
    mean, tau = at.mean[:4], np.exp(at.mean[4:])
    precision = X[:3].T @ X[:3] / 0.05**2 + np.diag(1.0 / tau)
    expected = np.linalg.solve(precision, X[:3].T @ y[:3] / 0.05**2 + mean / tau)
    sd = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    assert (np.abs(found.theta - expected) / sd).max() < 0.1
    assert np.abs(found.posterior.sd / sd - 1.0).max() < 0.1


@pytest.mark.slow
def test_three_rows_and_the_fleet_beat_three_rows() -> None:
    """The same Bayes without the fleet has N(0, 1) for mu and log tau; 200 newcomers of 3 rows with noise of standard deviation .5.

    Least squares of the least norm from 3 rows of 4 columns have no finite mean squared error, so what 200 of them give is no figure to
    hold others against.
    """
    rng = np.random.default_rng(0)
    mean, sd = np.array([1.0, 3.0, 0.5, 2.0]), np.sqrt([1.17, 2.35, 2.52, 0.67])

    def device(theta: np.ndarray, n: int) -> DeviceData:
        X = rng.standard_normal((n, 4))
        return DeviceData.of(X, X @ theta + 0.5 * rng.standard_normal(n))

    fleet = {name: device(mean + sd * rng.standard_normal(4), 100) for name in DEVICES}
    algorithm = Hm2(sigma=0.5, certificate="off")
    learned = fit(algorithm, fleet, rounds=60).server
    nothing = algorithm.init_server(FleetSpec(("a",), 4))._replace(ended=True)
    errors: list[list[float]] = []
    for _ in range(200):
        theta = mean + sd * rng.standard_normal(4)
        data = device(theta, 3)
        state = algorithm.init_device(FleetSpec(("a",), 4), data)
        with_fleet, alone = (algorithm.finalize(algorithm.newcomer(each), state, data).theta for each in (learned, nothing))
        least_squares = np.linalg.lstsq(data.train.X, data.train.y)[0]
        errors.append([float(((each - theta) ** 2).mean()) for each in (with_fleet, alone, least_squares)])
    ours, alone, least = np.sqrt(np.mean(errors, axis=0))
    assert ours <= 0.65 * alone
    assert ours < least


def test_units_are_those_of_the_devices_that_are_left() -> None:
    """Of a device with targets in other units, nothing stays in the prior either."""
    _, devices = reference("uq")
    X, y = devices["0000"].train
    devices = {name: devices[name] for name in DEVICES[:8]} | {"0000": DeviceData.of(X, 50.0 * y)}
    algorithm = Hm2(sigma=0.05, hyperprior="scaled", certificate="off")
    old, new = DEVICES[:8], DEVICES[1:8]
    state, before = trained(algorithm, devices, old)
    found = gone_on(algorithm, devices, old, new, state, before, 30)
    refit = fit(algorithm, {name: devices[name] for name in new}, rounds=60).server
    assert float(refit.units.target) < 0.2 * float(state.server.units.target)
    assert apart(refit.approximation.q, found) < 0.02
