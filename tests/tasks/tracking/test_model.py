"""The fleet model in MLflow: stored and read back, loaded, and served on the loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mlflow.pyfunc
import numpy as np
import polars as pl
import pytest

from fedcore import Posterior
from fedcore.data import Contract
from fedcore.data.scoring import FleetModel, fleet_model
from fedcore.errors import Misuse
from tasks.fleet_models import dump_model, load_model
from tasks.tracking.model import example, save

CONTRACT: dict[str, Any] = {"device": "pump", "target": "y", "features": ["hour", "speed"], "intercept": True}
CONTRACT["columns"] = {"hour": {"type": "int64"}, "speed": {"type": "float64"}, "y": {"type": "float64"}}


def posterior(seed: int) -> Posterior:
    root = np.random.default_rng(seed).standard_normal((3, 5))
    return Posterior(root[:, 0], root @ root.T, 0.5, 0.0)


def made() -> FleetModel:
    known = {"007": posterior(0), "b": posterior(1)}
    return fleet_model(Contract.model_validate(CONTRACT), None, {name: each.mean for name, each in known.items()}, known, posterior(2))


ROWS = {"device": ["b", "007", "new"], "hour": [1, 2, 3], "speed": [0.5, -1.0, 2.0]}


@pytest.mark.parametrize("prior", [posterior(2), np.ones(3), None])
@pytest.mark.parametrize("posteriors", [True, False])
def test_a_stored_model_predicts_the_same(prior: Posterior | np.ndarray | None, posteriors: bool) -> None:
    model = made()._replace(prior=prior)
    model = model if posteriors else model._replace(posteriors={})
    rows = pl.DataFrame(ROWS).head(3 if prior is not None else 2)
    assert load_model(dump_model(model)).predict(rows).equals(model.predict(rows), null_equal=True)
    with pytest.raises(Misuse, match="does not hold a fleet model"):
        load_model(dump_model(model)[:50])


def test_mlflow_loads_it_and_its_example_is_nobodys(tmp_path: Path) -> None:
    save(made(), tmp_path / "model")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    row = example(made())
    assert row.to_dict("records") == [{"device": "007", "hour": 0, "speed": 0.0}]
    found = loaded.predict(row)
    assert found["mean"].tolist() == made().predict(pl.DataFrame({"device": ["007"], "hour": [0], "speed": [0.0]}))["mean"].to_list()
    names = loaded.metadata.get_input_schema().input_names()
    assert names == ["device", "hour", "speed"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the model, that `mlflow models serve` has started."""
    folder = tmp_path_factory.mktemp("served")
    save(made(), folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(folder / "model"), "--env-manager", "local"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # it looks for uvicorn there
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(1200):
            try:
                if httpx.get(f"{address}/ping").status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


def asked(address: str, rows: dict[str, list[Any]]) -> httpx.Response:
    records = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
    return httpx.post(f"{address}/invocations", json={"dataframe_records": records}, timeout=60)


@pytest.mark.slow
def test_a_server_answers_for_devices_it_knows_and_for_others(served: str) -> None:
    answer = asked(served, ROWS)
    assert answer.status_code == 200, answer.text
    expected = made().predict(pl.DataFrame(ROWS))
    told = answer.json()["predictions"]
    assert [row["device"] for row in told] == ROWS["device"]
    for name in ("mean", "lower", "upper"):
        np.testing.assert_allclose([row[name] for row in told], expected[name].to_numpy(), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ({"device": ["b"], "hour": [1]}, "speed"),
        ({"device": ["b"], "hour": [1], "speed": ["canary-word"]}, "speed"),
        ({"hour": [1], "speed": [1.0]}, "device"),
        ({"device": ["b"], "hour": [3.5], "speed": [1.0]}, "hour"),
        ({"device": ["b"], "hour": [1], "speed": [1e308]}, "not finite"),
        ({"device": [""], "hour": [1], "speed": [1.0]}, "device"),
    ],
)
def test_a_server_refuses_what_does_not_fit(served: str, rows: dict[str, list[Any]], named: str) -> None:
    answer = asked(served, rows)
    assert 400 <= answer.status_code < 500
    assert named in answer.json()["message"]
