"""How large an SDS header can get: what a segment must leave free in its envelope (protocol.md §3 *Limits*)."""

from __future__ import annotations

from reliable_channel.sds import SdsConfig
from reliable_channel.wire.sds import HistoryEntry, SdsMessage, encode_sds_message

ID_CHARACTERS = 128
"""Reserved for the ids of others: they are hex digests of 64 characters or UUIDs."""


def largest_sds_header(config: SdsConfig, channel_id: str, sender_id: str) -> int:
    """The bytes of an SDS message without its content: full history with hints, full filter, full repair request."""
    entry = HistoryEntry("x" * ID_CHARACTERS, b"h" * 32, "x" * max(ID_CHARACTERS, len(sender_id.encode())))
    message = SdsMessage(
        sender_id=sender_id,
        message_id="x" * ID_CHARACTERS,
        channel_id=channel_id,
        lamport_timestamp=2**63,
        causal_history=(entry,) * config.causal_history_size,
        bloom_filter=b"\xff" * (config.filter_format.byte_count + 64),
        repair_request=(entry,) * (config.max_repair_requests_per_message if config.repair else 0),
        content=b"x",
    )
    return len(encode_sds_message(message, config.wire_family))
