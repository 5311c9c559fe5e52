"""Senders and stores tell of what the observer never saw."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from reliable_channel.simulation.evidence import held_by_store, sender_events
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


def test_a_store_holds_what_was_dispatched_but_for_ephemeral_and_unstored_messages(demo: World) -> None:
    held = held_by_store(demo.journals)
    for journal in demo.journals:
        for dispatch in journal.dispatches:
            number = journal.sds[dispatch.sds_id].message
            message = None if number is None else journal.messages[number]
            unstored = message is not None and (message.ephemeral or message.fault is Fault.NOT_STORED)
            assert (dispatch.envelope_hash in held) != unstored
