"""The mistakes of other implementations (docs/spec/sds.md, *Known mistakes of implementations*): each test fails on the
mistaken behaviour."""

from __future__ import annotations

from reliable_channel.core.sds import (
    Acknowledged,
    Delivered,
    MissingDependency,
    OutgoingReason,
    PossiblyAcknowledged,
    SdsChannel,
    SegmentAcknowledged,
)
from tests.unit.sds.sds_network import T0, Network, filter_of, message, of_type, opened, small_config


def test_ones_own_message_does_not_acknowledge() -> None:
    alice = opened()
    first = alice.send(b"first", T0).outgoing[0].message
    second = alice.send(b"second", T0).outgoing[0].message
    assert [entry.message_id for entry in second.causal_history] == [first.message_id]
    step = alice.receive(second, T0 + 1)
    assert step.events == ()
    assert len(alice.unacknowledged()) == 2


def test_an_observer_takes_no_message_as_its_own_senders_acknowledgement() -> None:
    observer = SdsChannel("test-channel", None, small_config())
    observer.receive(message("m1", "alice"), T0)
    step = observer.receive(message("m2", "alice", T0 + 2, ("m1",), bloom_filter=filter_of("m1")), T0)
    assert of_type(step, Acknowledged) == []
    assert of_type(step, PossiblyAcknowledged) == []


def test_two_copies_of_one_message_are_one_possible_acknowledgement() -> None:
    alice = opened()
    mine = alice.send(b"mine", T0).outgoing[0].message.message_id
    from_bob = message("b1", bloom_filter=filter_of(mine))
    assert len(of_type(alice.receive(from_bob, T0 + 1), PossiblyAcknowledged)) == 1
    copy = alice.receive(from_bob, T0 + 2)
    assert of_type(copy, PossiblyAcknowledged) == []
    assert of_type(copy, SegmentAcknowledged) == []
    other = message("b2", lamport=T0 + 2, content=b"other", bloom_filter=filter_of(mine))
    assert len(of_type(alice.receive(other, T0 + 3), SegmentAcknowledged)) == 1


def test_a_possible_acknowledgement_does_not_become_a_full_one_by_a_resend() -> None:
    alice = opened()
    mine = alice.send(b"mine", T0).outgoing[0].message.message_id
    alice.receive(message("b1", bloom_filter=filter_of(mine)), T0 + 1)
    resent = alice.tick(T0 + 6_000)
    assert [each.reason for each in resent.outgoing].count(OutgoingReason.RESEND) == 1
    assert of_type(resent, SegmentAcknowledged) == []
    assert [outgoing.message.message_id for outgoing in alice.unacknowledged()] == [mine]


def test_a_copy_of_a_message_delivered_on_arrival_is_not_delivered_again() -> None:
    alice = opened()
    first = message("b1")
    assert len(of_type(alice.receive(first, T0 + 1), Delivered)) == 1
    for later in (T0 + 2, T0 + 100_000):
        assert of_type(alice.receive(first, later), Delivered) == []


def test_waiting_messages_are_released_with_the_arrival_not_by_the_next_sweep() -> None:
    alice = opened()
    alice.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 3)
    step = alice.receive(message("b1", lamport=T0 + 1), T0 + 4)
    assert [event.message_id for event in of_type(step, Delivered)] == ["b1", "b2"]


def test_a_lost_id_is_not_waited_for_again() -> None:
    alice = opened(timeout_for_lost_messages_ms=60_000)
    alice.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 3)
    alice.tick(T0 + 120_000)
    step = alice.receive(message("b3", lamport=T0 + 120_001, history=("b1", "b2")), T0 + 120_002)
    delivered = of_type(step, Delivered)
    assert [event.message_id for event in delivered] == ["b3"]
    assert delivered[0].lost_dependencies == ("b1",)
    assert of_type(step, MissingDependency) == []


def test_a_missing_id_is_reported_once() -> None:
    alice = opened()
    step = alice.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 3)
    assert [event.message_id for event in of_type(step, MissingDependency)] == ["b1"]
    for sweep in range(1, 20):
        assert of_type(alice.tick(T0 + sweep * 5_000), MissingDependency) == []
    again = alice.receive(message("b3", lamport=T0 + 3, history=("b1",)), T0 + 100_000)
    assert of_type(again, MissingDependency) == []


def test_receiving_looks_at_the_named_ids_not_at_the_log() -> None:
    """O(history) scans per message: the log's entries are never iterated, compared or asked for."""
    alice = opened()
    for number in range(1, 200):
        alice.receive(message(f"b{number}", lamport=T0 + number), T0 + number)
    log = alice._state.log
    asked: list[str] = []
    original = log.get
    log.get = lambda message_id: (asked.append(message_id), original(message_id))[1]  # type: ignore[method-assign]
    alice.receive(message("b200", lamport=T0 + 200, history=("b198", "b199")), T0 + 200)
    assert set(asked) <= {"b200", "b198", "b199"}
    assert len(asked) <= 6


def test_the_default_sender_and_a_recipient_that_only_syncs() -> None:
    """Eleven segments to a recipient that never says anything itself: delivered, and no send error."""
    network = Network(("alice", "bob"))
    segments = [b"segment %d" % number for number in range(11)]
    network.send("alice", *segments)
    network.run(1_000_000)
    kinds = [type(event).__name__ for event in network.events["alice"]]
    assert kinds.count("SendDelivered") == 1
    assert kinds.count("RecipientAcknowledged") == 1
    assert "DeliveryError" not in kinds
    assert [event.content for event in network.delivered("bob")] == segments
