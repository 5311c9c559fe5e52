"""Defines the effect of each injected fault on the segments of its message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.simulation.scenario import Fault

LATE_BY_MS = 390_000
"""Longer than an observer waits before it declares a dependency lost (``timeout_for_lost_messages``, 300 s)."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """How the network treats every envelope of one segment."""

    dispatched: bool = True
    hidden_from_observer: bool = False
    shown_to_observer: bool = False
    """Never lost on the way to the observer."""
    cut_at_observer: bool = False
    under_unknown_key: bool = False
    stored: bool = True
    """Whether store nodes keep it."""
    late_by_ms: int = 0
    """How much later than by the link it reaches the observer."""

    def delays_to_observer(self, delays: Sequence[int], delay_ms: int) -> list[int]:
        """The copies (delays in ms) that reach the observer, given those the link would have delivered."""
        if self.hidden_from_observer:
            return []
        shown = [delay_ms] if self.shown_to_observer and not delays else delays
        return [delay + self.late_by_ms for delay in shown]


def treatment(fault: Fault | None, ordinal: int, data_count: int, parity_count: int) -> Treatment:
    """The treatment of segment ``ordinal`` (data, then parity) of a message with that fault."""
    match fault:
        case Fault.NEVER_SENT | Fault.RATE_LIMITED:
            return Treatment(dispatched=False)
        case Fault.NOT_STORED:
            return Treatment(hidden_from_observer=True, stored=False)
        case Fault.SEGMENT_MISSING:
            # The observer must hold one segment, or it would not be a missing *segment*.
            hidden = ordinal <= parity_count
            return Treatment(hidden_from_observer=hidden, shown_to_observer=True, stored=not hidden)
        case Fault.PARITY_SAVES:
            return Treatment(hidden_from_observer=ordinal < parity_count, shown_to_observer=True)
        case Fault.UNDECODABLE:
            cut = ordinal == data_count - 1
            return Treatment(cut_at_observer=cut, shown_to_observer=True, stored=not cut)
        case Fault.UNDECRYPTABLE:
            return Treatment(under_unknown_key=True, shown_to_observer=True, stored=False)
        case Fault.LATE:
            return Treatment(late_by_ms=LATE_BY_MS, shown_to_observer=True, stored=False)
        case _:
            return Treatment()


def hash_to_announce(payload: bytes, fault: Fault | None) -> bytes:
    """The Keccak-256 (32 bytes) that the message's segments carry: the payload's, unless the fault falsifies it."""
    return keccak256(b"not " + payload if fault is Fault.HASH_MISMATCH else payload)
