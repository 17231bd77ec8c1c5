"""Raw rows stay on their device: a planted number and a planted word are found nowhere else, even when the device fails on them."""

from __future__ import annotations

import io
import json
import sqlite3
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from fedcore.data import Contract, Dataset, create_dataset, fit_fleet

NUMBER = 7261.839405162738
WORD = "canary-4f1c-category"

SCRIPT = """
import sys, json
import fedcore.linear
from fedcore import Hm1

# The device's own code fails and quotes its rows, as a solver or a parser would: on one device always, on another once.
original, calls = Hm1.local_steps, {{"c": 0}}
def local_steps(self, downs, devices, datas, rngs):
    (data,) = datas
    if (data.train.X == {number!r}).any():
        raise ValueError(f"cannot solve for row {{data.train.X.tolist()}} of {word}")
    if data.train.n == 9 and not calls["c"]:
        calls["c"] = 1
        raise RuntimeError({word!r} + " {number!r}")
    return original(self, downs, devices, datas, rngs)
Hm1.local_steps = local_steps

sys.argv = ["fedlin", "train", "small", "--rounds", "3", "--json"]
from flows.cli.app import main
main()
"""


def searched(place: Path, left_out: Path) -> Iterator[tuple[str, bytes]]:
    """All bytes of all files below a place, and what is inside their archives and columns."""
    for file in sorted(place.rglob("*")):
        if file.is_file() and not file.is_relative_to(left_out):
            content = file.read_bytes()
            yield str(file), content
            yield from unpacked(str(file), content)


def unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                inner = archive.read(member)
                yield f"{name}/{member}", inner
                yield from unpacked(f"{name}/{member}", inner)
    if content[:4] == b"PAR1":
        for column, values in pq.read_table(io.BytesIO(content)).to_pydict().items():
            yield f"{name}/{column}", repr(values).encode()
    if content[:15] == b"SQLite format 3":
        with sqlite3.connect(f"file:{name}?mode=ro", uri=True) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                yield f"{name}/{table}", repr(database.execute(f'SELECT * FROM "{table}"').fetchall()).encode()
        database.close()


def traces() -> dict[str, bytes]:
    """The forms in which the planted values would be seen."""
    number = struct.pack("<d", NUMBER)
    return {
        "the number as text": f"{NUMBER:.5f}"[:9].encode(),
        "the number as 8 bytes": number,
        "the number as 8 bytes, swapped": number[::-1],
        "the number in 4 bytes": struct.pack("<f", NUMBER),
        "the number in hexadecimal": number.hex().encode(),
        "the word": WORD.encode(),
        "the word, 2 bytes a character": WORD.encode("utf-16-le"),
        "the word, 4 bytes a character": WORD.encode("utf-32-le"),
    }


def plant(dataset: Dataset) -> None:
    """The number in a training row of device b; in device d, number and word in columns that break the contract."""
    part = dataset.path / "device=b/part-0.parquet"
    frame = pl.read_parquet(part, hive_partitioning=False)
    frame.with_columns(pl.when(pl.int_range(pl.len()) == 2).then(NUMBER).otherwise(pl.col("x2")).alias("x2")).write_parquet(part)


def break_contract(dataset: Dataset) -> None:
    part = dataset.path / "device=d/part-0.parquet"
    frame = pl.read_parquet(part, hive_partitioning=False)
    frame.with_columns(pl.lit(WORD).alias("part"), pl.lit(NUMBER).alias("y")).write_parquet(part)


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """A search that finds nothing proves nothing, unless it would have found it."""
    (tmp_path / "plain.log").write_text(f"row {NUMBER!r} {WORD}")
    np.savez_compressed(tmp_path / "x.npz", values=np.array([1.0, NUMBER]), words=np.array([WORD]))
    pl.DataFrame({"x": [NUMBER], "w": [WORD]}).write_parquet(tmp_path / "x.parquet", compression="zstd")
    database = sqlite3.connect(tmp_path / "x.db")
    database.execute("CREATE TABLE t (x REAL, w TEXT)")
    database.execute("INSERT INTO t VALUES (?, ?)", (NUMBER, WORD))
    database.commit()
    database.close()
    seen = {
        (Path(name.removeprefix(str(tmp_path) + "/")).parts[0], trace)
        for name, content in searched(tmp_path, tmp_path / "none")
        for trace, form in traces().items()
        if form in content
    }
    for file, trace in (
        ("plain.log", "the number as text"),
        ("plain.log", "the word"),
        ("x.npz", "the number as 8 bytes"),
        ("x.npz", "the word, 4 bytes a character"),
        ("x.parquet", "the number as text"),
        ("x.parquet", "the word"),
        ("x.db", "the number as text"),
        ("x.db", "the number as 8 bytes, swapped"),
        ("x.db", "the word"),
    ):
        assert (file, trace) in seen


