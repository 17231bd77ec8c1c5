"""The MLflow store: where it is, who may create it, and what goes wrong with it in one line."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import tasks as tasks  # isort: skip  (settles the environment, which mlflow reads on import)
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from sqlalchemy import URL, make_url

from fedcore.errors import Misuse
from tasks.lock import alone


def store_uri(default_store: Path) -> str:
    """The address of the store: ``MLFLOW_TRACKING_URI``, or a SQLite file where that is not set."""
    return os.environ.get("MLFLOW_TRACKING_URI") or own_uri(default_store)


def own_uri(store: Path) -> str:
    """The address of a SQLite file as a store."""
    return URL.create("sqlite", database=str(store.resolve())).render_as_string()


@contextlib.contextmanager
def usable(uri: str) -> Iterator[None]:
    """Turn whatever MLflow, its drivers or the network raise into one line that says what to do.

    Raises
    ------
    Misuse
        In their place.
    """
    try:
        yield
    except Misuse:
        raise
    except Exception as error:
        raise Misuse(
            f"the MLflow store {public(uri)} cannot be used ({in_one_line(error)}): "
            "set MLFLOW_TRACKING_URI to a running http(s):// server or to sqlite:/// and a writable file"
        ) from None


@contextlib.contextmanager
def creation(uri: str) -> Iterator[None]:
    """Have a SQLite store created by one process at a time, and whole or not at all.

    MLflow does neither: the tables of two processes collide, and those that an interrupted process has left with those of the next one.
    """
    database = make_url(uri).database if uri.startswith("sqlite") else None
    if not database:
        yield
        return
    with alone(Path(f"{database}.lock")):
        store = Path(database).resolve()
        if not store.exists():
            _create(store)
        yield


def _create(store: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # takes a second to import, in vain where the store is a server

    with TemporaryDirectory(prefix=f"{store.name}.", dir=store.parent) as folder:
        unfinished = Path(folder) / store.name
        SqlAlchemyStore(own_uri(unfinished), DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()
        unfinished.replace(store)


def public(uri: str) -> str:
    """An address without the user name and password that it may carry."""
    return re.sub(r"//[^/@]*@", "//", uri)


def in_one_line(error: Exception) -> str:
    """Kind and first line of an error."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {public(text)[:200]}"
