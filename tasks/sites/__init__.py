"""Devices at sites of their own, which the server reaches through signed letters alone."""
