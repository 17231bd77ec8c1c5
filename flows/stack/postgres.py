"""A PostgreSQL server of the stack's own: one folder, one port of the loopback, one password."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.errors import FedlinError, Misuse
from flows.stack.processes import START_LIMIT

USER = "fedlin"
DATABASES = ("prefect", "mlflow")

# Debian keeps the server's programs of each version in a folder of its own, which is on nobody's path.
INSTALLED = Path("/usr/lib/postgresql")

# It refuses to run as root, who lends it this account; Debian's package makes it.
ACCOUNT = "postgres"


@dataclass(frozen=True)
class Postgres:
    """The server.

    Attributes
    ----------
    folder
        The stack's folder: data in `postgres/`, the log beside it.
    port
        Of the loopback.
    """

    folder: Path
    port: int

    @property
    def log(self) -> Path:
        """What it says."""
        return self.data / "postgres.log"

    @property
    def data(self) -> Path:
        """Its own folder."""
        return self.folder / "postgres"

    @property
    def password_file(self) -> Path:
        """The password as clients read it (``PGPASSFILE``); nobody else may."""
        return self.folder / "pgpass"

    @property
    def running(self) -> bool:
        """Whether it runs. The id that a killed one has left may be somebody else's by now, which pg_ctl would take for it and end: a
        server of ours has its data folder in its command line, which, unlike what else /proc tells, everybody may read."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return Path(os.fsdecode(words[0])).name == "postgres" and os.fsencode(self.data) in words
        except (OSError, ValueError):
            return False

    def start(self) -> None:
        """Make the databases where they are missing, and start.

        Raises
        ------
        Misuse
            Where PostgreSQL is missing, or may not use the folder.
        FedlinError
            Where it does not start.
        """
        if not (self.data / "PG_VERSION").exists():
            self._create()
        if not self.running:
            options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
            limit = str(round(START_LIMIT))
            self._demand("pg_ctl", "start", "-w", "-t", limit, "-D", self.data, "-l", self.log, "-o", options)
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(f"127.0.0.1:{self.port}:*:{USER}:{(self.folder / 'password').read_text()}\n")
        known = self._demand(*self._client("psql"), "-d", "postgres", "-Atc", "select datname from pg_database").split()
        for name in DATABASES:
            if name not in known:
                self._demand(*self._client("createdb"), name)

    def stop(self) -> bool:
        """End it, and with it whatever its clients have under way. Returns whether there was anything to end."""
        if not self.running:
            return False
        self._demand("pg_ctl", "stop", "-m", "fast", "-w", "-t", "120", "-D", self.data)
        return True

    def url(self, driver: str, database: str) -> str:
        """Address of a database for SQLAlchemy, without the password."""
        return f"postgresql+{driver}://{USER}@127.0.0.1:{self.port}/{database}"

    def _create(self) -> None:
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        self.data.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory() as shared:
            copy = Path(shared) / "password"
            copy.touch(mode=0o600)
            copy.write_text(password.read_text())
            if account := _account():
                for path in (self.data, Path(shared), copy):
                    os.chown(path, account.pw_uid, account.pw_gid)
            form = ["-U", USER, "-E", "UTF8", "--locale=C.UTF-8", "--auth=scram-sha-256", f"--pwfile={copy}"]
            self._demand("initdb", "-D", self.data, *form)

    def _client(self, program: str) -> list[str]:
        return [program, "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-w"]

    def _demand(self, program: str, *words: str | Path) -> str:
        done = self._run(program, *words)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            why = said[-1] if said else f"status {done.returncode}"
            hint = f"; see {self.log}" if self.log.exists() else ""
            raise FedlinError(f"PostgreSQL's {program} failed ({why}){hint}")
        return done.stdout

    def _run(self, program: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        found, account, client = _program(program), _account(), program in ("psql", "createdb")
        lent: dict[str, Any] = {} if client or not account else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        environment = os.environ | {"PGPASSFILE": str(self.password_file), "LC_ALL": "C.UTF-8"}
        if lent and not _reaches(self.folder, lent):
            raise Misuse(f"{self.folder}: the account {ACCOUNT} cannot enter it: put the project where others may, or do without root")
        # pg_ctl leaves the server with the outputs that it has itself, so these are files: a pipe would never end.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
            files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": error}
            done = subprocess.run([found, *words], cwd="/", env=environment, check=False, **files, **lent)
            return subprocess.CompletedProcess(done.args, done.returncode, _read(out), _read(error))


def _read(file: Any) -> str:
    file.seek(0)
    return file.read()


def _program(name: str) -> str:
    versions: Sequence[Path] = sorted(INSTALLED.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = shutil.which(name) or (str(versions[-1]) if versions else None)
    if found is None:
        raise Misuse(f"PostgreSQL's {name} is missing: install Debian's package postgresql (apt-get install postgresql)")
    return found


def _account() -> pwd.struct_passwd | None:
    """Who the server runs as in place of root, None where we are somebody else."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise Misuse(f"PostgreSQL does not run as root, and there is no account {ACCOUNT}: install Debian's package postgresql") from None


def _reaches(folder: Path, lent: dict[str, Any]) -> bool:
    return subprocess.run(["/bin/sh", "-c", 'cd "$1"', "sh", folder], stderr=subprocess.DEVNULL, check=False, **lent).returncode == 0
