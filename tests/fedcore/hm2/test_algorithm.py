"""The rounds of expectation propagation: what the protocol asks, and what is lost, late, few or odd."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.algorithm import Aggregated, AnyAlgorithm, FleetSpec
from fedcore.errors import Misuse
from fedcore.fit import fit
from fedcore.hm2.hm2 import PRIORS, Hm2
from fedcore.hm2.natural import NaturalParams, moments
from fedcore.hm2.state import Current, Server
from fedcore.receipts import Memory, settle
from fedcore.rounds import Answers, Call, RunState, Schedule, rounds
from fedcore.rows import DeviceData
from fedcore.testing import check_algorithm, small_fleet
from fedcore.trees import dump
from tests.fedcore.hm2.references import reference

OPTIONS: list[dict[str, Any]] = [
    {"sigma": 0.3},
    {},
    {"noise": "device"},
    {"prior": "isotropic"},
    {"prior": "isotropic", "sigma": 0.3},
    {"start": "zero", "noise": "device", "certificate": "off"},
    {"damping": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_protocol(options: dict[str, Any]) -> None:
    check_algorithm(lambda: Hm2(**options))


BUILT = """
from fedcore.algorithm import algorithm_class
algorithm_class("hm2")(prior=sys.argv[1])
"""
UNPICKLED = """
import pickle
pickle.loads(Path(sys.argv[2]).with_name("algorithm.pickle").read_bytes())
"""
READ = """
import sys
from pathlib import Path
from fedcore.trees import load
{}
for file in sys.argv[2:]:
    load(Path(file).read_bytes())
"""


@pytest.mark.slow
@pytest.mark.parametrize("made", [BUILT, UNPICKLED], ids=["built", "unpickled"])
@pytest.mark.parametrize("prior", PRIORS)
def test_states_are_read_back_in_a_process_that_has_done_nothing_else(prior: Any, made: str, tmp_path: Path) -> None:
    """As a resume does, after a kill, and as its workers do where tasks run in processes."""
    algorithm, fleet = Hm2(prior=prior), small_fleet()
    server, spec = fit(algorithm, fleet, rounds=2).server, FleetSpec(tuple(fleet), 3)
    (tmp_path / "server.state").write_bytes(dump(server))
    (tmp_path / "device.state").write_bytes(dump(algorithm.init_device(spec, fleet["a"])))
    (tmp_path / "algorithm.pickle").write_bytes(pickle.dumps(algorithm))
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    words = [sys.executable, "-c", READ.format(made), prior, str(tmp_path / "server.state"), str(tmp_path / "device.state")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "prior": ({"prior": "cauchy"}, "prior is one of gaussian"),
    "sigma": ({"sigma": 0.0}, r"sigma is a number in \[1e-100, 1e\+100\] or \"unknown\", got 0"),
    "noise": ({"noise": "none"}, "noise is one of shared, device"),
    "damping": ({"damping": 1.5}, r"damping is a number in \(0, 1\]"),
    "start": ({"start": "cold"}, "start is one of both, warm, zero"),
    "known noise of devices": ({"sigma": 1.0, "noise": "device"}, "noise=device is for a noise that is not known"),
    "hyperprior": ({"hyperprior": "wide"}, "hyperprior is one of paper, scaled"),
    "lambda": ({"prior": "lasso", "lambda_prior": "cauchy"}, "lambda_prior is one of log_normal, half_cauchy"),
    "lambda of a prior that has none": ({"lambda_prior": "half_cauchy"}, "prior=gaussian has no lambda"),
    "certificate": ({"certificate": "yes"}, "certificate is one of auto, on, off"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_misuse(case: str) -> None:
    options, words = REFUSED[case]
    with pytest.raises(Misuse, match=words):
        Hm2(**options)


class Disturbed:
    """Devices whose answers may be lost after they were computed, and which may be told a q that is one round old."""

    def __init__(
        self, algorithm: AnyAlgorithm, spec: FleetSpec, datas: Sequence[DeviceData], lost: float = 0.0, stale: float = 0.0
    ) -> None:
        self.algorithm, self.spec, self.datas, self.lost, self.stale = algorithm, spec, datas, lost, stale
        self.memories = [Memory.initial(algorithm.init_device(spec, data)) for data in datas]
        self.rng = np.random.default_rng(1)
        self.before: dict[int, Any] = {}

    def local_steps(self, call: Call) -> Answers:
        replies: dict[int, tuple[Any, Any]] = {}
        for i, k in enumerate(call.cohort):
            told, receipt, old = call.downs[i], call.state.receipt(k), self.before.get(k)
            self.before[k] = told
            late = isinstance(told, Current) and isinstance(old, Current) and self.rng.random() < self.stale
            down = old if late else told
            memory = settle(self.algorithm, self.memories[k], receipt)
            device, up, info = self.algorithm.local_step(down, memory.accepted, self.datas[k], self.rng)
            self.memories[k] = memory.awaiting(device, call.round_num)
            if self.rng.random() >= self.lost or (not replies and k == call.cohort[-1]):
                replies[k] = (up, info)
        return Answers(list(replies), [up for up, _ in replies.values()], [info for _, info in replies.values()])

    def aggregate(self, server: Any, answers: Answers) -> Aggregated:
        return self.algorithm.aggregate(server, answers.answered, answers.ups)


def disturbed(algorithm: AnyAlgorithm, devices: dict[str, DeviceData], count: int, schedule: dict[str, Any], **how: float) -> Server:
    """The server after so many rounds; checks that it holds the prior and the devices' sites, and nothing else."""
    ids = tuple(sorted(devices))
    spec = FleetSpec(ids, next(iter(devices.values())).train.d)
    backend = Disturbed(algorithm, spec, [devices[each] for each in ids], **how)
    state = RunState.initial(algorithm, spec)
    for report in rounds(algorithm, spec, backend, Schedule(rounds=count, quorum=1e-9, **schedule), state):
        state = report.state
    server: Server = state.server
    settled = [settle(algorithm, memory, state.receipt(k)).accepted for k, memory in enumerate(backend.memories)]
    for part, (prior, whole) in enumerate(zip(server.approximation.prior, server.approximation.q, strict=True)):
        sites = np.array([device.sites[part][server.which] for device in settled])
        # Relative to what is added up: sites may be large and of both signs.
        scale = np.abs(sites).sum(axis=0) + np.abs(prior)
        assert (np.abs(whole - prior - sites.sum(axis=0)) <= 1e-12 * scale).all()
    return server


