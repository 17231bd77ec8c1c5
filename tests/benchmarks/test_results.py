"""The benchmarks' harness; nothing is measured here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path

import pytest
import typer

from benchmarks.page import figure, render
from benchmarks.programs import peer, peer_versions, present
from benchmarks.results import KEPT, Bar, Cell, LeftOut, Machine, Part, Results, medians, ratio, verdicts
from benchmarks.running import PARTS, check_folder, in_own_process, keep_whole, run

ROOT = Path(__file__).parents[2]
FIRST, SECOND, THIRD = PARTS[:3]


def part(name: str, *bars: Bar, rows: tuple[tuple[Cell, ...], ...] = (("ours", 0.5, 1234.5),)) -> Part:
    return Part(
        name=name, title="A title", about="What was done.", columns=("program", "ratio", "ms"), rows=rows, bars=bars, notes=("A note.",)
    )


def measured(name: str, quick: bool) -> Part:
    return part(name, Bar(what="ours / theirs", value=0.5, limit=1.0))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    this = Machine(cpu="a processor", cores=2, memory_gb=8.0, system="a system", blas="a BLAS", versions={"numpy": "1"}, peers={})
    monkeypatch.setattr("benchmarks.running.machine", lambda: this)
    monkeypatch.setattr("benchmarks.running.commit", lambda: "abc")
    monkeypatch.setattr("benchmarks.running.pace", lambda: [150.0])
    return this


def test_the_page_has_bars_ratios_and_circumstances(tmp_path: Path) -> None:
    bars = (
        Bar(what="met", value=1.0, limit=1.0),
        Bar(what="over", value=1.26, limit=1.25),
        Bar(what="absent", value=None, limit=2.0),
    )
    run(FIRST, False, tmp_path, lambda name, _: part(name, *bars, rows=(("ours", None, 0.012345), ("theirs", 2, 1234.5))))
    page = (tmp_path / "RESULTS.md").read_text()
    assert f"| [{FIRST}](#{FIRST}) | met | 1 | 1 | met |" in page
    assert f"| [{FIRST}](#{FIRST}) | over | 1.26 | 1.25 | **not met** |" in page
    assert f"| [{FIRST}](#{FIRST}) | absent | - | 2 | not measured |" in page
    assert "| program | ratio | ms |\n|---|---:|---:|\n| ours | - | 0.0123 |\n| theirs | 2 | 1,234 |\n" in page
    assert "a processor, 2 cores" in page
    assert "on commit abc" in page
    assert "- peers: none is installed" in page
    assert "- A note." in page


def test_a_part_that_fails_keeps_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(name: str, quick: bool) -> Part:
        raise RuntimeError("no such file: /home/somebody/secret/rows.npz\nand more")

    run(FIRST, True, tmp_path, measured)
    assert run(SECOND, True, tmp_path, fails).left_out == "failed: RuntimeError: no such file: rows.npz and more"
    run(THIRD, True, tmp_path, measured)
    found = Results.read(tmp_path / "results.json")
    assert [(entry.name, entry.part is not None) for entry in found.entries] == [(FIRST, True), (SECOND, False), (THIRD, True)]
    assert f"- {SECOND} (" in (tmp_path / "RESULTS.md").read_text()
    assert "Traceback" in capsys.readouterr().err


def test_a_part_that_cannot_run_says_why(tmp_path: Path) -> None:
    def cannot(name: str, quick: bool) -> Part:
        raise LeftOut("R is not installed")

    entry = run(FIRST, True, tmp_path, cannot)
    assert (entry.part, entry.left_out) == (None, "R is not installed")
    assert "UTC): R is not installed\n" in (tmp_path / "RESULTS.md").read_text()


def test_a_part_replaces_only_itself(tmp_path: Path) -> None:
    run(SECOND, False, tmp_path, measured)
    run(FIRST, False, tmp_path, measured)
    before = Results.read(tmp_path / "results.json")
    run(SECOND, True, tmp_path, lambda name, _: part(name, Bar(what="new", value=2.0, limit=1.0)))
    after = Results.read(tmp_path / "results.json")
    assert [entry.name for entry in after.entries] == [FIRST, SECOND]
    assert after.entries[0] == before.entries[0]
    assert after.entries[1].quick
    assert render(after) == (tmp_path / "RESULTS.md").read_text()


def test_the_page_tells_what_whole_runs_found(tmp_path: Path) -> None:
    for i in range(KEPT + 2):

        def found(name: str, quick: bool, value: float = float(i)) -> Part:
            return part(name, Bar(what="ours / theirs", value=value, limit=3.0))

        keep_whole([run(name, False, tmp_path, found) for name in (FIRST, SECOND)], tmp_path)
    run(FIRST, False, tmp_path, lambda name, _: part(name, Bar(what="another bar", value=0.0, limit=1.0)))
    page = (tmp_path / "RESULTS.md").read_text()
    assert f"| [{FIRST}](#{FIRST}) | another bar | 0 | 1 | met | - / - / - / - / - |" in page
    assert f"| [{SECOND}](#{SECOND}) | ours / theirs | 6 | 3 | **not met** | 2 / 3 / 4 / 5 / 6 |" in page
    told = [line for line in page.splitlines() if " bars met" in line]
    assert [line.rpartition(": ")[2] for line in told] == ["2 of 2 bars met"] * 2 + ["0 of 2 bars met"] * 3
    assert all(", commit abc, a processor, JSON there and back in 150 ms: " in line for line in told)


def test_parts_of_two_machines_are_told_apart(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    run(FIRST, False, tmp_path, measured)
    monkeypatch.setattr("benchmarks.running.machine", lambda: machine.model_copy(update={"cpu": "another"}))
    run(SECOND, False, tmp_path, measured)
    page = (tmp_path / "RESULTS.md").read_text()
    assert f"{FIRST}:\n\n- a processor" in page
    assert f"{SECOND}:\n\n- another" in page


def test_a_part_runs_in_a_process_of_its_own() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        in_own_process("nowhere", True)


def test_a_part_that_is_not_there_is_refused() -> None:
    words = [sys.executable, "-m", "benchmarks", "nowhere"]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no part 'nowhere': choose of rounds, " in done.stderr


def test_a_server_that_does_not_answer_is_told_in_a_line() -> None:
    words = [sys.executable, "-m", "benchmarks", "--quick", "where"]
    environment = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no Prefect server answers at PREFECT_API_URL=")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_part_that_is_interrupted_leaves_nothing_behind(number: int, status: int, tmp_path: Path) -> None:
    """No process that goes on measuring, and no folder of files that were made for it."""
    words, environment = [sys.executable, "-m", "benchmarks", "--quick", "partitions"], os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, restore_signals=True) as measuring:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("tmp*/*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        measuring.send_signal(number)
        _, err = measuring.communicate(timeout=300)
    assert measuring.returncode == status, err
    assert "Traceback" not in err
    assert list(tmp_path.glob("tmp*")) == []


@pytest.mark.parametrize(("content", "why"), [("{}x", "is damaged"), (None, "cannot be written")])
def test_what_could_not_be_kept_is_not_measured(content: str | None, why: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    if content is None:
        folder.write_text("")
    else:
        folder.mkdir()
        (folder / "results.json").write_text(content)
    with pytest.raises(typer.BadParameter, match=why):
        check_folder(folder)


def test_peers_that_are_absent_are_left_out_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.programs.ENVIRONMENT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    runs, notes = present(dict.fromkeys(("ours", "python", "r"), float), {"python": "nuts.py", "r": "mixed.R"})
    assert list(runs) == ["ours"]
    assert [note.split(":")[0] for note in notes] == ["python was left out", "r was left out"]
    with pytest.raises(LeftOut, match="R is not installed"):
        peer("mixed.R")


def test_peers_whose_environment_is_half_made_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr("benchmarks.programs.ENVIRONMENT", tmp_path)
    with pytest.raises(LeftOut, match="peers' environment is not there"):
        peer("nuts.py")


def test_versions_of_peers_that_cannot_say_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to("/bin/false")
    (tmp_path / ".ready").touch()
    monkeypatch.setattr("benchmarks.programs.ENVIRONMENT", tmp_path)
    assert set(peer_versions()) <= {"R", "lme4"}


def test_programs_take_turns_in_drawn_orders() -> None:
    seen: list[str] = []

    def program(name: str, *times: float) -> float:
        seen.append(name)
        return times[(seen.count(name) - 1) % len(times)]

    runs = {"a": lambda: program("a", 1.0, 5.0, 3.0), "b": lambda: program("b", 2.0, 2.0, 8.0), "c": lambda: program("c", 1.0)}
    found = medians(runs, 3)
    assert list(found.items()) == [("a", 3.0), ("b", 2.0), ("c", 1.0)]
    assert found.runs == {"a": [1.0, 5.0, 3.0], "b": [2.0, 2.0, 8.0], "c": [1.0, 1.0, 1.0]}
    assert all(set(seen[turn : turn + 3]) == set(runs) for turn in (0, 3, 6))
    medians(runs, 97)
    followed = Counter(pairwise(seen))
    assert min(followed[a, b] for a, b in permutations(runs, 2)) > 10, "one program always comes after the same"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [(None, "-"), (0.0, "0"), (0.0012345, "0.00123"), (999.4, "999"), (12345.6, "12,346"), (10000, "10,000"), ("3 of 3", "3 of 3")],
)
def test_figures(cell: Cell, shown: str) -> None:
    assert figure(cell) == shown


def test_a_ratio_to_what_is_absent_is_not_known() -> None:
    assert ratio(1.0, 4.0) == 0.25
    assert ratio(1.0, None) is None


def test_the_lock_has_hashes_and_no_address() -> None:
    lock = (ROOT / "benchmarks/requirements.lock").read_text()
    assert not re.search(r"://|--index-url|--find-links", lock)
    pinned = re.split(r"\n(?=\S)", lock.strip())
    assert len(pinned) > 50
    assert all("==" in each and "--hash=sha256:" in each for each in pinned)


@pytest.mark.parametrize("name", ["RESULTS.md", "results.json"])
def test_what_is_kept_names_no_place(name: str) -> None:
    file = ROOT / "benchmarks" / name
    text = file.read_text() if file.exists() else ""
    assert not re.search(r"(?<![\w.:/])/(?:home|root|tmp|work|usr|opt|var|Users)/", text)


def test_a_run_ends_with_the_bars_that_are_not_met(tmp_path: Path) -> None:
    met, over, absent = (Bar(what=f"of {value}", value=value, limit=1.0) for value in (1.0, 1.5, None))
    first = run(FIRST, True, tmp_path, lambda name, _: part(name, met, over))
    second = run(SECOND, True, tmp_path, lambda name, _: part(name, met, absent))
    assert verdicts([first, second]) == f"2 of 4 bars are met; not met:\n  {FIRST}: of 1.5\n  {SECOND}: of None"
    assert verdicts([run(THIRD, True, tmp_path, measured)]) == "1 of 1 bars are met"
