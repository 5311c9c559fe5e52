"""The audit: whether stores have what was seen here, in a sample of all envelopes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import Settings, StoreAuditSettings
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message, message_hash
from reliable_channel.evidence.audit import compute_threshold
from reliable_channel.evidence.refetch import RefetchResult
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from tests.support.refetching import (
    LOST,
    PUBSUB,
    START_S,
    STORED,
    TOPIC,
    MemoryNode,
    run,
)


def seen(settings: Settings, message: WakuMessage, minutes: float, **more: Any) -> bytes:
    """An envelope in ``envelopes``, as ingest wrote it so many minutes ago; its hash."""
    row = {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "kafka_offset": 1,
        "event_time": time.time_ns() // 1000 - int(minutes * 60e6),
        "source": "relay",
        "pubsub_topic": PUBSUB,
        "content_topic": TOPIC,
        "message_hash": message_hash(PUBSUB, message),
        "ephemeral": False,
        "kind": "sds",
    }
    append_rows(settings.paths, tables.ENVELOPES, as_arrow([row | more], tables.ENVELOPES))
    return message_hash(PUBSUB, message)


def audits(settings: Settings) -> dict[tuple[str, bytes], str]:
    rows = rows_of(open_table(settings.paths, tables.STORE_PRESENCE))
    return {(row["node"], row["message_hash"]): row["outcome"] for row in rows if row["purpose"] == "audit"}


def audited_share(settings: Settings, share: float) -> Settings:
    return settings.model_copy(
        update={"store": settings.store.model_copy(update={"audit": StoreAuditSettings(share=share)})}
    )


def test_a_store_that_forgot_what_was_seen_here_is_found_without_anybody_missing_it(settings: Settings) -> None:
    settings = audited_share(settings, 1)
    stored, forgotten = seen(settings, STORED, minutes=10), seen(settings, LOST, minutes=10)
    outcome, written = run(settings, MemoryNode("a", STORED), MemoryNode("b", broken=True))
    assert (outcome, written) == (RefetchResult(audited=2), [])
    assert audits(settings) == {
        ("a", stored): "present",
        ("a", forgotten): "absent",
        ("b", stored): "error",
        ("b", forgotten): "error",
    }
    assert run(settings, MemoryNode("a", STORED))[0].audited == 0, "each is asked for once"


def test_an_envelope_without_timestamp_is_present_at_a_node_that_hashes_eight_zero_bytes(settings: Settings) -> None:
    without = replace(STORED, timestamp=None)
    zero = replace(STORED, timestamp=0)
    assert message_hash(PUBSUB, without) != message_hash(PUBSUB, zero)
    settings = audited_share(settings, 1)
    hash_ = seen(settings, without, minutes=10, value=encode_waku_message(without))
    run(settings, MemoryNode("a", zero), MemoryNode("b", without), MemoryNode("c"))
    assert audits(settings) == {("a", hash_): "present", ("b", hash_): "present", ("c", hash_): "absent"}
    assert run(settings, MemoryNode("a", zero))[0].audited == 0, "each is asked for once"


@pytest.mark.parametrize(
    ("minutes", "more"),
    [
        (1, {}),
        (61, {}),
        (10, {"ephemeral": True}),
        (10, {"kind": "quarantined"}),
        (10, {"source": "store"}),
    ],
    ids=["too young", "too old", "ephemeral", "no SDS message", "from a store"],
)
def test_a_node_is_not_blamed_for_what_it_need_not_hold(
    settings: Settings, minutes: float, more: dict[str, Any]
) -> None:
    settings = audited_share(settings, 1)
    seen(settings, STORED, minutes, **more)
    node = MemoryNode("a")
    assert (run(settings, node)[0].audited, node.queries) == (0, 0)


@given(st.binary(min_size=32, max_size=32), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_every_smaller_one(message_hash: bytes, one: float, other: float) -> None:
    smaller, larger = (compute_threshold(share) for share in sorted([one, other]))
    if smaller is None or message_hash < smaller:
        assert larger is None or message_hash < larger


def test_half_of_the_hashes_are_half() -> None:
    assert compute_threshold(0.5) == bytes([128, *[0] * 7])
    assert compute_threshold(1) is None
    assert compute_threshold(0) == bytes(8)


def test_only_the_share_is_asked_for(settings: Settings) -> None:
    messages = [WakuMessage(bytes([n]), TOPIC, timestamp=START_S * 10**9) for n in range(24)]
    hashes = [seen(settings, message, minutes=10) for message in messages]
    run(audited_share(settings, 0.5), MemoryNode("a"))
    assert {hash_ for _, hash_ in audits(settings)} == {hash_ for hash_ in hashes if hash_[0] < 128}
