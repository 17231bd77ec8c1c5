"""The log of runs: JSON lines with run, round and device on request, nothing otherwise, and never what an error of a device's own said."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fedcore.data import Dataset
from fedcore.errors import Misuse
from flows.cli.app import main
from flows.config import read_config
from flows.logs import FILE, LOGGER, Lines, about, log, logged
from flows.orchestrator import Orchestrator
from flows.progress import say, say_unanswered
from flows.train import train
from tasks import device
from tasks.checkpoint import RunFolder
from tasks.tracking.runs import logger as tracking


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIN_LOG", "json")


def test_a_line_has_what_it_is_about_and_its_own_fields(asked: None, capsys: pytest.CaptureFixture[str]) -> None:
    with about(run="r"), about(round=3):
        log(logging.WARNING, "silent", "no answer,\n from it", device="b")
    (line,) = lines(capsys.readouterr().err)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
    assert line == {"level": "warning", "event": "silent", "message": "no answer, from it", "run": "r", "round": 3, "device": "b"}
    assert not LOGGER.handlers
    assert LOGGER.propagate


def test_without_being_asked_for_nothing_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("FEDLIN_LOG", raising=False)
    with logged("r", tmp_path):
        log(logging.ERROR, "stopped", "nothing")
        say("for people")
    assert capsys.readouterr().err == "for people\n"
    assert not caplog.records
    assert not (tmp_path / FILE).exists()


def test_warnings_of_other_rooms_are_about_the_run_too(asked: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logged("r", tmp_path, dataset="small"), about(round=2):
        tracking.warning("the store %s is away", "sqlite://")
    kept = lines((tmp_path / FILE).read_text())
    assert lines(capsys.readouterr().err) == kept
    assert [(each["event"], each["run"]) for each in kept] == [("begun", "r"), ("message", "r")]
    assert (kept[0]["dataset"], kept[1]["round"], kept[1]["message"]) == ("small", 2, "the store sqlite:// is away")


def test_a_run_within_a_run_has_its_own_file(asked: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with logged("a", tmp_path / "a"):
        with logged("b", tmp_path / "b"):
            log(logging.INFO, "round", "of b")
        log(logging.INFO, "round", "of a")
    assert {each["run"] for each in lines((tmp_path / "a" / FILE).read_text())} == {"a"}
    assert {each["run"] for each in lines((tmp_path / "b" / FILE).read_text())} == {"b"}
    assert len(lines(capsys.readouterr().err)) == 4


@pytest.mark.parametrize(("error", "why"), [(Misuse("restore it"), "restore it"), (ValueError("SECRET 17.5"), "unexpected ValueError")])
def test_why_a_run_stopped_is_logged_and_no_text_of_others(
    error: Exception, why: str, asked: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), logged("r", tmp_path):
        raise error
    last = lines(capsys.readouterr().err)[-1]
    assert (last["level"], last["event"], last["message"], last["kind"]) == ("error", "stopped", why, type(error).__name__)


def test_a_number_that_is_not_finite_is_no_json() -> None:
    record = logging.makeLogRecord({"msg": "x", "fields": {"loss": float("nan")}})
    with pytest.raises(ValueError, match="Out of range"):
        Lines().format(record)


def test_the_command_line_says_misuse_as_json_too(
    asked: None, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedlin", "status", "nope"])
    with pytest.raises(SystemExit, match="2"):
        main()
    (line,) = lines(capsys.readouterr().err)
    assert (line["level"], line["event"], line["status"]) == ("error", "failed", 2)
    assert line["message"].startswith("no run 'nope' in ")


def test_another_kind_of_log_is_misuse(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FEDLIN_LOG", "yaml")
    monkeypatch.setattr(sys, "argv", ["fedlin", "status"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == "fedlin: error: FEDLIN_LOG is json or not set, got 'yaml': unset it for lines that people read\n"


def test_a_run_with_a_device_that_fails_is_told_line_by_line(
    asked: None,
    server: Orchestrator,
    home: Path,
    fleet: Callable[..., Dataset],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = fleet()
    original = device._steps

    def failing(station: Any, ids: Any, ready: Any) -> Any:
        if "b" in ids:
            part = pl.read_parquet(station.dataset.path / "device=b/part-0.parquet", hive_partitioning=False)
            raise ValueError(f"SECRET {part.row(0)}")
        return original(station, ids, ready)

    monkeypatch.setattr(device, "_steps", failing)
    monkeypatch.setattr(device.device_update, "retries", 0)
    train(read_config({"dataset": "small", "rounds": 2, "options": {"alpha": 0.2}}), run_id="r", return_state=True)
    told = lines(capsys.readouterr().err)
    assert [each["event"] for each in told] == ["begun", "silent", "round", "silent", "round", "ended"]
    assert {each["run"] for each in told} == {"r"}
    begun, silent, round_, *_, ended = told
    assert (begun["command"], begun["dataset"], begun["algorithm"]) == ("train", "small", "hm1")
    assert (silent["level"], silent["device"], silent["round"]) == ("warning", "b", 1)
    assert (round_["round"], round_["cohort"], round_["answered"]) == (1, 5, 4)
    assert (ended["level"], ended["outcome"], ended["rounds"]) == ("info", "completed", 2)
    kept = (home / "runs/r" / FILE).read_text()
    assert lines(kept) == told
    rows = [pl.read_parquet(dataset.path / f"device={each}/part-0.parquet", hive_partitioning=False) for each in dataset.device_ids]
    values = {repr(value) for frame in rows for row in frame.rows() for value in row}
    assert "SECRET" not in kept
    assert not [value for value in values if len(value) > 6 and value in kept]
    assert "ValueError" in silent["message"]
    assert RunFolder(home / "runs/r").held_by() is None


def test_a_reason_that_several_devices_have_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    away = dict.fromkeys(("a", "b"), "site north: away")
    say_unanswered("result", away | {each: f"device {each}: no" for each in "cdef"})
    told = ["no result, site north: away (2 devices)", "no result, device c: no", "no result, device d: no", "no result, and 2 more"]
    assert capfd.readouterr().err.splitlines() == told
