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
from itertools import cycle
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.lapack import dposv

import fedcore
from fedcore import DeviceData, Ditto, Eb, FedAvg, Hm1, Hm2, Mtrl, Pooled, Rows, Separate
from fedcore.algorithm import AnyAlgorithm, FleetSpec
from fedcore.compression import compress
from fedcore.covariance import LowRank
from fedcore.fit import InProcess
from fedcore.hm2.approximation import Proposal
from fedcore.hm2.natural import KEPT, NaturalParams
from fedcore.hm2.nodes import product_rule
from fedcore.messages import Stacked, stacked
from fedcore.mtrl import SWEEPS
from fedcore.rounds import DeviceRngs, RunState, Schedule, rounds
from fedcore.rows import Floats

REPEATS = 3
"""How often a kernel is carried out between two looks at the clock."""

NODES = 5
"""Of hm2's rules, along an axis and for the noise."""

LARGE = 2**21
"""Numbers in an array of 16 MB."""

LEAST_TURNS = 5

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
        return self.aggregate(self.local())

    def aggregate(self, ups: Sequence[Any]) -> object:
        """The server's half of a round."""
        return self.algorithm.aggregate(self.state.server, range(len(self.ids)), ups)


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


def hm1_matrix(scale: int) -> Kernel:
    """The server's half of a round of `hm1`, with Omega as a matrix."""
    at = settled(Hm1(tolerance=0.0), 100 * scale, 20, 8, 10)
    ups, server = at.local(), at.state.server
    V, Omega, rate = np.ascontiguousarray(stacked(ups).theta.T), server.Omega, server.prior_rate
    assert not isinstance(Omega, LowRank)

    def floor() -> object:
        Theta = V - 2.0 * rate * solved(Omega, 2.0 * rate, V)
        return Theta, 0.9 * Omega + Theta.T @ Theta, np.vdot(Theta, Theta)

    return Kernel("hm1: a matrix", lambda: at.aggregate(ups), floor)


def hm1_explicit(scale: int) -> Kernel:
    """The server's half of a round of `hm1` with the paper's step, and what devices are told for the next one."""
    at = settled(Hm1(tolerance=0.0, shrinkage="explicit"), 100 * scale, 20, 8, 10)
    ups, server = at.local(), at.state.server
    Theta = np.ascontiguousarray(stacked(ups).theta.T)

    def floor() -> object:
        Omega = 0.9 * server.Omega + Theta.T @ Theta
        return Omega, solved(Omega, 0.0, Theta), np.vdot(Theta, Theta)

    return Kernel("hm1: explicit", lambda: at.aggregate(ups), floor)


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


def eb_sums(scale: int) -> Kernel:
    """The server's half of a round of `eb`: sums over devices."""
    at = settled(Eb(tolerance=0.0), 500 * scale, 20, 8, 5)
    ups = at.local()
    parts = stacked(ups).change
    return Kernel("eb: sums", lambda: at.aggregate(ups), lambda: summed(parts))


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


def hm2_sums(scale: int) -> Kernel:
    """The server's half of a round of `hm2`: sites moved, and as much of their sum taken as leaves a distribution."""
    at = settled(Hm2(certificate="off", start="warm", tolerance=1e-12), 200 * scale, 20, 4, 5)
    up: Proposal = stacked(at.local())
    # Moments of the last distributions are kept, so that proposals differ from call to call, as they do from round to round.
    shares = np.linspace(0.9, 1.0, KEPT + 1)
    ups = cycle([Stacked(up._replace(site=NaturalParams(*(share * part for part in up.site))), len(at.ids)) for share in shares])
    p = up.site.shift.shape[1]
    Q = np.eye(p) + 0.1

    def floor() -> object:
        root = np.linalg.cholesky(Q)
        least = np.linalg.eigvalsh(np.linalg.solve(root, np.linalg.solve(root, Q).T))
        return summed(up.site), [part + 0.5 * part for part in up.site], least, np.linalg.inv(Q)

    return Kernel("hm2: sums", lambda: at.aggregate(next(ups)), floor)


def hm2_results(scale: int) -> Kernel:
    """Devices' coefficients from `hm2`, as mixtures over a rule on their variances and the noise."""
    at = settled(Hm2(certificate="off", start="warm", tolerance=1e-12), 3 * scale, 20, 4, 5)
    downs = at.algorithm.broadcasts(at.state.server, range(len(at.ids)))
    J = len(product_rule(4)[0])
    return Kernel("hm2: results", lambda: at.algorithm.finalize_devices(downs, at.devices, at.datas), lambda: mixed(len(at.ids), J, 4))


