"""A production-like stack on the loopback: PostgreSQL, a Prefect server and an MLflow server on it, and a worker.

All of it lies in one folder of the project, `.stack/`: databases, logs, process ids, addresses.
"""
