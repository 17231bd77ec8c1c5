"""Prefect flows and the command line."""

import tasks as tasks  # settles the environment before prefect, mlflow or numpy is imported
