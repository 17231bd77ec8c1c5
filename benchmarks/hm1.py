"""HM1 in memory, one thread: the paper's Case II (K = 100, d = 8; 30 rounds of T = 20 steps), a part of `make bench`; and large fleets.

Times of large fleets depend on the machine, so they are told by how they grow with K: `python -m benchmarks.hm1`.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import time
from functools import partial

import numpy as np

from benchmarks.results import Bar, Part, medians
from benchmarks.timing import middle
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
    """Print the table of large fleets, and how the cost grows with K."""
    print(f"Large fleets, d = 8, proximal, calibrated: median of {ROUNDS} rounds\n{'':34}{'ms':>9}{'rank':>9}")
    sizes = (1_000, 3_000, 10_000, 30_000, 100_000)
    for n, participation in ((40, 1.0), (12, 1.0), (12, 0.1)):
        costs: list[float] = []
        for K in sizes:
            fleet = large_fleet(K, n)
            cost, rank = min(median_round(*fleet, participation) for _ in range(3 if K <= 10_000 else 1))
            costs.append(cost)
            print(f"{f'K = {K:,}, {n} rows, {participation:.0%} a round':34}{cost:9.2f}{rank:9d}")
        print(f"{'cost is K to the power of':34}{np.polyfit(np.log(sizes), np.log(costs), 1)[0]:9.2f}")


CONFIGURATIONS = {
    "explicit step, as the paper's": Hm1(eta=ETA, shrinkage="explicit", tolerance=0.0),
    "the same, minibatches of 5, summed gradients": Hm1(eta=ETA, shrinkage="explicit", batch=5, gradient="sum", tolerance=0.0),
    "default: proximal step, calibrated rate": Hm1(tolerance=0.0),
    "proximal step, tied rate": Hm1(eta=ETA, prior_rate="tied", floor=FLOOR, tolerance=0.0),
}
PAPER, _, DEFAULT, TIED = CONFIGURATIONS


def measure(quick: bool) -> Part:
    """Milliseconds of Case II."""
    repeats, count = (3, 3) if quick else (5, 10)
    devices = simulate("hm1-2", 0).devices
    found = fit(CONFIGURATIONS[TIED], devices, rounds=ROUNDS)
    assert len(found.history) == ROUNDS
    assert np.allclose(np.array(list(found.theta.values())).T, plain_loop(devices), rtol=1e-9), "the benchmark's two programs differ"
    runs = {"NumPy loop over devices and steps": partial(middle, partial(plain_loop, devices), 1)}
    runs |= {name: partial(middle, partial(fit, hm1, devices, rounds=ROUNDS), count) for name, hm1 in CONFIGURATIONS.items()}
    seconds = medians(runs, repeats)
    plain = next(iter(seconds.values()))
    return Part(
        name="hm1",
        title="HM1 in memory",
        about=(
            f"`fit` on the paper's Case II: K = 100, d = 8, 40 rows on devices 1 to 30 and 275 on the others, {ROUNDS} rounds of T = "
            f"{STEPS} steps, full-batch where nothing else is said. From rows in memory, compression included. Medians of {repeats} runs "
            f"in turns, each the median of {count} fits (of the loop 1). The loop does what the tied proximal step does, and ends with "
            "its coefficients."
        ),
        columns=("program", "it / loop", "ms"),
        rows=tuple((name, taken / plain, 1e3 * taken) for name, taken in seconds.items()),
        runs=seconds.runs,
        bars=tuple(Bar(what=f"ms of Case II, {name}", value=1e3 * seconds[name], limit=10.0) for name in (PAPER, DEFAULT)),
    )


if __name__ == "__main__":
    main()
