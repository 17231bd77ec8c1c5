"""A run's folder; what a run makes of it is in `tests/flows`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.errors import Misuse
from tasks.checkpoint import RunFolder


@pytest.mark.parametrize("content", [None, "", '{"a": ', "[]", "null", "3", '"words"'])
def test_json_that_is_no_object_is_damaged(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(Misuse, match=r"manifest.json is missing or damaged: restore it, or start a new run"):
        RunFolder(tmp_path).manifest()
