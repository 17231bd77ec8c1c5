"""Where a project keeps its data sets, its runs and its records."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedcore.data.places import Place, place


@dataclass(frozen=True)
class Workspace:
    """A folder that holds `datasets/`, and beside it what runs leave; the two may be elsewhere, also in an object store.

    Attributes
    ----------
    root
        The folder itself.
    """

    root: Path

    @classmethod
    def find(cls) -> Workspace:
        """The folder that `FEDLIN_HOME` names; else the nearest folder from here upwards that has `datasets/`; else the
        current one."""
        if home := os.environ.get("FEDLIN_HOME"):
            return cls(Path(home).resolve())
        here = Path.cwd()
        return cls(next((folder for folder in (here, *here.parents) if (folder / "datasets").is_dir()), here))

    @property
    def datasets(self) -> Place:
        """Contracts and partitions, one folder a data set; `FEDLIN_DATASETS` names another place.

        Raises
        ------
        Misuse
            Where it names one that nothing here can reach.
        """
        return self._place("FEDLIN_DATASETS", "datasets")

    @property
    def runs(self) -> Place:
        """One folder a run: its configuration, checkpoint and results; `FEDLIN_RUNS` names another place.

        Raises
        ------
        Misuse
            Where it names one that nothing here can reach.
        """
        return self._place("FEDLIN_RUNS", "runs")

    def _place(self, variable: str, name: str) -> Place:
        named = place(os.environ[variable]) if os.environ.get(variable) else self.root / name
        return named.resolve() if isinstance(named, Path) else named

    @property
    def prefect_home(self) -> Path:
        """Where the Prefect server that fedlin starts keeps its records."""
        return self.root / ".prefect"

    @property
    def turns(self) -> Path:
        """Locks of the data sets that deployed runs work on."""
        return self.root / ".turns"

    @property
    def outbox(self) -> Path:
        """Notes of rows that were added, and that the Prefect server has still to be told of."""
        return self.root / ".outbox"

    @property
    def metrics(self) -> Path:
        """Figures of runs for Prometheus; `FEDLIN_METRICS` names another folder."""
        named = os.environ.get("FEDLIN_METRICS")
        return Path(named).resolve() if named else self.root / ".metrics"

    @property
    def stack(self) -> Path:
        """Databases, logs and process ids of the local stack."""
        return self.root / ".stack"

    @property
    def mlflow_store(self) -> Path:
        """The SQLite store that is used where `MLFLOW_TRACKING_URI` is not set."""
        return self.root / "mlflow.db"

    @property
    def mlflow_artifacts(self) -> Path:
        """Artifacts of that store."""
        return self.root / "mlartifacts"
