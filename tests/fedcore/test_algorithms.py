"""Every algorithm keeps the protocol; and the conformance suite notices when one does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fedcore import Ditto, Eb, FedAvg, Hm1, Hm2, Misuse, Mtrl, Pooled, Separate
from fedcore.algorithm import ALGORITHMS, algorithm_class
from fedcore.messages import DeviceInfo
from fedcore.testing import check_algorithm

VARIANTS = {
    "ditto": lambda: Ditto(),
    "ditto trimmed": lambda: Ditto(aggregation="trimmed_mean", trimmed=0.4),
    "ditto minibatch": lambda: Ditto(batch=5, gradient="sum", personal_steps=3),
    "ditto equal, strong": lambda: Ditto(weights="equal", penalty=1e6, gradient="sum"),
    "ditto without penalty": lambda: Ditto(penalty=0.0, personal_steps=50),
    "fedavg": lambda: FedAvg(),
    "fedavg median": lambda: FedAvg(aggregation="median"),
    "fedavg minibatch": lambda: FedAvg(batch=5, gradient="sum"),
    "fedavg equal": lambda: FedAvg(weights="equal", eta=0.01, steps=1),
    "eb": lambda: Eb(),
    "eb diagonal": lambda: Eb(covariance="diagonal"),
    "eb diagonal, own noise": lambda: Eb(covariance="diagonal", noise="own"),
    "eb isotropic around zero": lambda: Eb(covariance="isotropic", mean="zero"),
    "eb own noise": lambda: Eb(noise="own"),
    "eb around zero": lambda: Eb(mean="zero"),
    "hm1": lambda: Hm1(),
    "hm1 explicit": lambda: Hm1(shrinkage="explicit", eta=0.01),
    "hm1 explicit, safe rate": lambda: Hm1(shrinkage="explicit"),
    "hm1 tied": lambda: Hm1(prior_rate="tied", alpha=0.9),
    "hm1 minibatch": lambda: Hm1(batch=5, gradient="sum"),
    "hm1 sum": lambda: Hm1(gradient="sum", floor=0.0),
    "mtrl": lambda: Mtrl(),
    "mtrl minibatch": lambda: Mtrl(batch=3, strength=0.1, floor=1e-6),
    "hm2": lambda: Hm2(),
    "hm2 lasso": lambda: Hm2(prior="lasso"),
    "hm2 ridge": lambda: Hm2(prior="ridge"),
    "hm2 elastic_net": lambda: Hm2(prior="elastic_net"),
    "pooled": lambda: Pooled(),
    "pooled ridge": lambda: Pooled(penalty=2.0),
    "separate": lambda: Separate(),
    "separate minibatch": lambda: Separate(batch=2, steps=3),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_conformance(variant: str) -> None:
    check_algorithm(VARIANTS[variant])


def test_every_algorithm_has_a_variant() -> None:
    assert {name.split()[0] for name in VARIANTS} == set(ALGORITHMS)


def test_unknown_algorithm() -> None:
    with pytest.raises(Misuse, match=f"no algorithm 'hm9': choose one of {', '.join(sorted(ALGORITHMS))}$"):
        algorithm_class("hm9")


@dataclass(frozen=True)
class Growing(Separate):
    """Broken: its loss depends on who shares the call."""

    def local_steps(self, downs: Any, devices: Any, datas: Any, rngs: Any) -> Any:
        states, ups, infos = super().local_steps(downs, devices, datas, rngs)
        return states, ups, [DeviceInfo(info.loss + len(devices)) for info in infos]


@dataclass(frozen=True)
class InPlace(Hm1):
    """Broken: writes into the server state that it is given."""

    def aggregate(self, server: Any, cohort: Any, ups: Any) -> Any:
        server.Theta[0, 0] += 1.0
        return super().aggregate(server, cohort, ups)


@dataclass(frozen=True)
class Unseeded(Separate):
    """Broken: draws what nobody can repeat."""

    def local_steps(self, downs: Any, devices: Any, datas: Any, rngs: Any) -> Any:
        return super().local_steps(downs, devices, datas, [np.random.default_rng() for _ in datas])


@pytest.mark.parametrize(
    ("broken", "words"),
    [(Growing(), "another loss"), (InPlace(), "aggregate"), (Unseeded(batch=2), "another state")],
    ids=["cohort matters", "in place", "unseeded"],
)
def test_the_suite_notices(broken: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_algorithm(lambda: replace(broken))
