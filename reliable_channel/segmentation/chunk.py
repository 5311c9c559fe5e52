"""The ``MessageChunk`` view of segments and the verification of their chain (protocol.md §7; seed 002).

A chunk's id is its SDS id, and its predecessor's id stands in its causal history. With ``verify_chunk_chain`` a segment
goes through a :class:`ChunkGate` before the Reassembler: it is let through once its link to a predecessor that was let
through is seen, in any order of arrival, and given up when that does not happen in time. The price is that a lost
segment stops its successors, which parity alone would have borne: this is off by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reliable_channel.segmentation.events import Scope
from reliable_channel.segmentation.pending import PARITY, slot_of
from reliable_channel.wire.segment import Segment


@dataclass(frozen=True, slots=True)
class MessageChunk:
    """Seed 002's unit of transmission. ``chunk_index`` counts data segments, then parity; ``previous_chunk_id`` is
    empty for the first; ``last_chunk_index`` is the number of chunks less one; ``request_id`` is not on the wire."""

    chunk_id: str
    previous_chunk_id: str
    chunk_index: int
    last_chunk_index: int
    request_id: str | None = None


def chunks_of(sds_ids: Sequence[str], request_id: str | None = None) -> list[MessageChunk]:
    """The chunks of one send, from the SDS ids of its segments, data then parity."""
    last = len(sds_ids) - 1
    return [
        MessageChunk(chunk_id, sds_ids[index - 1] if index else "", index, last, request_id)
        for index, chunk_id in enumerate(sds_ids)
    ]


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    """A segment with what its SDS message says of its place: its id, its causal history's ids, its timestamp (ms)."""

    segment: Segment
    sds_id: str
    causal_history: tuple[str, ...]
    scope: Scope = ()
    lamport: int | None = None


@dataclass(frozen=True, slots=True)
class ChunkDiscarded:
    """A chunk whose link to its predecessor was not verified within ``timeout_ms``, or for which there was no room."""

    chunk: ReceivedChunk
    expired: bool


_Place = tuple[Scope, bytes, int]
"""Scope, hash and slot: where a chunk stands, whichever send it belongs to."""


class ChunkGate:
    """Lets chunks through in chain order. ``max_waiting`` and ``max_verified`` bound what is held, the oldest going
    first; ``timeout_ms`` is how long a chunk waits for its predecessor and how long a link is remembered."""

    def __init__(self, timeout_ms: int = 300_000, max_waiting: int = 4_096, max_verified: int = 100_000) -> None:
        self._timeout, self._max_waiting, self._max_verified = timeout_ms, max_waiting, max_verified
        self._waiting: dict[ReceivedChunk, int] = {}
        self._waiting_at: dict[_Place, list[ReceivedChunk]] = {}
        self._verified: dict[tuple[_Place, str], int] = {}
        self._last_data: dict[tuple[Scope, bytes, str], None] = {}

    def add(self, chunk: ReceivedChunk, now: int) -> list[ReceivedChunk | ChunkDiscarded]:
        """What may go on to the Reassembler now, in chain order, and what was given up for want of room."""
        out: list[ReceivedChunk | ChunkDiscarded] = []
        if not self._linked(chunk):
            if chunk not in self._waiting:
                self._waiting[chunk] = now + self._timeout
                self._waiting_at.setdefault(_place(chunk), []).append(chunk)
            while len(self._waiting) > self._max_waiting:
                out.append(self._discard(next(iter(self._waiting)), expired=False))
            return out
        ready = [chunk]
        while ready:
            verified = ready.pop(0)
            self._remember(verified, now)
            out.append(verified)
            for place in _successors(verified):
                for waiting in [each for each in self._waiting_at.get(place, ()) if self._linked(each)]:
                    self._forget(waiting)
                    ready.append(waiting)
        return out

    def expire(self, now: int) -> list[ChunkDiscarded]:
        """Give up every chunk that has waited for ``timeout_ms``, and forget links as old."""
        out = []
        while self._waiting and (oldest := next(iter(self._waiting.items())))[1] <= now:
            out.append(self._discard(oldest[0], expired=True))
        while self._verified and next(iter(self._verified.values())) <= now:
            self._drop_link()
        return out

    def next_due(self) -> int | None:
        """When (ms) ``expire`` next has something to do, or ``None``."""
        dues = [next(iter(held.values())) for held in (self._waiting, self._verified) if held]
        return min(dues, default=None)

    def _linked(self, chunk: ReceivedChunk) -> bool:
        """Whether a predecessor that was let through stands in the causal history. The first parity segment follows
        the last data segment, whichever index that has: v0.1 parity does not say."""
        slot, scope, whole = slot_of(chunk.segment), chunk.scope, chunk.segment.entire_message_hash
        if slot == 0:
            return True
        if slot == PARITY:
            return any((scope, whole, previous) in self._last_data for previous in chunk.causal_history)
        before = (scope, whole, slot - 1)
        return any((before, previous) in self._verified for previous in chunk.causal_history)

    def _remember(self, chunk: ReceivedChunk, now: int) -> None:
        key = (_place(chunk), chunk.sds_id)
        self._verified.pop(key, None)
        self._verified[key] = now + self._timeout
        if _is_last_data(chunk.segment):
            self._last_data[chunk.scope, chunk.segment.entire_message_hash, chunk.sds_id] = None
        if len(self._verified) > self._max_verified:
            self._drop_link()

    def _drop_link(self) -> None:
        (scope, whole, _), sds_id = next(iter(self._verified))
        del self._verified[next(iter(self._verified))]
        self._last_data.pop((scope, whole, sds_id), None)

    def _discard(self, chunk: ReceivedChunk, expired: bool) -> ChunkDiscarded:
        self._forget(chunk)
        return ChunkDiscarded(chunk, expired)

    def _forget(self, chunk: ReceivedChunk) -> None:
        del self._waiting[chunk]
        place = _place(chunk)
        self._waiting_at[place].remove(chunk)
        if not self._waiting_at[place]:
            del self._waiting_at[place]


def _place(chunk: ReceivedChunk) -> _Place:
    return chunk.scope, chunk.segment.entire_message_hash, slot_of(chunk.segment)


def _successors(chunk: ReceivedChunk) -> list[_Place]:
    scope, whole, slot = _place(chunk)
    after = [(scope, whole, slot + 1)]
    return [*after, (scope, whole, PARITY)] if _is_last_data(chunk.segment) else after


def _is_last_data(segment: Segment) -> bool:
    return not segment.is_parity and segment.data_count is not None and segment.index == segment.data_count - 1
