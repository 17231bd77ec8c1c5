"""Runs over sites, and what a site refuses, without workers: letters go from hand to hand."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore import Misuse, fit
from fedcore.data import Dataset, Disclosure, load_fleet, open_dataset, write_contract
from fedcore.errors import DeviceRefusal
from fedcore.messages import Broadcast
from fedcore.posterior import Posterior
from flows.config import read_config
from flows.orchestrator import Orchestrator
from flows.sites.site import Refused, Site
from flows.train import train
from tasks.ground import Earlier
from tasks.sites import asking
from tasks.sites.enrolled import Enrolled, read_sites
from tasks.sites.letters import Letter, Work, put, signed
from tasks.sites.messages import Request, Said, packed, suits
from tasks.sites.policy import KEY, first_policy, make_site, read_policy

PARTS = {"north": "ab", "south": "cde"}
OPEN = Disclosure(rows=1, level_rows=1, parameters=100, devices=1)
ROWS = 987654.321


@dataclass
class Near:
    """Sites beside the server, with the whole data set for comparison; `lost` says which steps of which site do not happen."""

    whole: Dataset
    sites: dict[str, Site]
    file: Path
    lost: dict[str, set[str]]

    def enrolled(self, name: str = "north") -> Enrolled:
        return read_sites(self.file)[name]

    def audit(self, name: str = "north") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.file.parent / name / "audit.jsonl").read_text().splitlines()]

    def hand(self, far: asking.Far, site: Enrolled, sent: Mapping[str, str]) -> None:
        """In place of Prefect and a worker."""
        if far.title in self.lost.get(site.name, ()):
            raise DeviceRefusal(f"site {site.name}: away")
        try:
            self.sites[site.name].answer(sent, "flow-run")
        except Refused as refusal:
            raise DeviceRefusal(f"site {site.name}: {refusal}") from None


@pytest.fixture
def near(home: Path, fleet: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Near]:
    """Makes two sites of a small fleet, whose contract may be given another scaling of features."""

    def create(features: str = "none") -> Near:
        dataset = fleet()
        scaling = dataset.contract.scaling.model_copy(update={"features": features})
        write_contract(dataset.path, dataset.contract.model_copy(update={"scaling": scaling}))
        shutil.copytree(home / "datasets", home / "whole")
        sites: dict[str, Site] = {}
        lines: list[str] = []
        for name, devices in PARTS.items():
            root, exchange = home / f"{name}-data", home / f"{name}-exchange"
            (root / "small").mkdir(parents=True)
            exchange.mkdir()
            shutil.copy(dataset.path / "dataset.toml", root / "small")
            for device in devices:
                (dataset.path / f"device={device}").rename(root / "small" / f"device={device}")
            policy = first_policy(name, str(root), str(exchange), ["hm1", "eb", "hm2"]).model_copy(update={"disclosure": OPEN})
            make_site(home / name, policy)
            sites[name] = Site(home / name)
            lines.append(f'[sites.{name}]\nkey = "{name}/{KEY}"\nexchange = "{exchange}"\n')
        (home / "sites.toml").write_text("\n".join(lines))
        made = Near(open_dataset(home / "whole", "small"), sites, home / "sites.toml", {})
        monkeypatch.setattr(asking, "_carried_out", made.hand)
        return made

    return create


def run(near: Near | None, home: Path, **given: Any) -> dict[str, Any]:
    config = read_config({"dataset": "small", "sites": str(near.file), **given}) if near else None
    state = train(config, run_id="run", return_state=True)
    if isinstance(failure := state.result(raise_on_failure=False), Misuse):
        raise failure
    return json.loads((home / "runs/run/result.json").read_text())


def assert_central(near: Near, home: Path, **given: Any) -> None:
    """Coefficients and posteriors are those of the whole fleet in one place, to the bit."""
    config = read_config({"dataset": "small", **given})
    schedule = config.build_schedule()
    devices = load_fleet(near.whole)
    expected = fit(config.build_algorithm(), devices, rounds=schedule.rounds, seed=schedule.seed, participation=schedule.participation)
    with np.load(home / "runs/run/results/theta.npz") as stored:
        np.testing.assert_array_equal(stored["Theta"].T, [expected.theta[device] for device in "abcde"])
    for k, device in enumerate("abcde" if expected.posterior else ""):
        with np.load(home / "runs/run/results/posterior.npz") as stored:
            posterior = expected.posterior[device]
            covariance = posterior.covariance if isinstance(posterior, Posterior) else posterior.joint.total_covariance
            np.testing.assert_array_equal(stored["mean"][k], posterior.mean)
            np.testing.assert_array_equal(stored["covariance"][k], covariance)


@pytest.mark.parametrize(
    ("features", "given"),
    [
        ("global", {"rounds": 4, "participation": 0.6, "options": {"batch": 3, "gradient": "sum"}}),
        ("none", {"rounds": 3, "algorithm": "eb"}),
        ("none", {"rounds": 3, "algorithm": "hm2"}),
    ],
    ids=["hm1, part of the fleet, the fleet's scaling", "eb", "hm2"],
)
def test_equals_the_central_run_to_the_bit(
    server: Orchestrator, home: Path, near: Callable[..., Near], features: str, given: dict[str, Any]
) -> None:
    sites = near(features)
    result = run(sites, home, **given)
    assert (result["outcome"], result["devices_missing"], result["devices_scored"]) == ("completed", [], 5)
    assert_central(sites, home, **given)
    letters = [entry for name in PARTS for entry in sites.audit(name) if entry["event"] == "left"]
    assert result["task_runs"] == len(letters) + result["rounds"] + (features == "global"), "a letter and an answer a task"


def test_a_site_that_is_lost_ends_the_quorum_and_a_resumed_run_is_the_same(
    server: Orchestrator, home: Path, near: Callable[..., Near], capfd: pytest.CaptureFixture[str]
) -> None:
    sites, given = near(), {"rounds": 3, "algorithm": "eb"}
    sites.lost = {"south": {"round 2"}}
    assert run(sites, home, **given)["outcome"] == "quorum_lost"
    assert "round 2: no answer, site south: away" in capfd.readouterr().err
    sites.lost = {"north": {"describe"}, "south": {"describe"}}  # which a run that has begun need not ask again
    assert run(None, home)["outcome"] == "completed"
    assert_central(sites, home, **given)


def test_a_device_that_fails_at_a_site_fails_alone(
    server: Orchestrator, home: Path, near: Callable[..., Near], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sites, original = near(), Dataset.stamp

    def stamp(dataset: Dataset, device_id: str, *before: Any) -> Any:
        if device_id == "d" and list(dataset.path.glob("device=d/.fedlin/run.*.state")):
            raise RuntimeError(ROWS)
        return original(dataset, device_id, *before)

    monkeypatch.setattr(Dataset, "stamp", stamp)
    result = run(sites, home, rounds=1, algorithm="eb")
    assert (result["outcome"], result["devices_missing"]) == ("completed", ["d"])
    err = capfd.readouterr().err
    assert "round 1: no answer, device d: RuntimeError in its local step; the details are in its own folder, .fedlin/run.error.txt" in err
    for told in (err, (home / "runs/run/result.json").read_text(), (home / "south/audit.jsonl").read_text()):
        assert str(ROWS) not in told


def test_an_answer_that_was_changed_is_not_taken(
    server: Orchestrator, home: Path, near: Callable[..., Near], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sites = near()

    def hand(far: asking.Far, site: Enrolled, sent: Mapping[str, str]) -> None:
        sites.hand(far, site, sent)
        if site.name == "north" and far.title == "round 1":
            answer = Path(str(site.exchange)) / f"{json.loads(sent['letter'])['nonce']}.answer"
            raw = answer.read_bytes()
            answer.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))

    monkeypatch.setattr(asking, "_carried_out", hand)
    assert run(sites, home, rounds=1, algorithm="eb")["outcome"] == "completed"
    said = capfd.readouterr().err
    assert "round 1: no answer, site north: its answer is not taken: its message " in said
    assert "has not the digest that was signed" in said


def test_a_refusal_is_told_in_one_line(server: Orchestrator, home: Path, near: Callable[..., Near]) -> None:
    sites = near()
    with pytest.raises(Misuse) as refusal:
        run(sites, home, algorithm="fedavg")
    why = "algorithm fedavg is not among those of the site's policy"
    assert str(refusal.value) == f"2 of 2 sites cannot take part: site north: refused: {why}"
    (home / "south-data/small/device=c").rename(home / "south-data/small/device=a")
    with pytest.raises(Misuse, match=r"device ids? .*'a'"):
        run(sites, home, algorithm="eb")


UUID = "0123456789abcdef" * 2


def request(near: Near, content: bytes | None = None, work: dict[str, Any] | None = None, **changed: Any) -> dict[str, str]:
    """A letter of the server to the north, in order but for what is changed."""
    site, contract = near.enrolled(), near.whole.contract
    asked = {"dataset": "small", "contract": contract.digest, "target": contract.target, "target_scaling": "none"}
    asked |= {"algorithm": "eb", "options": {}} | (work or {})
    nonce = secrets.token_hex(16)
    message = packed(Request(5, 3, 0, None, "", (Said("a", (None,)),)))
    digest = put(site.exchange, f"{nonce}.request", message)
    if content is not None:
        put(site.exchange, f"{nonce}.request", content)
    about = {"site": "north", "run_id": "run", "run_uuid": UUID, "step": "enrol", "round_num": 0}
    about |= {"nonce": nonce, "expires": time.time() + 60}
    letter = Letter.model_validate({"kind": "request", **about, "sha256": digest, "work": Work.model_validate(asked)} | changed)
    return signed(letter, site.key)


def test_a_request_in_order_is_answered_once(near: Callable[..., Near]) -> None:
    sites = near()
    sent = request(sites)
    assert sites.sites["north"].answer(sent, "f").startswith("enrol: 1 device answered, 0 did not; ")
    again = Site(sites.file.parent / "north")  # also after its worker was started anew
    for site in (sites.sites["north"], again):
        with pytest.raises(Refused, match=r"^refused: it has been here before$"):
            site.answer(sent, "f")
    assert [entry["event"] for entry in sites.audit()] == ["asked", "left", "refused", "refused"]


def test_runs_of_one_name_keep_files_of_their_own(near: Callable[..., Near]) -> None:
    """Servers know nothing of each other's names, and a site may work for several."""
    sites = near()
    for each in (UUID, UUID[::-1], ""):
        assert sites.sites["north"].answer(request(sites, run_uuid=each), "f").startswith("enrol: 1 device answered")
    kept = {file.name for file in (sites.file.parent / "north-data").glob("small/device=a/.fedlin/*.state")}
    assert kept == {f"run.{UUID}.state", f"run.{UUID[::-1]}.state", "run.state"}
    for unsafe in ("../run", UUID + "0", UUID + "\n", "x" * 32):
        with pytest.raises(ValidationError):
            request(sites, run_uuid=unsafe)


