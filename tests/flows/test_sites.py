"""Two sites with system users, data roots and workers of their own, and a server that is a third user: what each can do, tried."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import State

import flows
from fedcore import Hm1, fit
from fedcore.data import create_simulated, open_dataset
from fedcore.rows import DeviceData
from fedcore.simulate import Fleet
from fedcore.testing import small_fleet
from flows.orchestrator import Orchestrator

ROOT = Path(flows.__file__).parents[1]
ROUNDS = 2
PATIENCE = 120
ALGORITHM = Hm1(batch=3, gradient="sum")
OPTIONS = ["--algorithm", "hm1", "--set", "batch=3", "--set", "gradient=sum", "--rounds", str(ROUNDS)]
DEVICES = {"north": ("a", "b"), "south": ("c", "d", "e")}


class User(NamedTuple):
    """A system user, whom no list of users has to know: a number, and the groups of the exchanges that it may use."""

    number: int
    groups: tuple[int, ...]

    def command(self, *words: object) -> list[str]:
        groups = ["--groups", ",".join(map(str, self.groups))]
        return ["setpriv", "--reuid", str(self.number), "--regid", str(self.number), *groups, *map(str, words)]


EXCHANGES = {"north": 64112, "south": 64113}
USERS = {"server": User(64101, tuple(EXCHANGES.values())), "north": User(64102, (64112,)), "south": User(64103, (64113,))}


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter that other users may start, with what this one has."""
    if os.geteuid() != 0:
        pytest.skip("other system users can be tried by root alone")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed, so other system users cannot be tried")
    others = Path("/usr/bin") / f"python{sys.version_info.major}.{sys.version_info.minor}"
    for each in (Path(sys.executable), others):
        tried = USERS["north"].command(each, "-c", "import numpy, polars, tasks")
        with tempfile.TemporaryDirectory() as home:
            os.chmod(home, 0o777)
            done = subprocess.run(tried, env=environment(Path(home)), cwd="/", capture_output=True, check=False)
        if done.returncode == 0:
            return each
    pytest.skip(f"another user can start neither {sys.executable} nor {others} with the project's packages: they are in a closed folder")


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "FEDLIN_", "PYTEST_"))}
    packages = os.pathsep.join([str(ROOT), str(Path(polars.__file__).parents[1])])
    own = {"HOME": str(home), "USER": home.name, "LOGNAME": home.name, "FEDLIN_HOME": str(home), "PYTHONPATH": packages}
    return kept | own | {"PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(home)} | more


class World(NamedTuple):
    """A folder for each user, which nobody else may enter, and one exchange a site, which its user shares with the server's."""

    root: Path
    python: Path
    api_url: str
    fleet: dict[str, DeviceData]
    workers: dict[str, subprocess.Popen[str]]
    begun: list[subprocess.Popen[str]]

    def home(self, name: str) -> Path:
        return self.root / name

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """A command of fedlin, carried out by one of the users."""
        env = environment(self.home(name), PREFECT_API_URL=self.api_url)
        command = USERS[name].command(self.python, "-m", "flows.cli.app", *words)
        self.begun.append(
            subprocess.Popen(command, env=env, cwd=self.home(name), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return self.begun[-1]

    def does(self, name: str, *words: str) -> str:
        process = self.start(name, *words)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    def serve(self, name: str) -> None:
        """Start a site's worker, and wait until it serves."""
        worker = self.workers[name] = self.start(name, "site", "serve", name)
        assert worker.stdout is not None
        assert worker.stdout.readline() == f"Worker '{name}' started!\n", worker.communicate()[1]

    def audit(self, name: str) -> list[dict[str, Any]]:
        """What has been noted so far; the last line may be half there, since it is seen page by page while it is written."""
        log = self.home(name) / "sites" / name / "audit.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.fixture(scope="module")
def world(python: Path, server: Orchestrator) -> Iterator[World]:
    """Sites that are served, each with some devices of one fleet."""
    with tempfile.TemporaryDirectory(prefix="fedlin-sites-") as folder:
        root = Path(folder)
        root.chmod(0o711)
        devices = small_fleet(rows=(12, 7, 30, 9, 15))
        create_simulated(root, "small", Fleet(devices, np.zeros((3, 5)), np.eye(5)), "a small fleet")
        dataset = open_dataset(root, "small")
        made = World(root, python, server.api_url, {device: dataset.load(device) for device in dataset.device_ids}, {}, [])
        for name in USERS:
            (made.home(name) / "datasets" / "small").mkdir(parents=True)
            shutil.copy(root / "small" / "dataset.toml", made.home(name) / "datasets" / "small")
            for device in DEVICES.get(name, ()):
                (root / "small" / f"device={device}").rename(made.home(name) / "datasets" / "small" / f"device={device}")
        shutil.rmtree(root / "small")
        (root / "exchange").mkdir()
        for name, group in EXCHANGES.items():
            (root / "exchange" / name).mkdir()
            os.chown(root / "exchange" / name, USERS["server"].number, group)
            (root / "exchange" / name).chmod(0o2770)
        for name in USERS:
            given_to(made, name)
        enrolled(made)
        try:
            for name in EXCHANGES:
                made.serve(name)
            yield made
        finally:
            for process in made.begun:  # a test that has failed may leave others than the workers
                process.send_signal(signal.SIGTERM)  # which has no effect on one that has ended
            for process in made.begun:
                if process.returncode is None:
                    process.communicate()


def given_to(world: World, name: str) -> None:
    for each in (world.home(name), *world.home(name).rglob("*")):
        os.chown(each, USERS[name].number, USERS[name].number)
    world.home(name).chmod(0o700)


def enrolled(world: World) -> None:
    """What those who own the sites and whoever runs the server do once."""
    lines: list[str] = []
    exchanges = {name: world.root / "exchange" / name for name in EXCHANGES}
    more = ["--datasets", "datasets", "--algorithm", "hm1", "--exchange"]
    made = {name: world.start(name, "site", "init", name, *more, str(exchange)) for name, exchange in exchanges.items()}
    for name, exchange in exchanges.items():
        said, err = made[name].communicate()
        assert f'[sites.{name}]\nkey = "{name}.key"\nexchange = "{exchange}"' in said, err
        assert "it will be refused: [disclosure] rows = 1 is below 3" in said
        folder = world.home(name) / "sites" / name
        # A simulated fleet opens every rule, and so do those who own it.
        policy = (folder / "policy.toml").read_text()
        rules = policy.partition("\n[disclosure]\n")[2]
        opened = "rows = 1\nlevel_rows = 1\nparameters = 100.0\ndevices = 1\n"
        (folder / "policy.toml").write_text(policy.replace(rules, opened))
        shutil.copy(folder / "site.key", world.home("server") / f"{name}.key")
        (world.home("server") / f"{name}.key").chmod(0o600)
        lines.append(f'[sites.{name}]\nkey = "{name}.key"\nexchange = "{exchange}"\npatience = {PATIENCE}\n')
    (world.home("server") / "sites.toml").write_text("\n".join(lines))
    given_to(world, "server")


@pytest.fixture(scope="module")
def trained(world: World) -> dict[str, Any]:
    """What the server's user gets of a run over both sites."""
    out = world.does("server", "train", "small", "--sites", "sites.toml", *OPTIONS, "--json")
    return json.loads(out.splitlines()[-1])


def asked(world: World, site: str, parameters: dict[str, Any]) -> State[Any]:
    """How a run of a site's deployment ends, which anybody who reaches the Prefect server may start."""
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(f"fedlin-site-update/{site}")
        run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters).id
        while not ((state := client.read_flow_run(run).state) and state.is_final()):
            time.sleep(0.1)
    return state


def last_request(run_id: str, site: str) -> dict[str, str]:
    """A letter that the server has sent, as everybody who reaches the Prefect server may read it."""
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[run_id])))
    sent = [run.parameters["letter"] for run in runs if run.name.endswith(f" round {ROUNDS} {site}")]
    return sent[0]


