"""The store in a file: made whole, or not at all."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from sqlalchemy import Engine, event

from tasks.tracking.store import creation, own_uri


@contextmanager
def interrupted_at(words: str) -> Generator[None]:
    """Ctrl-C where a database is about to be told these words."""

    def interrupt(_: Any, __: Any, statement: str, *___: Any) -> None:
        if words in statement:
            raise KeyboardInterrupt

    event.listen(Engine, "before_cursor_execute", interrupt)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", interrupt)


@pytest.mark.parametrize("words", ["CREATE TABLE evaluation_datasets", "INSERT INTO alembic_version"])
def test_a_store_whose_making_was_interrupted_is_made_anew(words: str, tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    with interrupted_at(words), pytest.raises(KeyboardInterrupt), creation(own_uri(store)):
        pass
    assert sorted(tmp_path.iterdir()) == [tmp_path / "mlflow.db.lock"]
    with creation(own_uri(store)):
        found = MlflowClient(own_uri(store)).search_experiments()
    assert [each.name for each in found] == ["Default"]
    assert sorted(tmp_path.iterdir()) == [store, tmp_path / "mlflow.db.lock"]


def test_a_store_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    store.write_bytes(b"somebody's")
    with creation(own_uri(store)):
        assert store.read_bytes() == b"somebody's"
