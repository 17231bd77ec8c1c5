"""What a device remembers between rounds, so that it and the server never drift apart.

A device keeps its accepted state and the result of its last round, which is only pending: the server may never have
received it. The next broadcast carries a receipt, and only then does the state move. A round that is repeated, after a
lost message or a crash, starts from the same accepted state and gives the same result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedcore.algorithm import AnyAlgorithm
from fedcore.errors import DeviceFailure
from fedcore.messages import Receipt


class Memory(NamedTuple):
    """A device's memory.

    Attributes
    ----------
    accepted
        State after the last update that the server has acknowledged.
    accepted_round
        The round of that update, 0 for the initial state.
    pending
        State after the last round, not acknowledged; equal to `accepted` where there is none.
    pending_round
        The round of `pending`, 0 for none.
    """

    accepted: Any
    accepted_round: int
    pending: Any
    pending_round: int

    @classmethod
    def initial(cls, device: Any) -> Memory:
        """The memory of a device that has not taken part yet."""
        return cls(device, 0, device, 0)


def settle(algorithm: AnyAlgorithm, memory: Memory, receipt: Receipt | None) -> Memory:
    """The memory once the device has read a receipt: the pending result is accepted, by the fraction that was applied,
    or dropped.

    Raises
    ------
    DeviceFailure
        Where the receipt is for an update that this device does not remember: its state was lost or is another run's.
    """
    taken = receipt.round_num if receipt else 0
    if receipt and taken == memory.pending_round:
        return Memory.initial(algorithm.accept(memory.accepted, memory.pending, receipt.fraction))._replace(accepted_round=taken)
    if taken == memory.accepted_round:
        return Memory.initial(memory.accepted)._replace(accepted_round=taken)
    raise DeviceFailure(
        f"the server took this device's update of round {taken}, but its state is from round {memory.accepted_round}: "
        "restore the device's state folder, or start a new run"
    )
