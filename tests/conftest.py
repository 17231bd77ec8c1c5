"""Settles the environment as an installed fedlin does, before anything imports numpy, prefect or mlflow."""

import tasks as tasks
