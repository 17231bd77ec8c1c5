"""Background processes that outlive the command that starts them, known by a file with their id.

Each finds a mark of its own in its environment, and hands it on to everything that it starts, in whatever session. So another process
that has got the same id later is never taken for it, and what a killed service leaves behind is found. Needs Linux, whose /proc tells.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.errors import FedlinError

START_LIMIT = 300.0
"""Seconds that a service may take to answer: the first start of each makes its database, on a machine that may be busy."""

STOP_LIMIT = 60.0
"""Seconds that it may take to end, before it is killed."""

MARK = "FEDLIN_STACK_SERVICE"
POLL = 0.2
MARK_LIMIT, MARK_POLL = 5.0, 0.001


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
        pid, mark = self._started()
        return bool(mark) and _mark(pid) == mark

    def start(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start it and return at once; `await_ready` waits for it. What a killed one has left goes first."""
        self.stop()
        mark = f"{self.folder / self.name}-{secrets.token_hex(8)}"
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**environment, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._id_file.write_text(f"{process.pid} {mark}")
        # The system shows the new environment a moment after the process is there, later where it is busy.
        deadline = time.monotonic() + MARK_LIMIT
        while process.poll() is None and not self.running and time.monotonic() < deadline:
            time.sleep(MARK_POLL)
        process.returncode = 0  # nobody here waits for its end

    def await_ready(self, ready: Callable[[], bool], limit: float = START_LIMIT) -> None:
        """Wait until it answers, for at most `limit` seconds.

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
        """End it and everything that it has started, which goes first, so that runs can still tell their server; politely, and
        after `limit` seconds at once. Returns whether there was anything to end."""
        leader, found = self._started()[0], self._members()
        self._tell([pid for pid in found if pid != leader], signal.SIGTERM, limit)
        self._tell(self._members(), signal.SIGTERM, limit)
        self._tell(self._members(), signal.SIGKILL, limit)
        self._id_file.unlink(missing_ok=True)
        return bool(found)

    @property
    def _id_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def _started(self) -> tuple[int, str]:
        try:
            pid, mark = self._id_file.read_text().split(maxsplit=1)
            return int(pid), mark
        except (OSError, ValueError):
            return 0, ""

    def _members(self) -> list[int]:
        _, mark = self._started()
        ids = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
        return [pid for pid in ids if mark and _mark(pid) == mark]

    def _tell(self, pids: Sequence[int], number: signal.Signals, limit: float) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + limit
        while any(pid in self._members() for pid in pids) and time.monotonic() < deadline:
            time.sleep(POLL)


def _mark(pid: int) -> str:
    """The mark in a process's environment; empty where it has none, is somebody else's, or has ended."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    start = f"{MARK}=".encode()
    return next((each.removeprefix(start).decode() for each in environment if each.startswith(start)), "")
