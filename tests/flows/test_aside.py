"""What is asked beside the rounds: it holds nothing up, costs a twentieth of the time at most, and misses a server that is away."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace

import httpx
import pytest

import flows.aside
from flows.aside import SHARE, Aside


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(flows.aside, "time", made)
    return made


@pytest.mark.parametrize("cost", [0.001, 0.5])
def test_it_takes_less_than_a_twentieth_of_the_time(cost: float, clock: Clock) -> None:
    spent: list[float] = []

    def talk() -> None:
        clock.now += cost
        spent.append(cost)

    aside = Aside(talk)
    aside.once_more()
    spent.clear()
    begun = clock.now
    for _ in range(2000):
        clock.now += 0.01
        aside.again()
        aside.finish()
    assert spent
    assert sum(spent) <= (clock.now - begun) * SHARE


def test_a_slow_server_holds_up_nobody_and_is_not_asked_twice_meanwhile(clock: Clock) -> None:
    answered, asked = Event(), list[float]()

    def talk() -> None:
        asked.append(clock.now)
        answered.wait()

    aside = Aside(talk)
    for _ in range(10):
        clock.now += 0.01
        aside.again()
    answered.set()
    aside.once_more()
    assert asked == [pytest.approx(100.01), pytest.approx(100.1)]


def test_where_rounds_are_long_the_answer_is_there_at_once(clock: Clock) -> None:
    told: list[bool] = []
    aside = Aside(lambda: told.append(True))
    for number in range(1, 4):
        clock.now += 20 * 60
        aside.again()
        assert len(told) == number


def test_a_server_that_is_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk() -> None:
        raise httpx.ConnectError("nobody is there")

    Aside(talk).once_more()


def test_what_else_is_raised_is_raised_where_somebody_waits(clock: Clock) -> None:
    aside = Aside(lambda: [].pop())
    clock.now += 20 * 60
    with pytest.raises(IndexError):
        aside.again()
    aside._talk = SimpleNamespace
    aside.once_more()