@pytest.mark.slow
def test_the_server_cannot_open_what_sites_have(world: World) -> None:
    for name, devices in DEVICES.items():
        partition = world.home(name) / "datasets" / "small" / f"device={devices[0]}"
        tries = [["ls", partition], ["cat", partition / "part-0.parquet"], ["cat", world.home(name) / "sites" / name / "site.key"]]
        for tried in tries:
            assert subprocess.run(USERS[name].command(*tried), capture_output=True, check=False).returncode == 0
            for other in set(USERS) - {name}:
                done = subprocess.run(USERS[other].command(*tried), capture_output=True, text=True, check=False)
                assert (done.returncode != 0, "Permission denied" in done.stderr) == (True, True)
        other = next(each for each in EXCHANGES if each != name)
        assert subprocess.run(USERS[other].command("ls", world.root / "exchange" / name), capture_output=True, check=False).returncode != 0


@pytest.mark.slow
def test_a_run_over_sites_is_the_central_one(world: World, trained: dict[str, Any]) -> None:
    expected = fit(ALGORITHM, world.fleet, rounds=ROUNDS)
    assert (trained["outcome"], trained["rounds"], trained["devices_missing"]) == ("completed", ROUNDS, [])
    with np.load(Path(trained["artifacts"]) / "theta.npz") as stored:
        assert stored["devices"].tolist() == list("abcde")
        np.testing.assert_array_equal(stored["Theta"].T, [expected.theta[device] for device in "abcde"])
    manifest = json.loads((Path(trained["artifacts"]) / "manifest.json").read_text())
    assert manifest["sites"] == {name: list(devices) for name, devices in DEVICES.items()}
    assert list((world.root / "exchange").glob("*/*")) == []


