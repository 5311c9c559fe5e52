"""The calls of the Reliable Channel API and what they promise (RELIABLE-CHANNEL-API)."""

from __future__ import annotations

from typing import Any

import pytest

from reliable_channel.channel import (
    ChannelClosedError,
    ChannelEvent,
    ChannelExistsError,
    ChannelNotStartedError,
    MemoryPersistence,
    MessageAcknowledged,
    MessageDelivered,
    MessageEnvelope,
    MessageReceived,
    MessageSent,
    ReliableEnvelope,
    SegmentSent,
    SendingMessage,
    SendState,
    close_channel,
    create_reliable_channel,
    send,
    send_envelope,
)
from reliable_channel.core.errors import EmptyMessage, EnvironmentFault, LocalError, MessageTooLarge
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META
from reliable_channel.messaging.client import MessageReceivedEvent
from reliable_channel.transport.base import Queued
from tests.unit.channel.channel_world import CHANNEL, TOPIC, Recorder, World, quick


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def pair(world: World) -> tuple[Recorder, Recorder]:
    return world.join("alice"), world.join("bob")


def test_a_message_arrives_once_with_its_sender_and_the_id_of_its_send(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    alice, bob = pair
    request_id = alice.channel.send(b"hello")
    world.run(60_000)
    (event,) = bob.of(MessageReceived)
    assert (event.message, event.payload, event.sender_id) == (b"hello", b"hello", "alice")
    assert (event.request_id, event.content_topic, event.sequence) == (request_id, TOPIC, 1)
    assert alice.payloads == []


def test_a_large_message_arrives_whole_and_says_its_chunks(world: World, pair: tuple[Recorder, Recorder]) -> None:
    alice, bob = pair
    payload = bytes(range(256)) * 4096
    alice.channel.send(payload)
    world.run(5_000)
    (event,) = bob.of(MessageReceived)
    assert event.message == payload
    assert len(event.chunks) == 11
    assert all(chunk.verified for chunk in event.chunks)
    assert [chunk.previous_chunk_id for chunk in event.chunks] == ["", *(c.chunk_id for c in event.chunks[:-1])]
    assert {chunk.last_chunk_index for chunk in event.chunks} == {10}


def test_sent_comes_when_all_segments_are_dispatched_one_request_id_each(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    alice, _ = pair
    request_id = alice.channel.send(bytes(300_000))
    world.turn()
    world.turn()
    (sent,) = alice.of(MessageSent)
    labels = [label for label, _ in sent.request_ids]
    assert sent.request_id == request_id
    assert labels == [f"{request_id}:{number}" for number in (1, 2, 3)]
    assert len({node_id for _, node_id in sent.request_ids}) == 3
    assert [e.node_request_id for e in alice.of(SegmentSent)] == [node_id for _, node_id in sent.request_ids]
    assert [e.chunk_info.chunk_index for e in alice.of(SendingMessage)] == [0, 1, 2]


def test_delivered_comes_after_every_segment_was_acknowledged(world: World, pair: tuple[Recorder, Recorder]) -> None:
    alice, bob = pair
    request_id = alice.channel.send(bytes(300_000))
    world.turn()
    assert bob.payloads == [bytes(300_000)]
    assert alice.of(MessageDelivered) == []
    bob.channel.send(b"an answer carries the acknowledgements")
    world.run(1_000)
    assert [event.request_id for event in alice.of(MessageDelivered)] == [request_id]
    acknowledged = alice.of(MessageAcknowledged)
    assert acknowledged[-1].chunks_acknowledged == (0, 1, 2)
    assert {event.total_chunks for event in acknowledged} == {3}
    assert alice.channel.send_state(request_id) is SendState.DELIVERED


def test_a_quiet_recipient_acknowledges_by_sync(world: World, pair: tuple[Recorder, Recorder]) -> None:
    alice, _ = pair
    request_id = alice.channel.send(b"anybody there?")
    world.run(180_000, step_ms=1_000)
    assert [event.request_id for event in alice.of(MessageDelivered)] == [request_id]


def test_the_logical_message_id_is_shared_by_equal_payloads_and_the_send_id_is_not(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    alice, bob = pair
    first, second = alice.channel.send(b"ok"), alice.channel.send(b"ok")
    world.run(1_000)
    assert first != second
    assert bob.payloads == [b"ok", b"ok"]
    assert len({event.message_id for event in bob.of(MessageReceived)}) == 1
    assert {event.message_id for event in alice.of(MessageSent)} == {bob.of(MessageReceived)[0].message_id}


def test_our_envelopes_carry_the_layers_meta_and_are_not_ephemeral(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    pair[0].channel.send(b"hello")
    world.run(500)
    _, envelope = world.on_wire[0]
    assert envelope.meta == RELIABLE_CHANNEL_META
    assert not envelope.ephemeral


def test_an_ephemeral_message_arrives_at_once_and_leaves_no_trace(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    alice, bob = pair
    alice.channel.send_ephemeral(b"typing")
    world.run(500)
    (event,) = bob.of(MessageReceived)
    assert event.ephemeral
    assert event.message == b"typing"
    assert world.on_wire[0][1].ephemeral
    assert alice.channel.status()["unacknowledged_segments"] == 0
    world.run(200_000, step_ms=5_000)
    assert [message.ephemeral for _, message in world.on_wire] == [True]


def test_an_ephemeral_message_of_two_segments_is_refused(pair: tuple[Recorder, Recorder]) -> None:
    with pytest.raises(MessageTooLarge, match="102400"):
        pair[0].channel.send_ephemeral(bytes(102_401))


def test_an_empty_payload_is_refused_at_once(pair: tuple[Recorder, Recorder]) -> None:
    with pytest.raises(EmptyMessage):
        pair[0].channel.send(b"")


def test_a_payload_over_the_limit_is_refused_at_once_and_the_error_names_the_limit(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    alice, _ = pair
    with pytest.raises(MessageTooLarge, match=r"1048577 bytes.*1048576 bytes"):
        alice.channel.send(bytes(1_048_577))
    world.run(500)
    assert alice.events == []


def test_creating_subscribes_and_closing_the_last_of_a_topic_unsubscribes(world: World) -> None:
    first = world.join("alice")
    second = world.join("alice", channel_id="another")
    assert world.node("alice").subscribed == {TOPIC}
    first.channel.close()
    assert world.node("alice").subscribed == {TOPIC}
    close_channel(second.channel)
    assert world.node("alice").subscribed == frozenset()


def test_channels_of_one_topic_do_not_hear_each_others_messages(world: World) -> None:
    alice = world.join("alice")
    bob = world.join("bob", channel_id="another")
    alice.channel.send(b"hello")
    world.run(1_000)
    assert bob.events == []


@pytest.mark.parametrize("message", ["text", None, 5, [1, 2], {}])
@pytest.mark.parametrize("call", ["send", "send_ephemeral"])
def test_a_message_that_is_not_bytes_is_refused_and_the_channel_goes_on(
    pair: tuple[Recorder, Recorder], call: str, message: object
) -> None:
    channel = pair[0].channel
    with pytest.raises(LocalError, match=rf"is bytes, not {type(message).__name__}"):
        getattr(channel, call)(message)
    assert channel.send(bytearray(b"good"))


@pytest.mark.parametrize("label", [5, b"bytes", "half a pair \ud800"])
def test_a_label_that_is_no_text_is_refused_and_the_channel_goes_on(
    pair: tuple[Recorder, Recorder], label: Any
) -> None:
    channel = pair[0].channel
    with pytest.raises(LocalError, match="label"):
        channel.send(b"x", label=label)
    assert channel.send(b"good", label="good")


def test_one_id_is_no_collection_of_ids(pair: tuple[Recorder, Recorder]) -> None:
    """Its letters are the ids of no send, so waiting for it was over at once."""
    channel = pair[0].channel
    with pytest.raises(LocalError, match="collection"):
        channel.wait(channel.send(b"hello"), delivered=True)


def test_a_stopped_channel_keeps_nothing_of_what_it_refuses(
    pair: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = pair[0].channel

    def fail(*_: object) -> None:
        raise EnvironmentFault("The disk is full.")

    monkeypatch.setattr(channel._cycle.journal, "commit", fail)
    depths = []
    for _ in range(5):
        with pytest.raises(EnvironmentFault) as caught:
            channel.send(b"x")
        depths.append(len(caught.traceback))
    assert depths[1:] == [depths[1]] * 4, "each frame keeps a message"
    with pytest.raises(EnvironmentFault):
        channel.send_ephemeral(b"x")


def test_a_channel_whose_topic_the_node_refused_receives_once_it_can_be_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world.node("bob")

    def refuse(_: object) -> None:
        raise LocalError("There are too many subscriptions.")

    listeners = len(node._dispatcher._registrations)
    with monkeypatch.context() as patch, pytest.raises(LocalError, match="too many"):
        patch.setattr(node, "subscribe", refuse)
        world.join("bob")
    assert len(node._dispatcher._registrations) == listeners
    alice, bob = world.join("alice"), world.join("bob")
    alice.channel.send(b"hello")
    world.run(1_000)
    assert bob.payloads == [b"hello"]


def test_what_one_channel_of_a_node_sends_wakes_no_other(world: World) -> None:
    """With 500 channels on a node, waking each for every envelope of the others took two minutes for one send each."""
    alice = world.join("alice")
    others = [
        create_reliable_channel(
            world.node("alice"), "other", topic, "alice", config=quick(), clock=world.network.clock, threaded=False
        )
        for topic in (TOPIC, "/reliable-channel/1/other/proto")
    ]
    for other in others:
        other.step()
        other._cycle.work.clear()
    mine = alice.channel.send(b"hello")
    alice.channel.step()
    world.node("alice")._emit(Queued(next(iter(alice.channel._cycle.outgoing.in_flight)), world.now))
    world.network.pump()
    alice.channel.step()
    assert alice.channel.send_state(mine) is SendState.SENT
    assert [(other._cycle.work.is_set(), len(other._cycle._results)) for other in others] == [(False, 0)] * 2
    for other in others:
        other.close()


def test_closing_twice_is_fine_and_a_closed_channel_refuses(world: World) -> None:
    alice = world.join("alice")
    alice.channel.close()
    alice.channel.close()
    assert alice.channel.is_closed
    assert not alice.channel.status()["started"]
    with pytest.raises(ChannelClosedError):
        alice.channel.send(b"late")
    with pytest.raises(ChannelClosedError):
        alice.channel.start()


def test_without_auto_start_nothing_happens_before_start(world: World) -> None:
    alice = world.join("alice", quick(auto_start=False))
    assert not alice.channel.status()["started"]
    assert world.node("alice").subscribed == frozenset()
    with pytest.raises(ChannelNotStartedError):
        alice.channel.send(b"early")
    alice.channel.start()
    alice.channel.start()
    assert alice.channel.status()["started"]
    assert alice.channel.send(b"now")


def test_a_stopped_channel_keeps_what_is_unacknowledged_and_sends_it_again_when_started(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    alice, bob = pair
    world.blocked.add("alice")
    alice.channel.send(b"hello")
    world.run(500)
    alice.channel.stop()
    alice.channel.stop()
    world.blocked.clear()
    world.run(20_000)
    assert bob.payloads == []
    alice.channel.start()
    world.run(500)
    assert bob.payloads == [b"hello"]


def test_a_node_that_is_started_again_sends_what_it_had_not_sent(world: World, pair: tuple[Recorder, Recorder]) -> None:
    """The message stayed in the state sending for ever, without an event."""
    alice, bob = pair
    alice.channel.send(b"hello")
    alice.channel.step()
    node = world.node("alice")
    node.stop()
    world.run(500)
    assert (bob.payloads, alice.channel.status()["queued_envelopes"]) == ([], 1)
    node.start()
    world.run(500)
    assert bob.payloads == [b"hello"]
    assert alice.of(MessageSent)


def test_a_node_that_is_started_again_sends_acknowledgements(world: World, pair: tuple[Recorder, Recorder]) -> None:
    """A sync message that the node gave up was waited for ever, and nothing acknowledged any more."""
    alice, bob = pair
    alice.channel.send(b"hello")
    world.turn()
    node = world.node("bob")
    for _ in range(20):  # an acknowledgement is due within 800 ms
        bob.channel.step()
        node.stop()
        node.start()
        world.network.run(100)
    alice.channel.send(b"world")
    world.run(5_000)
    assert bob.payloads == [b"hello", b"world"]
    assert len(alice.of(MessageDelivered)) == 2


def test_the_same_channel_cannot_be_opened_twice_by_one_sender(world: World) -> None:
    alice = world.join("alice")
    with pytest.raises(ChannelExistsError):
        world.join("alice")
    alice.channel.close()
    world.join("alice")


def test_the_sender_id_is_created_once_and_kept(world: World) -> None:
    kept = MemoryPersistence()
    first = world.join("alice", quick(persistence=kept), sender_id=None)
    name = first.channel.sender_id
    first.channel.close()
    assert name
    assert world.join("alice", quick(persistence=kept), sender_id=None).channel.sender_id == name
    assert world.join("bob", sender_id=None).channel.sender_id != name


@pytest.mark.parametrize("kind", ["recieved", MessageReceivedEvent, int, 5])
def test_an_unknown_event_is_refused_with_the_names_there_are(pair: tuple[Recorder, Recorder], kind: Any) -> None:
    """The messaging client has events of almost the same names."""
    with pytest.raises(LocalError, match="reliable:message:received"):
        pair[0].channel.on(kind, print)
    with pytest.raises(LocalError, match="reliable:message:received"):
        pair[0].channel.events(kind)


def test_an_iterator_that_may_hold_nothing_is_refused(pair: tuple[Recorder, Recorder]) -> None:
    with pytest.raises(LocalError, match="limit"):
        pair[0].channel.events(limit=-1)


def test_events_are_found_by_their_names_of_all_generations(world: World, pair: tuple[Recorder, Recorder]) -> None:
    alice, bob = pair
    heard: list[ChannelEvent] = []
    for name in ("reliable:message:received", "message-received"):
        bob.channel.on(name, heard.append)
    alice.channel.send(b"hello")
    world.run(500)
    assert len(heard) == 2
    assert heard[0] is heard[1]


def test_without_a_channel_a_message_is_sent_as_one_ephemeral_envelope(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    node = world.node("alice")
    assert send(None, b"hello", node=node, content_topic="/plain/1/x/proto")
    world.run(500)
    _, envelope = world.on_wire[-1]
    assert (envelope.payload, envelope.content_topic, envelope.ephemeral) == (b"hello", "/plain/1/x/proto", True)
    with pytest.raises(LocalError, match="needs a node and a content topic"):
        send(None, b"hello")  # type: ignore[call-overload]


def test_a_reliable_envelope_goes_to_the_channel_it_names_and_without_one_as_ephemeral(
    world: World, pair: tuple[Recorder, Recorder]
) -> None:
    _, bob = pair
    inner = MessageEnvelope(TOPIC, b"hello")
    send_envelope(world.node("alice"), ReliableEnvelope(inner, CHANNEL))
    world.run(500)
    assert bob.payloads == [b"hello"]
    send_envelope(world.node("alice"), ReliableEnvelope(MessageEnvelope("/other/1/x/proto", b"plain")))
    world.run(500)
    assert {one.ephemeral for _, one in world.on_wire if one.content_topic == "/other/1/x/proto"} == {True}
    with pytest.raises(ChannelClosedError):
        send_envelope(world.node("alice"), ReliableEnvelope(inner, "no such channel"))


def test_the_segment_size_is_what_header_and_declared_overhead_leave(world: World) -> None:
    class Roomy:
        overhead_bytes = 60_000

        def encrypt(self, content: bytes) -> bytes:
            return content + bytes(60_000)

        def decrypt(self, payload: bytes) -> bytes:
            return payload[:-60_000]

    alice, bob = world.join("alice", encryption=Roomy()), world.join("bob", encryption=Roomy())
    size = alice.channel._cycle.machine.segmentation.segment_size_bytes
    assert size < 150_000 - 60_000
    alice.channel.send(bytes(1_048_576))
    world.run(3_000)
    assert [len(payload) for payload in bob.payloads] == [1_048_576]
    assert max(len(message.payload) for _, message in world.on_wire) < 150_000


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("", TOPIC, "a"), "channel_id is empty, or no text. Give a text."),
        ((5, TOPIC, "a"), "channel_id is empty, or no text. Give a text."),
        ((CHANNEL, "", "a"), "content_topic is empty"),
        ((CHANNEL, TOPIC, "x" * 1025), "sender_id is longer"),
    ],
)
def test_empty_and_overlong_names_are_refused(world: World, names: tuple[Any, Any, Any], said: str) -> None:
    with pytest.raises(LocalError, match=said):
        create_reliable_channel(world.node("alice"), *names, threaded=False)
