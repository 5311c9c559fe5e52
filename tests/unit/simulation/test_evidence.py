"""Senders and stores tell of what the observer never saw."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import decode_waku_message, message_hash
from reliable_channel.simulation.evidence import sender_events, sightings
from reliable_channel.simulation.presets import demo_scenario
from reliable_channel.simulation.scenario import Fault
from reliable_channel.simulation.world import World, simulate


@pytest.fixture(scope="module")
def demo() -> World:
    return simulate(demo_scenario())


def events_of(world: World, fault: Fault) -> Counter[str]:
    """The sender's events about the message with that fault."""
    (journal,) = [j for j in world.journals if fault in dict(j.plan.faults).values()]
    (message,) = [m for m in journal.messages.values() if m.fault is fault]
    return Counter(row["event"] for row in sender_events([journal]) if row["sds_id"] in message.sds_ids)


def test_the_sender_tells_what_never_left(demo: World) -> None:
    assert set(events_of(demo, Fault.NEVER_SENT)) == {"queued", "failed"}
    assert set(events_of(demo, Fault.RATE_LIMITED)) == {"queued", "rate_limited"}
    assert set(events_of(demo, Fault.NOT_STORED)) == {"queued", "sent"}


def test_every_dispatch_of_a_sender_is_told_and_rows_are_json(demo: World) -> None:
    rows = [json.loads(json.dumps(row)) for row in sender_events(demo.journals)]
    told = {row["envelope_hash"] for row in rows if row["event"] == "sent"}
    own = {
        dispatch.envelope_hash.hex()
        for journal in demo.journals
        for dispatch in journal.dispatches
        if dispatch.by == journal.sds[dispatch.sds_id].sender
    }
    assert told == own


def test_the_stores_hold_what_they_heard_but_for_ephemeral_and_unstored_messages_and_disagree(demo: World) -> None:
    north, south = ({hash_ for j in demo.journals for hash_ in j.stored[plan.name]} for plan in demo.scenario.stores)
    assert north - south
    assert south - north
    for journal in demo.journals:
        dispatched = {dispatch.envelope_hash for dispatch in journal.dispatches}
        for held in journal.stored.values():
            assert held.keys() <= dispatched
            messages = [journal.messages.get(journal.sds[one.sds_id].message) for one in held.values()]
            assert not any(m is not None and (m.ephemeral or m.fault is Fault.NOT_STORED) for m in messages)


def test_what_a_store_gives_back_in_time_is_observed_once(demo: World) -> None:
    fetched = [r for r in demo.records if dict(r.headers).get("source") == b"store"]
    assert fetched
    assert len({r.sds_id for r in fetched}) == len(fetched)
    seen_before = {r.sds_id for r in demo.records if r.reason is None and r.at_ms < min(f.at_ms for f in fetched)}
    assert not {r.sds_id for r in fetched} & seen_before


def test_every_envelope_that_came_was_seen_by_a_bridge_and_not_all_by_each(demo: World) -> None:
    rows = list(sightings(demo.records, demo.scenario.vantages, demo.scenario.seed))
    seen = {name: {h for r in rows if r["vantage"] == name for h in r["hashes"]} for name, _ in demo.scenario.vantages}
    east, west = seen["east"], seen["west"]
    assert east - west
    assert west - east
    readable = {
        message_hash(dict(r.headers)["pubsub_topic"].decode(), waku).hex()
        for r in demo.records
        if not isinstance(waku := decode_waku_message(r.value or b""), Malformed)
    }
    assert east | west == readable
