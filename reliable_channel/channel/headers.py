"""How large an SDS header can get: what a segment must leave free in its envelope."""

from __future__ import annotations

from reliable_channel.sds import SdsConfig
from reliable_channel.sds.room import RESERVED_ID_BYTES, reserved_entry
from reliable_channel.wire.sds import SdsMessage, encode_sds_message


def largest_sds_header(config: SdsConfig, channel_id: str, sender_id: str) -> int:
    """The bytes of an SDS message without its content: full history with hints, full filter, full repair request. What
    would not fit is left out when a message is made (:mod:`reliable_channel.sds.room`)."""
    entry = reserved_entry(sender_id)
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
    return len(encode_sds_message(message, config.wire_family))
