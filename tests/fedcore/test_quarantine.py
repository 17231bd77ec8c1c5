"""A message that cannot be taken: its device counts as silent, whatever the algorithm and whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore import Ditto, Eb, FedAvg, Hm1, Hm2, Mtrl, Pooled, Separate
from fedcore.algorithm import ALGORITHMS, AnyAlgorithm, FleetSpec
from fedcore.fit import InProcess
from fedcore.messages import DeviceInfo, Stacked
from fedcore.quarantine import faults
from fedcore.rounds import Answers, Call, RoundReport, RunState, Schedule, rounds
from fedcore.testing import equal, small_fleet
from fedcore.trials import Trials

CHOICES: dict[str, Callable[[], AnyAlgorithm]] = {
    "ditto": Ditto,
    "eb": Eb,
    "eb diagonal": lambda: Eb(covariance="diagonal"),
    "eb isotropic": lambda: Eb(covariance="isotropic"),
    "fedavg": FedAvg,
    "hm1": Hm1,
    "hm1 explicit": lambda: Hm1(shrinkage="explicit", eta=0.01),
    "hm2": lambda: Hm2(hyperprior="scaled"),
    "hm2 lasso": lambda: Hm2(prior="lasso"),
    "mtrl": Mtrl,
    "pooled": Pooled,
    "separate": Separate,
}

K, SPOILED = 4, 2
Spoil = Callable[[Any], Any]


def every(leaf: Spoil) -> Spoil:
    """Spoils all numbers of a message."""

    def spoil(message: Any) -> Any:
        if not isinstance(message, tuple):
            return leaf(np.array(message))
        parts = map(spoil, message)
        return type(message)(*parts) if hasattr(message, "_fields") else tuple(parts)

    return spoil


SPOILS: dict[str, tuple[Spoil, str]] = {
    "nan": (every(lambda array: array * np.nan), "is not finite"),
    "infinite": (every(lambda array: array + np.inf), "is not finite"),
    "longer": (every(lambda array: np.append(array, 1.0)), "of shape"),
    "another axis": (every(lambda array: array[None]), "of shape"),
    "float32": (every(lambda array: array.astype(np.float32)), "of type float32, expected float64"),
    "complex": (every(lambda array: array.astype(np.complex128)), "of type complex128, expected float64"),
    "text": (every(lambda array: "9876.5"), "is a str, expected numbers"),
    "objects": (every(lambda array: array.astype(object)), "of type object, expected float64"),
    "nothing": (lambda message: None, "is a NoneType, expected"),
    "bare": (lambda message: (*message,), "is a tuple, expected"),
}


class Noisy(InProcess):
    """In some rounds one device's message is spoiled, or lost where there is no way to spoil it."""

    spoil: Spoil | None = None
    bad: Sequence[int] = ()

    def local_steps(self, call: Call) -> Answers:
        told = super().local_steps(call)
        if call.round_num not in self.bad:
            return told
        answered, ups, infos = list(told.answered), list(told.ups), list(told.infos)
        if self.spoil:
            ups[SPOILED], infos[SPOILED] = self.spoil(ups[SPOILED]), self.spoil(infos[SPOILED])
        else:
            for each in (answered, ups, infos):
                del each[SPOILED]
        return Answers(answered, ups, infos)


def run(
    algorithm: AnyAlgorithm, spoil: Spoil | None, bad: Sequence[int], quorum: float = 0.5, length: int = 6
) -> tuple[list[RoundReport], Any]:
    fleet = small_fleet(rows=(12, 7, 30, 9))
    spec = FleetSpec(tuple(sorted(fleet)), 3)
    backend = Noisy(algorithm, spec, [fleet[name] for name in spec.device_ids], 0)
    backend.spoil, backend.bad = spoil, bad
    reports = list(rounds(algorithm, spec, backend, Schedule(rounds=length, quorum=quorum), RunState.initial(algorithm, spec)))
    return reports, backend.finalize(reports[-1].state)


