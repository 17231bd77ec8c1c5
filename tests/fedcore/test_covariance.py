"""The low-rank form of the device covariance against the dense one, and against arithmetic of higher precision."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore import FitResult, Hm1, fit
from fedcore.algorithm import FleetSpec
from fedcore.covariance import LowRank, block, correlations, diagonal, identity, shrunk, updated
from fedcore.fit import InProcess
from fedcore.rounds import RunState, Schedule, draw_cohort, rounds
from fedcore.rows import DeviceData
from fedcore.testing import check_algorithm, small_fleet
from fedcore.trees import from_npz, npz, pack, unpack

Fleet = dict[str, DeviceData]


def fleet(K: int, d: int, scale: float = 1.0, seed: int = 0) -> Fleet:
    """Devices of 2 to 25 rows, with two shared factors."""
    rng = np.random.default_rng(seed)
    Theta = rng.standard_normal((d, 2)) @ rng.standard_normal((2, K)) + 0.15 * rng.standard_normal((d, K))
    devices = {}
    for k in range(K):
        X = rng.standard_normal((int(rng.integers(2, 26)), d))
        devices[f"{k:06d}"] = DeviceData.of(X, scale * (X @ Theta[:, k] + 0.5 * rng.standard_normal(len(X))))
    return devices


def run(form: str, monkeypatch: pytest.MonkeyPatch, hm1: Hm1, devices: Fleet, **schedule: Any) -> FitResult:
    """A run with this form of Omega, whatever the size of the fleet."""
    monkeypatch.setattr("fedcore.covariance.LARGEST_DENSE", {"dense": 10**9, "low rank": 0}[form])
    monkeypatch.setattr("fedcore.covariance.DENSE_PER_COLUMN", 0)
    result = fit(hm1, devices, **schedule)
    assert isinstance(result.server.Omega, LowRank) == (form == "low rank")
    return result


def matrix(result: FitResult) -> np.ndarray:
    return np.array([result.theta[name] for name in sorted(result.theta)]).T


def full(Omega: Any) -> np.ndarray:
    everyone = range(len(diagonal(Omega)))
    return block(Omega, everyone, everyone)


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


FLEETS = {"2 devices": (2, 3), "20 devices": (20, 5), "fewer than columns": (4, 9), "100 devices": (100, 8), "300 devices": (300, 4)}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "no floor": {"floor": 0.0},
    "tied": {"prior_rate": "tied"},
    "a number": {"prior_rate": 0.1},
    "no prior": {"prior_rate": 0.0},
    "minibatch": {"batch": 3, "gradient": "sum"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", FLEETS)
@pytest.mark.parametrize("alpha", [0.02, 0.95])
def test_a_run_is_that_of_the_dense_form(options: str, shape: str, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    hm1, devices = Hm1(alpha=alpha, tolerance=0.0, **OPTIONS[options]), fleet(*FLEETS[shape])
    for participation in (1.0, 0.3):
        dense, ours = (
            run(form, monkeypatch, hm1, devices, rounds=20, participation=participation, seed=1) for form in ("dense", "low rank")
        )
        assert relative(matrix(ours), matrix(dense)) < 1e-10
        # What is left out is negligible beside what the shrinkage adds, so it is held against both.
        added = hm1._floor * dense.server.unit + 2.0 * dense.server.prior_rate.min()
        gap = np.linalg.norm(full(ours.server.Omega) - dense.server.Omega, 2)
        assert gap < 1e-10 * (np.linalg.norm(dense.server.Omega, 2) + added)
        assert ours.outcome == dense.outcome
        assert len(ours.server.Omega.factor) <= min(len(devices), 20 * FLEETS[shape][1])


@pytest.mark.parametrize("power", [-100, -6, -2, 3, 6, 100])
@pytest.mark.parametrize("floor", ["default", 0.0])
@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_at_any_scale_of_the_targets(power: int, floor: Any, participation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    hm1, devices = Hm1(floor=floor), fleet(60, 4, scale=10.0**power)
    dense, ours = (run(form, monkeypatch, hm1, devices, participation=participation) for form in ("dense", "low rank"))
    assert relative(matrix(ours), matrix(dense)) < 1e-10


@pytest.mark.parametrize("power", [-400, -20, 10, 400])
def test_targets_in_other_units_give_the_same_coefficients_to_the_bit(power: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run("low rank", monkeypatch, Hm1(), fleet(30, 3))
    other = run("low rank", monkeypatch, Hm1(), fleet(30, 3, scale=2.0**power))
    np.testing.assert_array_equal(matrix(other), matrix(one) * 2.0**power)


def solve(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Cholesky in the precision of A, which LAPACK does not offer."""
    A, B, n = A.copy(), B.copy(), len(A)
    for j in range(n):
        A[j, j] = np.sqrt(A[j, j])
        A[j + 1 :, j] /= A[j, j]
        A[j + 1 :, j + 1 :] -= np.outer(A[j + 1 :, j], A[j + 1 :, j])
    for j in range(n):
        B[j] /= A[j, j]
        B[j + 1 :] -= np.outer(A[j + 1 :, j], B[j])
    for j in reversed(range(n)):
        B[j] /= A[j, j]
        B[:j] -= np.outer(A[j, :j], B[j])
    return B


