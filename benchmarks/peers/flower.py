"""FedAvg of linear regression in Flower's simulation: `flower.py FLEET.npz ROUNDS STEPS ETA`.

FLEET.npz has X (K, n, d) and y (K, n). A round goes from its making of messages to that of the next one, so it has everything that Flower
does in between; the last one ends with the strategy. As many clients work at a time as there are cores. Start-up ends where the first round
begins, which still has to start the workers.
"""

import json
import sys
import time

import numpy as np
from flower_client import client
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

path, rounds, steps, eta = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
with np.load(path) as stored:
    K, _, d = stored["X"].shape
server = ServerApp()
moments: list[float] = []
found: list[list[float]] = []
answered: list[int] = []


class Watched(FedAvg):
    """FedAvg, with the moments at which rounds begin, and how many clients have answered."""

    def configure_train(self, server_round, arrays, config, grid):
        """As FedAvg does."""
        moments.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        """As FedAvg does."""
        whole = list(replies)
        answered.append(sum(not each.has_error() for each in whole))
        return super().aggregate_train(server_round, whole)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, each with every client."""
    while len(list(grid.get_node_ids())) < K:
        time.sleep(0.05)
    strategy = Watched(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=K, min_available_nodes=K)
    asked = ConfigRecord({"fleet": path, "steps": steps, "eta": eta})
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(d)]), num_rounds=rounds, train_config=asked)
    moments.append(time.perf_counter())
    found.extend(each.tolist() for each in result.arrays.to_numpy_ndarrays())


begun = time.perf_counter()
run_simulation(
    server, client, K, backend_config={"init_args": {"include_dashboard": False}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
)
told = {"rounds": np.diff(moments).tolist(), "start_up": moments[0] - begun, "answered": sum(answered), "theta": found[0]}
print(json.dumps(told))
