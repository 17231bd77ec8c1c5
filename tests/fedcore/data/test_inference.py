from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedcore.data import import_file, infer_contract, open_dataset, places, read_contract
from fedcore.errors import DataError, Misuse

CSV = "pump;hour;speed;kind;flow\n" + "".join(f"0{i % 3};{i};{i}.5;axial;{7000 + i}\n" for i in range(9))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "pumps.csv").write_text(CSV)
    return tmp_path / "pumps.csv"


def test_only_a_contract_is_written_and_import_takes_it(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "sets"
    contract = infer_contract(root, source, "pumps", device="pump", target="flow")
    assert [str(path.relative_to(root)) for path in sorted(root.rglob("*"))] == ["pumps", "pumps/dataset.toml"]
    assert read_contract(root / "pumps") == contract
    assert (contract.device, contract.target, contract.features) == ("pump", "flow", ("hour", "speed"))
    kinds = {"hour": "int64", "speed": "float64", "kind": "string", "flow": "int64"}
    assert {name: column.type for name, column in contract.columns.items()} == kinds
    assert contract.file.separator == ";"
    assert import_file(root, source, "pumps").device_ids == ("00", "01", "02")


def test_what_a_person_edits_counts(source: Path, tmp_path: Path) -> None:
    infer_contract(tmp_path, source, "pumps", device="pump", target="flow")
    file = tmp_path / "pumps/dataset.toml"
    file.write_text(file.read_text().replace("intercept = false", "intercept = true"))
    assert import_file(tmp_path, source, "pumps").design_names == ("intercept", "hour", "speed")


def test_an_import_without_contract_writes_the_same_one(tmp_path: Path) -> None:
    source = tmp_path / "pumps.csv"
    source.write_text(CSV.replace(";axial", "").replace(";kind", ""))
    inferred = infer_contract(tmp_path / "one", source, "pumps", device="pump", target="flow")
    assert import_file(tmp_path / "other", source, "pumps", device="pump", target="flow").contract == inferred
    assert (tmp_path / "one/pumps/dataset.toml").read_bytes() == (tmp_path / "other/pumps/dataset.toml").read_bytes()


def test_a_type_holds_for_all_rows_and_not_the_first_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_BLOCK", 32)
    rows = [f"1,{i},{i},{i},{i}\n" for i in range(20)] + ["1,0.5,x,,9\n"] + [f"1,{i},{i},{i},{i}\n" for i in range(20)]
    (tmp_path / "rows.csv").write_text("id,a,b,c,y\n" + "".join(rows))
    contract = infer_contract(tmp_path, tmp_path / "rows.csv", "demo", device="id", target="y")
    assert {name: column.type for name, column in contract.columns.items()} == {"a": "float64", "b": "string", "c": "int64", "y": "int64"}


def test_a_folder_needs_no_device_column(tmp_path: Path) -> None:
    folder = tmp_path / "readings"
    folder.mkdir()
    (folder / "a.csv").write_text("hour;flow\n1;7000\n")
    (folder / "b.csv").write_text("flow;hour\n7000.5;2\n")
    contract = infer_contract(tmp_path, folder, "pumps", device=None, target="flow")
    assert (contract.device, contract.features, contract.columns["flow"].type) == ("device", ("hour",), "float64")
    dataset = import_file(tmp_path, folder, "pumps")
    assert dataset == open_dataset(tmp_path, "pumps")
    assert dataset.load("b").train.X.tolist() == [[2]]


@pytest.mark.parametrize(
    ("text", "options", "kind", "message"),
    [
        (CSV, {"device": None, "target": "flow"}, Misuse, "data set 'pumps' has no contract yet: name the device column"),
        (CSV, {"device": "unit", "target": "flow"}, DataError, "pumps.csv: device 'unit' is not among its 5 columns"),
        (CSV, {"device": "pump", "target": "head"}, DataError, "pumps.csv: target 'head' is not among its 5 columns"),
        (CSV.replace(".5", ",5").replace(";kind", "").replace(";axial", ""), {"device": "pump", "target": "hour"}, None, ""),
        ("pump;speed;flow\n1;1,5;7000\n", {"device": "pump", "target": "flow"}, DataError, "pumps.csv: 2 columns beside the device"),
    ],
)
def test_what_leaves_no_contract_writes_nothing(
    source: Path, tmp_path: Path, text: str, options: dict[str, Any], kind: type[Misuse] | None, message: str
) -> None:
    source.write_text(text)
    if kind is None:
        # Decimal commas are not guessed: such a column is text until the contract says otherwise.
        assert infer_contract(tmp_path, source, "pumps", **options).columns["speed"].type == "string"
        return
    with pytest.raises(kind) as caught:
        infer_contract(tmp_path / "sets", source, "pumps", **options)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "sets").exists()


def test_a_contract_that_is_there_is_left_alone(source: Path, tmp_path: Path) -> None:
    infer_contract(tmp_path, source, "pumps", device="pump", target="flow")
    before = (tmp_path / "pumps/dataset.toml").read_bytes()
    with pytest.raises(Misuse, match=r"^data set 'pumps' has a dataset.toml already: edit that one"):
        infer_contract(tmp_path, source, "pumps", device="pump", target="hour")
    assert (tmp_path / "pumps/dataset.toml").read_bytes() == before
