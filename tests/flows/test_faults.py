"""What fleets do to a run: processes that are killed, disks that fill, devices and stores that stay away. Nothing accepted is lost in any.

One process that is killed in a chosen moment is in `test_cli_train`, PostgreSQL in `test_stack`.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from mlflow import MlflowClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from fedcore import Eb, Hm1, Hm2
from fedcore.algorithm import AnyAlgorithm, DeviceResult, FleetSpec
from fedcore.data import Dataset
from fedcore.fit import InProcess
from fedcore.hm2.natural import moments
from fedcore.messages import take
from fedcore.metrics import score
from fedcore.rounds import Answers, Call, RoundReport, RunState, Schedule, rounds
from fedcore.rows import DeviceData, Floats
from fedcore.simulate import simulate
from flows.artifacts import RunArtifacts
from flows.config import TrainConfig, read_config
from flows.orchestrator import Orchestrator
from flows.train import train
from tasks.checkpoint import Checkpoint, RunFolder

pytestmark = pytest.mark.slow

FEDLIN = [sys.executable, "-m", "flows.cli.app"]
LIMIT = 300  # seconds that a whole command may take on a busy machine

KILLS = int(os.environ.get("FEDLIN_KILLS", "6"))
SEED = int(os.environ.get("FEDLIN_KILLS_SEED", "1"))
"""How many moments a run is killed in, and which."""

ROUNDS = 40
SETTINGS: dict[str, Any] = {
    "dataset": "small",
    "algorithm": "hm1",
    "rounds": ROUNDS,
    "seed": 4,
    "participation": 0.8,
    "options": {"batch": 3, "gradient": "sum"},
}
WORDS = ["train", "small", "--algorithm", "hm1", "--rounds", str(ROUNDS), "--seed", "4", "--participation", "0.8"]
WORDS += ["--set", "batch=3", "--set", "gradient=sum"]


def run(home: Path, config: TrainConfig | None, run_id: str = "run") -> dict[str, Any]:
    """Run the flow in this process and read its result."""
    state = train(config, run_id=run_id, return_state=True)
    file = home / "runs" / run_id / "result.json"
    assert file.exists(), state
    return json.loads(file.read_text())


def same_results(one: Path, other: Path) -> bool:
    """Whether two runs found the same, to the bit: every device's coefficients, and all that the server knows."""
    for name in ("theta.npz", "server.npz"):
        with np.load(one / "results" / name) as mine, np.load(other / "results" / name) as theirs:
            if set(mine) != set(theirs) or not all(np.array_equal(mine[key], theirs[key]) for key in mine):
                return False
    return True


def ledger(folder: Path) -> list[dict[str, Any]]:
    with np.load(folder / "checkpoint.npz") as stored:
        return json.loads(str(stored["ledger"]))["history"]


