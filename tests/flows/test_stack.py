"""The local stack from its start to its end: services, deployments, a run whose every record is kept, and nothing left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import flows.stack.local
from fedcore import Hm1, fit
from fedcore.data import create_simulated
from fedcore.errors import FedlinError, Misuse
from fedcore.simulate import Fleet, simulate
from fedcore.testing import small_fleet
from flows.stack.local import Stack
from flows.stack.postgres import Postgres
from flows.stack.processes import MARK, Service
from flows.workspace import Workspace
from tasks.lock import alone

ROOT = Path(flows.stack.local.__file__).parents[2]
ROUNDS, DEVICES = 3, 100

ENDS = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")

# Generous: a machine that does other things too.
PATIENCE = 300.0


def why_not() -> str:
    """What the stack needs and this machine lacks."""
    if importlib.util.find_spec("psycopg") is None:
        return "needs psycopg: install fedlin's extra stack"
    if not shutil.which("pg_ctl") and not list(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")):
        return "needs PostgreSQL: install Debian's package postgresql"
    return ""


needed = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


def marked(folder: Path) -> list[str]:
    """What the processes are that services of a folder have started, and their children."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={folder}/".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def wait_for(found: Callable[[], Any]) -> Any:
    """What a question is answered with once it is answered."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := found()):
        assert time.monotonic() < deadline
        time.sleep(1)
    return answer


@dataclass
class Project:
    """A project's folder with a stack that is up.

    Attributes
    ----------
    home
        The folder.
    environment
        Of commands in it: what a person has who has sourced `.stack/env`.
    ports
        Of Prefect, MLflow and PostgreSQL.
    """

    home: Path
    environment: dict[str, str]
    ports: tuple[int, int, int]

    def command(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", *words], env=self.environment, capture_output=True, text=True, check=False)

    def up(self) -> subprocess.CompletedProcess[str]:
        given = zip(("--prefect-port", "--mlflow-port", "--postgres-port"), map(str, self.ports), strict=True)
        return self.command("flows.stack", "up", *(word for pair in given for word in pair))

    def ask(self, path: str, **document: Any) -> Any:
        answer = httpx.post(f"http://127.0.0.1:{self.ports[0]}/api{path}", json=document, trust_env=False, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def deployment(self, name: str) -> str:
        (found,) = self.ask("/deployments/filter", deployments={"name": {"any_": [name]}})
        return found["id"]

    def flow_runs(self, name: str, *states: str) -> list[dict[str, Any]]:
        runs = {"state": {"type": {"any_": list(states)}}, "deployment_id": {"any_": [self.deployment(name)]}}
        return self.ask("/flow_runs/filter", flow_runs=runs, sort="EXPECTED_START_TIME_ASC")

    def start(self, name: str, **config: Any) -> str:
        run = self.ask(f"/deployments/{self.deployment(name)}/create_flow_run", parameters={"config": config}, state={"type": "SCHEDULED"})
        return run["id"]

    def state(self, flow_run: str) -> dict[str, Any]:
        answer = httpx.get(f"http://127.0.0.1:{self.ports[0]}/api/flow_runs/{flow_run}", trust_env=False, timeout=60)
        return answer.json()


def free_ports() -> tuple[int, int, int]:
    with contextlib.ExitStack() as held:
        listeners = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        first, second, third = (listener.getsockname()[1] for listener in listeners)
        return first, second, third


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    """Not in pytest's own folder: no other account may enter that, and PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory(prefix="fedlin-stack-") as folder:
        home = Path(folder)
        home.chmod(0o711)
        (home / "datasets").mkdir()
        ports = free_ports()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "FEDLIN_"))}
        addresses = {"PREFECT_API_URL": f"http://127.0.0.1:{ports[0]}/api", "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{ports[1]}"}
        project = Project(home, kept | addresses | {"FEDLIN_HOME": folder, "PYTHONPATH": str(ROOT)}, ports)
        try:
            up = project.up()
            assert up.returncode == 0, up.stderr
            yield project
        finally:
            down = project.command("flows.stack", "down")
            assert down.returncode == 0, down.stderr


