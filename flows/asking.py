"""Prefect's client with patience for one try."""

from __future__ import annotations

from prefect.context import SettingsContext, get_settings_context
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES


def once() -> SettingsContext:
    """A context in which a server is asked once: one that is away is else asked again and again for a minute. It can be entered anew after
    each use, and is best kept, since to copy all of Prefect's settings takes 50 ms."""
    context = get_settings_context()
    settings = context.settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: 0})
    return SettingsContext(profile=context.profile, settings=settings)