def hm2_checked(scale: int) -> Kernel:
    """The same as mixtures over values of phi, as where importance sampling has checked it."""
    at = settled(Hm2(certificate="on", start="warm"), 2 * scale, 20, 4, 50)
    downs = at.algorithm.broadcasts(at.state.server, range(len(at.ids)))
    J = stacked(downs).draws.shape[1]
    assert J
    return Kernel(
        "hm2: checked results", lambda: at.algorithm.finalize_devices(downs, at.devices, at.datas), lambda: mixed(len(at.ids), J, 4)
    )


def pooled(scale: int) -> Kernel:
    """All of `pooled`: rows to triangular factors, and the solution from these."""
    algorithm, (spec, datas) = Pooled(), fleet(10 * scale, 1000, 8)
    server, everyone = algorithm.init_server(spec), range(len(datas))
    downs = algorithm.broadcasts(server, everyone)

    def work() -> object:
        ups = algorithm.local_steps(downs, algorithm.init_devices(spec, datas), datas, [])[1]
        return algorithm.aggregate(server, everyone, ups)

    def floor() -> object:
        squares = np.array([[*X.T @ X, y @ X] for X, y in (data.train for data in datas)])
        R = np.linalg.cholesky(squares[:, :8]).swapaxes(1, 2)
        table = np.concatenate([R, squares[:, 8:].swapaxes(1, 2)], axis=2)
        return np.linalg.qr(table.reshape(-1, 9), mode="r")

    return Kernel("pooled", work, floor)


def ditto_steps(scale: int) -> Kernel:
    """The devices' half of a round of `ditto`: steps of the global and of the personal models."""
    at = settled(Ditto(tolerance=0.0), 1000 * scale, 20, 8, 5)
    device = stacked(at.devices)
    problem, pull = device.problem, device.pull

    def floor() -> object:
        centre = np.tile(at.state.server.theta, (len(at.ids), 1))
        left = problem.moment - matvec(problem.gram, centre)
        v = centre + matvec(pull.map_matrix, device.v - centre) + matvec(pull.map_solver, left)
        change = np.abs(v - device.v).max(axis=1) / np.abs(v).max(axis=1)
        return matvec(problem.map_matrix, centre) + problem.map_offset, change, error(problem, v)

    return Kernel("ditto: steps", at.local, floor)


def separate_steps(scale: int) -> Kernel:
    """The devices' half of a round of `separate`, which is all of it."""
    at = settled(Separate(), 1000 * scale, 20, 8, 5)
    device = stacked(at.devices)
    return Kernel("separate: steps", at.local, lambda: steps(device.problem, device.theta))


def mtrl_sweeps(scale: int) -> Kernel:
    """The server's half of a round of `mtrl`."""
    at = settled(Mtrl(tolerance=0.0), 500 * scale, 20, 8, 5)
    ups = at.local()
    up = stacked(ups)
    V, root = np.ascontiguousarray(up.theta.T), np.sqrt(1.0 + 2.0 * up.prior_rate)

    def floor() -> object:
        Theta = V
        for _ in range(SWEEPS):
            S = np.linalg.svd(Theta, full_matrices=False)[2] / root
            Theta = V / root**2 + (solved(S @ S.T, 1.0, (V / root) @ S.T).T @ S) / root
        return np.linalg.svd(Theta, full_matrices=False)

    return Kernel("mtrl: sweeps", lambda: at.aggregate(ups), floor)


def local_problems(scale: int) -> Kernel:
    """What local steps need of rows: squares, their spectrum, residuals, and many steps as one map."""
    algorithm, (spec, datas) = Hm1(), fleet(50 * scale, 20, 8)
    X, y = np.array([data.train.X for data in datas]), np.array([data.train.y for data in datas])

    def floor() -> object:
        turned = X.swapaxes(1, 2)
        values, vectors = np.linalg.eigh(turned @ X)
        back = vectors.swapaxes(1, 2)
        theta = matvec(vectors, matvec(back, matvec(turned, y)) / values)
        return (y - matvec(X, theta)) ** 2, (vectors * values[:, None, :] ** 20) @ back, matvec(vectors, matvec(back, theta))

    return Kernel("local problems", lambda: algorithm.init_devices(spec, datas), floor)


