"""Selects the history entries and repair requests that fit into the bytes reserved for them in an envelope.

Both contain ids that other senders chose, of up to 1 024 characters each. The segment size reserves a fixed number of
bytes for them. If they do not fit, first long hints and sender ids are left out, then whole entries, so every message
can be sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.wire.sds import HistoryEntry, HistoryLayout, SdsMessage

RESERVED_ID_BYTES = 128
"""Bytes reserved for an id of another sender: honest ids are hex digests of 64 characters or UUIDs."""

RESERVED_HINT_BYTES = 32
"""Those of a Waku message hash."""

SYNC_ROOM_BYTES = 48 * 1024
"""Bytes for the ids that a sync message acknowledges beside the usual history; it carries no content."""

_FRAMING = 13
"""Maximum bytes of the tags and lengths of an entry."""
_ID_FRAMING = 3
"""The same for an id that a history lists before its entry."""
_RESERVED_FRAMING = 11
"""The same for the entry that room is reserved for."""


def largest_entry(sender_id: str) -> HistoryEntry:
    """The largest entry that room is reserved for, if the participant has this sender id."""
    sender = "x" * max(RESERVED_ID_BYTES, len(sender_id.encode()))
    return HistoryEntry("x" * RESERVED_ID_BYTES, b"h" * RESERVED_HINT_BYTES, sender)


def room_for(count: int, sender_id: str, layout: HistoryLayout = HistoryLayout.ENTRIES) -> int:
    """Bytes reserved for ``count`` entries. Repair requests are entries in either layout of histories."""
    return count * (size_of_entry(largest_entry(sender_id), layout) - _FRAMING + _RESERVED_FRAMING)


def size_of_entry(entry: HistoryEntry, layout: HistoryLayout = HistoryLayout.ENTRIES) -> int:
    """The maximum bytes of an entry on the wire."""
    sender, id_bytes = entry.sender_id or "", len(entry.message_id.encode())
    listed = id_bytes + _ID_FRAMING if layout is HistoryLayout.IDS else 0
    return listed + id_bytes + len(entry.retrieval_hint or b"") + len(sender.encode()) + _FRAMING


def limit_to_room(
    entries: Iterable[HistoryEntry], room: int, layout: HistoryLayout = HistoryLayout.ENTRIES
) -> list[HistoryEntry]:
    """Return the entries that fit into ``room`` bytes, in order of priority, shortened where that helps."""
    chosen = []
    for entry in entries:
        for candidate in (entry, *_shorten(entry)):
            size = size_of_entry(candidate, layout)
            if size <= room:
                room -= size
                chosen.append(candidate)
                break
    return chosen


def _shorten(entry: HistoryEntry) -> Iterable[HistoryEntry]:
    if entry.retrieval_hint is not None:
        yield HistoryEntry(entry.message_id, None, entry.sender_id)
    if entry.sender_id is not None:
        yield HistoryEntry(entry.message_id)


def largest_sds_header(config: SdsParameters, channel_id: str, sender_id: str) -> int:
    """The size in bytes of an SDS message without its content: full history with hints, full filter, full repair
    request. A sender reserves this size in an envelope."""
    entry = largest_entry(sender_id)
    message = SdsMessage(
        sender_id=sender_id,
        message_id="x" * RESERVED_ID_BYTES,
        channel_id=channel_id,
        lamport_timestamp=2**63,
        causal_history=(entry,) * config.causal_history_size,
        bloom_filter=b"\xff" * (config.filter_format.byte_count + 64),
        repair_request=(entry,) * (config.max_repair_requests_per_message if config.repair else 0),
        content=b"x",
    )
    return len(config.encode(message))
