"""HM1 in memory: the paper's Case II (K = 100, d = 8; 30 rounds of T = 20 full-batch steps), one thread.

Times depend on the machine, so each is also given as a ratio to a plain NumPy loop over devices and steps that is timed in the same run.
Run with `make bench`.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import time
from collections.abc import Callable

import numpy as np

from fedcore import DeviceData, Hm1, fit
from fedcore.simulate import simulate

ROUNDS, STEPS, ETA, ALPHA, FLOOR = 30, 20, 0.01, 0.1, 0.01


def best(run: Callable[[], object], repeats: int) -> float:
    """Shortest wall time of `run`, in milliseconds."""
    times: list[float] = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return 1e3 * min(times)


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


def main() -> None:
    """Print the table."""
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