@pytest.fixture(scope="module")
def deployed(project: Project) -> Project:
    """With deployments."""
    done = project.command("flows.deploy")
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture(scope="module")
def demo(deployed: Project) -> Project:
    """With the demo's data."""
    done = deployed.command("flows.cli.app", "simulate", "demo", "--dataset", "demo", "--seed", "0")
    assert done.returncode == 0, done.stderr
    return deployed


@pytest.fixture(scope="module")
def small(deployed: Project) -> Project:
    """With a small fleet, which validates too."""
    data = {f"{k:03}": each._replace(validation=each.train) for k, each in enumerate(small_fleet(rows=(12, 17, 30)).values())}
    create_simulated(deployed.home / "datasets", "small", Fleet(data, np.zeros((3, 3)), np.eye(3)), "a small fleet")
    return deployed


def test_an_id_that_is_somebody_elses_by_now_is_no_server_of_ours(tmp_path: Path) -> None:
    postgres = Postgres(tmp_path, 5433)
    postgres.data.mkdir()
    (postgres.data / "PG_VERSION").write_text("15")
    other = [sys.executable, "-c", "input()", "-D", str(postgres.data)]
    with subprocess.Popen(other, stdin=subprocess.PIPE, cwd=tmp_path) as process:
        (postgres.data / "postmaster.pid").write_text(f"{process.pid}\n{postgres.data}\n")
        assert not postgres.running
        assert not postgres.stop()
        assert process.poll() is None
        process.communicate(b"\n")


@needed
@pytest.mark.slow
def test_a_second_start_changes_nothing(project: Project) -> None:
    before = {each.name: each.read_text() for each in (project.home / ".stack").glob("*.pid")}
    assert sorted(before) == ["mlflow.pid", "prefect.pid", "worker.pid"]
    again = project.command("flows.stack", "up")
    assert again.returncode == 0, again.stderr
    assert {each.name: each.read_text() for each in (project.home / ".stack").glob("*.pid")} == before
    addresses = {name: project.environment[name] for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "FEDLIN_HOME")}
    assert (project.home / ".stack/env").read_text() == "".join(f"export {name}={value}\n" for name, value in addresses.items())


