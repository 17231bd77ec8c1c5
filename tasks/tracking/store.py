"""The MLflow store: where it is, who may create it, and what goes wrong with it in one line."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

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
    if not database or database.startswith((":memory:", "file:")):
        yield
        return
    store = Path(database).resolve()
    with alone(Path(f"{store}.lock")):
        if not store.exists():
            _create(store)
        yield


def _create(store: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # takes a second to import, in vain where the store is a server

    for journal in ("-journal", "-wal", "-shm"):  # of an earlier store of this name; it would be played into this one
        Path(f"{store}{journal}").unlink(missing_ok=True)
    folder = store.with_name(f"{store.name}.new")
    shutil.rmtree(folder, ignore_errors=True)  # what a killed process has left
    folder.mkdir()
    try:
        unfinished = folder / f"{secrets.token_hex(4)}.db"  # a name of its own: MLflow keeps connections by name
        SqlAlchemyStore(own_uri(unfinished), DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()
        try:
            store.hardlink_to(unfinished)
        except FileExistsError:
            pass  # somebody who knows of no lock has made one meanwhile: it stays
        except OSError:  # no file system for links
            unfinished.replace(store)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def public(uri: str) -> str:
    """An address without the user name and password that it may carry."""
    return re.sub(r"//[^/@]*@", "//", uri)


def in_one_line(error: Exception) -> str:
    """Kind and first line of an error."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {public(text)[:200]}"
