"""How long a message may take to arrive, computed from the settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.rate_limit import Admitted, RateLimitConfig, RateLimitManager, Traffic
from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.segmentation.lifetime import check_lifetime, compute_lifetime

ONE_PER_EPOCH = RateLimitConfig(enabled=True, messages_per_epoch=1)


def test_the_parts_of_the_default_settings_without_a_limit() -> None:
    needed = compute_lifetime(SegmentationConfig(), SdsParameters(), RateLimitConfig())
    assert (needed.segments, needed.waits_ms, needed.epochs_ms, needed.sync_ms) == (11, 315_000, 0, 60_000)
    assert needed.total_ms == 375_000


def test_parity_and_every_retransmission_hold_places_in_epochs() -> None:
    segmentation = SegmentationConfig(enable_reed_solomon=True)
    needed = compute_lifetime(segmentation, SdsParameters(), ONE_PER_EPOCH)
    assert (needed.segments, needed.envelopes) == (12, 72)
    assert needed.epochs_ms == 74 * 600_000
    check_lifetime(segmentation, SdsParameters(), ONE_PER_EPOCH)


def test_a_limit_that_counts_messages_delays_no_segment() -> None:
    by_message = replace(ONE_PER_EPOCH, counts="messages")
    assert compute_lifetime(SegmentationConfig(), SdsParameters(), by_message).epochs_ms == 0


def test_a_lifetime_below_the_sum_is_refused_and_the_sum_is_enough() -> None:
    tight = SegmentationConfig(segment_size_bytes=10_240)
    with pytest.raises(ConfigurationError) as refused:
        check_lifetime(tight, SdsParameters(), ONE_PER_EPOCH)
    needed = compute_lifetime(tight, SdsParameters(), ONE_PER_EPOCH)
    assert str(needed.total_ms) in str(refused.value)
    check_lifetime(replace(tight, max_set_lifetime_ms=needed.total_ms), SdsParameters(), ONE_PER_EPOCH)
    with pytest.raises(ConfigurationError):
        check_lifetime(replace(tight, max_set_lifetime_ms=needed.total_ms - 1), SdsParameters(), ONE_PER_EPOCH)


@given(
    size=st.integers(64, 4_096),
    length=st.integers(65, 8_192),
    parity=st.booleans(),
    retransmissions=st.integers(0, 4),
    limit=st.integers(1, 30),
    start=st.integers(0, 599_999),
    used=st.integers(0, 29),
)
def test_all_envelopes_of_a_message_leave_within_the_epochs_that_are_counted(
    size: int, length: int, parity: bool, retransmissions: int, limit: int, start: int, used: int
) -> None:
    segmentation = SegmentationConfig(segment_size_bytes=size, max_message_bytes=length, enable_reed_solomon=parity)
    sds = SdsParameters(max_retransmissions=retransmissions)
    config = RateLimitConfig(enabled=True, messages_per_epoch=limit)
    needed = compute_lifetime(segmentation, sds, config)
    manager: RateLimitManager[int] = RateLimitManager(config)
    for other in range(min(used, limit)):
        manager.submit(-1 - other, Traffic.FURTHER_SEGMENT, start)
    left = sum(
        isinstance(event, Admitted) and event.item >= 0
        for number in range(needed.envelopes)
        for event in manager.submit(number, Traffic.FURTHER_SEGMENT, start)
    )
    now = start
    while left < needed.envelopes:
        now = manager.next_due() or 0
        left += sum(isinstance(event, Admitted) for event in manager.tick(now))
    assert now - start <= needed.epochs_ms