@pytest.mark.slow
def test_a_site_logs_what_it_was_asked_and_what_left(world: World, trained: dict[str, Any]) -> None:
    for name, devices in DEVICES.items():
        mine = [entry for entry in world.audit(name) if entry.get("run_id") == trained["run_id"]]
        steps = ["describe", "enrol", *["update"] * ROUNDS, "finalize"]
        assert [(entry["event"], entry["step"]) for entry in mine] == [(event, step) for step in steps for event in ("asked", "left")]
        assert {entry["devices"] for entry in mine if entry["event"] == "left" and entry["step"] != "describe"} == {len(devices)}
        assert all(entry["bytes"] > 0 and len(entry["message_sha256"]) == 64 for entry in mine if entry["event"] == "left")


@pytest.mark.slow
def test_what_is_not_the_servers_own_word_is_refused_and_logged(world: World, trained: dict[str, Any]) -> None:
    sent = last_request(trained["run_id"], "north")
    tampered = sent | {"letter": sent["letter"].replace(f'"round_num":{ROUNDS}', f'"round_num":{ROUNDS + 1}')}
    assert tampered != sent
    cases = [
        ({"letter": sent["letter"]}, "it is not signed"),
        (tampered, "its signature is not that of its text with this site's key"),
        (sent, "it has been here before"),
    ]
    before = len(world.audit("north"))
    for request, why in cases:
        state = asked(world, "north", {"letter": request})
        assert (state.is_failed(), state.message) == (True, f"refused: {why}")
    assert [(entry["event"], entry["why"]) for entry in world.audit("north")[before:]] == [("refused", why) for _, why in cases]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "letters"), [(signal.SIGKILL, 1), (signal.SIGTERM, 0)])
def test_a_worker_that_is_killed_in_mid_round_costs_another_letter_and_one_that_is_told_to_end_none(
    world: World, number: signal.Signals, letters: int
) -> None:
    rounds = 6
    words = ["train", "small", "--sites", "sites.toml", *OPTIONS, "--rounds", str(rounds), "--json"]
    before = len(world.audit("south"))
    training = world.start("server", *words)
    while True:
        assert training.poll() is None, training.communicate()[1]
        last = world.audit("south")[before:][-1:]
        if [(entry["event"], entry["step"]) for entry in last] == [("asked", "update")]:
            world.workers["south"].send_signal(signal.SIGSTOP)
            if world.audit("south")[-1] == last[0]:
                break
            world.workers["south"].send_signal(signal.SIGCONT)
        time.sleep(0.001)
    world.workers["south"].send_signal(number)
    world.workers["south"].send_signal(signal.SIGCONT)
    out, err = world.workers["south"].communicate()
    last_answer = [line for line in err.splitlines() if " answered, " in line][-1]  # Prefect may say something after it
    assert last_answer.startswith("update: 3 devices answered, 0 did not") == (number == signal.SIGTERM), err
    world.serve("south")
    out, err = training.communicate()
    assert training.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert (result["outcome"], result["rounds"], result["devices_missing"]) == ("completed", rounds, [])
    assert "no answer" not in err
    expected = fit(ALGORITHM, world.fleet, rounds=rounds)
    with np.load(Path(result["artifacts"]) / "theta.npz") as stored:
        np.testing.assert_array_equal(stored["Theta"].T, [expected.theta[device] for device in "abcde"])
    updates = [entry["event"] for entry in world.audit("south") if entry.get("run_id") == result["run_id"] and entry["step"] == "update"]
    assert (updates.count("asked"), updates.count("left")) == (rounds + letters, rounds)


@pytest.mark.slow
def test_a_server_that_is_told_to_end_waits_for_no_site(world: World) -> None:
    before = len(world.audit("north"))
    world.workers["south"].send_signal(signal.SIGSTOP)
    training = world.start("server", "train", "small", "--sites", "sites.toml", *OPTIONS)
    while len(world.audit("north")) < before + 2:  # south is asked at the same time
        assert training.poll() is None, training.communicate()[1]
        time.sleep(0.05)
    training.send_signal(signal.SIGTERM)
    try:
        _, err = training.communicate(timeout=PATIENCE - 20)
    finally:
        world.workers["south"].send_signal(signal.SIGCONT)
    assert (training.returncode, err.splitlines()[-1].startswith("fedlin: error: terminated")) == (143, True), err
    assert list((world.root / "exchange").glob("*/*")) == []
