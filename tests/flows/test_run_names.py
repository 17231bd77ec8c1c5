"""A run is a folder below `runs/`, whatever name somebody gives it; and one that is not named is told as that."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.errors import Misuse
from flows.cli.launch import check_resumed
from flows.config import RetrainConfig
from flows.parent import Parent
from flows.running import Run
from flows.runs import find_run
from flows.turns import in_turn
from flows.workspace import Workspace

OUTSIDE = ["../x", "/tmp/x", "a/b", "..", ".hidden", "a\nb", "x" * 101, "%2e%2e"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("config", [RetrainConfig(dataset="demo"), None])
def test_no_run_is_outside_of_its_folder(home: Path, name: str, config: RetrainConfig | None) -> None:
    with pytest.raises(
        Misuse, match=r"^run id '.*' (holds characters|starts with a dot|has 101 characters|looks URL).*: choose another id$"
    ):
        Run.open(RetrainConfig, config, name)
    assert [each.name for each in home.iterdir()] == ["datasets"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_nor_is_one_that_is_looked_for(home: Path, name: str) -> None:
    for look in (lambda: Parent.open(Workspace.find(), name), lambda: check_resumed("train", name, ())):
        with pytest.raises(Misuse, match=r"choose another id$"):
            look()
    with pytest.raises(Misuse, match=r"fedlin status lists them$"):
        find_run(Workspace.find(), name)


def test_parameters_that_name_nothing_are_one_line_that_says_what_to_give(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a deployment")
    expected = r'^neither a configuration nor a run is given: give config, such as {"dataset": NAME}, or the run_id of one to go on with$'

    @in_turn
    def flow(config: RetrainConfig | None = None, run_id: str | None = None) -> None:
        raise AssertionError(config, run_id)

    for start in (flow, lambda: Run.open(RetrainConfig, None, None)):
        with pytest.raises(Misuse, match=expected):
            start()
