"""Implements ``MessageChunk`` and the verification of chunk chains (RELIABLE-CHANNEL-API, March 2026 revision).

A chunk's id is its SDS id, and its causal history contains its predecessor's id. With ``verify_chunk_chain`` a segment
passes a :class:`ChunkGate` before the Reassembler: the gate releases it once its link to a released predecessor is
verified, in any order of arrival, and discards it if that does not happen in time. Off by default, because a lost
segment then blocks its successors even if parity could replace it.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation.events import Scope, get_sender
from reliable_channel.core.segmentation.pending import PARITY, slot_of
from reliable_channel.core.shares import Shares
from reliable_channel.core.wire._pb import reassembler_state_pb2 as pb
from reliable_channel.core.wire.segment import Dialect, Segment

SNAPSHOT_VERSION = 1


@dataclass(frozen=True, slots=True)
class MessageChunk:
    """The unit of transmission of RELIABLE-CHANNEL-API's March 2026 revision. ``chunk_id`` is the segment's SDS id.
    ``chunk_index`` counts data segments, then parity. ``previous_chunk_id`` is empty for the first chunk, and ``None``
    if the segment before it was never seen. ``last_chunk_index`` is the number of chunks less one. ``request_id`` is
    the SDS id of the message's first segment, ``None`` if it never arrived. ``verified``: the causal history contains
    the predecessor, or there is none."""

    chunk_id: str
    previous_chunk_id: str | None
    chunk_index: int
    last_chunk_index: int | None
    request_id: str | None = None
    verified: bool = True


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    """A segment with the fields of its SDS message that locate it: its id, the ids of its causal history, its timestamp
    (ms)."""

    segment: Segment
    sds_id: str
    causal_history: tuple[str, ...]
    scope: Scope = ()
    lamport: int | None = None


@dataclass(frozen=True, slots=True)
class ChunkDiscarded:
    """A chunk whose link to its predecessor was not verified within ``timeout_ms``, or for which the gate had no
    room."""

    chunk: ReceivedChunk
    expired: bool


_ChunkPosition = tuple[Scope, bytes, int]
"""Scope, hash and slot: the position of a chunk, whichever send it belongs to."""

_Link = tuple[_ChunkPosition, str]
"""The position and SDS id of a released chunk."""


class ChunkGate:
    """Releases chunks in chain order. ``max_waiting``, ``max_waiting_bytes`` and ``max_verified`` bound its memory:
    beyond them the sender that holds most loses its oldest entry. ``timeout_ms`` is how long a chunk waits for its
    predecessor and how long a link is remembered."""

    def __init__(
        self,
        timeout_ms: int = 300_000,
        max_waiting: int = 4_096,
        max_verified: int = 100_000,
        max_waiting_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._timeout = timeout_ms
        self._waiting_shares = Shares[ReceivedChunk](max_waiting, max_waiting_bytes)
        self._link_shares = Shares[_Link](max_verified, max_verified)
        self._waiting: dict[ReceivedChunk, int] = {}
        self._waiting_at: dict[_ChunkPosition, list[ReceivedChunk]] = {}
        self._verified: dict[_Link, int] = {}
        self._last_data: dict[tuple[Scope, bytes, str], None] = {}

    def add(self, chunk: ReceivedChunk, now: int) -> list[ReceivedChunk | ChunkDiscarded]:
        """Add a chunk; returns the chunks released to the Reassembler, in chain order, and those discarded because the
        gate was full."""
        out: list[ReceivedChunk | ChunkDiscarded] = []
        if not self._is_linked(chunk):
            self._wait(chunk, now + self._timeout)
            while (oldest := self._waiting_shares.find_surplus()) is not None:
                out.append(self._discard(oldest, expired=False))
            return out
        ready = [chunk]
        while ready:
            verified = ready.pop(0)
            self._remember(
                _locate_chunk(verified), verified.sds_id, _is_last_data(verified.segment), now + self._timeout
            )
            out.append(verified)
            for key in _list_successors(verified):
                for waiting in [each for each in self._waiting_at.get(key, ()) if self._is_linked(each)]:
                    self._forget(waiting)
                    ready.append(waiting)
        return out

    def expire(self, now: int) -> list[ChunkDiscarded]:
        """Discard every chunk that has waited for ``timeout_ms``, and forget links of that age."""
        out = []
        while self._waiting and (oldest := next(iter(self._waiting.items())))[1] <= now:
            out.append(self._discard(oldest[0], expired=True))
        while self._verified and (first := next(iter(self._verified.items())))[1] <= now:
            self._drop_link(first[0])
        return out

    def next_due(self) -> int | None:
        """When (ms) ``expire`` next has something to do, or ``None``."""
        dues = [next(iter(held.values())) for held in (self._waiting, self._verified) if held]
        return min(dues, default=None)

    def to_bytes(self) -> bytes:
        """Encode the waiting chunks and the verified links. The bounds are configuration and not included."""
        state = pb.ChunkGateState(version=SNAPSHOT_VERSION)
        state.waiting.extend(_write_waiting(chunk, until) for chunk, until in self._waiting.items())
        for ((scope, whole, slot), sds_id), until in self._verified.items():
            last = (scope, whole, sds_id) in self._last_data
            state.verified.add(
                scope=scope, entire_message_hash=whole, slot=slot, sds_id=sds_id, until=until, is_last_data=last
            )
        return state.SerializeToString(deterministic=True)

    def restore(self, data: bytes) -> None:
        """Restore the state of :meth:`to_bytes` into a fresh gate. Raises :class:`LocalError` for other bytes."""
        try:
            state = pb.ChunkGateState.FromString(data)
            if state.version != SNAPSHOT_VERSION:
                raise ValueError(f"version {state.version}")
            for link in state.verified:
                key = (tuple(link.scope), link.entire_message_hash, link.slot)
                self._remember(key, link.sds_id, link.is_last_data, link.until)
            for waiting in state.waiting:
                self._wait(_read_waiting(waiting), waiting.until)
        except (DecodeError, ValueError) as error:
            raise LocalError(
                f"A stored chunk gate cannot be read ({error}).",
                f"It is not a snapshot of version {SNAPSHOT_VERSION}; delete the state and reprocess.",
            ) from error

    def _wait(self, chunk: ReceivedChunk, until: int) -> None:
        if chunk not in self._waiting:
            self._waiting[chunk] = until
            self._waiting_shares.add(chunk, get_sender(chunk.scope), len(chunk.segment.payload))
            self._waiting_at.setdefault(_locate_chunk(chunk), []).append(chunk)

    def _is_linked(self, chunk: ReceivedChunk) -> bool:
        """Whether the causal history contains a released predecessor. The first parity segment follows the last data
        segment, whatever its index: v0.1 parity does not state it."""
        slot, scope, whole = slot_of(chunk.segment), chunk.scope, chunk.segment.entire_message_hash
        if slot == 0:
            return True
        if slot == PARITY:
            return any((scope, whole, previous) in self._last_data for previous in chunk.causal_history)
        before = (scope, whole, slot - 1)
        return any((before, previous) in self._verified for previous in chunk.causal_history)

    def _remember(self, key: _ChunkPosition, sds_id: str, is_last_data: bool, until: int) -> None:
        if (key, sds_id) in self._verified:
            self._drop_link((key, sds_id))
        self._verified[key, sds_id] = until
        if is_last_data:
            self._last_data[key[0], key[1], sds_id] = None
        self._link_shares.add((key, sds_id), get_sender(key[0]), 1)
        while (oldest := self._link_shares.find_surplus()) is not None:
            self._drop_link(oldest)

    def _drop_link(self, link: _Link) -> None:
        (scope, whole, _), sds_id = link
        del self._verified[link]
        self._link_shares.remove(link, get_sender(scope))
        self._last_data.pop((scope, whole, sds_id), None)

    def _discard(self, chunk: ReceivedChunk, expired: bool) -> ChunkDiscarded:
        self._forget(chunk)
        return ChunkDiscarded(chunk, expired)

    def _forget(self, chunk: ReceivedChunk) -> None:
        del self._waiting[chunk]
        self._waiting_shares.remove(chunk, get_sender(chunk.scope))
        key = _locate_chunk(chunk)
        self._waiting_at[key].remove(chunk)
        if not self._waiting_at[key]:
            del self._waiting_at[key]


def _locate_chunk(chunk: ReceivedChunk) -> _ChunkPosition:
    return chunk.scope, chunk.segment.entire_message_hash, slot_of(chunk.segment)


def _list_successors(chunk: ReceivedChunk) -> list[_ChunkPosition]:
    scope, whole, slot = _locate_chunk(chunk)
    after = [(scope, whole, slot + 1)]
    return [*after, (scope, whole, PARITY)] if _is_last_data(chunk.segment) else after


def _is_last_data(segment: Segment) -> bool:
    return not segment.is_parity and segment.data_count is not None and segment.index == segment.data_count - 1


def _write_waiting(chunk: ReceivedChunk, until: int) -> pb.WaitingChunk:
    segment = chunk.segment
    return pb.WaitingChunk(
        dialect=segment.dialect.value,
        entire_message_hash=segment.entire_message_hash,
        index=segment.index,
        data_count=segment.data_count,
        parity_count=segment.parity_count,
        is_parity=segment.is_parity,
        payload=segment.payload,
        original_length=segment.original_length,
        sds_id=chunk.sds_id,
        causal_history=chunk.causal_history,
        scope=chunk.scope,
        lamport=chunk.lamport,
        until=until,
    )


def _read_waiting(state: pb.WaitingChunk) -> ReceivedChunk:
    segment = Segment(
        entire_message_hash=state.entire_message_hash,
        index=state.index,
        data_count=state.data_count if state.HasField("data_count") else None,
        parity_count=state.parity_count if state.HasField("parity_count") else None,
        is_parity=state.is_parity,
        payload=state.payload,
        original_length=state.original_length if state.HasField("original_length") else None,
        dialect=Dialect(state.dialect),
    )
    lamport = state.lamport if state.HasField("lamport") else None
    return ReceivedChunk(segment, state.sds_id, tuple(state.causal_history), tuple(state.scope), lamport)
