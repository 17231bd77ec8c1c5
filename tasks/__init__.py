"""Prefect tasks: one pure call of `fedcore` each, with the reading and writing around it.

Importing this package settles the environment of both engines, so import it before prefect, mlflow or numpy: they read
these variables when they are imported. What the user has set stays as it is.
"""

import os

DEFAULTS = {
    # One BLAS thread: sums are then taken in one order, and a run can be repeated to the bit.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Nothing is told to the makers of the engines unless the user wants it: Prefect's server, then its client, then
    # MLflow.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A line for each of thousands of tasks, or a traceback for each that failed, would hide the progress, which says of each
    # silent device why; sent to the API as well, it would slow every task.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    # Nor a whole event for each that could not be sent to a server that has gone.
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    # A run tells its server that it lives, in seconds: one that has stopped to is taken for dead (deployments/automations.yaml).
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # MLflow logs what it raises too, as tracebacks over many lines; and no progress bar or link for each upload and run.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A tracking server that is away must not hold up a round: MLflow's own defaults (7 retries, 120 s each) wait for
    # minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}

for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