def test_what_is_struck_out_of_the_policy_is_refused_from_then_on(near: Callable[..., Near]) -> None:
    sites = near()
    site, policy = sites.sites["north"], sites.file.parent / "north/policy.toml"
    assert site.answer(request(sites), "f").startswith("enrol: 1 device answered")
    whole = policy.read_text()
    policy.write_text(re.sub(r' *"eb",?\n?', "", whole))
    with pytest.raises(Refused, match=r"^refused: algorithm eb is not among those of the site's policy$"):
        site.answer(request(sites), "f")
    policy.write_text("algorithms = [")
    with pytest.raises(Refused, match=r"^refused: the site's policy is not in order$"):
        site.answer(request(sites), "f")
    policy.write_text(whole)
    assert site.answer(request(sites), "f").startswith("enrol: 1 device answered")


def test_an_answer_that_could_not_leave_is_logged_as_such(near: Callable[..., Near], monkeypatch: pytest.MonkeyPatch) -> None:
    sites = near()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sent = request(sites)
    monkeypatch.setattr("flows.sites.site.put", full)
    with pytest.raises(OSError, match="No space left"):
        sites.sites["north"].answer(sent, "f")
    asked, left, undelivered = sites.audit()
    assert [each["event"] for each in (asked, left, undelivered)] == ["asked", "left", "undelivered"]
    assert undelivered["why"] == "No space left on device"
    assert undelivered["message_sha256"] == left["message_sha256"]


