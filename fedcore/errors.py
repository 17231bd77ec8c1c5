"""Errors that a person can act on.

Every message is one line: what was expected, what came (a shape, a count, a device id, never a data value), what to do.
"""

from __future__ import annotations

import errno


class FedlinError(Exception):
    """Root of the errors that fedlin raises on purpose."""


class Misuse(FedlinError, ValueError):
    """A request that cannot be carried out as it stands: an unknown name, an option out of bounds, a store that is not
    writable."""


class DataError(Misuse):
    """Data that break their contract: names file, device, column and count, never a value."""


class PlaceAway(FedlinError, OSError):
    """An object store that does not answer now, or does not let us in. It is an error of the operating system too, with `strerror`, so
    that what cannot be read or written is told in one way."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EIO, reason)

    def __str__(self) -> str:
        return f"the object store cannot be used now ({self.strerror}): see that it is up and lets you in, then try again"


class DeviceFailure(FedlinError):
    """A device could not finish its part of a round; says which device, at which stage, and the kind of the error only.

    What the device's own exception said stays on the device: its text may quote rows.
    """


class DeviceAway(DeviceFailure):
    """A device could not reach what it needs: its disk, a store, memory. That may pass, so trying again is worth while."""


class DeviceLate(DeviceFailure):
    """A device had not done its part of a round at its deadline. The same work would take as long again; the next round may be shorter."""


class DeviceRefusal(DeviceFailure):
    """A device will not take part for a reason that trying again does not change: its data break the contract, or an
    option is unsafe for them."""