@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize("choice", CHOICES)
def test_a_spoiled_message_is_a_lost_one(choice: str, how: str) -> None:
    """To the bit, on the server and on every device."""
    algorithm, (spoil, words) = CHOICES[choice](), SPOILS[how]
    bad = (1, 2, 4, 5, 9)
    spoiled, theta = run(algorithm, spoil, bad)
    lost, expected = run(algorithm, None, bad)
    assert len(spoiled) == len(lost)
    for one, other in zip(spoiled, lost, strict=True):
        assert equal(one.state, other.state)
        assert (one.answered, one.silent, one.loss, one.outcome) == (other.answered, other.silent, other.loss, other.outcome)
        assert set(one.quarantined) == ({SPOILED} if one.round_num in bad else set())
        assert all(words in why for why in one.quarantined.values())
        assert one.metrics()["quarantined"] == len(one.quarantined)
    for name in expected:
        np.testing.assert_array_equal(theta[name], expected[name])


def test_every_algorithm_is_among_them() -> None:
    assert {name.split()[0] for name in CHOICES} == set(ALGORITHMS)


@pytest.mark.parametrize("choice", CHOICES)
def test_nothing_is_found_where_nothing_is_wrong(choice: str) -> None:
    """Through every phase that the algorithm has."""
    reports, _ = run(CHOICES[choice](), None, (), length=40)
    assert not any(report.quarantined for report in reports)
    if choice == "hm2":
        assert {"units", "sites", "main", "certificate"} <= {report.phase for report in reports}


def test_a_fleet_whose_steps_overflow_diverges() -> None:
    """With the algorithm's own advice: what most devices send is no device's fault."""
    reports, _ = run(FedAvg(), every(lambda array: array * np.nan), (2,), quorum=1.0)
    outcome = reports[-1].outcome
    assert outcome is not None
    assert (len(reports), outcome.name) == (2, "diverged")
    assert "smaller eta" in outcome.message
    assert reports[-1].counted


def test_a_quorum_that_is_lost_to_malformed_messages_says_so() -> None:
    reports, _ = run(FedAvg(), every(lambda array: array[None]), (2,), quorum=1.0)
    outcome = reports[-1].outcome
    assert outcome is not None
    words = "round 2 got 3 answers and 1 that could not be taken of 4 devices, the quorum is 1: see why devices fail, then resume the run"
    assert (outcome.name, outcome.message) == ("quorum_lost", words)
    assert not reports[-1].counted
    assert reports[-1].quarantined == {SPOILED: "theta is of shape (1, 3), expected (3,)"}


def test_what_was_spoiled_was_sent_too() -> None:
    """The bytes of a round are those that came."""
    spoiled, _ = run(FedAvg(), every(lambda array: array * np.nan), (2,))
    sound, _ = run(FedAvg(), None, ())
    assert [report.uplink_bytes for report in spoiled] == [report.uplink_bytes for report in sound]


@pytest.mark.parametrize("how", ["longer", "text", "nothing"])
def test_trials_of_a_search_are_looked_through(how: str) -> None:
    spoil, _ = SPOILS[how]
    spoiled, _ = run(Trials((Hm1(), FedAvg())), spoil, (2, 3))
    lost, _ = run(Trials((Hm1(), FedAvg())), None, (2, 3))
    assert all(equal(one.state, other.state) for one, other in zip(spoiled, lost, strict=True))


def test_a_trial_that_overflows_on_a_device_does_not_take_it_from_the_others() -> None:
    def spoil(up: Any) -> Any:
        return up._replace(ups=(up.ups[0]._replace(theta=up.ups[0].theta * np.nan), up.ups[1])) if hasattr(up, "ups") else up

    trials = Trials((FedAvg(), FedAvg(steps=3)))
    reports, _ = run(trials, spoil, (3,))
    assert not any(report.quarantined for report in reports)
    assert [trial.rounds for trial in reports[-1].state.server.trials] == [3, 6]


@given(st.data())
def test_held_as_one_or_one_by_one_the_same_is_found(data: st.DataObject) -> None:
    m = data.draw(st.integers(0, 6))
    bad = data.draw(st.sets(st.sampled_from(range(m)))) if m else set[int]()
    theta, loss = np.ones((m, 3)), np.ones(m)
    for i in bad:
        if data.draw(st.booleans()):
            theta[i, data.draw(st.integers(0, 2))] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        else:
            loss[i] = np.nan
    form = FedAvg().form(FleetSpec(("a",), 3), FedAvg().init_server(FleetSpec(("a",), 3)))
    ups, infos = Stacked(type(form)(theta, np.ones(m)), m), Stacked(DeviceInfo(loss), m)
    found = faults(ups, infos, form)
    assert set(found.not_finite) == bad
    assert found == faults(list(ups), list(infos), form)
