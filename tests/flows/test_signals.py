"""Ctrl-C and SIGTERM whose exception is lost on its way through other code."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import numpy as np
import pytest

from fedcore.data import Dataset
from flows import signals
from flows.config import TrainConfig
from flows.orchestrator import Orchestrator
from flows.train import train

INTERRUPTED = (signal.SIGINT, signal.SIGTERM)


class Finalizer:
    """What ignores a signal: no exception leaves a finalizer."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def swallowing(number: int) -> None:
    Finalizer(number)


def turning(number: int) -> None:
    """A library that answers to any exception with its own."""
    try:
        signal.raise_signal(number)
    except BaseException:
        raise ValueError("an error of its own") from None


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What finalizers raise; and SIGTERM raises what Ctrl-C does."""
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield ignored
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", INTERRUPTED)
def test_a_signal_that_came_to_nothing_is_raised_at_the_next_check(number: int, quiet: list[Any]) -> None:
    with signals.noted():
        signals.check()
        swallowing(number)
        assert [each.exc_type for each in quiet] == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            signals.check()


@pytest.mark.parametrize("number", INTERRUPTED)
def test_a_signal_that_became_an_error_is_raised_in_its_place(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), signals.noted():
        turning(number)


def test_an_error_without_a_signal_stays() -> None:
    with pytest.raises(ValueError, match="its own"), signals.noted():
        raise ValueError("its own")


def test_ctrl_c_ends_a_wait() -> None:
    woken, told = Event(), Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    waker = Timer(60, woken.set)
    told.start()
    waker.start()
    try:
        with pytest.raises(KeyboardInterrupt), signals.noted():
            woken.wait()
        assert not woken.is_set()
    finally:
        waker.cancel()


def test_one_within_another_leaves_the_outer_one_as_it_was() -> None:
    with signals.noted():
        with signals.noted():
            swallowing(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signals.check()


def test_what_was_noted_elsewhere_is_noted_there_again_afterwards() -> None:
    with signals.noted():
        pass
    assert signal.set_wakeup_fd(-1) == -1
    signals.check()


def test_other_signals_end_nothing() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        with signals.noted():
            signal.raise_signal(signal.SIGUSR1)
            signals.check()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == [signal.SIGUSR1]


def test_another_thread_has_no_signals_of_its_own() -> None:
    done: list[bool] = []

    def work() -> None:
        with signals.noted():
            signals.check()
            done.append(True)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("number", INTERRUPTED)
@pytest.mark.parametrize("losing", [swallowing, turning])
def test_a_run_ends_after_the_round_and_goes_on(
    losing: Callable[[int], None],
    number: int,
    server: Orchestrator,
    home: Path,
    fleet: Callable[..., Dataset],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Prefect raises at SIGTERM reaches the process's own handler in the end."""
    fleet()
    shown: list[int] = []

    def show(*_: object) -> None:
        shown.append(1)
        if len(shown) == 3:
            losing(number)

    with monkeypatch.context() as changed:
        changed.setattr("flows.artifacts.RunArtifacts.show", show)
        with pytest.raises(KeyboardInterrupt):
            train(TrainConfig(dataset="small", rounds=6), run_id="run", return_state=True)
    folder = home / "runs/run"
    assert not (folder / "result.json").exists()
    with np.load(folder / "checkpoint.npz") as stored:
        assert len(json.loads(str(stored["ledger"]))["history"]) == 3
    assert train(None, run_id="run", return_state=True).is_completed()