@pytest.mark.slow
def test_canary(environment: dict[str, str], home: Path, fleet: Callable[..., Dataset], tmp_path_factory: pytest.TempPathFactory) -> None:
    dataset = fleet((12, 7, 9, 30, 15))
    plant(dataset)
    script = home / "user/run.py"
    script.write_text(SCRIPT.format(number=NUMBER, word=WORD))
    run = subprocess.run(
        [sys.executable, str(script)], env=environment | {"FEDLIN_LOG": "json"}, capture_output=True, text=True, timeout=300
    )
    script.unlink()
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    ledger = (home / "runs" / result["run_id"] / "checkpoint.npz").read_bytes()
    assert b'"silent": ["b"]' in b"".join(content.replace(b"\x00", b"") for _, content in unpacked("checkpoint", ledger)), "device b failed"
    assert WORD in (dataset.path / f"device=b/.fedlin/{result['run_id']}.error.txt").read_text(), "the device itself keeps what it said"

    # Then a partition that breaks its contract with word and number, met by the command and by the check.
    break_contract(dataset)
    said = [run.stdout, run.stderr]
    for words in (["train", "small"], ["data", "check", "small"]):
        refused = subprocess.run(
            [sys.executable, "-m", "flows.cli.app", *words], env=environment, capture_output=True, text=True, timeout=300
        )
        assert refused.returncode == 2
        assert "device=d: column 'part' has 35 values" in refused.stdout + refused.stderr
        said += [refused.stdout, refused.stderr]

    outside = [*searched(home, dataset.path), ("standard output and error", "".join(said).encode())]
    told = {"prefect.db", "mlflow.db", "checkpoint.npz", "theta.npz", "devices.parquet", "log.jsonl", "fedlin-run-small-train.prom"}
    assert {name.rsplit("/", 1)[-1] for name, _ in outside} >= told
    assert any("task_run_state" in name for name, _ in outside), "the search read Prefect's tables"
    assert '"event": "silent"' in run.stderr, "the log says that device b failed"
    found = [(name, trace) for name, content in outside for trace, form in traces().items() if form in content]
    assert found == []


PREPARED = """
import sys, json
from fedcore import Hm1
from fedcore.data import Dataset

# The device's own code fails where the fleet's columns are summarised, and in its steps; each time it quotes its rows.
summary, steps, calls = Dataset.summary, Hm1.local_steps, {{"b": 0}}
def failing_summary(self, device_id, **options):
    calls["b"] += device_id == "b"
    if device_id == "b" and calls["b"] == 2:  # the first is the command's own check
        raise ValueError(repr([frame.to_dicts() for frame in self.parts(device_id).values()]))
    return summary(self, device_id, **options)
def failing_steps(self, downs, devices, datas, rngs):
    (data,) = datas
    if data.train.n == {n}:
        raise RuntimeError({word!r} + " {number!r}" + repr(data.train.X.tolist()))
    return steps(self, downs, devices, datas, rngs)
Dataset.summary, Hm1.local_steps = failing_summary, failing_steps

sys.argv = ["fedlin", "train", "wards", "--rounds", "3", "--json"]
from flows.cli.app import main
main()
"""


