"""`fedlin status`: runs by their folders alone, told apart by the lock that the system ends with a process."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table
from upath import UPath

from fedcore.algorithm import Outcome
from fedcore.data.places import create_file
from fedcore.data.staging import holder
from fedcore.errors import Misuse
from fedcore.rounds import RunState
from flows.cli.app import main
from flows.cli.shown import console
from flows.cli.status import age
from flows.runs import last_rounds, runs, view
from flows.workspace import Workspace
from tasks.checkpoint import Checkpoint, RunFolder

ROUND = {"phase": "main", "cohort": 5, "answered": 4, "loss": 0.25, "seconds": 1.5, "silent": ["b"]}
RESULT = {"outcome": "completed", "ok": True, "message": "all 3 rounds were run", "rounds": 3, "algorithm": "hm1"}


def made(home: Path, run_id: str, *, done: int = 0, result: Mapping[str, Any] | None = None, **given: Any) -> RunFolder:
    """A run's folder after some rounds, as a process would have left it."""
    folder = RunFolder(home / "runs" / run_id)
    config = {"command": "train", "given": {"dataset": "small", "algorithm": "hm1", "rounds": 3} | given}
    folder.create(config, {"devices": []})
    if done:
        state = RunState(done, done, None, np.zeros(5, dtype=np.int64), np.zeros(5))
        folder.save(Checkpoint(state, tuple(ROUND | {"round_num": i} for i in range(1, done + 1)), None))
    if result:
        folder.write_json("result.json", result)
    return folder