CASES: dict[str, tuple[Callable[[Near], object], str]] = {
    "nothing": (lambda _: None, "it is not signed"),
    "no signature": (lambda near: {"letter": request(near)["letter"]}, "it is not signed"),
    "an empty signature": (lambda near: request(near) | {"signature": ""}, "it is not signed"),
    "a strange signature": (lambda near: request(near) | {"signature": "é\ud800"}, "its signature is not that of its text"),
    "another text": (lambda near: request(near) | {"letter": request(near)["letter"]}, "its signature is not that of its text"),
    "no letter": (lambda near: signed_text(near, "{}"), "it is no letter of this version of fedlin"),
    "an answer": (lambda near: request(near, kind="answer"), "it is the answer of site north, and not the request of site north"),
    "another site's": (lambda near: request(near, site="south"), "it is the request of site south"),
    "expired": (lambda near: request(near, expires=time.time() - 100), "it expired 100 s ago"),
    "not to expire": (lambda near: request(near, expires=time.time() + 1e6), "it counts for longer than the 3600 s"),
    "never to expire": (lambda near: request(near, expires=float("inf")), "it counts for longer than the 3600 s"),
    "no number": (lambda near: request(near, expires=float("nan")), "it counts for longer than the 3600 s"),
    "no work": (lambda near: request(near) and without_work(near), "it does not say what is trained"),
    "algorithm": (lambda near: request(near, work={"algorithm": "pooled"}), "algorithm pooled is not among those of the site's policy"),
    "option": (lambda near: request(near, work={"options": {"covariance": "round"}}), "eb: covariance"),
    "data set": (lambda near: request(near, work={"dataset": "large"}), "data set large is not among those of the site's policy"),
    "target": (lambda near: request(near, work={"target": "z"}), "data set 'small' has no target 'z'"),
    "contract": (lambda near: request(near, work={"contract": "0" * 64}), "the server's contract of data set small is not the one"),
    "another message": (lambda near: request(near, b"something else"), "has not the digest that was signed"),
    "no message": (lambda near: request(near, sha256="0" * 64), "has not the digest that was signed"),
}


