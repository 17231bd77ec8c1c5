"""What commands share on a terminal: `--quiet` and `--json`, tables of 80 columns, no colour where none is wanted, completion."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from fedcore import Hm1
from fedcore.algorithm import FleetSpec
from fedcore.data import Dataset
from fedcore.rounds import RoundReport, RunState
from flows import progress
from flows.cli.app import app
from flows.progress import run_progress, say
from flows.terminal import console, quietly

FEDLIN = (sys.executable, "-m", "flows.cli.app")


def commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        else:
            yield *path, name


@pytest.mark.parametrize("path", list(commands(get_command(app))), ids=" ".join)  # pyright: ignore[reportArgumentType]
def test_every_command_is_quiet_and_tells_json_where_asked(path: tuple[str, ...]) -> None:
    command = get_command(app)
    for name in path:
        command = command.commands[name]  # pyright: ignore[reportAttributeAccessIssue]
    flags = [flag for each in command.params for flag in each.opts]
    assert flags.count("--quiet") == flags.count("-q") == 1
    assert flags.count("--json") == (path != ("site", "serve"))  # which has no end to tell of


def test_quiet_says_nothing_but_json_and_errors(home: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        told = CliRunner().invoke(app, list(words))
        return told.exit_code, told.output

    assert run("simulate", "demo", "--dataset", "a", "--quiet") == (0, "")
    code, told = run("simulate", "demo", "--dataset", "b", "-q", "--json")
    assert (code, json.loads(told)) == (0, {"name": "b", "devices": 100, "case": "demo", "seed": 0})
    assert run("data", "check", "a", "--quiet") == (0, "")
    assert json.loads(run("data", "check", "a", "--quiet", "--json")[1])["n_train"] > 0
    assert run("data", "list", "--quiet") == (0, "")
    assert [each["name"] for each in json.loads(run("data", "list", "--json")[1])["datasets"]] == ["a", "b"]
    assert "fedlin train" in run("status")[1]  # and it is over with the command that asked for it
    failed = subprocess.run([*FEDLIN, "data", "check", "c", "--quiet"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert failed.stderr.startswith("fedlin: error: no data set 'c'")


def test_quiet_is_about_progress_too(capsys: pytest.CaptureFixture[str]) -> None:
    def told() -> str:
        say("a note")
        with run_progress(3, 0) as shown:
            shown.say("a line")
        return "".join(capsys.readouterr())

    assert told().split("\n") == ["a note", "a line", ""]
    with quietly():
        assert told() == ""


def test_the_bar_says_what_a_run_does_in_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(progress, "console", lambda **_: Console(width=80, force_terminal=True, file=written))
    state = RunState.initial(Hm1(), FleetSpec(("a", "b"), 3))
    cohort = tuple(range(2000))
    with run_progress(1000, 0) as bar:
        for done in (1, 2):
            bar.show(RoundReport(done, "main", cohort, cohort[1:], {}, state._replace(main_rounds=done), 0.123456, {}, 0, 0, None), {})
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue()))
    assert max(map(len, lines)) <= 80
    last = [line for line in lines if line][-1]
    assert re.fullmatch(r"round +2/1000 .+ 1999 of 2000 answered, loss 0\.1235 \d+:\d\d:\d\d left", last)


@pytest.mark.parametrize("words", [("data", "check", "small"), ("data", "describe", "small"), ("data", "list"), ("status",), ("runs",)])
def test_tables_fit_eighty_columns(
    words: tuple[str, ...], home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet()
    monkeypatch.setenv("COLUMNS", "80")
    told = CliRunner().invoke(app, list(words))
    assert told.exit_code == 0
    assert all(len(line) <= 80 for line in told.output.splitlines())
    assert "…" not in told.output


@pytest.mark.parametrize("no_color", [True, False])
def test_colours_are_left_out_where_none_are_wanted(no_color: bool, environment: dict[str, str]) -> None:
    """On a terminal; what is bold stays so."""
    leader, follower = pty.openpty()
    told = environment | {"TERM": "xterm-256color", "COLUMNS": "80"} | ({"NO_COLOR": "1"} if no_color else {})
    subprocess.run([*FEDLIN, "status", "--help"], env=told, stdout=follower, stderr=follower, check=True)
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # at its end
        while more := os.read(leader, 1 << 16):
            shown += more
    os.close(leader)
    assert "--last" in re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", shown.decode())) != no_color


def test_shells_complete_commands(environment: dict[str, str]) -> None:
    shell = environment | {"_FEDLIN_COMPLETE": "complete_bash", "COMP_WORDS": "fedlin data de", "COMP_CWORD": "2"}
    main = "import sys; sys.argv = ['fedlin', *sys.argv[1:]]; from flows.cli.app import main; main()"

    def run(env: dict[str, str], *words: str) -> str:
        return subprocess.run([sys.executable, "-c", main, *words], env=env, capture_output=True, text=True, check=True).stdout

    assert run(shell).split() == ["describe"]
    assert "_FEDLIN_COMPLETE=complete_bash" in run(environment, "--show-completion", "bash")
    run(environment, "--install-completion", "bash")
    assert (Path(environment["HOME"]) / ".bash_completions/fedlin.sh").is_file()


def test_wrong_use_names_the_help(environment: dict[str, str]) -> None:
    failed = subprocess.run([*FEDLIN, "data", "import"], env=environment, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert re.fullmatch(r"fedlin: error: Missing argument 'file'\. \(\S.* data import --help says what it takes\)\n", failed.stderr)


def test_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("[red]a[/red]")
    assert capsys.readouterr().out == "[red]a[/red]\n"
