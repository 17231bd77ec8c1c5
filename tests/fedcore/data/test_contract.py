from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedcore.data import Contract, read_contract, write_contract
from fedcore.data.contract import parse_contract
from fedcore.errors import DataError

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"file": {"separator": "whitespace", "header": ["y", "unit", "a", "b", "note"]}},
        {"feature_map": {"kind": "polynomial", "feature": "a", "degree": 3, "origin": 1, "scale": 0.1}, "intercept": True},
        {"split": {"kind": "time", "column": "a", "train": 0.6, "validation": 0.2, "seed": 2**63 - 1}},
        {"split": {"kind": "random", "train": 0.6}, "scaling": {"features": "train", "target": "own"}},
        {"features": ["a", "note", "b"], "categories": {"note": {"unknown": "own"}}, "interactions": [["a", "b"]]},
        {"features": ["note"], "categories": {"note": {"reference": ""}}, "missing": {"policy": "mean"}, "scaling": {"features": "global"}},
        {"split": {"kind": "column", "column": "note"}, "description": 'a "quoted" line\nand another'},
    ],
)
def test_a_contract_reads_back_as_it_was_written(demo: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    contract = demo.contract(**changes)
    write_contract(tmp_path, contract)
    assert read_contract(tmp_path) == contract
    assert [path.name for path in tmp_path.iterdir()] == ["dataset.toml"]


def test_targets_default_to_the_target(demo: Any) -> None:
    assert demo.contract().targets == ("y",)


def test_design_names_put_powers_in_the_place_of_their_feature(demo: Any) -> None:
    contract = demo.contract(intercept=True, feature_map={"kind": "polynomial", "feature": "a", "degree": 2})
    assert contract.design_names == ("intercept", "a^1", "a^2", "b")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"features": ["a", "c"]}, "features: 'c' is not declared: add [columns.c]"),
    ({"features": ["a", "note"], "split": {"kind": "column", "column": "note"}}, "split.column: 'note' is a feature too"),
    ({"feature_map": {"kind": "polynomial", "feature": "note", "degree": 2}, "features": ["note"]}, "feature_map.feature: 'note' is a str"),
    ({"interactions": [["a", "note"]], "features": ["a", "note"]}, "interactions: 'note' is not a numeric feature"),
    ({"interactions": [["a", "b"], ["b", "a"]]}, "interactions: a pair comes twice"),
    ({"interactions": [["a"]]}, "interactions.0.1: "),
    ({"categories": {"note": {}}}, "categories: 'note' is not a string column among the features"),
    ({"categories": {"note": {"unknown": "guess"}}, "features": ["note"]}, "categories.note.unknown: "),
    ({"missing": {"policy": "median"}}, "missing.policy: "),
    ({"features": ["a", "y"]}, "features: 'y' is a target too"),
    ({"features": ["a", "a"]}, "features: two columns of the design have the same name"),
    ({"features": []}, "features: "),
    ({"target": "z"}, "targets: 'z' is not declared"),
    ({"target": "note"}, "targets: 'note' is a string column"),
    ({"targets": ["b"], "features": ["a"]}, "target: 'y' is not among the targets"),
    ({"device": "a"}, "device: 'a' is under [columns] too"),
    ({"feature_map": {"kind": "polynomial", "feature": "y", "degree": 2}}, "feature_map.feature: 'y' is not among the features"),
    ({"feature_map": {"kind": "polynomial", "feature": "a", "degree": 0}}, "feature_map.degree: "),
    ({"feature_map": {"kind": "polynomial", "feature": "a", "degree": 2, "scale": 0}}, "feature_map.scale: "),
    ({"feature_map": {"kind": "spline"}}, "feature_map: "),
    ({"split": {"kind": "time", "column": "t", "train": 0.5}}, "split.column: 't' is not declared"),
    ({"split": {"kind": "time", "column": "note", "train": 0.5}}, "split.column: 'note' is a string column"),
    ({"split": {"kind": "column", "column": "a"}}, "split.column: 'a' is not a string column"),
    ({"split": {"kind": "random", "train": 1.5}}, "split.train: "),
    ({"file": {"decimal": ","}}, "file: decimal: ',' is the separator too"),
    ({"file": {"separator": ";", "decimal": "'"}}, "file.decimal: "),
    ({"split": {"kind": "random", "train": float("nan")}}, "split.train: "),
    ({"split": {"kind": "random", "train": 0.5, "column": "a"}}, "split.column: Extra inputs are not permitted"),
    ({"scaling": {"target": "max"}}, "scaling.target: "),
    ({"file": {"separator": ", "}}, "file.separator: expected one ASCII character"),
    ({"file": {"header": ["a", "b"]}}, "file.header: expected the device column and every one of [columns]"),
    ({"file": {"header": ["unit", "a", "b", "y", "note", "a"]}}, "file.header: "),
    ({"columns": {"a": {"type": "int32"}}}, "columns.a.type: "),
    ({"colour": "blue"}, "colour: Extra inputs are not permitted"),
    ({"features": ["a", "c\nd"]}, "features.1: column names are one line"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[f"{next(iter(changes))}-{i}" for i, (changes, _) in enumerate(REFUSED)])
def test_a_wrong_contract_is_refused_in_one_line(demo: Any, changes: dict[str, Any], message: str) -> None:
    document = demo.contract().model_dump(mode="json") | changes
    if "target" in changes:
        del document["targets"]
    with pytest.raises(DataError) as caught:
        parse_contract(document, "demo/dataset.toml")
    assert str(caught.value).startswith(f"demo/dataset.toml: {message}")
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__context__ is None


def test_a_missing_field_is_named_and_the_others_counted() -> None:
    with pytest.raises(DataError, match=r"^demo/dataset.toml: device: Field required \(and 3 more\)$"):
        parse_contract({"targets": ["y"]}, "demo/dataset.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"device = ", "not TOML"), (b"\xff\xfe", "not UTF-8"), (None, "cannot be read: No such file"), (b"", "device: Field required")],
)
def test_a_file_that_is_no_contract_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    if content is not None:
        (folder / "dataset.toml").write_bytes(content)
    with pytest.raises(DataError, match=rf"^demo/dataset.toml: {message}") as caught:
        read_contract(folder)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__context__ is None


def test_the_shipped_contract_is_the_papers() -> None:
    contract = read_contract(REPOSITORY / "datasets" / "cmapss-fd001")
    assert contract.design_names == ("intercept", "cycle^1", "cycle^2", "cycle^3", "cycle^4")
    assert contract.target == "sensor_2"
    assert contract.targets == tuple(f"sensor_{i}" for i in range(1, 22))
    assert (contract.scaling.features, contract.scaling.target) == ("none", "train")
    assert contract.split.model_dump() == {"kind": "time", "column": "cycle", "train": 0.6, "validation": 0.2, "seed": 0}


def test_the_readme_example_is_a_contract(tmp_path: Path) -> None:
    readme = (REPOSITORY / "datasets" / "README.md").read_text(encoding="utf-8")
    (tmp_path / "dataset.toml").write_text(readme.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    assert isinstance(read_contract(tmp_path), Contract)
