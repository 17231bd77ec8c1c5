"""The private Prefect server of a run: it records every task run, and never outlives the process that started it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.events.worker import EventsWorker
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

import flows.orchestrator
from fedcore.errors import FedlinError, Misuse
from flows.orchestrator import EVENTS_LIMIT, GONE, Orchestrator, finished, orchestrator

ROUNDS, DEVICES = 6, 25
ROOT = Path(flows.orchestrator.__file__).parents[1]


@task(cache_policy=NO_CACHE, retries=1)
def step(device: int) -> int:
    if device == 3:
        raise ValueError("this device fails, and so does its retry")
    return device


@flow(task_runner=ThreadPoolTaskRunner(max_workers=4), log_prints=False)
def rounds(server: Orchestrator) -> str:
    ended = 0
    for round_num in range(1, ROUNDS + 1):
        for future in step.map(range(DEVICES)):
            future.wait()
        ended = server.pace(flow_run.id, round_num * DEVICES, ended, backlog=DEVICES)
    return flow_run.id


@pytest.fixture(scope="module", autouse=True)
def no_server() -> Iterator[None]:
    """Neither the user's server nor the one that other tests share."""
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        yield


@dataclass
class Visit:
    """What was seen of a whole life of a server."""

    home: Path
    api_url: str
    during: str | None
    after: str | None
    paced: dict[str, int]
    drained: dict[str, int]
    nobody: dict[str, int]
    exit_codes: list[int | None]


@pytest.fixture(scope="module")
def visit(no_server: None, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    home = tmp_path_factory.mktemp("prefect")
    started: list[subprocess.Popen] = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Recorded)
        with orchestrator(home) as server:
            during = PREFECT_API_URL.value()
            identity = rounds(server)
            paced = server.recorded(identity)
            drained = server.drain(identity, ROUNDS * DEVICES)
            nobody = server.recorded("00000000-0000-4000-8000-000000000000")
        return Visit(home, server.api_url, during, PREFECT_API_URL.value(), paced, drained, nobody, [each.poll() for each in started])


@pytest.mark.slow
def test_every_task_run_is_recorded_with_its_end(visit: Visit) -> None:
    assert visit.drained == {"COMPLETED": ROUNDS * (DEVICES - 1), "FAILED": ROUNDS}
    assert visit.nobody == {}


@pytest.mark.slow
def test_pacing_leaves_no_more_than_the_backlog_unrecorded(visit: Visit) -> None:
    assert finished(visit.paced) >= (ROUNDS - 1) * DEVICES


@pytest.mark.slow
def test_the_process_uses_the_server_while_the_context_is_open(visit: Visit) -> None:
    assert visit.during == visit.api_url
    assert visit.api_url.startswith("http://127.0.0.1:")
    assert visit.after is None
    assert (visit.home / "prefect.db").exists()


@pytest.mark.slow
def test_the_server_ends_with_the_context(visit: Visit) -> None:
    assert len(visit.exit_codes) == 1
    assert visit.exit_codes[0] is not None
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{visit.api_url}/health", trust_env=False)
    assert not EventsWorker._instances


@pytest.mark.slow
def test_a_gone_server_is_one_line(visit: Visit) -> None:
    gone = Orchestrator(visit.api_url)
    with pytest.raises(FedlinError, match=rf"the Prefect server at {visit.api_url} does not answer \(ConnectError\)$"):
        gone.recorded("00000000-0000-4000-8000-000000000000")
    assert gone.drain("00000000-0000-4000-8000-000000000000", 1, patience=0.1) == {}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the children of a process from /proc")
def test_a_killed_run_leaves_no_server_and_a_database_that_serves_again(visit: Visit) -> None:
    run = (
        "import sys; from pathlib import Path; from flows.orchestrator import orchestrator\n"
        "with orchestrator(Path(sys.argv[1])) as server: print(server.api_url, flush=True); input()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", run, str(visit.home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert httpx.get(f"{url}/health", trust_env=False).is_success
        server = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        parent.kill()
    deadline = time.monotonic() + 60
    while _runs(server) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(server)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked for its exit code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_server_is_asked_only_where_it_may_be_too_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked, ended = [950, 1900], list[int](), 0
    monkeypatch.setattr(flows.orchestrator, "_count", lambda *_: asked.append(made) or answers.pop(0))
    for made in range(100, 2100, 100):
        ended = Orchestrator("http://127.0.0.1:9/api").pace("00000000-0000-4000-8000-000000000000", made, ended, backlog=1000)
    assert asked == [1100, 2000]
    assert ended == 1900


def test_a_server_that_is_gone_is_not_waited_for_as_long_as_one_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(flows.orchestrator, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    assert Orchestrator("http://127.0.0.1:9/api").drain("00000000-0000-4000-8000-000000000000", 1) == {}
    assert GONE <= sum(slept) <= GONE + 1


@pytest.mark.parametrize("there", [True, False])
def test_what_a_server_that_has_gone_cannot_take_is_dropped(there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers, limits = [True, there], list[float]()
    monkeypatch.setattr(flows.orchestrator, "_answers", lambda: answers.pop(0))
    monkeypatch.setattr(flows.orchestrator, "_flush_events", limits.append)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}), orchestrator(tmp_path):
        pass
    assert limits == [EVENTS_LIMIT if there else 0]


def test_a_server_of_the_user_must_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = "http://127.0.0.1:9/api"
    with (
        temporary_settings({PREFECT_API_URL: address}),
        pytest.raises(Misuse, match=f"^no Prefect server answers at PREFECT_API_URL={address}: start it, or unset"),
        orchestrator(tmp_path / "unused"),
    ):
        pytest.fail("there is no server")
    assert not (tmp_path / "unused").exists()


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(Misuse, match=r"^a private Prefect server cannot use the folder .*: choose one that can be written$"),
        orchestrator(tmp_path / "file"),
    ):
        pytest.fail("there is no server")


@pytest.mark.slow
def test_a_server_that_ends_while_starting_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "nonsense")
    with (
        pytest.raises(FedlinError, match=r"^the private Prefect server ended while starting: see .*prefect-server\.log$"),
        orchestrator(tmp_path),
    ):
        pytest.fail("there is no server")
    log = (tmp_path / "prefect-server.log").read_text()
    assert "Traceback" in log
    assert "Fatal Python error" not in log
