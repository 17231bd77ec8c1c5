"""What a site was asked, what has left it and what it refused: one line of JSON each, only ever appended."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedcore.errors import Misuse


class Audit:
    """The log of a site.

    Attributes
    ----------
    file
        Where it is.
    """

    def __init__(self, file: Path) -> None:
        """
        Raises
        ------
        Misuse
            Where the log cannot be read: without it the site would not know which requests it has had.
        """
        self.file = file
        try:
            content = file.read_bytes() if file.exists() else b""
        except OSError as error:
            raise Misuse(f"{file} cannot be read ({error.strerror}): give it back to the site's user") from None
        self._torn = bool(content) and not content.endswith(b"\n")  # in the middle of a line, by a full disk or a machine that went down
        self._nonces = {entry["nonce"] for entry in map(_entry, content.splitlines()) if entry.get("event") == "asked"}

    def had(self, nonce: str) -> bool:
        """Whether a request of this number was taken before."""
        return nonce in self._nonces

    def note(self, event: str, **told: Any) -> None:
        """Append a line, and see it on the disk before anything else happens.

        Raises
        ------
        OSError
            As the operating system says.
        """
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **told}) + "\n"
        line, self._torn = "\n" * self._torn + line, True
        with open(self.file, "ab", opener=lambda file, flags: os.open(file, flags, 0o640)) as log:
            log.write(line.encode())
            log.flush()
            os.fsync(log.fileno())
        self._torn = False
        if event == "asked":
            self._nonces.add(told["nonce"])


def _entry(line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        return {}
