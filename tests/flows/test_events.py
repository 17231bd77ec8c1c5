"""A server of the user's own is told of partitions that are added; nobody is where there is none."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedcore.errors import Misuse
from flows.checks.servers import events
from flows.cli.data import app
from flows.events import owed, tell, untold
from flows.orchestrator import Orchestrator
from flows.workspace import Workspace

ROWS = "pump,hour,flow\n" + "".join(f"{pump},{hour},{7000 + hour}\n" for pump in ("a", "b") for hour in range(3))


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """Requests to an address that ``PREFECT_API_URL`` names, as paths with documents."""
    requests: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(204)
            self.end_headers()

        def do_GET(self) -> None:
            self.send_error(404)  # the client asks for a token first, which servers need not have

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{listener.server_port}/api")
        yield requests
        listener.shutdown()
        thread.join()


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def add(home: Path, device: str, *more: str) -> Result:
    (home / "rows.csv").write_text("hour,flow\n7,7007\n8,7008\n")
    return run("add", str(home / "rows.csv"), "--dataset", "pumps", "--device", device, *more)


def import_pumps(home: Path) -> Result:
    (home / "pumps.csv").write_text(ROWS)
    return run("import", str(home / "pumps.csv"), "--dataset", "pumps", "--device", "pump", "--target", "flow")


def test_each_batch_is_one_event_of_ids_and_counts(home: Path, received: list[tuple[str, Any]]) -> None:
    import_pumps(home)
    add(home, "c")
    add(home, "a", "--append")
    add(home, "a", "--append")
    assert [path for path, _ in received] == ["/api/events"] * 3
    told = [event for _, (event,) in received]
    assert {event["event"] for event in told} == {"fedlin.partition.added"}
    assert {event["resource"]["prefect.resource.id"] for event in told} == {"fedlin.dataset.pumps"}
    assert [event["payload"] for event in told] == [{"rows": {"a": 3, "b": 3}}, {"rows": {"c": 2}}, {"rows": {"a": 2}}]
    assert "700" not in json.dumps([event["payload"] for event in told])


def test_nobody_is_told_without_an_address(home: Path, received: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    import_pumps(home)
    assert add(home, "c").exit_code == 0
    assert received == []


def test_a_server_that_is_away_is_a_warning(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    result = import_pumps(home)
    assert result.exit_code == 0
    assert (home / "datasets/pumps/device=b/part-0.parquet").exists()
    expected = "the Prefect server at http://127.0.0.1:9/api did not take the event fedlin.partition.added (ConnectError)"
    remedy = "once it is back, the next fedlin data add tells it (the same one again will do), as does make stack"
    assert result.stderr == f"fedlin: warning: {expected}: {remedy}\n"


@pytest.mark.parametrize("again", ["c", "d"])
def test_what_a_server_did_not_take_is_told_by_the_next_command(
    home: Path, received: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """Also by the same one, which changes nothing; and once."""
    import_pumps(home)
    there = os.environ["PREFECT_API_URL"]
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    add(home, "c")
    assert [(each.dataset, each.rows) for each in untold(Workspace(home))] == [("pumps", {"c": 2})]
    (finding,) = events(Workspace(home))
    assert finding.level == "warning"
    assert "(pumps; 1 batches)" in finding.text
    monkeypatch.setenv("PREFECT_API_URL", there)
    add(home, again)
    add(home, again)
    more = [{"rows": {"d": 2}}] if again == "d" else []
    assert [event["payload"] for _, (event,) in received] == [{"rows": {"a": 3, "b": 3}}, {"rows": {"c": 2}}, *more]
    assert untold(Workspace(home)) == []
    assert [each.level for each in events(Workspace(home))] == ["ok"]


def test_a_command_that_is_killed_over_it_leaves_its_note(home: Path, received: list[tuple[str, Any]]) -> None:
    with pytest.raises(SystemExit), owed(Workspace(home), "pumps"):
        raise SystemExit
    assert [(each.dataset, each.rows) for each in untold(Workspace(home))] == [("pumps", {})]


def test_rows_that_are_refused_are_not_told(home: Path, received: list[tuple[str, Any]]) -> None:
    import_pumps(home)
    (home / "rows.csv").write_text("hour,flow\n7,much\n")
    with pytest.raises(Misuse):
        run("add", str(home / "rows.csv"), "--dataset", "pumps", "--device", "c")
    assert untold(Workspace(home)) == []
    assert len(received) == 1


@pytest.mark.slow
def test_prefect_takes_the_event(home: Path, server: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server.api_url)
    with owed(Workspace(home), "pumps") as rows:
        rows["a"] = 3
    assert tell(Workspace(home), server.api_url) == ""
    assert untold(Workspace(home)) == []
