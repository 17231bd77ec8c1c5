"""HM1 in memory, one thread: the paper's Case II (K = 100, d = 8; 30 rounds of T = 20 full-batch steps), and large fleets.

Times depend on the machine, so those of Case II are also given as ratios to a plain NumPy loop over devices and steps that is timed in the
same run, and those of large fleets by how they grow with K. Run with `make bench`.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import time

import numpy as np

from benchmarks.timing import best
from fedcore import DeviceData, Hm1, Rows, fit
from fedcore.algorithm import FleetSpec
from fedcore.covariance import LowRank
from fedcore.fit import InProcess
from fedcore.rounds import RunState, Schedule, rounds
from fedcore.simulate import simulate

ROUNDS, STEPS, ETA, ALPHA, FLOOR = 30, 20, 0.01, 0.1, 0.01


def plain_loop(devices: dict[str, DeviceData]) -> np.ndarray:
    """The same rounds as loops over devices and steps on the rows, with the tied proximal step; shape (d, K)."""
    rows = [device.train for device in devices.values()]
    K, d = len(rows), rows[0].d
    Theta, Omega = np.zeros((d, K)), np.eye(K)
    for _ in range(ROUNDS):
        for k, (X, y) in enumerate(rows):
            theta = Theta[:, k]
            for _ in range(STEPS):
                theta = theta + 2 * ETA / len(y) * (X.T @ (y - X @ theta))
            Theta[:, k] = theta
        Theta = Theta - np.linalg.solve(Omega + (FLOOR + 2 * ETA) * np.eye(K), Theta.T).T * 2 * ETA
        Omega = (1 - ALPHA) * Omega + ALPHA / d * Theta.T @ Theta
    return Theta


def large_fleet(K: int, n: int) -> tuple[FleetSpec, list[DeviceData]]:
    """K devices of n rows like those of the demo: d = 8, two shared factors."""
    rng, d = np.random.default_rng(0), 8
    Theta = rng.standard_normal((K, 2)) @ rng.standard_normal((2, d)) + 0.14 * rng.standard_normal((K, d))
    X = rng.standard_normal((K, n, d))
    y = (X @ Theta[..., None])[..., 0] + 0.5 * rng.standard_normal((K, n))
    datas = [DeviceData(Rows(X[k], y[k]), Rows.empty(d), Rows.empty(d)) for k in range(K)]
    return FleetSpec(tuple(f"{k:06d}" for k in range(K)), d), datas


def median_round(spec: FleetSpec, datas: list[DeviceData], participation: float) -> tuple[float, int]:
    """Median wall time of a run's rounds in the loop that `fit` uses, in milliseconds, and the factor's rows at its end."""
    hm1, times = Hm1(tolerance=0.0), []
    backend, state = InProcess(hm1, spec, datas, 0), RunState.initial(hm1, spec)
    begun = time.perf_counter()
    for report in rounds(hm1, spec, backend, Schedule(ROUNDS, participation=participation), state):
        state, ended = report.state, time.perf_counter()
        times.append(ended - begun)
        begun = ended
    assert len(times) == ROUNDS
    assert isinstance(state.server.Omega, LowRank)
    return 1e3 * float(np.median(times)), len(state.server.Omega.factor)


def main() -> None:
    """Print the tables."""
    case_two()
    large_fleets()


def large_fleets() -> None:
    """Print the table of large fleets, and how the cost grows with K."""
    print(f"\nLarge fleets, d = 8, proximal, calibrated: median of {ROUNDS} rounds\n{'':34}{'ms':>9}{'rank':>9}")
    sizes = (1_000, 3_000, 10_000, 30_000, 100_000)
    for n, participation in ((40, 1.0), (12, 1.0), (12, 0.1)):
        costs: list[float] = []
        for K in sizes:
            fleet = large_fleet(K, n)
            cost, rank = min(median_round(*fleet, participation) for _ in range(3 if K <= 10_000 else 1))
            costs.append(cost)
            print(f"{f'K = {K:,}, {n} rows, {participation:.0%} a round':34}{cost:9.2f}{rank:9d}")
        print(f"{'cost is K to the power of':34}{np.polyfit(np.log(sizes), np.log(costs), 1)[0]:9.2f}")


def case_two() -> None:
    """Print the table of Case II."""
    devices = simulate("hm1-2", 0).devices
    reference = plain_loop(devices)
    plain = best(lambda: plain_loop(devices), 3)
    print(f"Case II, 30 rounds, one thread\n{'':34}{'ms':>9}{'ratio':>9}")
    print(f"{'plain loop over rows':34}{plain:9.2f}{1.0:9.3f}")
    for name, hm1 in {
        "fedcore.fit, proximal, tied": Hm1(eta=ETA, prior_rate="tied", floor=FLOOR, tolerance=0.0),
        "fedcore.fit, proximal, calibrated": Hm1(tolerance=0.0),
        "fedcore.fit, explicit": Hm1(eta=ETA, shrinkage="explicit", tolerance=0.0),
    }.items():
        result = fit(hm1, devices, rounds=ROUNDS)
        assert len(result.history) == ROUNDS
        if hm1.prior_rate == "tied":
            Theta = np.array(list(result.theta.values())).T
            assert np.allclose(Theta, reference, rtol=1e-9), "the benchmark's two programs differ"
        took = best(lambda hm1=hm1: fit(hm1, devices, rounds=ROUNDS), 30)
        print(f"{name:34}{took:9.2f}{took / plain:9.3f}")


if __name__ == "__main__":
    main()
