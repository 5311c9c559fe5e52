"""Both wire families and all filter families carry a whole conversation (LIP-109)."""

from __future__ import annotations

import pytest

from reliable_channel.core.sds import Conflict, Delivered, RepairScheduled, SdsChannel, SendDelivered
from reliable_channel.core.sds.filter import FLUSH_AT
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.hashing import sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily
from tests.support.sds_inside import has_id
from tests.unit.sds.sds_network import CHANNEL, T0, Network, message, of_type, opened, small_config


@pytest.mark.parametrize("filter_family", list(FilterFamily))
@pytest.mark.parametrize("wire_family", list(WireFamily))
def test_a_conversation_with_loss_in_every_family(wire_family: WireFamily, filter_family: FilterFamily) -> None:
    config = small_config(wire_family=wire_family, filter_format=FilterFormat(filter_family, capacity=300))
    network = Network(("alice", "bob"), config)
    network.send("alice", b"one", b"two", b"three")
    network.drop(1)
    network.run(300_000)
    assert [event.content for event in network.delivered("bob")] == [b"one", b"two", b"three"]
    assert [type(event) for event in network.events["alice"]].count(SendDelivered) == 1
    network.restart("bob")
    network.send("bob", b"answer")
    network.run(1_000)
    assert [event.content for event in network.delivered("alice")] == [b"answer"]


def test_the_own_filter_holds_every_id_however_many_came_between_two_sends() -> None:
    alice = opened(filter_format=FilterFormat(), sync_min_interval_ms=0)
    for number in range(1, FLUSH_AT + 50):
        alice.receive(message(f"b{number}", lamport=T0 + number), T0 + number)
    filter_format = alice.config.filter_format
    words = filter_format.decode(alice.send(b"x", T0 + 9_000).outgoing[0].message.bloom_filter or b"")
    assert all(has_id(filter_format, words, f"b{number}") for number in range(1, FLUSH_AT + 50))  # type: ignore[arg-type]


def test_a_content_kept_elsewhere_waits_through_a_snapshot() -> None:
    observer = SdsChannel(CHANNEL, None, small_config())
    observer.receive(message("first", lamport=T0), T0)
    observer.receive(message("b2", lamport=T0 + 2, history=("b1",), content=None), T0 + 2, content_digest=b"d" * 32)
    restored = SdsChannel.from_bytes(observer.to_bytes(), observer.config)
    step = restored.receive(message("b1", lamport=T0 + 1), T0 + 3)
    assert [(event.message_id, event.content) for event in of_type(step, Delivered)] == [
        ("b1", b"content"),
        ("b2", None),
    ]


def test_a_forged_message_is_not_sent_as_an_answer_once_the_honest_one_has_won() -> None:
    alice = opened(sync_min_interval_ms=0)
    honest_id = sds_message_id("bob", T0 + 5, b"truth")
    alice.receive(message(honest_id, "bob", T0 + 5, content=b"lie"), T0 + 5)
    asked = SdsMessage(
        "carol", "c1", CHANNEL, T0 + 6, repair_request=(HistoryEntry(honest_id, None, "bob"),), content=b"please"
    )
    assert len(of_type(alice.receive(asked, T0 + 6), RepairScheduled)) == 1
    step = alice.receive(message(honest_id, "bob", T0 + 5, content=b"truth"), T0 + 7)
    assert [event.winner for event in of_type(step, Conflict)] == ["second"]
    assert alice.tick(T0 + 10_000_000).outgoing == ()
