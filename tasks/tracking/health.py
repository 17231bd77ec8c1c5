"""Whether the MLflow store can be used as it is: without making one, and without changing the one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import tasks as tasks  # isort: skip  (settles the environment, which mlflow reads on import)
import httpx
import mlflow
from mlflow import MlflowClient
from mlflow.store.db.utils import _get_latest_schema_revision, _get_schema_version
from sqlalchemy import create_engine, make_url

from tasks.tracking.registry import CHAMPION, RUN_ID, Version
from tasks.tracking.store import public, store_uri, usable

PREFIX = "fedlin-"
LIMIT = 10.0
"""Seconds that a server may take to answer."""


class StoreState(NamedTuple):
    """What a store says of itself.

    Attributes
    ----------
    uri
        Its address, without a password; None where it is a file that is not there yet.
    url
        Its address where it is a server's, which looks after its own schema; else None.
    schema, expected
        Of a database: the revision of its schema (None for none), and the one that this MLflow works with.
    version, own
        MLflow's version, of the server (None for a database) and here.
    """

    uri: str | None
    url: str | None = None
    schema: str | None = None
    expected: str | None = None
    version: str | None = None
    own: str = mlflow.__version__


def store_state(default_store: Path) -> StoreState:
    """Ask the store, see `tasks.tracking.store.store_uri`.

    Raises
    ------
    Misuse
        Where it cannot be reached or read.
    """
    uri = store_uri(default_store)
    with usable(uri):
        if uri.startswith(("http://", "https://")):
            answer = httpx.get(f"{uri.rstrip('/')}/version", timeout=LIMIT).raise_for_status()
            MlflowClient(uri).search_experiments(max_results=1)
            return StoreState(public(uri), url=uri, version=answer.text.strip())
        if _not_there(uri):
            return StoreState(None)
        engine = create_engine(uri)
        try:
            return StoreState(public(uri), schema=_get_schema_version(engine), expected=_get_latest_schema_revision())
        finally:
            engine.dispose()


def champions(default_store: Path) -> dict[str, Version]:
    """The champions of all data sets, by the registered model's name; none where there is no store yet.

    Raises
    ------
    Misuse
        Where the store cannot be reached or read.
    """
    uri = store_uri(default_store)
    if _not_there(uri):
        return {}
    found: dict[str, Version] = {}
    with usable(uri):
        client, token = MlflowClient(uri), None
        while True:
            page = client.search_registered_models(f"name LIKE '{PREFIX}%'", max_results=100, page_token=token)
            for model in page:
                if (number := model.aliases.get(CHAMPION)) is not None:
                    version = client.get_model_version(model.name, str(number))
                    found[model.name] = Version(int(version.version), version.tags.get(RUN_ID, ""))
            if not (token := page.token):
                return found


def _not_there(uri: str) -> bool:
    database = make_url(uri).database if uri.startswith("sqlite") else None
    return bool(database) and not Path(str(database)).exists()
