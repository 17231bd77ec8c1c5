"""HM1 and EB go on from ended runs: with the same rows nothing is lost, with other rows and devices they end where a fresh run does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedcore import DeviceData, Eb, Hm1, Misuse
from fedcore.algorithm import AnyAlgorithm, FleetSpec
from fedcore.covariance import LowRank, block, extended
from fedcore.fit import InProcess
from fedcore.messages import take
from fedcore.rounds import RunState, Schedule, rounds
from fedcore.testing import equal, small_fleet

ROWS = (12, 17, 30, 9, 25, 14)
HM1 = {"proximal": Hm1(alpha=0.3, tolerance=1e-10), "explicit": Hm1(shrinkage="explicit", eta=0.005, prior_rate=1e-4, floor=0.1)}
EB = {name: Eb(covariance=name, tolerance=1e-11) for name in ("full", "diagonal", "isotropic")} | {
    "own": Eb("diagonal", noise="own", tolerance=1e-11)
}


class Run:
    """A run in memory, alone or one that goes on from another one."""

    def __init__(self, algorithm: AnyAlgorithm, devices: dict[str, DeviceData], count: int, before: Run | None = None) -> None:
        self.algorithm, self.devices = algorithm, devices
        self.spec = FleetSpec(tuple(sorted(devices)), 3)
        datas = [devices[each] for each in self.spec.device_ids]
        self.backend = InProcess(algorithm, self.spec, datas, seed=0)
        self.state = RunState.initial(algorithm, self.spec)
        if before:
            old = before.accepted
            places = [before.spec.device_ids.index(each) if each in old else None for each in self.spec.device_ids]
            self.state = self.state._replace(server=algorithm.continued_server(before.state.server, places, self.spec))
            fresh = {name: take(self.backend.accepted, [k])[0] for k, name in enumerate(self.spec.device_ids)}
            self.backend.accepted = [algorithm.continued_device(old[name], own) if name in old else own for name, own in fresh.items()]
        for report in rounds(algorithm, self.spec, self.backend, Schedule(rounds=count), self.state) if count else ():
            self.state = report.state

    @property
    def theta(self) -> dict[str, np.ndarray]:
        return self.backend.finalize(self.state)

    @property
    def accepted(self) -> dict[str, Any]:
        self.backend.results(self.state)  # the last receipts
        return dict(zip(self.spec.device_ids, self.backend.accepted, strict=True))


def apart(one: Run, other: Run) -> float:
    """The largest difference of two runs' coefficients."""
    return max(float(np.abs(one.theta[name] - other.theta[name]).max()) for name in one.theta)


@pytest.mark.parametrize("algorithm", [*HM1.values(), *EB.values()], ids=[*HM1, *EB])
def test_going_on_for_no_round_changes_nothing(algorithm: AnyAlgorithm) -> None:
    first = Run(algorithm, small_fleet(rows=ROWS), 6)
    again = Run(algorithm, small_fleet(rows=ROWS), 0, before=first)
    for name, theta in first.theta.items():
        np.testing.assert_array_equal(again.theta[name], theta)


@pytest.mark.parametrize("algorithm", [*HM1.values(), *EB.values()], ids=[*HM1, *EB])
def test_a_run_in_two_parts_is_the_run_in_one(algorithm: AnyAlgorithm) -> None:
    """As long as it does not converge, and but for the round after which both parts are joined, which has nothing to compare with."""
    devices = small_fleet(rows=ROWS)
    first = Run(algorithm, devices, 4)
    whole, parts = Run(algorithm, devices, 9), Run(algorithm, devices, 5, before=first)
    assert apart(whole, parts) <= 1e-12 * max(np.abs(theta).max() for theta in whole.theta.values())
    if isinstance(algorithm, Hm1):
        assert equal(whole.state.server, parts.state.server)


