from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedcore.data import open_dataset
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
    assert (
        str(result.exception)
        == "data set 'pumps': 11 of 12 devices break the contract: correct them, and bring them again with fedlin data import"
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("device=") and "part-0.parquet: not a readable parquet file (0 bytes" in line for line in lines)


def test_list_shows_contracts(home: Path) -> None:
    assert "pumps" not in words_of(run("list"))
    import_pumps(home)
    contract = home / "datasets/pumps/dataset.toml"
    contract.write_text(contract.read_text().replace("Imported from", "[red]From"))
    assert " ".join(["pumps", "flow", "[red]From", "pumps.csv"]) in " ".join(words_of(run("list")))


def test_list_shows_a_broken_contract_with_its_reason_among_the_others(home: Path) -> None:
    import_pumps(home)
    for name, text in {"a-broken": "device = ", "z-broken": 'device = "unit"\n'}.items():
        (home / "datasets" / name).mkdir()
        (home / "datasets" / name / "dataset.toml").write_text(text)
    result = run("list")
    said = " ".join(words_of(result))
    assert result.exit_code == 0
    assert "a-broken cannot be used: a-broken/dataset.toml: not TOML: Invalid value" in said
    assert "pumps flow Imported from pumps.csv" in said
    assert "z-broken cannot be used: z-broken/dataset.toml: target: Field required (and 3 more)" in said


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (
            ("check", "pumps"),
            Misuse,
            "no data set 'pumps' with a dataset.toml: choose one of those there (none yet), or bring it with fedlin data import",
        ),
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


def test_a_contract_first_then_devices_one_by_one(home: Path) -> None:
    inferred = run("infer", str(home / "pumps.csv"), "--dataset", "pumps", "--device", "pump", "--target", "flow")
    assert (
        inferred.stdout
        == "datasets/pumps/dataset.toml: 2 of 3 columns are features, the target is flow: edit it, then fedlin data import\n"
    )
    (home / "a.csv").write_text("hour,speed,flow\n1,2.5,7001\n2,5,7002\n")
    (home / "b.csv").write_text("hour,speed,flow\n3,2.5,7001\n")
    added = run("add", str(home / "a.csv"), "--dataset", "pumps", "--device", "a").stdout
    assert re.fullmatch(r"data set pumps: device=a/part-[0-9a-f]{16}.parquet with 2 rows\n", added)
    again = run("add", str(home / "a.csv"), "--dataset", "pumps", "--device", "a").stdout
    assert again == added.replace(" with 2 rows", " holds these 2 rows already: nothing changed")
    assert run("add", str(home / "b.csv"), "--dataset", "pumps", "--device", "a", "--append").exit_code == 0
    assert run("add", str(home / "b.csv"), "--dataset", "pumps", "--device", "b").exit_code == 0
    assert "training rows 4" in " ".join(words_of(run("check", "pumps")))
    assert run("remove", "pumps", "--device", "b").stdout == "data set pumps: device=b removed\n"
    assert "devices 1" in " ".join(words_of(run("check", "pumps")))


def test_a_file_may_bring_other_units_and_check_tells_of_versions(home: Path) -> None:
    run("infer", str(home / "pumps.csv"), "--dataset", "pumps", "--device", "pump", "--target", "flow")
    contract = home / "datasets/pumps/dataset.toml"
    text = contract.read_text()
    speed = '[columns.speed]\ntype = "float64"\nunit = '
    assert f'{speed}""' in text
    contract.write_text(text.replace(f'{speed}""', f'{speed}"m/s"'))
    imported = run("import", str(home / "pumps.csv"), "--dataset", "pumps", "--unit", "speed=km/h")
    assert imported.exit_code == 0
    assert "part files" not in imported.stdout
    assert max(open_dataset(home / "datasets", "pumps").load("3").train.X[:, 1]) == pytest.approx(7.5 / 3.6)
    contract.write_text(text.replace(f'{speed}""', f'{speed}"km/h"').replace("version = 1", "version = 2"))
    (home / "a.csv").write_text("hour,speed,flow\n9,2.5,7001\n")
    added = run("add", str(home / "a.csv"), "--dataset", "pumps", "--device", "3", "--append", "--unit", "speed=m/s", "--unit", "hour=s")
    assert str(added.exception) == "option unit: 'hour' has no unit to convert to: state it in [columns.hour]"
    assert run("add", str(home / "a.csv"), "--dataset", "pumps", "--device", "3", "--append", "--unit", "speed=m/s").exit_code == 0
    speeds = open_dataset(home / "datasets", "pumps").load("3").train.X[:, 1]
    assert sorted(speeds) == pytest.approx([0.0, 2.5, 5.0, 7.5, 9.0])
    said = " ".join(words_of(run("check", "pumps")))
    assert "part files of version 1 12 part files of version 2 1" in said


def test_describe_tells_counts_and_no_row(home: Path) -> None:
    import_pumps(home)
    # 4 rows a device: too few for ranges.
    document = json.loads(run("describe", "pumps", "--json").stdout.splitlines()[-1])
    assert {name: document[name] for name in ("name", "target", "devices", "n_train", "n_validation", "n_test")} == {
        "name": "pumps",
        "target": "flow",
        "devices": 12,
        "n_train": 48,
        "n_validation": 0,
        "n_test": 0,
    }
    assert document["columns"][0] == {"name": "hour", "type": "int64", "unit": "", "missing": 0, "low": None, "high": None}
    assert "700" not in run("describe", "pumps").stdout
    (home / "more.csv").write_text("hour,speed,flow\n9,9.5,8000\n")
    for pump in range(12):
        run("add", str(home / "more.csv"), "--dataset", "pumps", "--device", str(pump), "--append")
    assert "hour int64 0 3 to 3" in " ".join(words_of(run("describe", "pumps")))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("d;p;t\na;1,5;2,5\nb;1,0;2,0\n", ["--decimal", ","]),
        ("d|p|t\na|1.5|2.5\nb|1.0|2.0\n", ["--separator", "|"]),
        ("a 1.5\t2.5\nb  1.0 2.0\n", ["--separator", "whitespace", "--header", "d,p,t"]),
    ],
)
def test_infer_is_told_how_a_file_is_written(home: Path, text: str, options: list[str]) -> None:
    (home / "rows.csv").write_text(text)
    file = str(home / "rows.csv")
    assert run("infer", file, "--dataset", "new", "--device", "d", "--target", "t", *options).exit_code == 0
    assert run("import", file, "--dataset", "new").exit_code == 0
    assert open_dataset(home / "datasets", "new").load("a").train.X.tolist() == [[1.5]]
