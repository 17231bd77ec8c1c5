"""When a run's threads are kept on one processor, which ones, and that they are let go."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from flows.processor import AGAIN, BUSY, COLD, SLOW, OneProcessor

ALL = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="takes Linux and two processors")


class Waiting:
    """Threads that do nothing, by name."""

    def __init__(self) -> None:
        self.threads: dict[str, threading.Thread] = {}
        self._done = threading.Event()

    def start(self, name: str) -> None:
        self.threads[name] = threading.Thread(target=self._done.wait)
        self.threads[name].start()

    def give(self, name: str, processors: set[int]) -> None:
        os.sched_setaffinity(self.threads[name].native_id or 0, processors)

    @property
    def processors(self) -> dict[str, set[int]]:
        return {name: os.sched_getaffinity(thread.native_id or 0) for name, thread in self.threads.items()}

    def end(self) -> None:
        self._done.set()
        for thread in self.threads.values():
            thread.join()


class Clock:
    """The two clocks, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = self.at_work = 0.0
        monkeypatch.setattr("flows.processor.time.perf_counter", lambda: self.seconds)
        monkeypatch.setattr("flows.processor.time.process_time", lambda: self.at_work)

    def round(self, processor: OneProcessor, seconds: float, processors: float = 1.0) -> bool:
        """A round of so many seconds in which so many processors are at work: whether the next one is for one."""
        self.seconds += seconds
        self.at_work += seconds * processors
        processor.next_round()
        return len(os.sched_getaffinity(0)) == 1


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    threads = Waiting()
    threads.start("device")
    yield threads
    threads.end()


@pytest.fixture
def one_processor(waiting: Waiting) -> partial[OneProcessor]:
    return partial(OneProcessor, lambda: [waiting.threads["device"]])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    assert os.sched_getaffinity(0) == ALL


def test_rounds_that_hand_the_interpreter_around_go_to_one_processor(clock: Clock, one_processor: partial[OneProcessor]) -> None:
    with one_processor() as processor:
        assert [clock.round(processor, seconds) for seconds in (9.0, 0.5, 0.25, 0.25)] == [False, True, True, True]


def test_a_cold_round_is_no_measure(clock: Clock, one_processor: partial[OneProcessor]) -> None:
    with one_processor() as processor:
        found = [clock.round(processor, seconds) for seconds in (9.0, 0.5, 0.75, 0.75)]
    assert found == [False, True, True, False]


def test_rounds_whose_threads_work_beside_one_another_keep_all(clock: Clock, one_processor: partial[OneProcessor]) -> None:
    with one_processor() as processor:
        assert not any(clock.round(processor, 0.5, BUSY + 0.1) for _ in range(2 * AGAIN))


def test_where_one_processor_is_slower_few_rounds_show_it(clock: Clock, one_processor: partial[OneProcessor]) -> None:
    with one_processor() as processor:
        kinds = [False]
        for _ in range(4 * AGAIN):
            kinds.append(clock.round(processor, 0.75 if kinds[-1] else 0.5))
    assert sum(kinds) <= 4 * SLOW


def test_a_slow_round_among_quick_ones_is_chance(clock: Clock, one_processor: partial[OneProcessor]) -> None:
    with one_processor() as processor:
        found = [clock.round(processor, seconds) for seconds in (0.5, 0.5, 0.25, 0.75, 0.25, 0.75, 0.25)]
    assert found == [False] + 6 * [True]


def test_rounds_on_one_processor_are_weighed_anew(clock: Clock, one_processor: partial[OneProcessor]) -> None:
    with one_processor() as processor:
        found = [clock.round(processor, 0.5) for _ in range(COLD + 2 * (AGAIN + 1))]
    assert [i for i, one in enumerate(found, 1) if not one] == [1, COLD + AGAIN, COLD + 2 * AGAIN + 1]


@pytest.mark.parametrize("drawn", [0, 1], ids=["the same", "another"])
def test_a_runs_own_threads_go_along_and_come_back(clock: Clock, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, drawn: int) -> None:
    monkeypatch.setattr("flows.processor.random.choice", lambda processors: processors[drawn])
    own = {min(ALL)}
    for name in ("apart", "somebody else's"):
        waiting.start(name)
    waiting.give("apart", own)
    with OneProcessor(lambda: [thread for name, thread in waiting.threads.items() if name != "somebody else's"]) as processor:
        clock.round(processor, 0.5)
        clock.round(processor, 0.5)
        one = os.sched_getaffinity(0)
        assert len(one) == 1
        waiting.start("meanwhile")
        assert waiting.processors == {"device": one, "apart": own, "somebody else's": ALL, "meanwhile": one}
    apart = ALL if own == one else own  # which of the two has put it there is not known
    assert waiting.processors == {"device": ALL, "apart": apart, "somebody else's": ALL, "meanwhile": ALL}


def test_threads_may_come_with_the_first_round(clock: Clock, waiting: Waiting) -> None:
    """In a run that goes on nothing is asked of devices before it."""
    threads: list[threading.Thread] = []
    with OneProcessor(lambda: threads) as processor:
        threads.append(waiting.threads["device"])
        assert [clock.round(processor, 0.5) for _ in range(2)] == [False, True]
    assert waiting.processors == {"device": ALL}


def test_of_runs_beside_one_another_the_first_decides(clock: Clock, one_processor: partial[OneProcessor]) -> None:
    with ExitStack() as first:
        one = first.enter_context(one_processor())
        with one_processor() as other:
            assert not clock.round(one, 0.5)
            assert [clock.round(other, 0.5) for _ in range(3)] == 3 * [False]
            assert [clock.round(one, 0.5) for _ in range(2)] == [True, True]
        assert len(os.sched_getaffinity(0)) == 1, "the end of the other changes nothing"
    with one_processor() as next_one:
        assert [clock.round(next_one, 0.5) for _ in range(2)] == [False, True]


def test_an_error_lets_them_go(clock: Clock, waiting: Waiting, one_processor: partial[OneProcessor]) -> None:
    def rounds() -> None:
        with one_processor() as processor:
            assert [clock.round(processor, 0.5) for _ in range(2)] == [False, True]
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        rounds()
    assert waiting.processors == {"device": ALL}


def test_where_threads_cannot_be_looked_up_the_next_run_decides_all_the_same(
    clock: Clock, waiting: Waiting, one_processor: partial[OneProcessor]
) -> None:
    looked: list[int] = []

    def threads() -> list[threading.Thread]:
        looked.append(1)
        if len(looked) == 2:
            raise RuntimeError("none to be had")
        return list(waiting.threads.values())

    def rounds() -> None:
        with OneProcessor(threads) as processor:
            clock.round(processor, 0.5)

    with pytest.raises(RuntimeError, match="none to be had"):
        rounds()
    with one_processor() as processor:
        assert [clock.round(processor, 0.5) for _ in range(2)] == [False, True]


def test_one_processor_other_systems_and_other_runners_are_left_alone(
    clock: Clock, one_processor: partial[OneProcessor], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[object] = []
    monkeypatch.setattr("flows.processor.os.sched_setaffinity", lambda *args: moved.append(args))

    def three_rounds(processors: OneProcessor) -> None:
        with processors as processor:
            for _ in range(3):
                clock.round(processor, 0.5)

    with monkeypatch.context() as single:
        single.setattr("flows.processor.os.sched_getaffinity", lambda _: {0})
        three_rounds(one_processor())
    three_rounds(OneProcessor(list))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("flows.processor.sys.platform", "darwin")
        three_rounds(one_processor())
    assert moved == []