def until(found: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """What a question is answered with once it is answered, or None where the process has ended before."""
    deadline = time.monotonic() + LIMIT
    while not (answer := found()):
        assert time.monotonic() < deadline
        if process.poll() is not None:
            return None
        time.sleep(0.002)
    return answer


def test_killed_at_random_moments_and_resumed(
    server: Orchestrator, environment: dict[str, str], home: Path, fleet: Callable[..., Dataset]
) -> None:
    """SIGKILL, again and again, wherever the run is; each time it goes on, and ends where one ends that nobody has disturbed."""
    dataset, rng = fleet(), np.random.default_rng(SEED)
    straight = run(home, read_config(SETTINGS), "straight")
    length = sum(each["seconds"] for each in ledger(home / "runs/straight"))
    environment |= {"PREFECT_API_URL": server.api_url}
    kills, folder = 0, None
    killed_in: list[int] = []
    while kills < KILLS or folder is not None:
        before = traces(dataset)
        words = ["train", "--resume", folder.name] if folder else WORDS
        with subprocess.Popen([*FEDLIN, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            begun = until(lambda: next((each.parent for each in home.glob("runs/2*/config.json") if not ended(each.parent)), None), process)
            moment = rng.uniform(0.0, 1.2 * length)
            if kills < KILLS and until(lambda before=before: traces(dataset) != before, process):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(moment)
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
            _, error = process.communicate(timeout=LIMIT)
        folder = folder or begun
        assert folder
        if process.returncode == -signal.SIGKILL:
            kills += 1
            killed_in.append(len(ledger(folder)) if (folder / "checkpoint.npz").exists() else 0)
            continue
        assert process.returncode == 0, error
        assert same_results(folder, home / "runs/straight")
        assert len(ledger(folder)) == straight["rounds"] == ROUNDS
        folder = None
    logging.getLogger(__name__).info("killed after rounds %s", killed_in)


def traces(dataset: Dataset) -> list[tuple[str, int]]:
    """When each device's state of each run was last written."""
    return [(str(file), file.stat().st_mtime_ns) for file in sorted(dataset.path.glob("device=*/.fedlin/*.state"))]


def ended(folder: Path) -> bool:
    return (folder / "result.json").exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the children of a process from /proc")
def test_the_prefect_server_is_killed_in_mid_run(
    server: Orchestrator, environment: dict[str, str], home: Path, fleet: Callable[..., Dataset]
) -> None:
    """The run goes on without its records, or stops and says how to go on; either way it ends where it would have."""
    fleet()
    run(home, read_config(SETTINGS), "straight")
    environment |= {"PREFECT_CLIENT_MAX_RETRIES": "1"}  # a minute less of vain attempts to tell it the end
    with subprocess.Popen([*FEDLIN, *WORDS], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        folder = until(lambda: next((each.parent for each in home.glob("runs/2*/checkpoint.npz")), None), process)
        assert folder
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (its_server,) = [int(child) for child in children if b"_serve()" in Path(f"/proc/{child}/cmdline").read_bytes()]
        assert len(ledger(folder)) < ROUNDS
        os.kill(its_server, signal.SIGKILL)
        _, error = process.communicate(timeout=LIMIT)
    assert "Traceback" not in error
    if process.returncode:
        assert f"--resume {folder.name}" in error.splitlines()[-1]
        resumed = subprocess.run(
            [*FEDLIN, "train", "--resume", folder.name],
            env=environment | {"PREFECT_API_URL": server.api_url}, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        assert resumed.returncode == 0, resumed.stderr
    assert same_results(folder, home / "runs/straight")


@pytest.mark.filterwarnings("ignore:Artifact creation outside:FutureWarning")
def test_a_server_that_is_away_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's own client would try for a minute, in every round."""
    asked: list[str] = []

    def away(self: httpx.Client, request: httpx.Request, **_: Any) -> httpx.Response:
        asked.append(request.method)
        raise httpx.ReadError("nobody is there any more")

    monkeypatch.setattr(httpx.Client, "send", away)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        RunArtifacts(5, [])._writing.join()
    assert len(asked) == 1


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process grows beyond this size, in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 1000])
def test_the_disk_is_full_in_a_checkpoint(
    size: int, server: Orchestrator, home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing, or half a file, can be written: the run stops in one line with the round before it kept, and goes on from there."""
    fleet()
    config = read_config(SETTINGS | {"rounds": 8})
    run(home, config, "straight")
    save = RunFolder.save

    def cut_off(folder: RunFolder, checkpoint: Checkpoint) -> None:
        if checkpoint.state.round_num != 4:
            return save(folder, checkpoint)
        with full_disk(size):
            return save(folder, checkpoint)

    with monkeypatch.context() as full:
        full.setattr(RunFolder, "save", cut_off)
        error = train(config, run_id="run", return_state=True).result(raise_on_failure=False)
    words = "run run: checkpoint.npz cannot be written (File too large): make room or give permission, then resume the run"
    assert str(error) == words
    assert len(ledger(home / "runs/run")) == 3
    assert sorted(file.name for file in (home / "runs/run").iterdir()) == ["checkpoint.npz", "config.json", "manifest.json"]
    assert run(home, None)["rounds"] == 8
    assert same_results(home / "runs/run", home / "runs/straight")


class Failing(InProcess):
    """Each round each device fails with this probability, after its step: its answer is lost."""

    share: float = 0.0

    def local_steps(self, call: Call) -> Answers:
        told = super().local_steps(call)
        kept = np.flatnonzero(np.random.default_rng([7, call.round_num]).random(len(call.cohort)) >= self.share).tolist()
        return Answers([told.answered[i] for i in kept], take(told.ups, kept), take(told.infos, kept))


def with_failures(algorithm: AnyAlgorithm, devices: dict[str, DeviceData], share: float, length: int) -> tuple[RoundReport, dict[str, Any]]:
    """The last round of a run, and every device's result."""
    ids = tuple(sorted(devices))
    spec = FleetSpec(ids, devices[ids[0]].train.d)
    backend = Failing(algorithm, spec, [devices[name] for name in ids], 0)
    backend.share = share
    reports = list(rounds(algorithm, spec, backend, Schedule(rounds=length), RunState.initial(algorithm, spec)))
    silent = sum(len(report.silent) for report in reports) / sum(len(report.cohort) for report in reports)
    assert abs(silent - share) < 0.1
    return reports[-1], backend.results(reports[-1].state)


@pytest.mark.parametrize("prior", ["gaussian", "isotropic"])
def test_hm2_where_devices_fail(prior: Any) -> None:
    """phi's means within .02 standard deviations, and these within 2 %."""
    devices = simulate("demo", 1).devices
    found = [
        moments(with_failures(Hm2(prior=prior), devices, share, length)[0].state.server.kept.q) for share, length in ((0.0, 60), (0.3, 20))
    ]
    (mean, sd), (other, other_sd) = [(each.mean, np.sqrt(np.diagonal(each.covariance))) for each in found]
    assert (np.abs(mean - other) / sd).max() < 0.02
    assert np.abs(other_sd / sd - 1.0).max() < 0.02


def log_likelihood(devices: dict[str, DeviceData], mean: Floats, covariance: Floats, noise: float) -> float:
    """Of all rows, by the definition: y ~ N(X mu, X Sigma X' + sigma^2 I)."""
    total = 0.0
    for data in devices.values():
        X, y = data.train
        marginal, residual = X @ covariance @ X.T + noise * np.eye(len(y)), y - X @ mean
        total -= 0.5 * (np.linalg.slogdet(2.0 * np.pi * marginal)[1] + residual @ np.linalg.solve(marginal, residual))
    return total


@pytest.mark.parametrize("covariance", ["full", "diagonal", "isotropic"])
def test_eb_where_devices_fail(covariance: Any) -> None:
    """The log likelihood within .01, on a fleet where EM itself has converged by then; where it has not, failures cost rounds."""
    devices, found = simulate("hm1-3", 1).devices, []
    for share, length in ((0.0, 30), (0.0, 20), (0.3, 30)):
        server = with_failures(Eb(covariance=covariance), devices, share, length)[0].state.server
        found.append(log_likelihood(devices, server.mean, server.covariance, server.noise))
    assert abs(found[0] - found[1]) < 0.01
    assert abs(found[0] - found[2]) < 0.01


def test_failures_cost_eb_rounds_where_em_is_slow() -> None:
    """The demo with a full covariance: with 30 % of failures 100 rounds are worth at least 50, and there is still some way to go."""
    devices, found = simulate("demo", 1).devices, []
    for share, length in ((0.0, 50), (0.3, 100), (0.0, 100)):
        server = with_failures(Eb(), devices, share, length)[0].state.server
        found.append(log_likelihood(devices, server.mean, server.covariance, server.noise))
    assert found[0] < found[1] < found[2]


def test_hm1_where_devices_fail() -> None:
    """Finite, with an A-RMSE within 5 %."""
    devices = simulate("demo", 1).devices

    def a_rmse(results: dict[str, DeviceResult]) -> float:
        return float(np.mean([score(result, devices[name].test).rmse for name, result in results.items()]))

    (_, undisturbed), (last, results) = (with_failures(Hm1(), devices, share, 30) for share in (0.0, 0.3))
    assert np.isfinite(last.state.server.Theta).all()
    assert a_rmse(results) == pytest.approx(a_rmse(undisturbed), rel=0.05)


class Mlflow:
    """A tracking server that can be killed, and started again on the same store."""

    def __init__(self, home: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._home = home
        kept = ["--backend-store-uri", f"sqlite:///{home}/tracking.db", "--artifacts-destination", str(home / "tracking")]
        self._command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *kept]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._home / "mlflow.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip
        deadline = time.monotonic() + LIMIT
        while True:
            assert time.monotonic() < deadline
            assert self._process.poll() is None
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", trust_env=False).is_success:
                    return
            time.sleep(0.1)

    def kill(self) -> None:
        """It and its workers."""
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def mlflow(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mlflow]:
    found = Mlflow(home)
    try:
        found.start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", found.url)
        yield found
    finally:
        found.kill()


def test_mlflow_is_away_for_two_rounds(
    server: Orchestrator, home: Path, fleet: Callable[..., Dataset], mlflow: Mlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the tracking server before the metrics of rounds 3 and 4, which are complete afterwards."""
    fleet()
    save = RunFolder.save

    def outage(folder: RunFolder, checkpoint: Checkpoint) -> None:
        save(folder, checkpoint)
        if checkpoint.state.round_num == 3:
            mlflow.kill()
        if checkpoint.state.round_num == 5:
            mlflow.start()

    monkeypatch.setattr(RunFolder, "save", outage)
    result = run(home, read_config(SETTINGS | {"rounds": 8}))
    assert result["tracked"]
    client, entries = MlflowClient(mlflow.url), ledger(home / "runs/run")
    for name in ("loss", "uplink_bytes", "answered"):
        told = [(metric.step, metric.value) for metric in client.get_metric_history(result["mlflow_run_id"], name)]
        assert told == [(entry["round_num"], entry[name]) for entry in entries]
    assert client.get_run(result["mlflow_run_id"]).info.status == "FINISHED"
