"""HM2 in memory, one thread, on the paper's second example of uncertainty (K = 100, d = 4, 100 rows a device), beside NUTS: a part of
`make bench`. And on other fleets and larger ones: `python -m benchmarks.hm2`.

There times depend on the machine, so the cohort's steps are also given as ratios to the same steps device by device, timed in the same run,
and those of larger fleets by how they grow with K.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import reference
from benchmarks.programs import peer, present
from benchmarks.results import Bar, Part, medians, ratio
from benchmarks.timing import best, middle
from fedcore import DeviceData, Hm2
from fedcore.algorithm import FleetSpec
from fedcore.fit import InProcess
from fedcore.hm2.state import phi
from fedcore.messages import take
from fedcore.reproduce.uncertainty import hierarchical_fleet
from fedcore.rounds import DeviceRngs, RunState, Schedule, rounds
from fedcore.simulate import simulate

REPEATS = 7
SIGMA, WARMUP = 0.05, 1000
BLOCKS = ("mu", "log_tau")


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
        everyone, devices = range(len(self.ids)), self.backend.accepted
        downs: Any = self.algorithm.broadcasts(self.state.server, everyone)
        rngs = DeviceRngs(0, 1, self.ids)
        single = [(take(downs, [k]), [devices[k]], [self.datas[k]], [rngs[k]]) for k in everyone]
        together = best(lambda: self.algorithm.local_steps(downs, devices, self.datas, rngs), REPEATS)
        alone = best(lambda: [self.algorithm.local_steps(*each) for each in single], 3)
        return together, alone


class Programs:
    """The programs, each of which tells its seconds.

    Attributes
    ----------
    ours
        Our run.
    nuts
        What each run of NUTS has told.
    """

    def __init__(self, folder: Path, fits: int, chains: int, draws: int) -> None:
        devices = reference.fleet("uq")
        self.fits, self.chains, self.draws, self.file = fits, chains, draws, folder / "fleet.npz"
        rows = [data.train for data in devices.values()]
        np.savez(self.file, X=[each.X for each in rows], y=[each.y for each in rows])
        self.ours = Timed(Hm2(sigma=SIGMA), devices)
        self.nuts: list[Any] = []

    def fleet(self) -> float:
        """phi's posterior, from rows."""
        return middle(self.ours.run, self.fits)

    def coefficients(self) -> float:
        """The same, and that of every device's coefficients."""

        def whole() -> None:
            backend, state, _ = self.ours.run()
            backend.results(state)

        return middle(whole, self.fits)

    def sampled(self) -> float:
        """NUTS, which draws all of them; each run with a seed of its own."""
        asked = (SIGMA, WARMUP, self.draws, self.chains, len(self.nuts))
        self.nuts.append(peer("nuts.py", self.file, *map(str, asked)))
        return self.nuts[-1]["seconds"]


def measure(quick: bool) -> Part:
    """Seconds of both, and how far their posteriors of phi are from each other and from the reference."""
    repeats, fits, chains, draws = (1, 3, 2, 500) if quick else (5, 10, 4, 1000)
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder), fits, chains, draws)
        every = {"ours, phi": programs.fleet, "ours, phi and coefficients": programs.coefficients, "NUTS": programs.sampled}
        runs, notes = present(every, {"NUTS": "nuts.py"})
        seconds = medians(runs, repeats)
    hierarchy = programs.ours.algorithm.hierarchy
    found = phi(programs.ours.state.server, hierarchy.blocks(4), hierarchy.prior(4))
    mean = np.concatenate([found[block]["mean"] for block in BLOCKS])
    known = reference.told("uq")["posterior"]
    known_mean, known_sd = (np.concatenate([known[block][name] for block in BLOCKS]) for name in ("mean", "sd"))
    from_reference, from_nuts = float(np.abs((mean - known_mean) / known_sd).max()), None
    if programs.nuts:
        drawn, sd = (np.mean([each[name] for each in programs.nuts], axis=0) for name in ("mean", "sd"))
        from_nuts = float(np.abs((mean - drawn) / sd).max())
        ess = min(each["ess"] for each in programs.nuts)
        notes += [
            f"A run of NUTS has {chains} chains one after the other, of {WARMUP} steps of adaptation and {draws} draws each: at least "
            f"{ess:,.0f} effective draws of each number in phi, so its own means are off by up to {ess**-0.5:.3f} sd. The distance is to "
            f"the mean of all {repeats} runs, which are off by {(ess * repeats) ** -0.5:.3f} sd. Largest rhat "
            f"{max(each['rhat'] for each in programs.nuts):.4f}.",
            "A sampler is compiled anew for each fleet's sizes, in every process. Without that it is the chains alone.",
        ]
    ours, nuts = seconds["ours, phi"], seconds.get("NUTS")
    whole = None if nuts is None else median(each["seconds"] + each["compile"] for each in programs.nuts)
    taken = seconds | ({} if whole is None else {"NUTS, with its compilation": whole})
    return Part(
        name="hm2",
        title="HM2 beside Markov chains",
        about=(
            "Gaussian hierarchy with known noise, K = 100, d = 4, 100 rows a device (`tests/reference/uq`), by `fit`'s own loop until "
            "phi's posterior moves by less than .001 sd, from rows in memory, compression included; and by NumPyro's NUTS on the same "
            f"rows and priors, in double precision. One thread each. Medians of {repeats} runs in turns, ours each the median of {fits}."
        ),
        columns=("program", "it / NUTS", "ms"),
        rows=tuple((name, None if nuts is None or name == "NUTS" else each / nuts, 1e3 * each) for name, each in taken.items()),
        runs=seconds.runs,
        bars=(
            Bar(what="ms, phi's posterior of uq", value=1e3 * ours, limit=50.0),
            Bar(what="phi / NUTS with its compilation", value=ratio(ours, whole), limit=0.001),
            Bar(what="phi / NUTS without it", value=ratio(ours, nuts), limit=0.001),
            Bar(what="distance of phi's means from the reference, sd", value=from_reference, limit=0.02),
            # A quick run's own means are off by as much.
            Bar(what="distance of phi's means from NUTS, sd", value=None if quick else from_nuts, limit=0.02),
        ),
        notes=(
            f"Ours took {programs.ours.rounds} rounds.",
            "NUTS draws every device's coefficients along with phi, and `fit` finds them too: the same work is the second row. Bars are on "
            "phi alone, which is what rounds are for.",
            *notes,
        ),
    )


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
