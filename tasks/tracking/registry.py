"""A data set's champion in the MLflow model registry: one registered model, a version a challenger, an alias for the champion.

Moving the alias is the last thing that a decision does, and one request; whatever fails before it leaves the champion where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

import tasks as tasks  # isort: skip  (settles the environment, which mlflow reads on import)
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException

from fedcore.errors import Misuse
from tasks.decision import Decision
from tasks.tracking.store import creation, store_uri, usable

CHAMPION = "champion"
RUN_ID = "fedlin.run_id"
DECISION = "fedlin.decision."

MODEL = "model"
"""Among a run's artifacts, its fleet model: what a version is loaded from, where the run has one."""

MOST = 10_000
"""Versions that are asked for at a time."""


class Version(NamedTuple):
    """A version of a registered model.

    Attributes
    ----------
    number
        Its number, from 1.
    run_id
        The run that trained it, by fedlin's name.
    """

    number: int
    run_id: str


def model_name(dataset: str, target: str | None = None) -> str:
    """The registered model of a data set, for a target that is not the contract's own."""
    return f"fedlin-{dataset}" + (f"~{quote(target, safe=' ')}" if target else "")


class Registry:
    """The registered model of one data set. Make it with `open`; every method raises Misuse, with one line, where the store cannot be used.

    Attributes
    ----------
    name : str
        The registered model.
    """

    def __init__(self, client: MlflowClient, uri: str, name: str) -> None:
        self.name = name
        self._client = client
        self._uri = uri

    @classmethod
    def open(cls, name: str, *, default_store: Path) -> Self:
        """The registry beside the runs, see `tasks.tracking.store.store_uri`; nothing is made in it.

        Raises
        ------
        Misuse
            Where the store cannot be used.
        """
        uri = store_uri(default_store)
        with usable(uri), creation(uri):
            return cls(MlflowClient(uri), uri, name)

    def champion(self) -> Version | None:
        """The version that has the alias, None for none."""
        with usable(self._uri):
            model = self._model()
            number = model.aliases.get(CHAMPION) if model else None
            return None if number is None else _version(self._client.get_model_version(self.name, str(number)))

    def version(self, number: int) -> Version:
        """A version by its number.

        Raises
        ------
        Misuse
            Where there is none of this number.
        """
        for each in self._versions():
            if int(each.version) == number:
                return _version(each)
        raise Misuse(f"{self.name} has no version {number}: fedlin champion shows those that were decided about")

    def register(self, run_id: str, mlflow_run_id: str, tags: dict[str, str]) -> Version:
        """The version of a run, made where it is missing; its source is the run's fleet model in MLflow, or all that it has left there.

        Parameters
        ----------
        run_id, mlflow_run_id
            The run, by fedlin's name and by MLflow's.
        tags
            Of the version, where it is made.
        """
        with usable(self._uri):
            if self._model() is None:
                try:
                    self._client.create_registered_model(self.name)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":  # else another process has made it meanwhile
                        raise
            for each in self._versions():
                if (each.tags.get(RUN_ID), each.run_id) == (run_id, mlflow_run_id):  # another run may have the name
                    return _version(each)
            source = self._client.get_run(mlflow_run_id).info.artifact_uri
            assert source is not None
            if self._client.list_artifacts(mlflow_run_id, MODEL):
                source = f"{source}/{MODEL}"
            made = self._client.create_model_version(self.name, source, mlflow_run_id, tags={**tags, RUN_ID: run_id})
            return _version(made)

    def note(self, number: int, decision: Decision) -> None:
        """Keep a decision as a tag of the version that it is about, beside those that are there."""
        with usable(self._uri):
            self._client.set_model_version_tag(self.name, str(number), f"{DECISION}{decision.run_id}", decision.text())

    def promote(self, number: int) -> None:
        """Make a version the champion."""
        with usable(self._uri):
            self._client.set_registered_model_alias(self.name, CHAMPION, str(number))

    def decisions(self) -> list[Decision]:
        """All decisions about this model, the oldest first; tags that hold none are passed over."""
        found: list[Decision] = []
        for each in self._versions():
            for key, text in each.tags.items():
                if key.startswith(DECISION):
                    try:
                        found.append(Decision.read(text))
                    except (ValueError, TypeError):
                        continue
        return sorted(found, key=lambda decision: (decision.when, decision.run_id))

    def _model(self) -> RegisteredModel | None:
        try:
            return self._client.get_registered_model(self.name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _versions(self) -> list[ModelVersion]:
        quoted, found, token = self.name.replace("'", "''"), [], None
        with usable(self._uri):
            while True:
                page = self._client.search_model_versions(f"name='{quoted}'", max_results=MOST, page_token=token)
                found += page
                if not (token := page.token):
                    return found


def _version(found: ModelVersion) -> Version:
    return Version(int(found.version), found.tags.get(RUN_ID, ""))
