"""Errors that a person can act on.

Every message is one line: what was expected, what came (a shape, a count, a device id, never a data value), what to do.
"""

from __future__ import annotations


class FedlinError(Exception):
    """Root of the errors that fedlin raises on purpose."""


class Misuse(FedlinError, ValueError):
    """A request that cannot be carried out as it stands: an unknown name, an option out of bounds, a store that is not
    writable."""


class DataError(Misuse):
    """Data that break their contract: names file, device, column and count, never a value."""


class DeviceFailure(FedlinError):
    """A device could not finish its part of a round; says which device, at which stage, and the kind of the error only.

    What the device's own exception said stays on the device: its text may quote rows.
    """


class DeviceRefusal(DeviceFailure):
    """A device will not take part for a reason that trying again does not change: its data break the contract, or an
    option is unsafe for them."""