def compression(scale: int) -> Kernel:
    """Rows to their triangular factors, for `eb` and `hm2`: beside the factors alone, what it takes to bring tables together, and ranks."""
    _, datas = fleet(50 * scale, 20, 8)
    tables = np.array([np.column_stack(data.train) for data in datas])

    def floor() -> object:
        factors: Floats = np.asarray(np.linalg.qr(tables, mode="r"))
        return (factors**2).sum(axis=1)

    return Kernel("compression", lambda: compress(datas), floor)


def steps(problem: Any, Theta: Floats) -> tuple[Floats, Floats]:
    """Full-batch steps of all devices as one map, and the training error where they end."""
    reached = matvec(problem.map_matrix, Theta) + problem.map_offset
    return reached, error(problem, reached)


def error(problem: Any, Theta: Floats) -> Floats:
    """The training error of all devices."""
    return ((matvec(problem.gram, Theta) - 2.0 * problem.moment) * Theta).sum(axis=1) + problem.power


def solved(matrix: Floats, added: Floats | float, right: Floats) -> Floats:
    """The solution for a right-hand side in rows, with something added to the diagonal."""
    system = matrix.copy()
    system.ravel()[:: len(system) + 1] += added
    return dposv(system.T, right.T, overwrite_a=1)[1].T


def summed(parts: Sequence[Floats]) -> object:
    """Arrays of all devices looked through and added up."""
    return [(np.isfinite(part).all(), part.sum(axis=0)) for part in parts]


def mixed(K: int, J: int, d: int) -> object:
    """Posteriors of K devices, one after the other, at J values of a prior each."""
    tables, wide = np.ones((J, 2 * d, d)), np.broadcast_to(np.eye(d), (J, d, d))
    found = []
    for _ in range(K):
        Q, T = np.linalg.qr(tables)
        W = np.linalg.cholesky(wide) @ Q[:, d:]
        u = matvec(Q[:, d:], matvec(Q[:, :d].swapaxes(1, 2), Q[:, 0]))
        found.append((W @ W.swapaxes(1, 2), u, np.log(np.diagonal(T, axis1=1, axis2=2) ** 2 + 1.0).sum(axis=1)))
    return found


def matvec(matrices: Floats, vectors: Floats) -> Floats:
    """Matrix times vector, device by device."""
    return (matrices @ vectors[:, :, None])[:, :, 0]


def ratio(kernel: Kernel, seconds: float) -> float:
    """Its time as a multiple of the floor's: the median over turns of `REPEATS` each.

    Time is the thread's own, without what others have of the processor. They take turns for so many seconds of it, and each turn is
    held against the floor's next to it, so that what slows the machine, or the caches, for a while meets both alike.
    """
    # The C library gives freed memory back and fetches it anew at each call, or does not, by what else the process has done. Once so
    # large an array was freed it keeps it.
    np.empty(LARGE)
    turns: list[tuple[float, float]] = []
    while sum(map(sum, turns)) < seconds or len(turns) < LEAST_TURNS:
        turns.append((spent(kernel.floor), spent(kernel.work)))
    return median(work / floor for floor, work in turns)


def spent(program: Program) -> float:
    """Seconds of the thread's own time that `REPEATS` of them take."""
    begun = time.thread_time()
    for _ in range(REPEATS):
        program()
    return time.thread_time() - begun


def calls(work: Program) -> int:
    """How many functions are called, Python's and C's, from code of `fedcore` or as part of it, once what is kept from call to call is."""
    work()
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


ALL = (
    fedavg_round,
    hm1_round,
    hm1_matrix,
    hm1_explicit,
    eb_expectation,
    eb_sums,
    hm2_sites,
    hm2_sums,
    hm2_results,
    hm2_checked,
    pooled,
    ditto_steps,
    separate_steps,
    mtrl_sweeps,
    local_problems,
    compression,
)
"""Makers of the kernels, for fleets as many times as large as they are told."""


def main() -> None:
    """Print the table."""
    print(f"{'':24}{'ratio':>8}{'calls':>8}{'ms':>9}")
    for make in ALL:
        kernel = make(1)
        print(f"{kernel.name:24}{ratio(kernel, 2.0):8.2f}{calls(kernel.work):8d}{1e3 * spent(kernel.work) / REPEATS:9.3f}")


if __name__ == "__main__":
    main()