def apart(one: NaturalParams, other: NaturalParams) -> float:
    """The larger of the difference of means and of log standard deviations, in standard deviations."""
    first, second = moments(one), moments(other)
    sds = [np.sqrt(np.diagonal(each.covariance)) for each in (first, second)]
    return float(max((np.abs(first.mean - second.mean) / sds[0]).max(), np.abs(np.log(sds[0] / sds[1])).max()))


FAULTS: dict[str, tuple[int, dict[str, Any], dict[str, float]]] = {
    "a fifth of the answers lost": (20, {}, {"lost": 0.2}),
    "a tenth of the devices a round": (60, {"participation": 0.1}, {}),
    "a third of the broadcasts one round old": (30, {}, {"stale": 0.33}),
    "all of it": (120, {"participation": 0.3}, {"lost": 0.2, "stale": 0.33}),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_lead_to_the_same_approximation(fault: str) -> None:
    count, schedule, how = FAULTS[fault]
    _, devices = reference("uq")
    algorithm = Hm2(sigma=0.05)
    server = disturbed(algorithm, devices, count, schedule, **how)
    assert apart(fit(algorithm, devices, rounds=30).server.approximation.q, server.approximation.q) < 0.02


def with_constant_column(devices: dict[str, DeviceData]) -> dict[str, DeviceData]:
    """One device sees no variation in its second column."""
    X, y = devices["b"].train
    X = X.copy()
    X[:, 1] = 0.0
    return {**devices, "b": DeviceData.of(X, y)}


def with_outlier(devices: dict[str, DeviceData]) -> dict[str, DeviceData]:
    """The coefficients of one device are a thousand times those of the others."""
    X, y = devices["b"].train
    return {**devices, "b": DeviceData.of(X, 1000.0 * y)}


ODD: dict[str, Callable[[], dict[str, DeviceData]]] = {
    "an outlier": lambda: with_outlier(small_fleet()),
    "a constant column": lambda: with_constant_column(small_fleet()),
    "few rows": lambda: small_fleet(rows=(2, 1, 3), d=5),
    "one device": lambda: small_fleet(rows=(9,)),
    "one row": lambda: small_fleet(rows=(1,)),
    "identical devices": lambda: dict.fromkeys("abcd", small_fleet()["a"]),
    "wide": lambda: small_fleet(rows=(50, 60, 40), d=30),
    "zero targets": lambda: {name: DeviceData.of(data.train.X, np.zeros(data.train.n)) for name, data in small_fleet().items()},
    "small units": lambda: {name: DeviceData.of(1e-6 * data.train.X, data.train.y) for name, data in small_fleet().items()},
    "large units": lambda: {name: DeviceData.of(data.train.X, 1e6 * data.train.y) for name, data in small_fleet().items()},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("hyperprior", "asked"), [("paper", True), ("scaled", False)])
def test_columns_too_small_to_square_are_told_with_what_is_left_to_try(hyperprior: Any, asked: bool) -> None:
    devices = {name: DeviceData.of(1e-160 * data.train.X, data.train.y) for name, data in small_fleet().items()}
    outcome = fit(Hm2(hyperprior=hyperprior), devices, rounds=3).outcome
    assert (outcome.name, "hyperprior=scaled" in outcome.message) == ("diverged", asked)


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
@pytest.mark.parametrize("case", ODD)
def test_odd_fleets_end_in_an_outcome(case: str, options: dict[str, Any]) -> None:
    devices = ODD[case]()
    result = fit(Hm2(**options), devices, rounds=50)
    assert result.outcome.name in ("converged", "completed", "diverged")
    assert all(np.isfinite(theta).all() for theta in result.theta.values())
    if result.outcome.ok:
        found = moments(result.server.approximation.q)
        assert found.proper
        assert all(np.isfinite(posterior.sd).all() for posterior in result.posterior.values())
