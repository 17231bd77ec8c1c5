"""`--help` by task, with examples that the command line takes; completion."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from flows.cli.app import app

TOP: Any = typer.main.get_command(app)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command with its words."""
    yield path, group
    if isinstance(group, TyperGroup):
        for name, command in group.commands.items():
            yield from commands(command, (*path, name))


COMMANDS = dict(commands(TOP))
EXAMPLES = [
    (path, line.strip())
    for path, command in COMMANDS.items()
    for line in (command.epilog or "").splitlines()
    if line.strip().startswith("fedlin ")
]


@pytest.mark.parametrize(("path", "example"), EXAMPLES)
def test_examples_are_taken(path: tuple[str, ...], example: str) -> None:
    """Up to the command's own work: words, options and their types."""
    words = shlex.split(example, comments=True)[1:]
    assert tuple(words[: len(path)]) == path
    if words == ["COMMAND", "--help"]:
        return
    command, given = TOP, words
    while isinstance(command, TyperGroup):
        command, given = command.commands[given[0]], given[1:]
    command.make_context(words[0], list(given))


def test_commands_are_grouped_by_task() -> None:
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert told.exit_code == 0
    groups = ["─ Data ─", "─ Learn ─", "─ Use what was learned ─", "─ Operate ─", "─ The paper ─"]
    places = [told.output.index(group) for group in groups]
    assert places == sorted(places)
    assert "─ Commands ─" not in told.output
    assert all(len(line) <= 80 for line in told.output.splitlines())


def test_most_commands_have_examples() -> None:
    without = {path for path, command in COMMANDS.items() if not command.epilog}
    assert {path for path in without if path[:1] not in (("data",), ("reproduce",))} == {("doctor",)}


def test_the_version_needs_no_command() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.output.split()[0]) == (0, "fedlin")


def test_completion_completes(tmp_path: Path) -> None:
    environment = {"_FEDLIN_COMPLETE": "complete_bash", "COMP_WORDS": "fedlin retr", "COMP_CWORD": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'fedlin'; from flows.cli.app import main; main()"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(command, env=environment | {"PYTHONPATH": root}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["retrain"], done.stderr