def precise(hm1: Hm1, prior_rate: float, devices: Fleet, C: int, schedule: Schedule) -> np.ndarray:
    """The textbook's rounds in extended precision, with the same guard against rounding as the program's."""
    ids, high = sorted(devices), np.longdouble
    problem = hm1.prepare([devices[name] for name in ids])
    A, b = problem.map_matrix.astype(high), problem.map_offset.astype(high)
    K, d = b.shape
    Theta, Omega, rate = np.zeros((d, K), high), np.eye(K, dtype=high), np.zeros(K, high)
    for c in range(C):
        cohort = list(draw_cohort(ids, schedule, c + 1))
        V = Theta.copy()
        V[:, cohort] = (np.einsum("kij,kj->ki", A[cohort], Theta.T[cohort]) + b[cohort]).T
        rate[cohort] = prior_rate
        added = float(hm1.floor) + 2 * rate + K * np.finfo(float).eps * Omega.diagonal().max()
        Theta = V - solve(Omega + np.diag(added), V.T).T * 2 * rate
        Omega = (1 - high(hm1.alpha)) * Omega + high(hm1.alpha) / d * Theta.T @ Theta
    return Theta


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="this machine has no extended precision")
@pytest.mark.parametrize("alpha", [0.02, 0.95])
@pytest.mark.parametrize("prior_rate", [0.1, 1e-6])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e6])
@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_no_less_precise_than_dense_where_omega_dwarfs_the_rates(
    alpha: float, prior_rate: float, scale: float, participation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a floor, where Omega's start has decayed and it is up to 10^19 times the rates: the dense form loses up to twelve
    digits of sixteen there, so it is no reference, and both are held against one."""
    hm1 = Hm1(alpha=alpha, prior_rate=prior_rate, floor=0.0, tolerance=0.0)
    devices = fleet(20, 5, scale)
    reference = precise(hm1, prior_rate, devices, 30, Schedule(participation=participation))
    dense, ours = (
        relative(matrix(run(form, monkeypatch, hm1, devices, participation=participation)), reference) for form in ("dense", "low rank")
    )
    assert ours < max(1e-10, dense)


@given(
    K=st.integers(1, 12),
    d=st.integers(1, 4),
    rank=st.integers(0, 12),
    rest=st.sampled_from([0.0, 1e-9, 1.0]),
    floor=st.sampled_from([0.0, 1e-3]),
    seed=st.integers(0, 2**20),
)
def test_shrinkage_and_update_are_the_formulas(K: int, d: int, rank: int, rest: float, floor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    Omega = LowRank(rng.standard_normal((min(rank, K), K)), rest)
    V, prior_rate = rng.standard_normal((d, K)), rng.uniform(0.1, 1.0, K)
    D = np.diag(prior_rate)
    expected = V - V @ np.linalg.solve(full(Omega) + floor * np.eye(K) + 2 * D, 2 * D)
    np.testing.assert_allclose(shrunk(V, Omega, prior_rate, floor), expected, rtol=1e-9, atol=1e-11)
    moved = updated(Omega, V, 0.3, 0.2)
    assert moved is not None
    np.testing.assert_allclose(full(moved), 0.7 * full(Omega) + 0.1 * 3 / d * V.T @ V, rtol=1e-9, atol=1e-10)


def test_without_rates_nothing_is_shrunk() -> None:
    V = np.array([[1.0, 2.0]])
    for Omega in (LowRank(np.empty((0, 2)), 0.0), LowRank(np.array([[1.0, 3.0]]), 0.0), LowRank(np.empty((0, 2)), 1.0)):
        np.testing.assert_array_equal(shrunk(V, Omega, np.zeros(2), 0.0), V)


@pytest.mark.parametrize("form", ["dense", "low rank"])
def test_an_update_that_overflows_says_so(form: str) -> None:
    Omega = np.eye(3) if form == "dense" else LowRank(np.empty((0, 3)), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        assert updated(Omega, np.full((2, 3), 1e200), 0.5, 0.1) is None


@pytest.mark.parametrize("options", [{}, {"floor": 0.0}, {"prior_rate": "tied", "alpha": 0.9}, {"batch": 5, "gradient": "sum"}])
def test_keeps_the_protocol(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcore.covariance.LARGEST_DENSE", 0)
    monkeypatch.setattr("fedcore.covariance.DENSE_PER_COLUMN", 0)
    assert isinstance(Hm1().init_server(FleetSpec(("a", "b"), 3)).Omega, LowRank)
    check_algorithm(lambda: Hm1(**options))


def test_the_form_follows_from_the_fleet() -> None:
    assert isinstance(identity(100, 8), np.ndarray)
    assert isinstance(identity(1000, 40), np.ndarray)
    assert isinstance(identity(1000, 8), LowRank)
    many = FleetSpec(tuple(f"{k:04d}" for k in range(1000)), 2)
    assert isinstance(Hm1().init_server(many).Omega, LowRank)
    assert isinstance(Hm1(shrinkage="explicit").init_server(many).Omega, np.ndarray), "the explicit step needs Omega's inverse"


def test_reaches_the_posterior_mean() -> None:
    """As the dense form does: at T = 1 and a fixed Omega, the exact posterior mean."""
    devices, rng = small_fleet(rows=(12, 8, 30), d=3), np.random.default_rng(5)
    Omega = LowRank(rng.standard_normal((2, 3)), 0.1)
    hm1 = Hm1(steps=1, alpha=1e-300, floor=0.0, tolerance=1e-14)  # an alpha that leaves Omega as it is
    datas = [devices[name] for name in sorted(devices)]
    spec = FleetSpec(tuple(sorted(devices)), 3)
    state = RunState.initial(hm1, spec)
    state = state._replace(server=state.server._replace(Omega=Omega, unit=1.0, least=1.0))
    for report in rounds(hm1, spec, InProcess(hm1, spec, datas, 0), Schedule(rounds=20000), state):
        state = report.state
    noise = hm1.prepare(datas).noise_variance
    precision, moment = np.kron(np.linalg.inv(full(Omega)), np.eye(3)), np.zeros(9)
    for k, data in enumerate(datas):
        own = slice(3 * k, 3 * k + 3)
        precision[own, own] += data.train.X.T @ data.train.X / noise[k]
        moment[own] = data.train.X.T @ data.train.y / noise[k]
    np.testing.assert_allclose(state.server.Theta.T.ravel(), np.linalg.solve(precision, moment), rtol=1e-8)


def test_entries_without_the_others() -> None:
    rng = np.random.default_rng(2)
    factor = rng.standard_normal((3, 9))
    whole = factor.T @ factor + 0.5 * np.eye(9)
    for Omega in (LowRank(factor, 0.5), whole):
        np.testing.assert_allclose(diagonal(Omega), whole.diagonal())
        np.testing.assert_allclose(block(Omega, [4, 0, 8], [0, 1]), whole[[4, 0, 8]][:, [0, 1]])
        sd = np.sqrt(whole.diagonal()[[7, 2, 3]])
        found = correlations(Omega, [7, 2, 3])
        np.testing.assert_allclose(found, whole[[7, 2, 3]][:, [7, 2, 3]] / sd / sd[:, None])
        np.testing.assert_array_equal(found.diagonal(), 1.0)


def test_a_stored_state_gives_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    server = run("low rank", monkeypatch, Hm1(), fleet(30, 3), rounds=5).server
    arrays = from_npz(npz({**pack(server), "devices": np.arange(30)}))
    assert arrays["Omega.factor"].shape == server.Omega.factor.shape
    assert "Omega" not in arrays
    np.testing.assert_array_equal(block(unpack(arrays).Omega, [3, 1], range(30)), block(server.Omega, [3, 1], range(30)))


def test_a_large_fleet_never_holds_a_matrix() -> None:
    K, rng = 4000, np.random.default_rng(0)
    X, y = rng.standard_normal((K, 5, 2)), rng.standard_normal((K, 5))
    devices = {f"{k:04d}": DeviceData.of(X[k], y[k]) for k in range(K)}
    tracemalloc.start()
    try:
        server = fit(Hm1(), devices, rounds=5).server
        correlations(server.Omega, [0, 3999])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * K * K / 4