def signed_text(near: Near, text: str) -> dict[str, str]:
    class Text:
        def model_dump_json(self) -> str:
            return text

    return signed(Text(), near.enrolled().key)  # pyright: ignore[reportArgumentType]


def without_work(near: Near) -> dict[str, str]:
    sent = Letter.model_validate_json(request(near)["letter"])
    return signed(sent.model_copy(update={"work": None}), near.enrolled().key)


@pytest.mark.parametrize("case", CASES)
def test_a_request_that_is_not_in_order_is_refused_before_a_row_is_touched(
    near: Callable[..., Near], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = near()
    make, why = CASES[case]
    monkeypatch.setattr(Dataset, "loaded", lambda *_: pytest.fail("a row is touched"))
    with pytest.raises(Refused) as refusal:
        sites.sites["north"].answer(make(sites), "f")
    assert str(refusal.value).startswith("refused: ")
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)
    last = sites.audit()[-1]
    assert (last["event"], f"refused: {last['why']}", last["flow_run"]) == ("refused", str(refusal.value), "f")
    assert all(entry["event"] != "left" for entry in sites.audit())


def test_a_contract_has_to_be_the_agreed_one_and_as_strict_as_the_policy(near: Callable[..., Near]) -> None:
    sites = near()
    folder = sites.file.parent / "north"
    policy = (folder / "policy.toml").read_text()
    (folder / "policy.toml").write_text(policy.replace("parameters = 100.0", "parameters = 0.5"))
    with pytest.raises(Refused, match=r"laxer than the site's policy: \[disclosure\] parameters = "):
        Site(folder).answer(request(sites), "f")
    (folder / "policy.toml").write_text(policy)
    contract = sites.file.parent / "north-data/small/dataset.toml"
    told = contract.read_text()
    contract.write_text(told.replace("a small fleet", "another fleet"))
    assert Site(folder).answer(request(sites), "f").startswith("enrol: 1 device answered"), "a description is no part of what is agreed"
    contract.write_text(re.sub(r"(?m)^parameters = .*$", "parameters = 0.75", told))
    with pytest.raises(Refused, match="the site's contract of data set small has changed since its policy agreed to it"):
        Site(folder).answer(request(sites), "f")


