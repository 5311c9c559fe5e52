"""The sections of the protocol core, checked: extra keys refused, types converted (protocol.md §3, §5, §6)."""

from __future__ import annotations

from pydantic import Field

from reliable_channel.config.section import Bytes, Count, Milliseconds, PositiveMilliseconds, Section


class SegmentationSettings(Section):
    segment_size_bytes: Bytes = 102_400
    enable_reed_solomon: bool = False
    parity_rate: float = Field(default=0.125, gt=0, le=1)
    max_total_segments: Count = 256
    max_message_bytes: Bytes = 1_048_576
    dialect: str = "v0.1"
    codec: str = "leopard"


class SdsSettings(Section):
    causal_history_size: Count = 2
    possible_acks_threshold: Count = 2
    acknowledgement_timeout_ms: PositiveMilliseconds = 5_000
    max_retransmissions: int = Field(default=5, ge=0)
    sync_interval_ms: Milliseconds = 30_000


class RateLimitSettings(Section):
    enabled: bool = False
    epoch_size_ms: PositiveMilliseconds = 600_000
    messages_per_epoch: Count = 1
    count_control_traffic: bool = False
