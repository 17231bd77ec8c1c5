"""What is asked beside the rounds: it holds nothing up, costs a twentieth of the time at most, and misses a server that is away."""

from __future__ import annotations

from threading import Event

import httpx
import pytest
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

import flows.background
from flows.background import SHARE, BackgroundCall


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(flows.background, "time", made)
    return made


@pytest.mark.parametrize("cost", [0.001, 0.5])
def test_calls_take_less_than_a_twentieth_of_the_time(cost: float, clock: Clock) -> None:
    spent: list[float] = []

    def call() -> None:
        clock.now += cost
        spent.append(cost)

    background = BackgroundCall(call, "test")
    background.flush()
    spent.clear()
    begun = clock.now
    for _ in range(2000):
        clock.now += 0.01
        background.poll()
        background.join()
    assert spent
    assert sum(spent) <= (clock.now - begun) * SHARE


def test_a_slow_server_holds_up_nobody_and_is_not_called_twice_meanwhile(clock: Clock) -> None:
    called, answered, calls = Event(), Event(), list[float]()

    def call() -> None:
        calls.append(clock.now)
        called.set()
        answered.wait()

    background = BackgroundCall(call, "test")
    background.poll()
    called.wait()
    for _ in range(10):
        clock.now += 0.01
        background.poll()
    answered.set()
    background.flush()
    assert calls == [100.0, clock.now]


def test_where_rounds_are_long_the_answer_is_there_at_once(clock: Clock) -> None:
    answers: list[bool] = []
    background = BackgroundCall(lambda: answers.append(True), "test")
    for number in range(1, 4):
        clock.now += 20 * 60
        background.poll()
        assert len(answers) == number


def test_a_server_that_is_away_is_asked_once_and_missed() -> None:
    retries: list[int] = []

    def call() -> None:
        retries.append(PREFECT_CLIENT_MAX_RETRIES.value())
        raise httpx.ConnectError("nobody is there")

    before = PREFECT_CLIENT_MAX_RETRIES.value()
    BackgroundCall(call, "test").flush()
    assert retries == [0]
    assert PREFECT_CLIENT_MAX_RETRIES.value() == before > 0


def test_what_else_is_raised_is_raised_once_where_somebody_waits(clock: Clock) -> None:
    background = BackgroundCall(lambda: [].pop(), "test")
    clock.now += 20 * 60
    with pytest.raises(IndexError):
        background.poll()
    background.join()