def status(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedlin", "status", *words])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code if isinstance(left.value.code, int) else 0


def test_a_run_is_running_while_its_lock_is_held_and_ended_once_it_has_a_result(home: Path) -> None:
    folder = made(home, "r", done=2)
    assert (view(folder).status, view(folder).rounds) == ("interrupted", 2)
    with folder.held():
        found = view(folder)
        assert (found.status, found.machine) == ("running", os.uname().nodename)
        with pytest.raises(Misuse, match="goes on in another process"), folder.held():
            pass  # looking has not taken the lock away
    folder.write_json("result.json", RESULT)
    found = view(folder)
    assert (found.status, found.rounds, found.outcome, found.message) == ("ended", 3, "completed", "all 3 rounds were run")
    with folder.held():  # an ended run that is resumed runs again
        assert view(folder).status == "running"


def test_the_lock_that_a_killed_process_leaves_holds_nothing(home: Path) -> None:
    folder = made(home, "r", done=1)
    assert isinstance(folder.path, Path)
    (folder.path / "run.lock").touch()
    assert holder(folder.path / "run.lock") is None
    assert view(folder).status == "interrupted"
    with folder.held():
        assert folder.held_by() == os.uname().nodename


def test_a_rollback_has_ended_by_its_decision(home: Path) -> None:
    folder = RunFolder(home / "runs" / "back")
    folder.create({"command": "rollback", "given": {"dataset": "small", "target": None, "to": 1}}, {"devices": []})
    assert view(folder).status == "interrupted"
    folder.write_json("decision.json", {"decision": "rolled_back", "why": "a person chose it"})
    found = view(folder)
    assert (found.status, found.outcome, found.most) == ("ended", "rolled_back", None)


def test_the_rounds_of_a_comparison_are_those_of_its_repeats(home: Path) -> None:
    folder = made(home, "c", algorithm=None, algorithms=["separate", "hm1"], repeats=11)
    for r in range(1, 12):
        made(home, f"c/repeats/c-{r}", done=3 if r < 11 else 2)
    found = view(folder)
    assert (found.algorithm, found.rounds, found.most) == ("separate,hm1", 32, 33)
    assert [each["round_num"] for each in last_rounds(folder, 5)] == [1, 2]  # of the eleventh, and not of the ninth
    assert found.changed == max(view(RunFolder(folder.path / "repeats" / f"c-{r}")).changed for r in range(1, 12))


@pytest.mark.parametrize("name", ["config.json", "checkpoint.npz", "result.json"])
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null"])
def test_a_damaged_file_is_said_of_its_run_alone(
    name: str, content: bytes, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(home, "whole", done=1)
    folder = made(home, "broken", done=1, result=RESULT if name == "result.json" else None)
    assert isinstance(folder.path, Path)
    (folder.path / name).write_bytes(content)
    assert {each.run_id: each.status for each in runs(Workspace(home))} == {"whole": "interrupted", "broken": "damaged"}
    assert status("broken", monkeypatch=monkeypatch) == 0
    assert re.search(rf"{name}.*damaged", " ".join(capsys.readouterr().out.split()))


def test_the_list_fits_a_terminal_and_the_newest_is_first(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "runs" / "no-run").mkdir(parents=True)
    for i, run_id in enumerate(("20261128T122111-dc7cc8-challenger", "20261128T122111-dc7cc8")):
        folder = made(home, run_id, done=2, dataset="a-data-set-with-a-long-name", algorithm="separate")
        os.utime(str(folder.path / "config.json"), (i * 1000, i * 1000))
    assert status(monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert out.index("dc7cc8 ") < out.index("dc7cc8-challenger")
    assert out.count("2/3") == out.count("interrupted") == 2
    assert "no-run" not in out
    assert status("--last", "1", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert "challenger" not in out
    assert "and 1 older" in out


def test_one_run_in_detail(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made(home, "r", done=7, rounds=30)
    assert status("r", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert "run r: train small hm1" in out
    assert "rounds: 7/30" in out
    assert "go on with fedlin train --resume r" in out
    assert re.search(r"^7 +main +4 of 5 +1 +0.2500 +1.50", out, re.MULTILINE)
    assert not re.search(r"^2 +main", out, re.MULTILINE)  # only the last ones


def test_json_is_one_object(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made(home, "r", done=1)
    assert status("--json", monkeypatch=monkeypatch) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert status("r", "--json", monkeypatch=monkeypatch) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone.pop("last_rounds") == [ROUND | {"round_num": 1}]
    assert alone == listed
    assert (listed["run_id"], listed["status"], listed["machine"], listed["most"]) == ("r", "interrupted", None, 3)


@pytest.mark.parametrize("run_id", ["nope", "..", "../runs/r", ""])
def test_an_unknown_run_is_misuse(run_id: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made(home, "r")
    assert status(run_id, monkeypatch=monkeypatch) == 2
    assert re.fullmatch(r"fedlin: error: no run '.*' in .*runs: fedlin status lists them\n", capsys.readouterr().err)


def test_without_runs_the_list_says_so(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "no runs yet: fedlin train begins one\n"


@pytest.mark.parametrize(("seconds", "shown"), [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (7199, "1 h"), (86400 * 3, "3 d")])
def test_an_age_is_in_its_largest_whole_unit(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


def test_an_ended_outcome_of_the_ledger_is_kept_beside_its_rounds(home: Path) -> None:
    folder = made(home, "r")
    state = RunState(1, 1, None, np.zeros(5, dtype=np.int64), np.zeros(5))
    saved = Checkpoint(state, (ROUND | {"round_num": 1},), Outcome("completed", "done", ok=True))
    folder.save(saved)
    assert folder.ledger() == (saved.history, saved.outcome)


def test_runs_in_an_object_store_and_those_of_another_machine(s3: Callable[[], UPath], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3()
    monkeypatch.setenv("FEDLIN_RUNS", str(bucket / "runs"))
    assert runs(Workspace(home)) == []
    folder = RunFolder(Workspace(home).runs / "r")
    folder.create({"command": "train", "given": {"dataset": "small", "algorithm": "hm1", "rounds": 3}}, {"devices": []})
    (found,) = runs(Workspace(home))
    assert (found.run_id, found.status) == ("r", "interrupted")
    assert abs((datetime.now(UTC) - found.began).total_seconds()) < 3600
    with folder.held():
        assert view(folder)._replace(changed=found.changed) == found._replace(status="running", machine=os.uname().nodename)
    create_file(bucket / "runs" / "r" / "run.lock", json.dumps({"host": "elsewhere"}).encode())
    assert (view(folder).status, view(folder).machine) == ("running", "elsewhere")


def test_what_is_piped_is_not_broken_into_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("run", "what", box=None)
    table.add_row("20261128T142446-17a2c0", "word " * 40)
    console().print(table)
    assert len(capsys.readouterr().out.splitlines()) == 2
