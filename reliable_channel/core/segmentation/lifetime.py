"""Computes how long the segments of one message may take to arrive (docs/segmentation.md, *How long a set is kept*).

A receiver that gives a set up earlier has acknowledged segments of a message that it then never delivers.
"""

from __future__ import annotations

from dataclasses import dataclass

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds.config import MAX_STRETCHED_WAIT_MS, SdsParameters
from reliable_channel.core.segmentation.config import SegmentationConfig


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The time (ms) that a message of ``segments`` segments needs: ``waits_ms`` for the acknowledgements of a segment
    and its retransmissions, ``epochs_ms`` for its ``envelopes`` under the rate limit, ``sync_ms`` until a recipient has
    sent a sync message."""

    segments: int
    envelopes: int
    waits_ms: int
    epochs_ms: int
    sync_ms: int

    @property
    def total_ms(self) -> int:
        """The sum (ms)."""
        return self.waits_ms + self.epochs_ms + self.sync_ms

    def __str__(self) -> str:
        return (
            f"{self.waits_ms} ms for the waits of a segment and its retransmissions"
            f" + {self.epochs_ms} ms for {self.envelopes} envelopes ({self.segments} segments) under the rate limit"
            f" + {self.sync_ms} ms for a sync message = {self.total_ms} ms"
        )


def compute_lifetime(segmentation: SegmentationConfig, sds: SdsParameters, rate_limit: RateLimitConfig) -> Lifetime:
    """Compute how long the largest allowed message may take, from its first segment to the acknowledgement of its
    last."""
    data = min(-(-segmentation.max_message_bytes // segmentation.chunk_size()), segmentation.max_total_segments)
    segments = data + segmentation.parity_count(data)
    envelopes = segments * (1 + sds.max_retransmissions)  # each segment, parity too, may need every retransmission
    slow = MAX_STRETCHED_WAIT_MS if rate_limit.enabled and sds.is_adaptive else 0
    waits = sum(max(slow, sds.acknowledgement_wait_ms(attempt)) for attempt in range(sds.max_retransmissions + 1))
    epochs = 0
    if rate_limit.enabled and rate_limit.counts == "envelopes":
        # The first segment may find an epoch in use, and the recipient's acknowledgement may need one of its own.
        epochs = -(-envelopes // rate_limit.messages_per_epoch) + 2
    return Lifetime(segments, envelopes, waits, epochs * rate_limit.epoch_size_ms, 2 * sds.sync_min_interval_ms)


def check_lifetime(segmentation: SegmentationConfig, sds: SdsParameters, rate_limit: RateLimitConfig) -> None:
    """Check that sets are kept as long as a message may take. Raises :class:`ConfigurationError` with the sum."""
    needed = compute_lifetime(segmentation, sds, rate_limit)
    if segmentation.max_set_lifetime_ms < needed.total_ms:
        raise ConfigurationError(
            f"segmentation.max_set_lifetime_ms is {segmentation.max_set_lifetime_ms}, and a message may take {needed}.",
            f"Set it to {needed.total_ms} or more; or lower segmentation.max_message_bytes, sds.max_retransmissions or"
            " sds.acknowledgement_timeout_ms.",
        )