def wards(home: Path) -> Dataset:
    """Five devices; on each the number is a training row's dose, stay and the largest target, and the word stands in notes.

    Device "d" has two gaps and device "e" all but two, which are counts that may not be told.
    """
    kinds = {"dose": "float64", "stay": "float64", "bed": "float64", "drug": "string", "note": "string", "part": "string", "y": "float64"}
    contract = Contract.model_validate(
        {
            "device": "ward",
            "target": "y",
            "features": ["dose", "drug", "stay"],
            "intercept": True,
            "interactions": [["dose", "stay"]],
            "scaling": {"features": "global", "target": "train"},
            "missing": {"policy": "mean"},
            "categories": {"drug": {"unknown": "reference"}},
            "split": {"kind": "column", "column": "part"},
            "columns": {name: {"type": kind} for name, kind in kinds.items()},
        }
    )
    frames: list[tuple[str, pl.DataFrame]] = []
    for k, device_id in enumerate("abcde"):
        rng, n = np.random.default_rng(k), 40 + k
        columns = {name: rng.normal(5000, 700, n) for name in ("dose", "stay", "bed", "y")}
        columns["y"] = np.minimum(columns["y"], 7000)
        for name in ("dose", "stay", "y"):
            columns[name][3] = NUMBER
        columns["dose"][5 : 5 + (k == 1) * 6] = np.nan
        columns["stay"][[4, 8][: (k == 3) * 2]] = np.nan  # test rows: among those that train, so few would be refused
        columns["bed"][2 : (k == 4) * n] = np.nan
        part = ["test" if i % 4 == 0 else "train" for i in range(n)]
        drug = rng.choice(["p", "q"], n).tolist()
        drug[0] = WORD  # a test row's level, which nobody has in training
        frames.append((device_id, pl.DataFrame({**columns, "drug": drug, "note": [f"{WORD} {i}" for i in range(n)], "part": part})))
    return create_dataset(home / "datasets", "wards", contract, frames)


@pytest.mark.slow
def test_canary_of_a_prepared_data_set(environment: dict[str, str], home: Path) -> None:
    """Summaries, ranges, gaps and levels of few rows stay on the device too."""
    dataset = wards(home)
    silent = dataset.with_fitted(fit_fleet(dataset)).load("c").train.n
    script = home / "user/run.py"
    script.write_text(PREPARED.format(number=NUMBER, word=WORD, n=silent))
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    script.unlink()
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    folder = home / "runs" / result["run_id"]
    for device_id in "bc":
        assert WORD in (dataset.path / f"device={device_id}/.fedlin/{result['run_id']}.error.txt").read_text(), "it failed and kept why"
    said = [run.stdout, run.stderr]
    for words in (["data", "check", "wards"], ["data", "describe", "wards"], ["data", "describe", "wards", "--json"]):
        told = subprocess.run([sys.executable, "-m", "flows.cli.app", *words], env=environment, capture_output=True, text=True, timeout=300)
        assert told.returncode == 0, told.stderr
        said += [told.stdout, told.stderr]
    assert json.loads((folder / "manifest.json").read_text())["gaps"] == {"b": {"dose": 6}, "d": {"stay": None}, "e": {"bed": None}}

    outside = [*searched(home, dataset.path), ("standard output and error", "".join(said).encode())]
    assert {name.rsplit("/", 1)[-1] for name, _ in outside} >= {"prefect.db", "mlflow.db", "theta.npz", "preprocessing.json"}
    found = [(name, trace) for name, content in outside for trace, form in traces().items() if form in content]
    assert found == []


SEARCHED = """
import sys
from fedcore import Hm1

# The device's own code fails where trials are screened, on one device once, and where they are scored; each time it quotes its rows.
init, finalize, calls = Hm1.init_device, Hm1.finalize, {{"c": 0}}
def failing_init(self, spec, data):
    calls["c"] += data.train.n == 9
    if data.train.n == 9 and calls["c"] == {screened}:
        raise RuntimeError({word!r} + " {number!r}" + repr(data.validation.y.tolist()))
    return init(self, spec, data)
def failing_finalize(self, down, device, data):
    if (data.validation.X == {number!r}).any():
        raise ValueError({word!r} + repr(data.validation.X.tolist()))
    return finalize(self, down, device, data)
Hm1.init_device, Hm1.finalize = failing_init, failing_finalize

sys.argv = ["fedlin", *{words!r}, "--rounds", "2", "--json"]
from flows.cli.app import main
main()
"""


