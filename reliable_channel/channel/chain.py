"""``verify_chunk_chain`` (seed ``002…``, *MessageChunk*): a segment counts only when its link to its predecessor does.

The predecessor of segment *i* is segment *i - 1* of the same message (parity after data); the link is verified when the
predecessor is verified itself and stands in the causal history of *i*. What is not verified in time is discarded.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from reliable_channel.wire.sds import SdsMessage
from reliable_channel.wire.segment import Segment

MAX_MESSAGES = 256
"""Messages whose chains are followed at once."""
MAX_HELD_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Chain:
    """The segments of one message of one sender."""

    at: int
    data_count: int | None = None
    verified: dict[int, set[str]] = field(default_factory=dict)
    held: dict[str, tuple[SdsMessage, Segment]] = field(default_factory=dict)


class ChunkChains:
    """Holds segments back until they are linked. ``timeout_ms`` as for incomplete sets."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._chains: OrderedDict[tuple[str, bytes], Chain] = OrderedDict()
        self._held_bytes = 0

    def add(self, message: SdsMessage, segment: Segment, now: int) -> list[tuple[SdsMessage, Segment]]:
        """The segments that this one verifies, itself included, in the order of their chain."""
        key = (message.sender_id, segment.entire_message_hash)
        chain = self._chains.setdefault(key, Chain(now))
        chain.at = now
        self._chains.move_to_end(key)
        if segment.data_count is not None:
            chain.data_count = segment.data_count
        if message.message_id not in chain.held:
            chain.held[message.message_id] = (message, segment)
            self._held_bytes += len(segment.payload)
        found: list[tuple[SdsMessage, Segment]] = []
        while (linked := self._linked(chain)) is not None:
            found.append(chain.held.pop(linked))
            self._held_bytes -= len(found[-1][1].payload)
        return found

    def expire(self, now: int) -> list[str]:
        """The SDS ids of segments that are discarded: unverified for too long, or too many."""
        lost: list[str] = []
        while self._chains:
            key, chain = next(iter(self._chains.items()))
            crowded = len(self._chains) > MAX_MESSAGES or self._held_bytes > MAX_HELD_BYTES
            if chain.at + self._timeout_ms > now and not crowded:
                break
            del self._chains[key]
            self._held_bytes -= sum(len(segment.payload) for _, segment in chain.held.values())
            lost += chain.held
        return lost

    def next_due(self) -> int | None:
        return next((chain.at + self._timeout_ms for chain in self._chains.values()), None)

    def done(self, sender_id: str, entire_message_hash: bytes) -> None:
        """A message is complete: its chain is not followed any more."""
        chain = self._chains.pop((sender_id, entire_message_hash), None)
        if chain is not None:
            self._held_bytes -= sum(len(segment.payload) for _, segment in chain.held.values())

    def __bool__(self) -> bool:
        return bool(self._chains)

    def _linked(self, chain: Chain) -> str | None:
        for sds_id, (message, segment) in chain.held.items():
            if segment.is_parity and chain.data_count is None:
                continue
            ordinal = segment.index + (chain.data_count or 0 if segment.is_parity else 0)
            before = chain.verified.get(ordinal - 1, set())
            if ordinal == 0 or any(entry.message_id in before for entry in message.causal_history):
                chain.verified.setdefault(ordinal, set()).add(sds_id)
                return sds_id
        return None
