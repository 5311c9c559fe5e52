"""Messages that their sender dispatched and that nobody saw."""

from __future__ import annotations

from reliable_channel.config import Settings
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from tests.support.refetching import (
    LOST,
    PUBSUB,
    START_S,
    STORED,
    TOPIC,
    MemoryNode,
    presence,
    run,
)


def sent(settings: Settings, sds_id: str, message: WakuMessage, at_s: int = START_S) -> None:
    """The sender's own record that it dispatched the message."""
    row = {
        "pubsub_topic": PUBSUB,
        "content_topic": TOPIC,
        "channel_id": "talk",
        "sender_id": "alice",
        "sds_id": sds_id,
        "event": "sent",
        "envelope_hash": message_hash(PUBSUB, message),
        "event_time": at_s * 10**6,
    }
    create_tables(settings.paths, (tables.SENDER_EVENTS, tables.CLOCK))
    append_rows(settings.paths, tables.SENDER_EVENTS, as_arrow([row], tables.SENDER_EVENTS))


def arrive(settings: Settings, sds_id: str, message: WakuMessage) -> None:
    """The envelope and its message, whose id cannot be recomputed."""
    row = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "kafka_offset": 0, "ingest_time": 0}
    row |= {"event_time": START_S * 10**6, "pubsub_topic": PUBSUB, "content_topic": TOPIC, "channel_id": "talk"}
    row |= {"source": "sender", "kind": "sds", "message_hash": message_hash(PUBSUB, message)}
    row |= {"sds_id": sds_id, "sds_kind": "sync", "id_verified": False}
    for table in (tables.ENVELOPES, tables.SDS_MESSAGES):
        append_rows(settings.paths, table, as_arrow([row], table))


def reached(settings: Settings, at_s: int) -> None:
    """The recorded clock."""
    row = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "query_id": "q", "batch_id": 0}
    row |= {"event_time": at_s * 10**6, "next_offset": 1}
    append_rows(settings.paths, tables.CLOCK, as_arrow([row], tables.CLOCK))


def test_what_its_sender_dispatched_and_nobody_saw_or_names_is_asked_for(settings: Settings) -> None:
    sent(settings, "m1", STORED)
    sent(settings, "m2", LOST)
    reached(settings, START_S + 3_000)
    broken = MemoryNode("b", broken=True)
    outcome, written = run(settings, MemoryNode("a", STORED), broken)
    assert outcome.requests == 2
    assert [entry.message for entry in written] == [STORED]
    assert presence(settings)["a", "m2"] == "absent"
    assert run(settings, MemoryNode("a", STORED))[0].requests == 0, "a node has answered for both"


def test_an_envelope_that_arrived_is_not_asked_for_whatever_its_id_proves(settings: Settings) -> None:
    """Nothing proves the id of a sync message, which has no content."""
    sent(settings, "m1", STORED)
    sent(settings, "m2", LOST)
    arrive(settings, "m1", STORED)
    reached(settings, START_S + 3_000)
    outcome, written = run(settings, MemoryNode("a", STORED, LOST))
    assert (outcome.requests, [entry.message for entry in written]) == (1, [LOST])


def test_what_was_dispatched_a_moment_ago_may_still_come(settings: Settings) -> None:
    sent(settings, "m1", STORED)
    reached(settings, START_S + 1)
    assert run(settings, MemoryNode("a", STORED))[0].requests == 0
