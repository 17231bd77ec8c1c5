"""`fedlin doctor`: each check is made to fail, and says what to do; what is well stays well."""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from upath import UPath

import flows.checks.report
from fedcore.data import create_simulated, remove_device
from fedcore.errors import Misuse
from fedcore.simulate import Fleet
from fedcore.testing import small_fleet
from flows.checks import places, servers
from flows.checks.finding import Finding
from flows.checks.packages import beside, packages, unlocked, unmet
from flows.checks.report import CHECKS, examined
from flows.cli.app import main
from flows.deploy import make_pools, read_deployments
from flows.orchestrator import Orchestrator
from flows.stack.local import ENVIRONMENT
from flows.workspace import Workspace
from tasks.tracking.registry import Registry
from tasks.tracking.runs import Tracker


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project folder that every user may get to, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        monkeypatch.setenv("FEDLIN_HOME", folder)
        for name in ("datasets", "runs"):
            (home / name).mkdir(mode=0o755)
        yield home


@contextmanager
def answering(texts: dict[str, str], date: float | None = None) -> Iterator[str]:
    """A server on the loopback that answers some paths, at a time of its own; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = texts.get(self.path)
            self.send_response_only(404 if text is None else 200)
            self.send_header("Date", formatdate(date, usegmt=True))
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}"
        finally:
            listener.shutdown()
            thread.join()


def levels(found: Iterator[Finding]) -> list[str]:
    return [each.level for each in found]


def wrong(found: Iterator[Finding]) -> list[Finding]:
    return [each for each in found if each.level != "ok"]


def test_a_package_that_is_missing_or_out_of_bounds_is_an_error() -> None:
    needed = [Requirement(each) for each in ("numpy>=2", "Polars>=2", "gone>=1", 'psycopg>=3; extra == "stack"')]
    found = list(unmet(needed, {"numpy": "1.26.4", "polars": "2.1.0"}))
    assert [(each.level, each.text.partition(":")[0]) for each in found] == [
        ("error", "numpy is 1.26.4, needs >=2"),
        ("error", "gone is not installed, needs >=1"),
    ]


def test_a_package_that_is_not_as_locked_is_a_warning() -> None:
    lock = (
        "# a lock\nnumpy==2.4.6 ; python_full_version < '3' \\\n    --hash=sha256:00==\n"
        "numpy==2.5.5 ; python_full_version >= '3' \\\n    --hash=sha256:01\nother==1.0 \\\nthird==2.0\n"
    )
    assert not list(unlocked(lock, {"numpy": "2.5.5", "third": "2.0"}))
    (found,) = unlocked(lock, {"numpy": "2.4.6", "third": "2.0"})
    assert (found.level, found.text.partition(": pip")[0]) == ("warning", "not as locked: numpy 2.4.6")
    assert not list(unlocked("", {"numpy": "2.4.6"}))


def test_the_packages_of_this_environment_are_looked_at(home: Path) -> None:
    assert all(each.check == "packages" for each in packages(Workspace(home)))


@pytest.mark.parametrize(
    ("server", "own", "level"),
    [("3.9.1", "3.9.1", None), ("3.10.0", "3.9.1", None), ("3.8.0", "3.9.1", "warning"), ("4.0", "3.9.1", "error")],
)
def test_a_server_may_be_newer_than_we_are_and_of_the_same_major_version(server: str, own: str, level: str | None) -> None:
    found = beside("prefect", "Prefect", server, own)
    assert (found.level if found else None) == level


def test_a_folder_that_takes_no_file_is_an_error_and_looking_leaves_nothing(
    reachable: Path, unprivileged: Callable[[], AbstractContextManager[None]]
) -> None:
    home = reachable
    before = sorted(home.rglob("*"))
    assert set(levels(places.folders(Workspace(home)))) == {"ok"}
    assert sorted(home.rglob("*")) == before
    with unprivileged():
        found = wrong(places.folders(Workspace(home)))
    assert {each.level for each in found} == {"error"}
    assert any(each.text.startswith(f"runs: {home / 'runs'} cannot be written (Permission denied): give permission") for each in found)


def test_an_object_store_is_written_to(home: Path, s3: Callable[[], UPath], monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3()
    monkeypatch.setenv("FEDLIN_RUNS", str(bucket / "runs"))
    assert set(levels(places.folders(Workspace(home)))) == {"ok"}
    monkeypatch.setenv("FEDLIN_RUNS", "s3://no-such-bucket-here/runs")
    (found,) = wrong(places.folders(Workspace(home)))
    assert (found.level, found.text.startswith("runs: s3://no-such-bucket-here/runs cannot be written (")) == ("error", True)


@pytest.mark.parametrize(("free", "level"), [(10**8, "error"), (10**9, "warning"), (10**10, "ok")])
def test_little_room_on_a_disk_is_told(free: int, level: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": free}))
    (found,) = places.disk(Workspace(home))  # one disk holds all three places
    assert (found.level, found.check) == (level, "disk")


def test_a_contract_without_devices_is_a_warning(home: Path) -> None:
    """A clone has contracts of data that whoever needs them gets elsewhere."""
    simulated = Fleet(small_fleet(), np.zeros((3, 3)), np.eye(3))
    dataset = create_simulated(home / "datasets", "small", simulated, "a small fleet")
    for device in dataset.device_ids:
        remove_device(home / "datasets", "small", device)
    (found,) = places.datasets(Workspace(home))
    assert found == ("warning", "datasets", "small: a contract without devices: fedlin data import brings them in")


def test_a_broken_contract_and_a_device_that_cannot_keep_its_state_are_errors(
    reachable: Path, unprivileged: Callable[[], AbstractContextManager[None]]
) -> None:
    workspace = Workspace(reachable)
    assert levels(places.datasets(workspace)) == ["ok"]
    simulated = Fleet(small_fleet(), np.zeros((3, 3)), np.eye(3))
    dataset = create_simulated(reachable / "datasets", "small", simulated, "a small fleet")
    assert isinstance(dataset.path, Path)
    assert [each.text for each in places.datasets(workspace)] == ["small: 3 devices"]
    for device in dataset.device_ids:
        (dataset.path / f"device={device}").chmod(0o755 if device == "b" else 0o777)
    with unprivileged():
        (found,) = places.datasets(workspace)
    assert (found.level, found.text.partition(":")[2].strip()[:52]) == ("error", "1 of 3 devices' folders cannot be written (b): give ")
    (dataset.path / "dataset.toml").write_text("nonsense")
    (found,) = places.datasets(workspace)
    assert (found.level, found.check) == ("error", "datasets")


@pytest.mark.parametrize(
    ("mode", "above", "level"), [(0o750, 0o755, "ok"), (0o755, 0o755, "warning"), (0o757, 0o755, "error"), (0o755, 0o700, "ok")]
)
def test_rows_that_others_of_the_machine_can_get_at_are_told(mode: int, above: int, level: str, reachable: Path) -> None:
    (reachable / "datasets").chmod(mode)
    reachable.chmod(above)
    assert levels(places.permissions(Workspace(reachable))) == [level]


def test_an_mlflow_store_has_to_have_the_schema_of_this_mlflow(home: Path) -> None:
    workspace = Workspace(home)
    (found,) = servers.mlflow(workspace)
    assert (found.level, workspace.mlflow_store.exists()) == ("ok", False)
    Tracker.open(None, default_store=workspace.mlflow_store, artifacts=workspace.mlflow_artifacts, experiment="small")
    assert levels(servers.mlflow(workspace)) == ["ok"]
    with sqlite3.connect(workspace.mlflow_store) as database:
        database.execute("update alembic_version set version_num = '0123456789ab'")
    (found,) = servers.mlflow(workspace)
    assert found.level == "error"
    assert "mlflow db upgrade" in found.text
    with sqlite3.connect(workspace.mlflow_store) as database:
        database.execute("drop table alembic_version")
    (found,) = servers.mlflow(workspace)
    assert found.text.endswith("holds no MLflow store: name another one in MLFLOW_TRACKING_URI")


def test_an_mlflow_store_that_is_none_or_does_not_answer_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "mlflow.db").write_text("this is no database at all, and long enough to be looked at" * 20)
    with pytest.raises(Misuse, match=r"^the MLflow store sqlite:.* cannot be used"):
        list(servers.mlflow(Workspace(home)))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ops:secret@127.0.0.1:9")
    with pytest.raises(Misuse, match=r"^the MLflow store http://127.0.0.1:9 cannot be used .*set MLFLOW_TRACKING_URI"):
        list(servers.mlflow(Workspace(home)))


def test_a_champion_needs_the_run_that_trained_it(home: Path) -> None:
    workspace = Workspace(home)
    assert [each.text for each in servers.registry(workspace)] == ["no champion yet"]
    tracker = Tracker.open(None, default_store=workspace.mlflow_store, artifacts=workspace.mlflow_artifacts, experiment="small")
    tracker.start("r", params={}, tags={})
    registry = Registry.open("fedlin-small", default_store=workspace.mlflow_store)
    registry.promote(registry.register("r", tracker.mlflow_run_id, {}).number)
    (found,) = servers.registry(workspace)
    assert (found.level, "was trained by run r, which is not in" in found.text) == ("error", True)
    (home / "runs/r").mkdir(parents=True)
    (home / "runs/r/config.json").write_text("{}")
    assert [each.text for each in servers.registry(workspace)] == ["version 1 is the champion of fedlin-small"]


@pytest.mark.parametrize(("seconds", "level"), [(0.01, "ok"), (0.5, "warning")])
def test_a_slow_prefect_server_is_told(seconds: float, level: str) -> None:
    assert servers.latency("server", seconds).level == level


def test_a_prefect_server_that_answers_is_well(server: Orchestrator, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SLOW", 60.0)  # no test depends on how fast the machine is
    assert levels(servers.prefect(Workspace(home))) == ["ok"]


def test_a_prefect_server_that_does_not_answer_is_one_line(home: Path) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        found = list(examined(Workspace(home), [servers.prefect, servers.deployments, servers.clock]))
    assert [(each.level, each.check) for each in found] == [("error", "prefect"), ("error", "deployments"), ("warning", "clock")]
    assert found[0].text.startswith("no Prefect server answers at PREFECT_API_URL=http://127.0.0.1:9/api: start it")


@pytest.mark.parametrize(("apart", "level"), [(0, "ok"), (60, "warning"), (-60, "warning"), (3600, "error"), (-3600, "error")])
def test_a_clock_that_goes_wrong_is_told(apart: float, level: str) -> None:
    date = formatdate(1_800_000_000 + apart, usegmt=True)
    assert servers.compared("MLflow", date, 1_800_000_000.1, 1_800_000_000.3).level == level


def test_the_resolution_of_a_date_and_the_wait_for_it_are_no_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SKEWED", 0.0)
    # The server's second began before we asked, or ended after it answered.
    assert servers.compared("MLflow", formatdate(1_800_000_000, usegmt=True), 1_800_000_000.9, 1_800_000_000.95).level == "ok"
    assert servers.compared("MLflow", formatdate(1_800_000_004, usegmt=True), 1_800_000_000.0, 1_800_000_009.0).level == "ok"
    assert servers.compared("MLflow", formatdate(1_800_000_000, usegmt=True), 1_800_000_001.5, 1_800_000_002.0).level == "warning"


def test_servers_are_asked_for_their_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_settings(restore_defaults={PREFECT_API_URL}), answering({"/health": "OK"}, date=1_000_000_000) as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        assert levels(servers.clock(Workspace(home))) == ["error"]
    assert servers.compared("MLflow", "", 0, 0).level == "warning"


def test_what_is_deployed_in_part_is_told(server: Orchestrator, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(home)
    with get_client(sync_client=True) as client:

        def clear() -> None:
            for each in client.read_deployments():
                client.delete_deployment(each.id)
            try:
                client.delete_work_pool("fedlin")
            except ObjectNotFound:
                return

        clear()
        try:
            assert [each.text for each in servers.deployments(workspace)] == ["none on this server: make deploy makes them"]
            make_pools()
            texts = [each.text for each in wrong(servers.deployments(workspace))]
            assert texts[0].startswith("no worker of pool fedlin is online: prefect worker start")
            assert texts[1:] == ["compare, ingest, retrain, retrain-on-partition not deployed: make deploy"]
            flow = client.create_flow_from_name("fedlin-train")
            for name in (each["name"] for each in read_deployments()):
                client.create_deployment(flow, name=name, paused=name == "compare")
            monkeypatch.setattr(servers, "online", lambda pool: True)
            assert [each.text for each in wrong(servers.deployments(workspace))] == ["compare paused: prefect deployment resume"]
            client.update_work_pool("fedlin", WorkPoolUpdate(is_paused=True))
            assert wrong(servers.deployments(workspace))[0].text == "work pool fedlin is paused: prefect work-pool resume fedlin"
            client.delete_work_pool("fedlin")
            assert wrong(servers.deployments(workspace))[0].text == "work pool fedlin is missing: make deploy makes it"
        finally:
            clear()


def test_a_stack_that_is_gone_or_not_used_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(home)
    assert [each.text for each in servers.stack(workspace)] == ["not started"]
    workspace.stack.mkdir()
    (workspace.stack / ENVIRONMENT).touch()
    (found,) = servers.stack(workspace)
    assert (found.level, found.text[:40]) == ("error", "prefect, mlflow, worker, postgres ended ")
    monkeypatch.setattr(servers.Stack, "running", {"prefect": True})
    (found,) = servers.stack(workspace)
    assert (found.level, "PREFECT_API_URL" in found.text) == ("warning", True)


def test_a_check_that_fails_itself_is_an_error_without_what_it_said(home: Path) -> None:
    def broken(_: Workspace) -> Iterator[Finding]:
        yield Finding("ok", "broken", "first")
        raise ValueError("SECRET")

    found = list(examined(Workspace(home), [broken, places.folders]))
    assert [each.level for each in found[:3]] == ["ok", "error", "ok"]
    assert "SECRET" not in found[1].text
    assert "ValueError" in found[1].text


def doctor(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedlin", "doctor", *words])
    monkeypatch.setattr(flows.checks.report, "CHECKS", [each for each in CHECKS if each.__module__ != "flows.checks.servers"])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code if isinstance(left.value.code, int) else 0


def test_the_exit_status_is_one_where_an_error_was_found(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(places.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**9}))
    assert doctor(monkeypatch=monkeypatch) == 0  # a warning is none
    assert "warning  disk: 1.0 GB free at" in capsys.readouterr().out
    monkeypatch.setattr(places.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 0}))
    assert doctor(monkeypatch=monkeypatch) == 1
    capsys.readouterr()
    assert doctor("--json", monkeypatch=monkeypatch) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert [each["check"] for each in told["findings"] if each["level"] == "error"] == ["disk"]
