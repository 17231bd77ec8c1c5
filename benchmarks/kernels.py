"""The maths kernels beside floors: plain array operations of the same shapes, timed in turns with them; and how many calls Python makes.

A floor does much of what no program for the same mathematics can leave out, so that a kernel's time as a multiple of its floor's says
little of the machine. Calls that `fedcore` makes are counted and not timed: they are the same at each run, and rise where a loop over
devices or a repeated solve comes in, while the ratio rises where arrays are worked on longer. `tests/benchmarks/test_kernels.py` holds
both against what they were. `python -m benchmarks.kernels` prints them.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.lapack import dposv

import fedcore
from fedcore import DeviceData, Eb, FedAvg, Hm1, Hm2, Rows
from fedcore.algorithm import AnyAlgorithm, FleetSpec
from fedcore.compression import compress
from fedcore.covariance import LowRank
from fedcore.fit import InProcess
from fedcore.messages import stacked
from fedcore.rounds import DeviceRngs, RunState, Schedule, rounds
from fedcore.rows import Floats

REPEATS = 3
"""How often a kernel is carried out between two looks at the clock."""

NODES = 5
"""Of hm2's rules, along an axis and for the noise."""

Program = Callable[[], object]


class Kernel(NamedTuple):
    """A kernel for K devices, and its floor."""

    name: str
    work: Program
    floor: Program


class Settled(NamedTuple):
    """A fleet after some rounds, ready for the next."""

    algorithm: AnyAlgorithm
    state: RunState
    devices: Sequence[Any]
    datas: list[DeviceData]
    ids: tuple[str, ...]

    def local(self) -> Sequence[Any]:
        """Broadcasts and local steps of all devices."""
        downs = self.algorithm.broadcasts(self.state.server, range(len(self.ids)))
        return self.algorithm.local_steps(downs, self.devices, self.datas, DeviceRngs(0, self.state.round_num + 1, self.ids))[1]

    def whole(self) -> object:
        """A round."""
        return self.algorithm.aggregate(self.state.server, range(len(self.ids)), self.local())


def fleet(K: int, n: int, d: int) -> tuple[FleetSpec, list[DeviceData]]:
    """K devices of n rows like those of the demo: two shared factors."""
    rng = np.random.default_rng(0)
    Theta = rng.standard_normal((K, 2)) @ rng.standard_normal((2, d)) + 0.14 * rng.standard_normal((K, d))
    X = rng.standard_normal((K, n, d))
    y = (X @ Theta[..., None])[..., 0] + 0.5 * rng.standard_normal((K, n))
    datas = [DeviceData(Rows(X[k], y[k]), Rows.empty(d), Rows.empty(d)) for k in range(K)]
    return FleetSpec(tuple(f"{k:06d}" for k in range(K)), d), datas


def settled(algorithm: AnyAlgorithm, K: int, n: int, d: int, count: int) -> Settled:
    """A fleet after so many rounds."""
    spec, datas = fleet(K, n, d)
    backend, state = InProcess(algorithm, spec, datas, 0), RunState.initial(algorithm, spec)
    for report in rounds(algorithm, spec, backend, Schedule(count), state):
        state = report.state
    return Settled(algorithm, state, backend.accepted, datas, spec.device_ids)


def kernels(scale: int = 1) -> list[Kernel]:
    """All kernels, for fleets `scale` times as large."""
    makers = (fedavg_round, hm1_round, eb_expectation, hm2_sites, compression)
    return [make(scale) for make in makers]


def fedavg_round(scale: int) -> Kernel:
    """A whole round of `fedavg`."""
    at = settled(FedAvg(tolerance=0.0), 1000 * scale, 20, 8, 5)
    problem = stacked(at.devices)

    def floor() -> object:
        Theta = np.tile(at.state.server.theta, (len(at.ids), 1))
        return (problem.n / problem.n.sum()) @ steps(problem, Theta)[0]

    return Kernel("fedavg: a round", at.whole, floor)


def hm1_round(scale: int) -> Kernel:
    """A whole round of `hm1`, with Omega by factors."""
    at = settled(Hm1(tolerance=0.0), 1000 * scale, 20, 8, 10)
    problem, server = stacked(at.devices), at.state.server
    assert isinstance(server.Omega, LowRank)
    factor, K = server.Omega.factor, len(at.ids)

    def floor() -> object:
        V = np.ascontiguousarray(steps(problem, np.ascontiguousarray(server.Theta.T))[0].T)
        root = np.sqrt(server.Omega.rest + 0.1 * server.unit + 2.0 * server.prior_rate)
        S = factor / root
        _, solved, _ = dposv(S @ S.T + np.eye(len(S)), S @ (V / root).T)
        Theta = V / root**2 + (solved.T @ S) * (server.prior_rate / root)
        taller = np.concatenate([factor, Theta])
        turned = np.linalg.eigh(taller @ taller.T)[1].T @ taller
        return np.vecdot(turned, turned), K

    return Kernel("hm1: a round", at.whole, floor)


