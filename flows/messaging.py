"""Prefect's in-memory event queue without its bound of 10,000, past which it drops events, and with them ends of task runs.

A server takes it where ``PREFECT_MESSAGING_BROKER=flows.messaging``. Waiting for room instead would hang the server: it sends events
itself while it holds the database, for which the reader waits. What bounds it is `Orchestrator.pace`, which holds runs up.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prefect.server.utilities.messaging import memory
from prefect.server.utilities.messaging.memory import Consumer, Publisher, break_topic, ephemeral_subscription

__all__ = ["Consumer", "Publisher", "break_topic", "ephemeral_subscription"]


class Unbounded(memory.Subscription):
    """A topic's subscription that keeps all that it is told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queue = asyncio.Queue()


memory.Subscription = Unbounded
