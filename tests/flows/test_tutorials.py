"""Each tutorial's commands are run, in order, in one shell, and print what the tutorial shows.

With FEDLIN_TUTORIALS=write what they print is put into the tutorials instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from flows.orchestrator import Orchestrator

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
NEEDS = {
    "condition-monitoring": "train_FD001.txt",
    "variable-selection": "student-por.csv",
    "new-device": None,
    "scheduled-retraining": None,
}
"""Tutorials, and the file of real data that one starts from."""

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BREAK = "----- a block ends here -----"
VARIES = re.compile(
    r"\d{8}T\d{6}-[0-9a-f]{6}"  # run ids
    r"|\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)"  # times
    r"|\d+\.\d s\b"
    r"|recorded \d+ of \d+"  # Prefect may be late
    r"|part-[0-9a-f]{16}"  # the digest of simulated rows, whose last bits depend on the make of the processor
)
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")


class Block(NamedTuple):
    """Commands, and the place in the text of what they print, if the tutorial shows it."""

    script: str
    shown: tuple[int, int] | None


def read_blocks(text: str) -> list[Block]:
    """The commands of a tutorial, in order; what a `text` block shows is printed by the commands before it."""
    blocks: list[Block] = []
    for fence in FENCE.finditer(text):
        kind, content = fence.groups()
        if kind == "sh":
            blocks.append(Block(content, None))
        elif kind == "python":
            blocks.append(Block(f"python - <<'END'\n{content}END\n", None))
        elif kind == "text":
            assert blocks, "a tutorial shows what nothing has printed"
            assert blocks[-1].shown is None, "a tutorial shows twice what was printed once"
            blocks[-1] = Block(blocks[-1].script, fence.span(2))
        else:
            assert kind == "yaml", f"a block of {kind}: write sh, python, or text for what they print"
    return blocks


def run(blocks: list[Block], folder: Path, environment: dict[str, str]) -> list[str]:
    """What each block prints on standard output."""
    ended = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"  # what a tutorial leaves running, if it fails
    script = ended + "".join(f"{block.script}echo '{BREAK}'\n" for block in blocks)
    done = subprocess.run(["bash", "-eu", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return [printed.lstrip("\n") for printed in done.stdout.split(BREAK)[:-1]]


def words(text: str) -> list[str]:
    """What matters of an output: not spaces, nor the length of lines, nor what no two runs have in common."""
    return re.sub(r"[─━┃│┏┓┗┛┡┩├┤╇┳┻┬┴┼┌┐└┘]+", " ", VARIES.sub("VARIES", text)).split()


def same(shown: str, printed: str) -> bool:
    """Whether two words are one, or numbers that are equal to 1 %."""
    if shown == printed:
        return True
    forms, numbers = zip(
        *((NUMBER.sub("#", word), [float(n.group()) for n in NUMBER.finditer(word)]) for word in (shown, printed)), strict=True
    )
    return forms[0] == forms[1] and numbers[0] == pytest.approx(numbers[1], rel=0.01)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with the project's contracts, as a reader has it."""
    folder = tmp_path_factory.mktemp("project")
    for contract in (ROOT / "datasets").glob("*/dataset.toml"):
        (folder / "datasets" / contract.parent.name).mkdir(parents=True)
        shutil.copy(contract, folder / "datasets" / contract.parent.name)
    (folder / "user").mkdir()
    return folder


def test_every_tutorial_is_run() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {*NEEDS, "index"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_a_tutorial_prints_what_it_shows(name: str, project: Path, server: Orchestrator, real_file: Callable[[str], Path]) -> None:
    if file := NEEDS[name]:
        (project / file).symlink_to(real_file(file))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_", "FEDLIN_"))}
    environment = kept | {
        "HOME": str(project / "user"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PREFECT_API_URL": server.api_url,
        "COLUMNS": "100",
        "FEDLIN_ACTOR": "ops@plant",
    }
    page = TUTORIALS / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    blocks = read_blocks(text)
    printed = run(blocks, project, environment)
    if os.environ.get("FEDLIN_TUTORIALS") == "write":
        for block, output in reversed(list(zip(blocks, printed, strict=True))):
            if block.shown:
                text = text[: block.shown[0]] + output.rstrip() + "\n" + text[block.shown[1] :]
        page.write_text(text, encoding="utf-8")
        return
    for block, output in zip(blocks, printed, strict=True):
        if block.shown:
            shown = text[slice(*block.shown)]
            told, expected = words(output), words(shown)
            assert len(told) == len(expected), f"{block.script}{output}"
            assert all(map(same, expected, told)), f"{block.script}{output}"
