"""One deployed run at a time on a data set: a second waits, a third of its kind is turned away."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed

import flows.turns
from fedcore.errors import Misuse
from flows.config import DataConfig, RetrainConfig
from flows.searches import CompareConfig
from flows.turns import TurnedAway, in_turn, turn
from tasks.lock import alone

ROOT = Path(flows.turns.__file__).parents[1]


class Second:
    """A run on a thread that wants the turn of data set `pumps`; made, it waits for it."""

    def __init__(self, folder: Path, kind: str, asked: str, waits: threading.Event) -> None:
        self.had = threading.Event()
        self.thread = threading.Thread(target=self._take, args=(folder, kind, asked))
        self.thread.start()
        assert waits.wait(60)

    def _take(self, folder: Path, kind: str, asked: str) -> None:
        with turn(folder, "pumps", kind, asked):
            self.had.set()


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Second]]:
    """Starts a run that waits, and is awaited when the test has let go."""
    started: list[Second] = []
    real = flows.turns.alone

    def start(kind: str, asked: str = "{}") -> Second:
        waits = threading.Event()

        def told(lock: Path, *, timeout: float) -> Any:
            if timeout < 0:
                waits.set()
            return real(lock, timeout=timeout)

        monkeypatch.setattr(flows.turns, "alone", told)
        started.append(Second(tmp_path, kind, asked, waits))
        monkeypatch.setattr(flows.turns, "alone", real)
        return started[-1]

    yield start
    for each in started:
        each.thread.join(60)
        assert each.had.is_set()


def test_a_second_waits_and_a_third_of_its_kind_is_turned_away(tmp_path: Path, second: Callable[..., Second]) -> None:
    expected = "^a retrain of data set 'pumps' with the same parameters waits already, and will read the same rows: nothing to do$"
    with turn(tmp_path, "pumps", "retrain", "{}"):
        waiting = second("retrain")
        with pytest.raises(TurnedAway, match=expected), turn(tmp_path, "pumps", "retrain", "{}"):
            pytest.fail("two waited")
        assert not waiting.had.is_set()


def test_one_of_another_kind_waits_too(tmp_path: Path, second: Callable[..., Second]) -> None:
    with turn(tmp_path, "pumps", "retrain", "{}"):
        waiting = [second("retrain"), second("compare")]
        assert not any(each.had.is_set() for each in waiting)


def test_one_that_asks_for_something_else_waits_too(tmp_path: Path, second: Callable[..., Second]) -> None:
    with turn(tmp_path, "pumps", "compare", '{"rounds": 1}'):
        waiting = [second("compare", '{"rounds": 2}'), second("compare", '{"rounds": 3}')]
        assert not any(each.had.is_set() for each in waiting)


def test_data_sets_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with turn(tmp_path, "pumps", "retrain", "{}"), turn(tmp_path, "engines", "retrain", "{}"):
        pass


def test_once_a_run_has_its_turn_the_next_may_wait(tmp_path: Path, second: Callable[..., Second]) -> None:
    with turn(tmp_path, "pumps", "retrain", "{}"):
        first = second("retrain")
    assert first.had.wait(60)
    with turn(tmp_path, "pumps", "retrain", "{}"):
        second("retrain")


def test_a_killed_run_lets_go(tmp_path: Path) -> None:
    hold = (
        "import sys; from pathlib import Path; from flows.turns import turn\n"
        "with turn(Path(sys.argv[1]), 'pumps', 'retrain', '{}'): print(flush=True); input()"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{hold}", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
    with turn(tmp_path, "pumps", "retrain", "{}"):
        pass


@pytest.mark.parametrize("name", ["", "../pumps", ".hidden"])
def test_a_name_that_no_data_set_has_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Misuse, match=r"^data set name .*: choose another name$"), turn(tmp_path / "turns", name, "retrain", "{}"):
        pytest.fail("there is no such data set")
    assert not (tmp_path / "turns").exists()


@pytest.fixture
def visits() -> list[str]:
    """The data sets that `retrain` was called for."""
    return []


@pytest.fixture
def retrain(visits: list[str]) -> Callable[..., State[None]]:
    """What a flow's function looks like."""

    def retrain(config: DataConfig | None = None, run_id: str | None = None) -> State[None]:
        assert config is not None
        visits.append(config.dataset)
        return Completed()

    return in_turn(retrain)


def test_a_deployed_run_that_is_turned_away_ends_as_cancelled(
    home: Path,
    retrain: Callable[..., State[None]],
    visits: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a deployment")
    turns = home / ".turns"
    assert retrain(DataConfig(dataset="pumps")).is_completed()
    (lock,) = (turns / "pumps").glob("retrain-*-waits.lock")
    with alone(turns / "pumps" / "turn.lock", timeout=0), alone(lock, timeout=0):
        state = retrain(DataConfig(dataset="pumps"))
    assert state.is_cancelled()
    expected = "a retrain of data set 'pumps' with the same parameters waits already, and will read the same rows: nothing to do"
    assert state.message == expected
    assert visits == ["pumps"]


def test_what_a_person_starts_takes_no_turn(home: Path, retrain: Callable[..., State[None]], visits: list[str]) -> None:
    with turn(home / ".turns", "pumps", "retrain", "{}"):
        assert retrain(DataConfig(dataset="pumps")).is_completed()
    assert visits == ["pumps"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (CompareConfig(dataset="pumps", algorithms=("separate", "hm9")), "'hm9'"),
        (RetrainConfig(dataset="pumps", algorithm="hm1", options={"none": 1}), "hm1 has no option 'none'"),
    ],
)
def test_what_no_data_can_make_right_is_refused_before_the_wait(
    home: Path, retrain: Callable[..., State[None]], visits: list[str], monkeypatch: pytest.MonkeyPatch, config: DataConfig, reason: str
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a deployment")
    monkeypatch.setattr(flows.turns, "turn", lambda *_: pytest.fail("it waited"))
    with pytest.raises(Misuse, match=reason):
        retrain(config)
    assert visits == []
