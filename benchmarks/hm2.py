"""HM2 in memory, one thread: fleets of the paper's second example of uncertainty (K = 100, d = 4, 100 rows a device), and larger ones.

Times depend on the machine, so the cohort's steps are also given as ratios to the same steps device by device, timed in the same run, and
those of larger fleets by how they grow with K. Run with `make bench`.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

from typing import Any

import numpy as np

from benchmarks.timing import best
from fedcore import DeviceData, Hm2
from fedcore.algorithm import FleetSpec
from fedcore.fit import InProcess
from fedcore.messages import take
from fedcore.reproduce.uncertainty import hierarchical_fleet
from fedcore.rounds import DeviceRngs, RunState, Schedule, rounds
from fedcore.simulate import simulate

REPEATS = 7


class Timed:
    """A run in memory, taken apart: compression and rounds, and the devices' results."""

    def __init__(self, algorithm: Hm2, devices: dict[str, DeviceData]) -> None:
        self.algorithm, self.ids = algorithm, tuple(sorted(devices))
        self.datas = [devices[each] for each in self.ids]
        self.spec = FleetSpec(self.ids, self.datas[0].train.d)
        self.backend, self.state, self.rounds = self.run()

    def run(self) -> tuple[InProcess, RunState, int]:
        """Compression and all rounds."""
        backend, state, count = InProcess(self.algorithm, self.spec, self.datas, 0), RunState.initial(self.algorithm, self.spec), 0
        for report in rounds(self.algorithm, self.spec, backend, Schedule(30), state):
            state, count = report.state, count + 1
        assert self.algorithm.status(state.server).name == "converged", "a benchmark's run has not converged"  # pyright: ignore
        return backend, state, count

    def results(self) -> object:
        """Every device's coefficients."""
        return self.backend.results(self.state)

    def one_round(self) -> tuple[float, float]:
        """A round of expectation propagation as a cohort, and device by device, in milliseconds."""
        everyone, devices = range(len(self.ids)), self.backend._accepted(range(len(self.ids)))  # pyright: ignore
        downs: Any = self.algorithm.broadcasts(self.state.server, everyone)
        rngs = DeviceRngs(0, 1, self.ids)
        single = [(take(downs, [k]), [devices[k]], [self.datas[k]], [rngs[k]]) for k in everyone]
        together = best(lambda: self.algorithm.local_steps(downs, devices, self.datas, rngs), REPEATS)
        alone = best(lambda: [self.algorithm.local_steps(*each) for each in single], 3)
        return together, alone


def main() -> None:
    """Print the tables."""
    print(f"{'':38}{'rounds':>7}{'run ms':>9}{'results ms':>12}{'cohort / one by one':>21}")
    uq = hierarchical_fleet(0)
    selection = simulate("hm2-2", 0).devices
    for name, algorithm, devices in (
        ("gaussian, noise known, K = 100", Hm2(sigma=0.05, certificate="off"), uq),
        ("gaussian, noise shared, K = 100", Hm2(certificate="off"), uq),
        ("gaussian, noise of each, K = 100", Hm2(noise="device", certificate="off"), uq),
        ("isotropic, noise known, K = 100", Hm2(prior="isotropic", sigma=0.05, certificate="off"), uq),
        ("lasso, Case II, K = 10, d = 8", Hm2(prior="lasso"), selection),
        ("ridge, Case II, K = 10, d = 8", Hm2(prior="ridge"), selection),
    ):
        timed = Timed(algorithm, devices)
        together, alone = timed.one_round()
        print(f"{name:38}{timed.rounds:7d}{best(timed.run, REPEATS):9.1f}{best(timed.results, REPEATS):12.1f}{together / alone:21.3f}")
    sizes, costs = (100, 1_000, 10_000), list[float]()
    for K in sizes:
        fleet = {f"{k:05d}": data for k, data in enumerate(data for seed in range(K // 100) for data in hierarchical_fleet(seed).values())}
        timed = Timed(Hm2(sigma=0.05, certificate="off"), fleet)
        costs.append(best(timed.run, 3))
        print(f"{f'gaussian, noise known, K = {K:,}':38}{timed.rounds:7d}{costs[-1]:9.1f}")
    print(f"{'cost is K to the power of':38}{np.polyfit(np.log(sizes), np.log(costs), 1)[0]:16.2f}")


if __name__ == "__main__":
    main()
