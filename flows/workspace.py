"""Where a project keeps its data sets, its runs and its records."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Workspace:
    """A folder that holds `datasets/`, and beside it what runs leave.

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
    def datasets(self) -> Path:
        """Contracts and partitions, one folder a data set."""
        return self.root / "datasets"

    @property
    def runs(self) -> Path:
        """One folder a run: its configuration, checkpoint and results."""
        return self.root / "runs"

    @property
    def prefect_home(self) -> Path:
        """Where the Prefect server that fedlin starts keeps its records."""
        return self.root / ".prefect"

    @property
    def mlflow_store(self) -> Path:
        """The SQLite store that is used where `MLFLOW_TRACKING_URI` is not set."""
        return self.root / "mlflow.db"

    @property
    def mlflow_artifacts(self) -> Path:
        """Artifacts of that store."""
        return self.root / "mlartifacts"