def eb_expectation(scale: int) -> Kernel:
    """The devices' half of a round of `eb`: posteriors, and what is told of them."""
    at = settled(Eb(tolerance=0.0), 100 * scale, 20, 8, 5)
    rows, K, d = stacked(at.devices).rows, len(at.ids), 8
    A, below = np.eye(d), np.broadcast_to(np.eye(d), (K, d, d))

    def floor() -> object:
        Q, T = np.linalg.qr(np.concatenate([rows.R @ A, below], axis=1))
        W = A @ Q[:, d:]
        u = matvec(Q[:, d:], matvec(Q[:, :d].swapaxes(1, 2), rows.y))
        return (rows.R @ W) ** 2, np.log(np.diagonal(T, axis1=1, axis2=2) ** 2), W @ W.swapaxes(1, 2) + u[:, :, None] * u[:, None, :]

    return Kernel("eb: expectations", at.local, floor)


def hm2_sites(scale: int) -> Kernel:
    """The devices' half of a round of `hm2`: tilted moments and sites, with a shared unknown noise."""
    at = settled(Hm2(certificate="off", start="warm", tolerance=1e-12), 20 * scale, 20, 4, 5)
    R, K, d = stacked(at.devices).private.rows.R, len(at.ids), 4
    pairs, p = np.repeat(R, NODES, axis=0), 2 * d + 1
    wide, nodes = np.broadcast_to(np.eye(p), (K, p, p)), np.ones((K * NODES, d, NODES))

    def floor() -> object:
        V = pairs @ pairs.swapaxes(1, 2) + np.eye(d)
        white = np.linalg.solve(np.linalg.cholesky(V), pairs)
        W = white.swapaxes(1, 2) @ white
        at_nodes = [np.exp(nodes * W[:, :, :1]).sum(axis=2) for _ in range(10)]
        inner = [np.linalg.cholesky(V) @ W for _ in range(4)]
        outer = [np.linalg.inv(np.linalg.cholesky(wide)) @ wide for _ in range(6)]
        return at_nodes, inner, outer

    return Kernel("hm2: sites", at.local, floor)


def compression(scale: int) -> Kernel:
    """Rows to their triangular factors, for `eb` and `hm2`."""
    _, datas = fleet(50 * scale, 20, 8)

    def floor() -> object:
        found = []
        for X, y in (data.train for data in datas):
            Q, R = np.linalg.qr(X)
            residual = y - Q @ (Q.T @ y)
            found.append((residual @ residual, np.linalg.svd(R, compute_uv=False)))
        return found

    return Kernel("compression", lambda: compress(datas), floor)


def steps(problem: Any, Theta: Floats) -> tuple[Floats, Floats]:
    """Full-batch steps of all devices as one map, and the training error where they end."""
    reached = matvec(problem.map_matrix, Theta) + problem.map_offset
    return reached, ((matvec(problem.gram, reached) - 2.0 * problem.moment) * reached).sum(axis=1) + problem.power


def matvec(matrices: Floats, vectors: Floats) -> Floats:
    """Matrix times vector, device by device."""
    return (matrices @ vectors[:, :, None])[:, :, 0]


def ratios(floor: Program, works: Sequence[Program], seconds: float) -> list[float]:
    """Times as multiples of the floor's, each the least that `REPEATS` in a row took.

    Time is the thread's own, without what others have of the processor, and they take turns for so many seconds of it, each after the
    floor, so that what that leaves in caches and memory meets all of them alike.
    """
    floors: list[float] = []
    turns: list[list[float]] = []
    while sum(floors) + sum(map(sum, turns)) < seconds or len(turns) < 5:
        turns.append([])
        for work in works:
            floors.append(spent(floor))
            turns[-1].append(spent(work))
    return [min(times) / min(floors) for times in zip(*turns, strict=True)]


def spent(program: Program) -> float:
    """Seconds of the thread's own time that `REPEATS` of them take."""
    begun = time.thread_time()
    for _ in range(REPEATS):
        program()
    return time.thread_time() - begun


def calls(work: Program) -> int:
    """How many functions are called, Python's and C's, from code of `fedcore` or as part of it."""
    home, count = str(Path(fedcore.__file__).parent), 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call") and frame.f_code.co_filename.startswith(home)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def main() -> None:
    """Print the table."""
    print(f"{'':24}{'ratio':>8}{'calls':>8}{'ms':>9}")
    for name, work, floor in kernels():
        print(f"{name:24}{ratios(floor, [work], 2.0)[0]:8.2f}{calls(work):8d}{1e3 * spent(work) / REPEATS:9.3f}")


if __name__ == "__main__":
    main()
