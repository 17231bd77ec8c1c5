"""When a run's threads are kept on one processor, and that they are let go."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flows.processor import AGAIN, BUSY, OneProcessor

ALL = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="takes Linux and two processors")


class Clock:
    """The two clocks, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = self.at_work = 0.0
        monkeypatch.setattr("flows.processor.time.perf_counter", lambda: self.seconds)
        monkeypatch.setattr("flows.processor.time.process_time", lambda: self.at_work)

    def round(self, processor: OneProcessor, seconds: float, processors: float = 1.0) -> int:
        """A round of so many seconds in which so many processors are at work: how many the next one may use."""
        self.seconds += seconds
        self.at_work += seconds * processors
        processor.next_round()
        return len(os.sched_getaffinity(0))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    assert os.sched_getaffinity(0) == ALL


def test_rounds_that_hand_the_interpreter_around_go_to_one_processor(clock: Clock) -> None:
    with OneProcessor(threads=True) as processor:
        assert os.sched_getaffinity(0) == ALL, "the first round tells"
        assert [clock.round(processor, 0.4), *(clock.round(processor, 0.3) for _ in range(5))] == [1] * 6


def test_rounds_whose_threads_work_beside_one_another_keep_all(clock: Clock) -> None:
    with OneProcessor(threads=True) as processor:
        assert [clock.round(processor, 0.4, BUSY + 0.1) for _ in range(5)] == [len(ALL)] * 5


def test_a_round_that_was_slower_than_the_free_one_is_followed_by_a_free_one(clock: Clock) -> None:
    with OneProcessor(threads=True) as processor:
        found = [clock.round(processor, seconds) for seconds in (0.4, 0.8, 0.4, 0.4, 0.3)]
    assert found == [1, len(ALL), 1, 1, 1]


def test_rounds_on_one_processor_are_weighed_anew(clock: Clock) -> None:
    with OneProcessor(threads=True) as processor:
        found = [clock.round(processor, 0.5) for _ in range(2 * AGAIN + 3)]
        assert [i for i, each in enumerate(found) if each > 1] == [AGAIN, 2 * AGAIN + 1]


@pytest.mark.parametrize("drawn", [0, 1], ids=["the same", "another"])
def test_all_threads_go_along_and_come_back_but_for_those_with_processors_of_their_own(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, drawn: int
) -> None:
    monkeypatch.setattr("flows.processor.random.choice", lambda processors: processors[drawn])
    own, ready, done = {min(ALL)}, threading.Barrier(3), threading.Event()
    ids: dict[str, int] = {}

    def waits(name: str) -> None:
        ids[name] = threading.get_native_id()
        if name == "own":
            os.sched_setaffinity(0, own)
        ready.wait()
        done.wait()

    def processors() -> dict[str, set[int]]:
        return {name: os.sched_getaffinity(thread) for name, thread in ids.items()}

    threads = [threading.Thread(target=waits, args=(name,)) for name in ("before", "own")]
    for thread in threads:
        thread.start()
    ready.wait()
    try:
        with OneProcessor(threads=True) as processor:
            clock.round(processor, 0.4)
            (one,) = os.sched_getaffinity(0)
            ready.reset()
            threads.append(threading.Thread(target=waits, args=("meanwhile",)))
            assert processors() == {"before": {one}, "own": own}
            threads[-1].start()
            threading.Thread(target=ready.wait).start()
            ready.wait()
            assert processors()["meanwhile"] == {one}
        assert processors() == {"before": ALL, "own": own, "meanwhile": ALL}
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_of_runs_beside_one_another_the_first_decides(clock: Clock) -> None:
    with ExitStack() as first:
        one = first.enter_context(OneProcessor(threads=True))
        with OneProcessor(threads=True) as other:
            assert clock.round(other, 0.4) == len(ALL)
            assert clock.round(one, 0.4) == 1
        assert len(os.sched_getaffinity(0)) == 1, "the end of the other changes nothing"
    with OneProcessor(threads=True) as next_one:
        assert clock.round(next_one, 0.4) == 1


def test_an_error_lets_them_go(clock: Clock) -> None:
    def rounds() -> None:
        with OneProcessor(threads=True) as processor:
            clock.round(processor, 0.4)
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        rounds()
    assert os.sched_getaffinity(0) == ALL


def test_one_processor_other_systems_and_other_runners_are_left_alone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[object] = []
    monkeypatch.setattr("flows.processor.os.sched_setaffinity", lambda *args: moved.append(args))
    with monkeypatch.context() as single:
        single.setattr("flows.processor.os.sched_getaffinity", lambda _: {0})
        with OneProcessor(threads=True) as processor:
            clock.round(processor, 0.4)
    with OneProcessor(threads=False) as processor:
        clock.round(processor, 0.4)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("flows.processor.sys.platform", "darwin")
        with OneProcessor(threads=True) as processor:
            clock.round(processor, 0.4)
    assert moved == []
