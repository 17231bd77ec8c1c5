from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedcore.errors import DataError, Misuse
from flows.cli.data import app

CSV = "pump,hour,speed,flow\n" + "".join(f"{pump},{hour},{hour * 2.5},{7000 + hour}\n" for pump in range(12) for hour in range(4))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLIN_HOME", str(tmp_path))
    (tmp_path / "pumps.csv").write_text(CSV)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def import_pumps(home: Path) -> Result:
    return run("import", str(home / "pumps.csv"), "--dataset", "pumps", "--device", "pump", "--target", "flow")


def words_of(result: Result) -> list[str]:
    return result.stdout.replace("│", " ").split()


def test_import_and_check_print_what_there_is(home: Path) -> None:
    imported, checked = import_pumps(home), run("check", "pumps")
    assert (imported.exit_code, checked.exit_code) == (0, 0)
    assert imported.stdout == checked.stdout
    said = " ".join(words_of(checked))
    for line in ("devices 12", "training rows 48", "validation rows 0", "test rows 0", "features hour, speed", "target flow"):
        assert line in said
    assert str(home) not in checked.stdout


def test_check_names_ten_failures_and_counts_the_rest(home: Path) -> None:
    import_pumps(home)
    for pump in range(11):
        (home / f"datasets/pumps/device={pump}/part-0.parquet").write_bytes(b"")
    result = run("check", "pumps")
    assert isinstance(result.exception, Misuse)
    assert str(result.exception) == "data set 'pumps': 11 of 12 devices break the contract: correct or import them again"
    lines = result.stdout.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("device=") and "part-0.parquet: not a readable parquet file (0 bytes" in line for line in lines)


def test_list_shows_contracts(home: Path) -> None:
    assert "pumps" not in words_of(run("list"))
    import_pumps(home)
    contract = home / "datasets/pumps/dataset.toml"
    contract.write_text(contract.read_text().replace("Imported from", "[red]From"))
    assert " ".join(["pumps", "flow", "[red]From", "pumps.csv"]) in " ".join(words_of(run("list")))


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("check", "pumps"), Misuse, "no data set 'pumps' with a dataset.toml: choose one of those there (none yet), or import it first"),
        (("import", "nowhere.csv", "--dataset", "pumps", "--device", "a", "--target", "b"), Misuse, "nowhere.csv: cannot be read"),
        (("import", "pumps.csv", "--dataset", "pumps"), Misuse, "data set 'pumps' has no contract yet: name the device column"),
        (("import", "pumps.csv", "--dataset", "pumps", "--device", "a", "--target", "b"), DataError, "pumps.csv: device 'a' is not among"),
    ],
)
def test_errors_are_left_to_the_main_program(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kind: type[Misuse], message: str
) -> None:
    monkeypatch.chdir(home)
    result = run(*words)
    assert type(result.exception) is kind
    assert str(result.exception).startswith(message)
    assert not (home / "datasets").exists()


def test_a_missing_option_is_a_usage_error(home: Path) -> None:
    assert run("import", "pumps.csv").exit_code == 2
