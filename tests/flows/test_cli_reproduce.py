"""`fedlin reproduce` as a person uses it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.data import import_file, load_fleet, open_dataset
from fedcore.data.contract import read_contract, write_contract
from fedcore.reproduce.engines import METHODS, chosen
from fedcore.reproduce.methods import scored
from flows.cli.app import main

SHIPPED = Path(__file__).parents[2] / "datasets/cmapss-fd001/dataset.toml"


def fedlin(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedlin", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code if isinstance(left.value.code, int) else 0


@pytest.fixture
def engines(home: Path, real_file: Callable[[str], Path]) -> Path:
    """The folder of the imported engines."""
    folder = home / "datasets/cmapss-fd001"
    folder.mkdir()
    shutil.copy(SHIPPED, folder)
    import_file(home / "datasets", real_file("train_FD001.txt"), "cmapss-fd001")
    return folder


@pytest.mark.slow
def test_simulations(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert fedlin("reproduce", "hm1-simulations", "--runs", "2", "--seed", "3", monkeypatch=monkeypatch) == 0
    out, err = capfd.readouterr()
    assert max(map(len, out.splitlines())) <= 100
    assert "8 of 8 runs" in err
    assert "(2 runs a cell, seed 3)" in " ".join(out.split())
    folder = home / "reproductions/hm1-simulations"
    assert sorted(file.name for file in folder.iterdir()) == ["figure.png", "report.md", "table.csv", "table.json"]
    document = json.loads((folder / "table.json").read_text())
    with (folder / "table.csv").open() as file:
        cells = list(csv.DictReader(file))
    assert [cell["part"] for cell in cells[::7]] == ["Case I", "Case II", "Case III", "Case IV"]
    assert sum(bool(cell["verdict"]) for cell in cells) == 12
    for case in ("Case II", "Case III"):
        curves = document["curves"][case]
        assert len(curves["Separate"]["mean"]) == 50
        assert 30 <= len(curves["HM1 explicit"]["mean"]) < 50, "the paper's step has become stable"
        assert len(curves["OLS"]["mean"]) == 1


@pytest.mark.slow
def test_engines(engines: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Also: a cell is what the contract's own split gives with the run's seed."""
    assert fedlin("reproduce", "cmapss", "--runs", "2", "--json", monkeypatch=monkeypatch) == 0
    out, _ = capfd.readouterr()
    told = json.loads(out)
    assert (told["name"], told["runs"], told["judged"]) == ("cmapss", 2, 40)
    assert told["folder"] == str(home / "reproductions/cmapss")
    cells = {(cell["table"].split(":")[0], cell["part"], cell["method"]): cell for cell in told["cells"]}
    assert all(cell["diverged"] == 2 for (_, _, method), cell in cells.items() if method == "HM1 explicit")
    own = {part: cell["mean"] for (table, part, method), cell in cells.items() if method == "Constant 0.5"}
    # The figures of an independent implementation.
    assert own == pytest.approx({"sensor 2": 0.223, "sensor 3": 0.221, "sensor 7": 0.232, "sensor 8": 0.237}, abs=0.001)
    separate = next(method for method in METHODS if method.label == "Separate")
    reached = []
    for seed in (0, 1):
        contract = read_contract(engines)
        write_contract(engines, contract.model_copy(update={"split": contract.split.model_copy(update={"seed": seed})}))
        fleet = load_fleet(open_dataset(engines.parent, "cmapss-fd001", target="sensor_3"))
        reached.append(scored(chosen(separate, fleet).thetas, [data.test for _, data in sorted(fleet.items())]))
    found = next(
        cell for (table, part, method), cell in cells.items() if (part, method) == ("sensor 3", "Separate") and "train" in cell["table"]
    )
    assert found["mean"] == pytest.approx(np.mean(reached), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "judged", "cells"), [("hm2-selection", 15, 21), ("hm2-uq", 0, 18)])
def test_hm2(name: str, judged: int, cells: int, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert fedlin("reproduce", name, "--runs", "2", "--json", monkeypatch=monkeypatch) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["name"], told["judged"], len(told["cells"])) == (name, judged, cells)
    folder = home / "reproductions" / name
    assert sorted(file.name for file in folder.iterdir()) == ["figure.png", "report.md", "table.csv", "table.json"]
    report = (folder / "report.md").read_text()
    assert ("phi: one run" in report) == (name == "hm2-uq")


@pytest.mark.slow
def test_students(home: Path, real_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (home / "datasets/student-por").mkdir()
    shutil.copy(SHIPPED.parents[1] / "student-por/dataset.toml", home / "datasets/student-por")
    assert fedlin("data", "import", str(real_file("student-por.csv")), "--dataset", "student-por", monkeypatch=monkeypatch) == 0
    capfd.readouterr()
    assert fedlin("reproduce", "student", "--runs", "2", "--json", monkeypatch=monkeypatch) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["name"], told["judged"], len(told["cells"])) == ("student", 24, 10 + 8 + 8)
    assert all(0.6 < cell["mean"] < 1.2 for cell in told["cells"] if cell["table"].startswith("A-RMSE"))


def test_students_that_are_not_imported(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert fedlin("reproduce", "student", monkeypatch=monkeypatch) == 2
    assert "data set 'student-por' is not imported: get student-por.csv" in capfd.readouterr().err


def test_engines_that_are_not_imported(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert fedlin("reproduce", "cmapss", monkeypatch=monkeypatch) == 2
    assert re.fullmatch(
        r"fedlin: error: data set 'cmapss-fd001' is not imported: .* fedlin data import train_FD001.txt --dataset cmapss-fd001\n",
        capfd.readouterr().err,
    )


@pytest.mark.parametrize("change", ["degree = 4 -> degree = 3", "train = 0.6 -> train = 0.5", "scale = 299 -> scale = 300"])
def test_another_experiment_is_refused(
    change: str, engines: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    contract = engines / "dataset.toml"
    before, after = change.split(" -> ")
    assert before in contract.read_text()
    contract.write_text(contract.read_text().replace(before, after))
    assert fedlin("reproduce", "cmapss", monkeypatch=monkeypatch) == 2
    assert re.fullmatch(r"fedlin: error: the contract of data set 'cmapss-fd001' is not the paper's set-up .*\n", capfd.readouterr().err)


def test_engines_that_are_missing(engines: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(engines / "device=7")
    assert fedlin("reproduce", "cmapss", monkeypatch=monkeypatch) == 2
    assert "has 99 of 100 engines" in capfd.readouterr().err


@pytest.mark.parametrize("words", [["hm1-simulations", "--runs", "1"], ["cmapss", "--seed", "-1"], ["hm3"]])
def test_misuse(words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert fedlin("reproduce", *words, monkeypatch=monkeypatch) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert not (home / "reproductions").exists()


def test_a_folder_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (home / "reproductions").write_text("a file in its place")
    assert fedlin("reproduce", "hm1-simulations", monkeypatch=monkeypatch) == 2
    assert re.fullmatch(r"fedlin: error: .*reproductions/hm1-simulations cannot be written .*\n", capfd.readouterr().err)
