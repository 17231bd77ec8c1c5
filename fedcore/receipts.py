"""What a device remembers between rounds, so that it and the server never drift apart.

A device keeps its accepted state and the result of its last round, which is only pending: the server may never have
received it. The next broadcast carries a receipt, and only then does the state move. A round that is repeated, after a
lost message or a crash, starts from the same accepted state and gives the same result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedcore.algorithm import AnyAlgorithm
from fedcore.alike import single
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
        State after the last round, not acknowledged; None where there is none, or where that round left the state as it was.
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
        return cls(device, 0, None, 0)

    def awaiting(self, pending: Any, round_num: int) -> Memory:
        """The memory after a round that led to `pending`, until a receipt comes."""
        return Memory(self.accepted, self.accepted_round, None if pending is self.accepted else pending, round_num)


def settle(algorithm: AnyAlgorithm, memory: Memory, receipt: Receipt | None) -> Memory:
    """The memory once the device has read a receipt: the pending result is accepted, by the fraction that was applied,
    or dropped. Where rounds leave states as they are it stays what it is, whatever the receipt.

    Raises
    ------
    DeviceFailure
        Where the receipt is for an update that this device does not remember: its state was lost, or is older or newer than the server's.
        Never where rounds leave states as they are.
    """
    if algorithm.STEADY:
        return memory
    taken = receipt.round_num if receipt else 0
    if receipt and taken == memory.pending_round:
        return Memory(_moved(algorithm, memory, receipt.fraction), taken, None, 0)
    if taken == memory.accepted_round:
        return Memory(memory.accepted, taken, None, 0)
    raise DeviceFailure(
        f"the server took this device's update of round {taken}, but its state is from round {memory.accepted_round}: restore "
        "the older one of the run's folder and the device's .fedlin folder, or start a new run"
    )


def _moved(algorithm: AnyAlgorithm, memory: Memory, fraction: float) -> Any:
    if memory.pending is None:
        return memory.accepted
    if fraction == 1.0:
        return memory.pending
    return algorithm.accept(single(memory.accepted), single(memory.pending), fraction)
