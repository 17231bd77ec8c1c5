"""A process that is killed at any step leaves a data set as it was, or as it was to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedcore.data import add_partition, create_dataset, import_file, infer_contract, list_datasets, open_dataset, remove_device
from fedcore.data.staging import staging_folder
from fedcore.errors import Misuse

# Kills itself before the n-th call of anything that changes the disk, on the n-th copy of a data set, until there are no more calls. Each
# trial is a fork, which spares it the imports; the checks are made elsewhere, since a process with polars' threads must not fork.
TRIALS = """
import io, os, shutil, signal, sys
from pathlib import Path
from fedcore.data import add_partition, import_file, remove_device

template, trials, source, action = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

def act(root):
    if action == "import":
        import_file(root, source, "demo")
    elif action == "remove":
        remove_device(root, "demo", "2")
    else:
        add_partition(root, source, "demo", "4" if action == "new" else "2", append=action == "append")

def killed(call, fatal, calls):
    def counted(*args, **options):
        calls.append(1)
        if len(calls) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return counted

fatal, status = 0, -1
while status:
    fatal += 1
    root = trials / str(fatal)
    shutil.copytree(template, root)
    child = os.fork()
    if not child:
        calls = []
        for module, names in ((os, ("mkdir", "rename", "replace", "fsync", "open", "unlink", "rmdir")), (io, ("open",))):
            for name in names:
                setattr(module, name, killed(getattr(module, name), fatal, calls))
        act(root)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
"""

State = dict[str, list[list[float]]]


def state(root: Path) -> State:
    """The rows of every device; none where the data set has no partitions yet."""
    try:
        dataset = open_dataset(root, "demo")
    except Misuse:
        return {}
    return {device: dataset.load(device).train.X.tolist() for device in dataset.device_ids}


@pytest.mark.parametrize("action", ["import", "new", "append", "remove"])
def test_a_kill_leaves_the_old_or_the_new_state(demo: Any, tmp_path: Path, action: str) -> None:
    template, trials, source = tmp_path / "template", tmp_path / "trials", tmp_path / "rows.csv"
    if action == "import":
        source.write_text("unit,a,y\n" + "".join(f"{unit},{i},{i / 2}\n" for unit in ("u", "v", "w") for i in range(5)))
        infer_contract(template, source, "demo", device="unit", target="y")
    else:
        frames = [(device, demo.frame(start=10 * int(device))) for device in ("1", "2", "3")]
        create_dataset(template, "demo", demo.contract(), frames)
        demo.frame(start=100).write_csv(source)
    trials.mkdir()
    words = [sys.executable, "-c", TRIALS, str(template), str(trials), str(source), action]
    subprocess.run(words, check=True, timeout=120, cwd=Path(__file__).parents[3])

    roots = sorted(trials.iterdir(), key=lambda root: int(root.name))
    old, new = state(template), state(roots[-1])
    assert old != new
    found = [state(root) for root in roots]
    assert all(reached in (old, new) for reached in found)
    # The change is one step: old before it, new from there on.
    changed = found.index(new)
    assert changed > 0
    assert all(reached == new for reached in found[changed:])
    assert len(roots) > 8
    for root in roots:
        assert list_datasets(root) == ("demo",)
        if state(root) == old:
            if action == "import":
                import_file(root, source, "demo")
            elif action == "remove":
                remove_device(root, "demo", "2")
            else:
                add_partition(root, source, "demo", "4" if action == "new" else "2", append=action == "append")
        assert state(root) == new
        with staging_folder(root):
            pass
        left = [path.name for path in root.iterdir() if path.name.startswith(".")]
        assert not left, "what killed processes leave is cleared by whoever builds next"