@needed
@pytest.mark.slow
def test_nobody_else_reads_the_password(project: Project) -> None:
    assert {(project.home / ".stack" / name).stat().st_mode & 0o077 for name in ("password", "pgpass")} == {0}
    password = (project.home / ".stack/password").read_text()
    commands = [each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [command for command in commands if password.encode() in command]


@needed
@pytest.mark.slow
def test_the_scheduled_deployment_has_next_runs(deployed: Project) -> None:
    runs = wait_for(lambda: deployed.flow_runs("retrain", "SCHEDULED"))
    assert [run["parameters"]["config"] for run in runs] == [{"dataset": "demo"}] * len(runs)
    assert {run["expected_start_time"][11:16] for run in runs} == {"03:00"}


@needed
@pytest.mark.slow
def test_every_task_run_is_in_the_database(demo: Project) -> None:
    done = demo.command("flows.cli.app", "train", "demo", "--algorithm", "hm1", "--rounds", str(ROUNDS), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    made = json.loads((demo.home / "runs" / result["run_id"] / "result.json").read_text())["task_runs"]
    assert made >= ROUNDS * DEVICES
    query = f"select count(*) from task_run where flow_run_id = '{result['flow_run_id']}' and state_type = 'COMPLETED'"
    assert int(sql(demo, "prefect", query)) == made
    assert sql(demo, "mlflow", "select count(*) from runs where status = 'FINISHED'") == "1"


def sql(project: Project, database: str, query: str) -> str:
    import psycopg

    password = (project.home / ".stack/password").read_text()
    where = {"host": "127.0.0.1", "port": project.ports[2], "user": "fedlin", "password": password, "dbname": database}
    with psycopg.connect(**where) as connection:  # pyright: ignore[reportArgumentType]
        row = connection.execute(query).fetchone()  # pyright: ignore[reportArgumentType]
    assert row is not None
    return str(row[0])


@needed
@pytest.mark.slow
def test_a_partition_that_is_ingested_starts_a_training_of_its_data_set(small: Project) -> None:
    (file,) = (small.home / "datasets/small/device=000").glob("*.parquet")
    ingested = small.start("ingest", dataset="small", file=str(file), device="extra")
    (run,) = wait_for(lambda: small.flow_runs("retrain-on-partition", "RUNNING", *ENDS))
    assert small.state(ingested)["state"]["type"] == "COMPLETED"
    assert run["parameters"] == {"config": {"dataset": "small"}}
    assert wait_for(lambda: _ended(small.state(run["id"])))["state"]["type"] == "COMPLETED"


@pytest.fixture(scope="module")
def growing(deployed: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, list[Path]]:
    """With twenty devices of the demo's fleet, whose champion has seen one round, and the files of two more."""
    fleet, later = simulate("demo", 0), tmp_path_factory.mktemp("later")
    ids = sorted(fleet.devices)[:22]
    for root, chosen in ((deployed.home / "datasets", ids[:20]), (later, ids[20:])):
        devices = {each: fleet.devices[each] for each in chosen}
        create_simulated(root, "growing", Fleet(devices, fleet.Theta, fleet.Omega), "a fleet that grows")
    first = deployed.command("flows.cli.app", "retrain", "growing", "--algorithm", "eb", "--rounds", "1")
    assert first.returncode == 0, first.stderr
    return deployed, sorted((later / "growing").glob("device=*/*.parquet"))


@needed
@pytest.mark.slow
def test_with_a_new_device_there_is_a_new_version_and_the_champion_moves_to_a_better_one_alone(growing: tuple[Project, list[Path]]) -> None:
    """Twice: the first champion has seen one round, and is no match for thirty; the second one has seen them."""
    project, files = growing
    found: list[dict[str, Any]] = []
    for file in files:
        device = file.parent.name.removeprefix("device=")
        added = project.command("flows.cli.app", "data", "add", str(file), "--dataset", "growing", "--device", device)
        assert added.returncode == 0, added.stderr
        begun = time.monotonic()
        wait_for(lambda: len(_ended_retrainings(project, "growing")) > len(found))
        print(f"a new version {time.monotonic() - begun:.0f} s after device {device} was there")  # noqa: T201
        (run, *_) = _ended_retrainings(project, "growing")[len(found) :]
        assert run["state"]["type"] == "COMPLETED", run["state"]["message"]
        found.append(json.loads(project.command("flows.cli.app", "champion", "growing", "--json").stdout.splitlines()[-1]))
    made = [[(each["decision"], each["version"], each["champion"]) for each in told["decisions"]] for told in found]
    assert made[1] == [("promoted", 1, None), ("promoted", 2, 1), ("kept", 3, 2)]
    assert made[0] == made[1][:2]
    assert [told["version"] for told in found] == [2, 2]
    assert sql(project, "mlflow", "select count(*) from model_versions where name = 'fedlin-growing'") == "3"
    for told, devices in zip(found, (21, 22), strict=True):
        challenger = told["decisions"][-1]["figures"]["challenger"]
        assert len(json.loads((project.home / "runs" / challenger / "manifest.json").read_text())["devices"]) == devices


def _ended_retrainings(project: Project, dataset: str) -> list[dict[str, Any]]:
    """Those that an event has started, the oldest first."""
    runs = project.flow_runs("retrain-on-partition", *ENDS)
    return [run for run in runs if run["parameters"]["config"]["dataset"] == dataset]


@needed
@pytest.mark.slow
def test_a_run_waits_for_its_data_set_and_another_is_cancelled(small: Project) -> None:
    settings = {"dataset": "small", "algorithms": ["separate", "pooled"], "rounds": 2, "budget": 1}
    turns = Workspace(small.home).turns / "small"
    with alone(turns / "turn.lock"):
        waits = small.start("compare", **settings)
        wait_for(lambda: list(turns.glob("compare-*-waits.lock")))
        third = small.start("compare", **settings)
        away = wait_for(lambda: _ended(small.state(third)))
        assert small.state(waits)["state"]["type"] == "RUNNING"
    assert away["state"]["type"] == "CANCELLED"
    expected = "a compare of data set 'small' with the same parameters waits already, and will read the same rows: nothing to do"
    assert away["state"]["message"] == expected
    ended = wait_for(lambda: _ended(small.state(waits)))
    assert ended["state"]["type"] == "COMPLETED", ended["state"]["message"]


@needed
@pytest.mark.slow
def test_a_run_that_is_cancelled_in_prefect_goes_on_from_its_checkpoint(deployed: Project) -> None:
    """Resumed on the command line it ends where one ends that nobody has cancelled, to the bit."""
    devices = small_fleet(rows=(12, 17, 30, 9))
    create_simulated(deployed.home / "datasets", "stopped", Fleet(devices, np.zeros((3, 4)), np.eye(4)), "a small fleet")
    run = deployed.start("retrain", dataset="stopped", algorithm="hm1", rounds=200, options={"batch": 3, "gradient": "sum"})
    challenger = wait_for(lambda: next((each.parent for each in deployed.home.glob("runs/*/checkpoint.npz") if of(each, "stopped")), None))
    deployed.ask(f"/flow_runs/{run}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    assert wait_for(lambda: _ended(deployed.state(run)))["state"]["type"] == "CANCELLED"
    assert (challenger / "checkpoint.npz").exists()
    assert not (challenger / "result.json").exists()
    wait_for(lambda: not [each for each in marked(deployed.home / ".stack") if "prefect.engine" in each])
    resumed = deployed.command("flows.cli.app", "retrain", "--resume", challenger.name.removesuffix("-challenger"), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout.splitlines()[-1])["outcome"] == "promoted"
    expected = fit(Hm1(batch=3, gradient="sum"), devices, rounds=200)
    with np.load(challenger / "results/theta.npz") as stored:
        np.testing.assert_array_equal(stored["Theta"], np.array([expected.theta[name] for name in sorted(devices)]).T)


def _ended(run: dict[str, Any]) -> dict[str, Any] | None:
    return run if run["state"]["type"] in ENDS else None


@needed
@pytest.mark.slow
def test_postgresql_is_restarted_in_mid_run(project: Project) -> None:
    """Both servers lose their connections: the run's ledger, coefficients and metrics are complete."""
    devices = small_fleet(rows=(12, 17, 30))
    create_simulated(project.home / "datasets", "hardy", Fleet(devices, np.zeros((3, 3)), np.eye(3)), "a small fleet")
    words = ["train", "hardy", "--algorithm", "hm1", "--rounds", "40", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "flows.cli.app", *words], env=project.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        folder = wait_for(lambda: next((each.parent for each in project.home.glob("runs/*/checkpoint.npz") if of(each, "hardy")), None))
        postgres = Postgres(project.home / ".stack", project.ports[2])
        assert postgres.stop()
        assert process.poll() is None
        postgres.start()
        out, error = process.communicate(timeout=PATIENCE)
    if process.returncode:
        assert f"--resume {folder.name}" in error.splitlines()[-1]
        resumed = project.command("flows.cli.app", "train", "--resume", folder.name, "--json")
        assert resumed.returncode == 0, resumed.stderr
        out = resumed.stdout
    result = json.loads(out.splitlines()[-1])
    assert (result["outcome"], result["rounds"]) == ("completed", 40)
    expected = fit("hm1", devices, rounds=40)
    with np.load(folder / "results/theta.npz") as stored:
        np.testing.assert_array_equal(stored["Theta"], np.array([expected.theta[name] for name in sorted(devices)]).T)
    made = json.loads((folder / "result.json").read_text())
    steps = f"select count(distinct step) from metrics where run_uuid = '{made['mlflow_run_id']}' and key = 'loss'"
    assert (made["tracked"], sql(project, "mlflow", steps)) == (True, "40")


def of(checkpoint: Path, dataset: str) -> bool:
    """Whether a checkpoint is of a run on this data set."""
    return json.loads((checkpoint.parent / "config.json").read_text())["given"]["dataset"] == dataset


@needed
@pytest.mark.slow
def test_the_end_leaves_no_process_and_keeps_the_databases(project: Project) -> None:
    assert marked(project.home / ".stack") != []
    down = project.command("flows.stack", "down")
    assert down.returncode == 0, down.stderr
    assert down.stdout.splitlines() == ["worker ended", "mlflow ended", "prefect ended", "PostgreSQL ended"]
    assert marked(project.home / ".stack") == []
    for port in project.ports:
        socket.create_server(("127.0.0.1", port)).close()
    assert not list((project.home / ".stack").glob("*.pid"))
    assert (project.home / ".stack/postgres/PG_VERSION").exists()
    assert project.command("flows.stack", "down").stdout == ""


SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]
PARENT = f"import subprocess, sys, time; subprocess.Popen({SLEEP!r}, start_new_session=True); print('up', flush=True); time.sleep(1000)"


def test_a_service_that_was_started_runs(tmp_path: Path) -> None:
    """From the first moment on, again and again: the system is a little late with a new process's environment."""
    for _ in range(50):
        service = Service("sleeps", tmp_path)
        service.start(SLEEP, os.environ)
        assert service.running
        os.kill(int((tmp_path / "sleeps.pid").read_text().split()[0]), 9)


def test_a_service_ends_with_what_it_has_started(tmp_path: Path) -> None:
    service = Service("parent", tmp_path)
    assert not service.running
    assert not service.stop()
    service.start([sys.executable, "-c", PARENT], os.environ)
    service.await_ready(lambda: "up" in service.log.read_text(), limit=60)
    assert len([each for each in marked(tmp_path) if "time.sleep(1000)" in each]) == 2
    assert service.stop()
    assert not [each for each in marked(tmp_path) if "time.sleep(1000)" in each]


def test_what_a_killed_service_has_started_ends_too(tmp_path: Path) -> None:
    service = Service("parent", tmp_path)
    service.start([sys.executable, "-c", PARENT], os.environ)
    service.await_ready(lambda: "up" in service.log.read_text(), limit=60)
    os.kill(int((tmp_path / "parent.pid").read_text().split()[0]), 9)
    wait_for(lambda: not service.running)
    assert service.stop()
    assert not [each for each in marked(tmp_path) if "time.sleep(1000)" in each]


def test_another_process_that_has_got_the_id_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP) as other:
        (tmp_path / "parent.pid").write_text(f"{other.pid} parent-0123456789abcdef")
        service = Service("parent", tmp_path)
        assert not service.running
        assert not service.stop()
        assert other.poll() is None
        other.kill()


def test_a_service_that_ends_while_it_starts_names_its_log(tmp_path: Path) -> None:
    service = Service("short", tmp_path)
    service.start([sys.executable, "-c", "raise SystemExit('no')"], os.environ)
    with pytest.raises(FedlinError, match=r"^short ended while it started: see .*short\.log$"):
        service.await_ready(lambda: False, limit=60)
    assert service.log.read_text() == "no\n"


def test_a_port_that_is_taken_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows.stack.local.importlib.util, "find_spec", lambda name: object())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        stack = Stack(Workspace(home), prefect=port, mlflow=port, postgres=port)
        with pytest.raises(Misuse, match=rf"^port {port} cannot be used \(Address already in use\): name another one with --prefect-port$"):
            stack.up(print)


@pytest.mark.parametrize(("missing", "line"), [("psycopg", "^MLflow needs psycopg for PostgreSQL: install fedlin with its extra stack$")])
def test_what_is_missing_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch, missing: str, line: str) -> None:
    monkeypatch.setattr(flows.stack.local.importlib.util, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(Misuse, match=line):
        Stack(Workspace(home)).up(print)
    assert not (home / ".stack").exists()


def test_without_postgresql_it_names_the_package(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows.stack.local.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("flows.stack.postgres.shutil.which", lambda name: None)
    monkeypatch.setattr("flows.stack.postgres.INSTALLED", home)
    first, second, third = free_ports()
    with pytest.raises(
        Misuse, match=r"^PostgreSQL's initdb is missing: install Debian's package postgresql \(apt-get install postgresql\)$"
    ):
        Stack(Workspace(home), prefect=first, mlflow=second, postgres=third).up(print)
