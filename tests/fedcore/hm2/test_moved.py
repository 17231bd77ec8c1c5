"""How far a device's rows of now would move phi."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedcore import DeviceData, Hm2
from fedcore.algorithm import FleetSpec
from fedcore.fit import InProcess
from fedcore.hm2.natural import divergence, flat, natural
from fedcore.rounds import RunState, Schedule, rounds
from fedcore.testing import small_fleet

PRIORS = ("gaussian", "isotropic", "lasso")


def normal(seed: int, m: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """A mean and a precision."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, 2 * m))
    return rng.standard_normal(m), A @ A.T / m


def test_divergence_is_the_mean_log_ratio() -> None:
    (mean, precision), (other_mean, other_precision) = normal(1), normal(2)
    ours, theirs = natural(mean, precision), natural(other_mean, other_precision)
    p, q = (multivariate_normal(at, np.linalg.inv(of)) for at, of in ((mean, precision), (other_mean, other_precision)))
    draws = p.rvs(size=200_000, random_state=0)
    ratios = p.logpdf(draws) - q.logpdf(draws)
    assert divergence(ours, theirs) == pytest.approx(ratios.mean(), abs=5 * ratios.std() / np.sqrt(len(draws)))
    assert divergence(ours, ours) == pytest.approx(0.0, abs=1e-12)
    assert divergence(ours, theirs) > 0
    # Of a move of the mean alone it is half the squared distance.
    assert divergence(natural(mean + 0.1, precision), ours) == pytest.approx(0.5 * 0.01 * precision.sum())
    assert np.isnan(divergence(flat(3), ours))


def ended(algorithm: Hm2, devices: dict[str, DeviceData]) -> tuple[Any, Any]:
    """The server of a run that has converged, and what device "b" has accepted by then."""
    spec = FleetSpec(tuple(sorted(devices)), 3)
    backend = InProcess(algorithm, spec, [devices[each] for each in spec.device_ids], seed=0)
    state = RunState.initial(algorithm, spec)
    for report in rounds(algorithm, spec, backend, Schedule(rounds=60), state):
        state = report.state
    backend.results(state)
    return state.server, backend.accepted[1]


def moved(algorithm: Hm2, server: Any, device: Any, data: DeviceData) -> float | None:
    state = algorithm.continued_device(device, algorithm.init_device(FleetSpec(("b",), 3), data))
    return algorithm.moved(algorithm.broadcast(server, 1), state, data)


@pytest.mark.parametrize("prior", PRIORS)
def test_the_rows_of_the_run_move_nothing_and_others_the_more_the_more_they_differ(prior: str) -> None:
    devices = small_fleet(rows=(20, 25, 30, 15, 22))
    algorithm = Hm2(prior=prior, tolerance=1e-6)
    server, device = ended(algorithm, devices)
    rows = devices["b"].train
    found = [moved(algorithm, server, device, DeviceData.of(rows.X, rows.y + shift * rows.X[:, 0])) for shift in (0.0, 0.5, 2.0)]
    assert all(each is not None for each in found)
    still, little, much = (float(each or 0.0) for each in found)
    assert still < 1e-6
    assert 1e-3 < little < much


def test_it_is_the_divergence_of_the_approximation_that_a_round_would_give() -> None:
    devices = small_fleet(rows=(20, 25, 30, 15, 22))
    algorithm = Hm2()
    server, device = ended(algorithm, devices)
    data = small_fleet(rows=(20, 40, 30), seed=3)["b"]
    state = algorithm.continued_device(device, algorithm.init_device(FleetSpec(("b",), 3), data))
    down = algorithm.broadcast(server, 1)
    _, up, _ = algorithm.local_step(down, state, data, np.random.default_rng(0))
    q = server.kept.q
    assert algorithm.moved(down, state, data) == pytest.approx(divergence(q.plus(up.site), q), rel=1e-12)


def test_what_cannot_tell_says_none() -> None:
    devices = small_fleet(rows=(20, 25))
    algorithm = Hm2()
    spec = FleetSpec(("a", "b"), 3)
    device = algorithm.init_device(spec, devices["b"])
    assert algorithm.moved(algorithm.broadcast(algorithm.init_server(spec), 1), device, devices["b"]) is None  # still in its start
