"""A run's fleet model as an MLflow model: a folder that `mlflow models serve` serves, and a registered version loads."""

from __future__ import annotations

import logging
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

import tasks as tasks  # isort: skip  (settles the environment, which mlflow reads on import)
import numpy as np
import pandas as pd
import pyarrow as pa
from mlflow.exceptions import MlflowException
from mlflow.models.signature import ModelSignature
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.types import ColSpec, DataType, Schema
from mlflow.utils import environment

from fedcore.data.places import make_folder, write_durably
from fedcore.data.scoring import DEVICE, FleetModel
from fedcore.errors import FedlinError, Misuse
from tasks.checkpoint import RunFolder
from tasks.fleet_models import build_model, dump_model, load_model
from tasks.tracking.registry import MODEL
from tasks.tracking.store import in_one_line

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", ".*Any type hint is inferred")  # of MLflow's own classes
    from mlflow.pyfunc import save_model
    from mlflow.pyfunc.model import PythonModel

FILE = "fleet.npz"
TYPES = {"float64": DataType.double, "int64": DataType.double, "string": DataType.string}
"""MLflow would cut the fraction off a number where a whole one is expected; so it is given any, and the model refuses it."""

SAVING = Lock()
"""Held while a function of MLflow is another one: what overlaps would leave that in its place."""

logger = logging.getLogger("fedlin.tracking")


class Served(PythonModel):
    """The model as MLflow calls it."""

    def load_context(self, context: Any) -> None:
        """Read the model's file."""
        self._model = load_model(Path(context.artifacts["fleet"]).read_bytes())

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """See `FleetModel.predict`; what is wrong with the rows is the caller's, in one line."""
        try:
            return self._model.predict(pa.Table.from_pandas(self._whole(model_input), preserve_index=False)).to_pandas()
        except FedlinError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from None

    def _whole(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows with the contract's integers as such, where all of a column are."""
        columns = self._model.contract.columns
        numbers = (str(name) for name in rows if rows[name].dtype.kind == "f")
        wanted = [name for name in numbers if name in columns and columns[name].type == "int64"]
        return rows.astype({name: "Int64" for name in wanted if bool(np.all(rows[name].dropna().to_numpy() % 1 == 0))})


def write_model(folder: RunFolder) -> None:
    """Write the model of a training into its results, as the folder `model` with the code, a signature and an example; never raises.

    There is none where the contract scales by each device's own range (see `fedcore.data.scoring.fleet_model`).
    """
    try:
        model = build_model(folder)
    except Misuse:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="fedlin-") as temporary:
            save(model, Path(temporary, MODEL))
            for file in sorted(each for each in Path(temporary, MODEL).rglob("*") if each.is_file()):
                target = folder.results / file.relative_to(temporary).as_posix()
                make_folder(target.parent)
                write_durably(target, file.read_bytes())
    except Exception as error:  # the run's results are there without it
        logger.warning("run %s has no model: %s", folder.run_id, in_one_line(error))


def save(model: FleetModel, folder: Path) -> None:
    """Write an MLflow model into a folder that is not there yet."""
    columns = [ColSpec(DataType.string, DEVICE)]
    gaps_in = model.contract.gaps_in
    for name in model.contract.features:
        columns.append(ColSpec(TYPES[model.contract.columns[name].type], name, required=name not in gaps_in))
    outputs = [ColSpec(DataType.string, DEVICE), *(ColSpec(DataType.double, name) for name in ("mean", "lower", "upper"))]
    with tempfile.TemporaryDirectory(prefix="fedlin-") as temporary:
        file = Path(temporary, FILE)
        file.write_bytes(dump_model(model))
        # MLflow would look through every file of every package, for seconds, whether two have the versions that were just read from them.
        with SAVING, patch.object(environment, "warn_dependency_requirement_mismatches", list, create=True):
            save_model(
                folder,
                python_model=str(Path(__file__).with_name("served.py")),
                artifacts={"fleet": str(file)},
                signature=ModelSignature(Schema(columns), Schema(outputs)),  # pyright: ignore[reportArgumentType]
                input_example=example(model),
                pip_requirements=[f"fedlin=={metadata.version('fedlin')}"],
            )


def example(model: FleetModel) -> pd.DataFrame:
    """A row that is nobody's: of the first device, with the fleet's mean of each number (0 where it has none), and first levels."""
    row: dict[str, Any] = {DEVICE: [next(iter(model.estimates))]}
    for name in model.contract.features:
        if model.fitted and name in model.fitted.categories:
            row[name] = [model.fitted.categories[name].reference]
        else:
            mean = model.fitted.means.get(name, 0.0) if model.fitted else 0.0
            row[name] = [round(mean) if model.contract.columns[name].type == "int64" else float(mean)]
    return pd.DataFrame(row)
