"""`fedlin simulate`: a fleet with known truth, as a data set."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedcore.data import create_simulated
from fedcore.simulate import CASES, simulate
from flows.cli import options
from flows.terminal import console
from flows.workspace import Workspace

EXAMPLES = options.examples("fedlin simulate demo --dataset demo", "fedlin simulate hm2-1 --dataset selection --seed 7")


def command(
    case: Annotated[str, typer.Argument(help=f"One of {', '.join(CASES)}.", show_default=False)],
    dataset: Annotated[str, typer.Option(help="Name of the new data set.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Root of all draws.", min=0)] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Simulate a fleet of devices and store it as a data set, with noise-free test rows."""
    created = create_simulated(Workspace.find().datasets, dataset, simulate(case, seed), f"Simulated case {case}, seed {seed}")
    K = len(created.device_ids)
    if as_json:
        print(json.dumps({"name": dataset, "devices": K, "case": case, "seed": seed}), flush=True)
        return
    out = console()
    out.print(f"data set {dataset}: {K} devices of simulated case {case}, seed {seed}")
    out.print(f"to train on it: fedlin train {dataset}")