@pytest.mark.slow
def test_canary_of_a_search_and_a_comparison(environment: dict[str, str], home: Path, fleet: Callable[..., Dataset]) -> None:
    """Of the rows that validate and test only scores leave a device."""
    dataset = fleet((12, 7, 9, 30, 15), validation=4)
    for part in ("train", "validation", "test"):
        for device_id in "be" if part == "validation" else "e":  # device e takes part to the end
            file = dataset.path / f"device={device_id}/part-0.parquet"
            frame = pl.read_parquet(file, hive_partitioning=False)
            first = (pl.col("part") == part) & ((pl.col("part") == part).cum_sum() == 1)
            values = {"b": {"x2": NUMBER}, "e": {"y": NUMBER}}[device_id]
            frame.with_columns(
                *(pl.when(first).then(value).otherwise(pl.col(name)).alias(name) for name, value in values.items())
            ).write_parquet(file)
    said: list[str] = []
    # The command's own check comes first, with one call a trial.
    for screened, words in ((3, ["tune", "small", "--grid", "alpha=0.1,0.3"]), (2, ["compare", "small", "--budget", "1"])):
        script = home / "user/run.py"
        script.write_text(SEARCHED.format(number=NUMBER, word=WORD, words=words, screened=screened))
        run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
        script.unlink()
        assert run.returncode == 0, run.stderr
        result = json.loads(run.stdout.splitlines()[-1])
        assert result["devices_missing"] == ["b"]
        own = f".fedlin/{result['run_id']}{'' if words[0] == 'tune' else '-1'}.error.txt"
        for device_id in "bc":
            assert WORD in (dataset.path / f"device={device_id}" / own).read_text(), "it failed and kept why"
        said += [run.stdout, run.stderr]
    outside = [*searched(home, dataset.path), ("standard output and error", "".join(said).encode())]
    assert {name.rsplit("/", 1)[-1] for name, _ in outside} >= {"mlflow.db", "trials.csv", "best.toml", "compare.csv", "devices.parquet"}
    found = [(name, trace) for name, content in outside for trace, form in traces().items() if form in content]
    assert found == []


RETRAINED = """
import sys
import tasks
import tasks.retrain as ours

# The device's own code fails where drift is measured and where champion and challenger are scored, and quotes its rows.
drift, score = ours.residual_drift, ours.score
def failing_drift(theta, data, *more):
    if data.train.n == 9:
        raise ValueError({word!r} + repr(data.test.y.tolist()) + " {number!r}")
    return drift(theta, data, *more)
def failing_score(result, rows):
    if (rows.y == {number!r}).any():
        raise RuntimeError({word!r} + repr(rows.y.tolist()))
    return score(result, rows)
ours.residual_drift, ours.score = failing_drift, failing_score

from flows.cli.app import main
for words in (["small", "--algorithm", "hm2", "--rounds", "3", "--set", "sigma=0.3"], ["small", "--rounds", "2", "--json"]):
    sys.argv = ["fedlin", "retrain", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
"""


@pytest.mark.slow
def test_canary_of_a_retraining(environment: dict[str, str], home: Path, fleet: Callable[..., Dataset]) -> None:
    """Of its newest rows a device tells means and scores."""
    dataset = fleet((12, 7, 9, 30, 15))
    file = dataset.path / "device=e/part-0.parquet"
    frame = pl.read_parquet(file, hive_partitioning=False)
    first = (pl.col("part") == "test") & ((pl.col("part") == "test").cum_sum() == 1)
    frame.with_columns(pl.when(first).then(NUMBER).otherwise(pl.col("y")).alias("y")).write_parquet(file)
    script = home / "user/run.py"
    script.write_text(RETRAINED.format(number=NUMBER, word=WORD))
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    script.unlink()
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["outcome"], result["drift_devices"], result["devices_paired"], result["devices_unscored"]) == ("kept", 4, 4, 1)
    for device_id in "ce":
        assert WORD in (dataset.path / f"device={device_id}/.fedlin/{result['run_id']}.error.txt").read_text(), "it failed and kept why"
    outside = [*searched(home, dataset.path), ("standard output and error", (run.stdout + run.stderr).encode())]
    assert {name.rsplit("/", 1)[-1] for name, _ in outside} >= {"mlflow.db", "decision.json", "devices.parquet", "model_version_tags"}
    found = [(name, trace) for name, content in outside for trace, form in traces().items() if form in content]
    assert found == []
