"""The store in a file: made whole, or not at all."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
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


def test_what_an_earlier_store_has_left_is_not_played_into_a_new_one(tmp_path: Path) -> None:
    store, journal, killed = tmp_path / "mlflow.db", tmp_path / "mlflow.db-journal", tmp_path / "mlflow.db.new"
    journal.write_bytes(b"pages of another time")
    killed.mkdir()
    (killed / "half.db").touch()
    with creation(own_uri(store)):
        pass
    assert sorted(tmp_path.iterdir()) == [store, tmp_path / "mlflow.db.lock"]


def test_a_store_that_somebody_makes_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, make = tmp_path / "mlflow.db", SqlAlchemyStore.__init__

    def slowly(self: SqlAlchemyStore, *args: Any) -> None:
        make(self, *args)
        store.write_bytes(b"somebody's")

    monkeypatch.setattr(SqlAlchemyStore, "__init__", slowly)
    with creation(own_uri(store)):
        assert store.read_bytes() == b"somebody's"


def test_a_link_to_a_store_has_the_lock_of_the_store(tmp_path: Path) -> None:
    store, link = tmp_path / "mlflow.db", tmp_path / "link.db"
    link.symlink_to(store)
    with creation(own_uri(link)):
        pass
    assert store.is_file()
    assert link.is_symlink()
    assert not (tmp_path / "link.db.lock").exists()


@pytest.mark.parametrize("uri", ["sqlite:///:memory:", "sqlite:///file:some.db?mode=ro&uri=true", "http://127.0.0.1:9"])
def test_what_is_no_file_by_its_name_is_left_to_mlflow(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with creation(uri):
        assert not list(tmp_path.iterdir())