@pytest.mark.parametrize("name", HM1)
def test_hm1_reaches_the_fresh_run_with_more_rows_and_another_device(name: str) -> None:
    """Omega's floor is a share of what devices first reached, which differs between the two, so they agree to a share of that."""
    algorithm, devices = HM1[name], small_fleet(rows=ROWS)
    old = {each: DeviceData.of(data.train.X[:8], data.train.y[:8]) for each, data in devices.items() if each != "c"}
    first, fresh = Run(algorithm, old, 200), Run(algorithm, devices, 400)
    after = [apart(Run(algorithm, devices, count, before=first), fresh) for count in (1, 400)]
    scale = max(np.abs(theta).max() for theta in fresh.theta.values())
    assert after[0] > 0.01 * scale  # there is something to be learned
    assert after[1] < 0.002 * scale
    sizes = [objective(run) for run in (Run(algorithm, devices, 400, before=first), fresh)]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-3)


def objective(run: Run) -> float:
    """HM1's objective at the fresh run's noise: sum |y - X theta|^2 / n, which the prior holds from its least."""
    return float(np.mean([np.mean((data.train.y - data.train.X @ run.theta[name]) ** 2) for name, data in run.devices.items()]))


@pytest.mark.parametrize("name", EB)
def test_eb_reaches_the_fresh_run_with_more_rows_and_another_device(name: str) -> None:
    algorithm, devices = EB[name], small_fleet(rows=ROWS)
    old = {each: DeviceData.of(data.train.X[:8], data.train.y[:8]) for each, data in devices.items() if each != "c"}
    first, fresh = Run(algorithm, old, 60), Run(algorithm, devices, 600)
    gone_on = Run(algorithm, devices, 600, before=first)
    assert apart(Run(algorithm, devices, 0, before=first), fresh) > 0.01
    assert apart(gone_on, fresh) < 1e-4
    np.testing.assert_allclose(gone_on.state.server.mean, fresh.state.server.mean, atol=1e-3)
    if name != "own":  # where the server's is the start's
        assert gone_on.state.server.noise == pytest.approx(fresh.state.server.noise, rel=1e-3)


@pytest.mark.parametrize("algorithm", [HM1["proximal"], EB["full"]], ids=["hm1", "eb"])
def test_no_device_leaves(algorithm: AnyAlgorithm) -> None:
    first = Run(algorithm, small_fleet(rows=ROWS), 3)
    left = {name: data for name, data in small_fleet(rows=ROWS).items() if name != "b"}
    with pytest.raises(Misuse, match=r"from.*1 devices that have left.* train anew, or use hm2"):
        Run(algorithm, left, 0, before=first)


def test_a_device_that_joins_hm1_starts_at_the_priors_mean_and_is_shrunk_as_the_fleet_is() -> None:
    devices = small_fleet(rows=ROWS)
    first = Run(HM1["proximal"], {name: data for name, data in devices.items() if name != "b"}, 20)
    server = Run(HM1["proximal"], devices, 0, before=first).state.server
    old = first.state.server
    np.testing.assert_array_equal(server.Theta[:, 1], 0.0)
    np.testing.assert_array_equal(server.Theta[:, [0, 2, 3, 4, 5]], old.Theta)
    expected = np.zeros(6)
    expected[1] = old.Omega.diagonal().mean()
    np.testing.assert_array_equal(server.Omega[1], expected)
    np.testing.assert_array_equal(np.delete(np.delete(server.Omega, 1, 0), 1, 1), old.Omega)
    assert server.prior_rate[1] == 0.0
    assert np.linalg.eigvalsh(server.Omega).min() >= server.least


def test_both_forms_of_omega_are_extended_alike() -> None:
    rng = np.random.default_rng(0)
    low = LowRank(rng.standard_normal((2, 5)), 0.3)
    dense, everyone = low.factor.T @ low.factor + 0.3 * np.eye(5), range(8)
    places = [3, None, 0, 1, None, 2, 4, None]
    wide = extended(low, places)
    assert isinstance(wide, LowRank)
    np.testing.assert_allclose(block(wide, everyone, everyone), extended(dense, places), rtol=1e-13, atol=1e-13)
