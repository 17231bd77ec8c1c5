"""Settles the environment as an installed fedlin does, before anything imports numpy, prefect or mlflow; an object store, and real data."""

from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from upath import UPath

import tasks as tasks
from fedcore.data.places import place

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell may have that for what it starts, and commands that tests start inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on how fast the machine is, and those that are given examples neither.
settings.register_profile("fedlin", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedlin")


@pytest.fixture(scope="session")
def s3() -> Iterator[Callable[[], UPath]]:
    """Makes empty buckets in an S3-compatible server on the loopback, which this process and its children find in the environment."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server.start()
    _, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in settings.items():
            patch.setenv(name, value)

        def bucket() -> UPath:
            name = f"fedlin-{secrets.token_hex(4)}"
            found = place(f"s3://{name}/somewhere")
            assert isinstance(found, UPath)
            found.fs.mkdir(name)
            return found

        yield bucket
    server.stop()


@pytest.fixture(scope="session")
def real_file() -> Callable[[str], Path]:
    """Finds a file of real data in the folder that FEDLIN_DATA names: not set is a skip, set without the file a failure."""

    def find(name: str) -> Path:
        folder = os.environ.get("FEDLIN_DATA")
        if not folder:
            pytest.skip(f"FEDLIN_DATA is not set: set it to the folder that holds {name}")
        path = Path(folder) / name
        assert path.is_file(), f"FEDLIN_DATA is set, but holds no {name}"
        return path

    return find


@pytest.fixture
def unprivileged() -> Callable[[], AbstractContextManager[None]]:
    """Lets a part of a test run as a user who owns nothing here; root may read and write anywhere, so it has to step down."""

    @contextmanager
    def nobody() -> Iterator[None]:
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(os.getuid())

    return nobody
