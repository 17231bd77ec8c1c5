"""Background processes that outlive the command that starts them, known by a file with their id.

Each leads a session of its own, to which everything that it starts belongs. The file also has the time of its start, so that another
process that has got the same id later is never taken for it. Needs Linux, whose /proc tells both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedcore.errors import FedlinError

START_LIMIT = 300.0
"""Seconds that a service may take to answer: the first start of each makes its database, on a machine that may be busy."""

STOP_LIMIT = 60.0
"""Seconds that it may take to end, before it is killed."""

POLL = 0.2


class Seen(NamedTuple):
    """What /proc says of a process: its session, and when it began, in ticks since the machine started."""

    session: int
    began: str


@dataclass(frozen=True)
class Service:
    """One service of the stack.

    Attributes
    ----------
    name
        Names its log and the file with its id.
    folder
        Where these are.
    """

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        """Whether the process that was started is there."""
        pid, began = self._started()
        found = _see(pid)
        return found is not None and found.began == began

    def start(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start it and return at once; `await_ready` waits for it."""
        with self.log.open("ab") as log:
            # Not awaited here: the command ends, and the service stays.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        found = _see(process.pid)
        self._id_file.write_text(f"{process.pid} {found.began if found else ''}")

    def await_ready(self, ready: Callable[[], bool], limit: float = START_LIMIT) -> None:
        """Wait until it answers.

        Raises
        ------
        FedlinError
            Where it ends, or does not answer in time; names its log.
        """
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if not self.running:
                raise FedlinError(f"{self.name} ended while it started: see {self.log}")
            if ready():
                return
            time.sleep(POLL)
        raise FedlinError(f"{self.name} did not answer within {limit:g} s: see {self.log}")

    def stop(self, limit: float = STOP_LIMIT) -> bool:
        """End it and everything that it has started: politely, then at once. Returns whether there was anything to end."""
        found = bool(self._members())
        if self.running:
            self._tell([self._started()[0]], signal.SIGTERM, limit)
        self._tell(self._members(), signal.SIGTERM, limit)
        self._tell(self._members(), signal.SIGKILL, limit)
        self._id_file.unlink(missing_ok=True)
        return found

    @property
    def _id_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def _started(self) -> tuple[int, str]:
        try:
            pid, began = self._id_file.read_text().split()
            return int(pid), began
        except (OSError, ValueError):
            return 0, ""

    def _members(self) -> list[int]:
        """Ids of the session's processes. No new session gets its number while one of them is there."""
        pid, began = self._started()
        leader = _see(pid)
        if not pid or (leader and leader.began != began):
            return []
        seen = {int(each.name): _see(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdecimal()}
        return [member for member, found in seen.items() if found and found.session == pid]

    def _tell(self, pids: Sequence[int], number: signal.Signals, limit: float) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + limit
        while any(pid in self._members() for pid in pids) and time.monotonic() < deadline:
            time.sleep(POLL)


def _see(pid: int) -> Seen | None:
    """A process that runs; one that has ended, and that nobody has asked for its exit code, does not."""
    try:
        # The name, in brackets, may have spaces and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Seen(int(fields[3]), fields[19]) if fields[0] != "Z" else None
