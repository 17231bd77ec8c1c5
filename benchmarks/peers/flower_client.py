"""A client of FedAvg for Flower: a module of its own, so that Ray's workers import it once and keep what it has read."""

import functools

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

client = ClientApp()


@functools.cache
def fleet(path: str) -> tuple[np.ndarray, np.ndarray]:
    """All rows."""
    with np.load(path) as stored:
        return stored["X"], stored["y"]


@client.train()
def train(message: Message, context: Context) -> Message:
    """Full-batch gradient steps on the mean of squares, from the global coefficients."""
    config = message.content["config"]
    X, y = (each[int(context.node_config["partition-id"])] for each in fleet(config["fleet"]))
    (theta,) = message.content["arrays"].to_numpy_ndarrays()
    for _ in range(config["steps"]):
        theta = theta + 2 * config["eta"] / len(y) * (X.T @ (y - X @ theta))
    content = RecordDict({"arrays": ArrayRecord([theta]), "metrics": MetricRecord({"num-examples": len(y)})})
    return Message(content=content, reply_to=message)
