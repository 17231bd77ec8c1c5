"""The code of a fleet model in MLflow, which is kept with the model: it only says which class it is."""

from __future__ import annotations

import tasks as tasks  # isort: skip  (settles the environment, which mlflow reads on import)
from mlflow.models import set_model

from tasks.tracking.model import Served

set_model(Served())