def test_a_log_that_ends_in_half_a_line_goes_on(near: Callable[..., Near]) -> None:
    sites = near()
    sent = request(sites)
    sites.sites["north"].answer(sent, "f")
    with (sites.file.parent / "north/audit.jsonl").open("a") as log:
        log.write('{"event": "asked", "nonce": "12')
    with pytest.raises(Refused, match="been here before"):
        Site(sites.file.parent / "north").answer(sent, "f")
    assert json.loads((sites.file.parent / "north/audit.jsonl").read_text().splitlines()[-1])["event"] == "refused"


def test_a_device_is_told_of_its_own_files_alone() -> None:
    assert suits("enrol", "a", (Earlier("run", UUID, "a", None),))
    assert suits("update", "a", (Broadcast(1, 2, None, ()),))
    for step, what in (
        ("enrol", (Earlier("run", UUID, "b", None),)),
        ("enrol", (Earlier("../run", UUID, "a", None),)),
        ("enrol", (Earlier("run", UUID, 3, None),)),
        ("enrol", (Earlier("run", "../uuid", "a", None),)),
        ("enrol", ()),
        ("update", (1,)),
        ("finalize", (Broadcast(1, 2, None, ()),)),
        ("forget", ("a",)),
    ):
        assert not suits(step, "a", what)


def test_a_key_is_its_owners(near: Callable[..., Near]) -> None:
    sites = near()
    key = sites.file.parent / "north" / KEY
    assert key.stat().st_mode & 0o777 == 0o600
    os.chmod(key, 0o644)
    with pytest.raises(Misuse, match="may be used by others than its owner"):
        read_sites(sites.file)
    key.write_text("short")
    os.chmod(key, 0o600)
    with pytest.raises(Misuse, match="is not 32 bytes in hexadecimal digits"):
        read_sites(sites.file)


def test_a_policy_is_its_owners_and_names_what_there_is(near: Callable[..., Near]) -> None:
    policy = near().file.parent / "north/policy.toml"
    policy.chmod(0o666)
    with pytest.raises(Misuse, match=r"policy.toml may be changed by others than its owner \(mode 666\): chmod go-w "):
        read_policy(policy.parent)
    policy.chmod(0o644)
    policy.write_text(policy.read_text().replace('"eb"', '"hm9"'))
    with pytest.raises(Misuse, match=r"policy.toml: algorithms: .*'hm9'"):
        read_policy(policy.parent)


def test_an_answer_that_nobody_takes_is_withdrawn(near: Callable[..., Near]) -> None:
    sites = near()
    sent = request(sites)
    sites.sites["north"].answer(sent, "f")
    assert len(list((sites.file.parent / "north-exchange").glob("*.answer"))) == 1
    sites.sites["north"].withdraw(sent)
    assert not list((sites.file.parent / "north-exchange").glob("*.answer"))
    assert [entry["event"] for entry in sites.audit()] == ["asked", "left", "withdrawn", "withdrawn"]
    sites.sites["north"].withdraw("no letter")


@pytest.mark.parametrize("given", [{"runner": "process"}, {"devices_per_task": 2}])
def test_sites_work_for_themselves(home: Path, near: Callable[..., Near], given: dict[str, Any]) -> None:
    from flows.runners import task_runner

    sites = near()
    with pytest.raises(Misuse, match="leave runner and devices_per_task out"):
        task_runner(read_config({"dataset": "small", "sites": str(sites.file), **given}))
