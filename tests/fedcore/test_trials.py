"""Trials side by side: each as it would go alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedcore import Hm1, Misuse, fit
from fedcore.algorithm import AnyAlgorithm, Outcome
from fedcore.linear import LocalProblem
from fedcore.rows import Floats
from fedcore.separate import Separate
from fedcore.testing import check_algorithm, small_fleet
from fedcore.trials import Trial, Trials

CHOICES: dict[str, Callable[[], tuple[AnyAlgorithm, ...]]] = {
    "one": lambda: (Hm1(),),
    "mixed": lambda: (Separate(batch=3), Hm1(alpha=0.3), Hm1(shrinkage="explicit", eta=0.01), Separate(batch=2, gradient="sum")),
    "the same twice": lambda: (Separate(batch=3), Separate(batch=3)),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_trials_keep_the_protocol(choice: str) -> None:
    check_algorithm(lambda: Trials(CHOICES[choice]()))


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_each_trial_equals_its_own_run_to_the_bit(participation: float) -> None:
    fleet = small_fleet(rows=(12, 7, 30, 9, 15))
    algorithms = (*CHOICES["mixed"](), Hm1(tolerance=0.3), Hm1(shrinkage="explicit", eta=0.05, alpha=0.9))
    together = fit(Trials(algorithms), fleet, rounds=12, participation=participation, seed=3)
    for i, algorithm in enumerate(algorithms):
        alone = fit(algorithm, fleet, rounds=12, participation=participation, seed=3)
        trial = together.server.trials[i]
        for device_id in fleet:
            np.testing.assert_array_equal(together.theta[device_id][i], alone.theta[device_id])
        assert trial.rounds == len(alone.history)
        assert trial.uplink_bytes == sum(each["uplink_bytes"] for each in alone.history)
        np.testing.assert_array_equal(trial.losses, [each["loss"] for each in alone.history])
        ended = Trials(algorithms).ended(together.server, i)
        assert (ended.name if isinstance(ended, Outcome) else "completed") == alone.outcome.name


class Overflowing(Separate):
    """Its training error is infinite from the first round on."""

    def loss(self, theta: Floats, problem: LocalProblem) -> Floats:
        return np.full(len(theta), np.inf)


def test_one_that_overflows_ends_and_the_others_go_on() -> None:
    trials = Trials((Overflowing(), Hm1()))
    result = fit(trials, small_fleet(), rounds=3)
    assert [trial.rounds for trial in result.server.trials] == [1, 3]
    ended = trials.ended(result.server, 0)
    assert isinstance(ended, Outcome)
    assert (ended.name, fit(Overflowing(), small_fleet()).outcome.name) == ("diverged", "diverged")
    assert result.outcome.ok


@pytest.mark.parametrize(
    ("losses", "settled"),
    [([], 0), ([3.0], 1), ([9.0, 5.0, 4.0], 3), ([4.03, 4.03, 4.0], 1), ([4.0, 9.0, 4.0, 4.0], 3), ([0.0, 0.0], 1), ([1.0, np.inf], 2)],
)
def test_the_round_from_which_on_a_trial_stays_near_its_end(losses: list[float], settled: int) -> None:
    assert Trial(None, np.array(losses), 0).settled == settled


def test_what_a_round_sends_is_counted() -> None:
    """Messages that are kept by trial count like any others."""
    algorithms = CHOICES["mixed"]()
    fleet = small_fleet()
    together = fit(Trials(algorithms), fleet, rounds=1).history[0]
    alone = [fit(algorithm, fleet, rounds=1).history[0] for algorithm in algorithms]
    flags, header = 16 * len(algorithms) * len(fleet), 16 * len(fleet)  # who goes on, and by how much each moved
    assert together["downlink_bytes"] - header == sum(each["downlink_bytes"] - header for each in alone) + flags
    assert together["uplink_bytes"] == sum(each["uplink_bytes"] for each in alone) + 8 * len(fleet)


def test_none_is_refused() -> None:
    with pytest.raises(Misuse, match="at least one algorithm"):
        Trials(())
