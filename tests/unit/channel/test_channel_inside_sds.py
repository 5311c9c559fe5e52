"""Encryption of contents inside SDS, as logos-delivery does it, beside that of whole SDS messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.channel import (
    AesGcm,
    IncompleteEncryptionError,
    MessageDelivered,
    MessageSendError,
    ReliableChannelConfig,
)
from reliable_channel.channel.encryption import ChannelEncryption, bind_encryption
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.steps import EnvelopeReceived, SdsDispatch, SendRequested, decode_input, encode_input
from reliable_channel.core.aes_gcm import DecryptionRefusedError, EncryptionLayer
from reliable_channel.core.errors import LocalError
from reliable_channel.core.sds.verify import id_verified
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, decode_sds_message, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.memory import DEFAULT_PUBSUB_TOPIC
from tests.unit.channel.channel_world import CHANNEL, TOPIC, Recorder, World, drop, quick

KEY, OTHER = b"k" * 32, b"o" * 32
AROUND, INSIDE = EncryptionLayer
SECRET = b"a secret of some length"
PARTS = SegmentationConfig(segment_size_bytes=1_024, enable_reed_solomon=True)


def join(world: World, name: str, layer: EncryptionLayer = INSIDE, key: bytes = KEY, **changes: Any) -> Recorder:
    return world.join(name, quick(encryption_layer=layer, **changes), encryption=AesGcm(key))


def bind(layer: EncryptionLayer, *keys: bytes) -> ChannelEncryption:
    bound = bind_encryption(AesGcm(keys or [KEY]), layer, DEFAULT_PUBSUB_TOPIC, TOPIC)
    assert bound is not None
    return bound


def decode(data: bytes, family: WireFamily = WireFamily.SPEC) -> SdsMessage:
    message = decode_sds_message(data, family)
    assert isinstance(message, SdsMessage)
    return message


def publish(world: World, payload: bytes) -> None:
    world.network.publish("stranger", WakuMessage(payload, TOPIC, timestamp=world.now * 10**6), DEFAULT_PUBSUB_TOPIC)


@pytest.mark.parametrize("family", list(WireFamily))
@pytest.mark.parametrize("layers", [(INSIDE, INSIDE), (INSIDE, AROUND), (AROUND, INSIDE)])
def test_both_layers_read_each_other(layers: tuple[EncryptionLayer, EncryptionLayer], family: WireFamily) -> None:
    world = World()
    config = replace(quick(), sds=quick().sds.in_family(family))
    alice, bob = (
        world.join(name, replace(config, encryption_layer=layer), encryption=AesGcm(KEY))
        for name, layer in zip(("alice", "bob"), layers, strict=True)
    )
    alice.channel.send(SECRET)
    bob.channel.send(SECRET[::-1])
    world.run(6_000)
    assert (alice.payloads, bob.payloads) == ([SECRET[::-1]], [SECRET])
    assert not any(SECRET in message.payload for _, message in world.on_wire)


def test_segments_parity_and_ephemeral_messages_are_encrypted_inside_sds_and_acknowledged() -> None:
    world = World()
    alice, bob = (join(world, name, segmentation=PARTS) for name in ("alice", "bob"))
    payload = b"".join(SECRET + bytes([i]) for i in range(200))
    alice.channel.send(payload)
    alice.channel.send_ephemeral(SECRET)
    world.run(40_000)
    assert sorted(bob.payloads) == sorted([payload, SECRET])
    assert len(alice.of(MessageDelivered)) == 1
    for _, message in world.on_wire:
        sds = decode(message.payload)
        assert SECRET not in message.payload
        assert not sds.content or bind(INSIDE).inside.decrypt(sds.content)  # type: ignore[union-attr]


def test_a_retransmission_is_the_same_ciphertext() -> None:
    world = World(drop(1))
    alice, bob = join(world, "alice"), join(world, "bob")
    alice.channel.send(SECRET)
    world.run(7_000)
    first, second = [message.payload for who, message in world.on_wire if who == "alice"][:2]
    assert first == second
    assert bob.payloads == [SECRET]


def test_a_wrong_key_inside_sds_is_an_event_and_the_channel_goes_on() -> None:
    world = World()
    alice, bob, carol = join(world, "alice", key=OTHER), join(world, "bob"), join(world, "carol")
    alice.channel.send(b"nobody can read this")
    carol.channel.send(SECRET)
    world.run(500)
    assert bob.payloads == [SECRET]
    assert bob.problems() == ["undecryptable"]


@pytest.mark.parametrize("layer", list(EncryptionLayer))
def test_plaintext_is_refused_in_both_layers(layer: EncryptionLayer) -> None:
    world = World()
    alice, bob = world.join("alice"), join(world, "bob", layer)
    alice.channel.send(SECRET)
    world.run(500)
    assert bob.payloads == []
    assert set(bob.problems()) == {"plaintext_refused"}


def test_a_sync_message_in_the_clear_is_read_only_where_such_are_sent() -> None:
    """Strangers can write them: on a channel that encrypts around SDS they would forge acknowledgements."""
    sync = encode_sds_message(SdsMessage("mallory", "1" * 64, CHANNEL, 1, content=None))
    for layer, problems in ((AROUND, {"plaintext_refused"}), (INSIDE, set())):
        world = World()
        bob = join(world, "bob", layer)
        publish(world, sync)
        world.run(500)
        assert set(bob.problems()) == problems


@pytest.mark.parametrize("layer", list(EncryptionLayer))
def test_a_ciphertext_of_one_layer_is_refused_in_the_other(layer: EncryptionLayer) -> None:
    """A stranger who could choose a payload would choose an SDS message, and send its ciphertext as an envelope."""
    forged = encode_sds_message(SdsMessage("mallory", "2" * 64, CHANNEL, 1, content=b"forged"))
    both = bind(layer)
    assert both.inside is not None
    with pytest.raises(DecryptionRefusedError):
        both.around.decrypt(both.inside.encrypt(forged))
    with pytest.raises(DecryptionRefusedError):
        both.inside.decrypt(both.around.encrypt(forged))
    world = World()
    bob = join(world, "bob", layer)
    publish(world, both.inside.encrypt(forged))
    publish(world, encode_sds_message(SdsMessage("m", "3" * 64, CHANNEL, 1, content=both.around.encrypt(forged))))
    world.run(500)
    assert bob.payloads == []
    assert set(bob.problems()) == {"plaintext_refused", "undecryptable"}


@given(content=st.one_of(st.none(), st.binary(max_size=300)), layer=st.sampled_from(EncryptionLayer))
def test_no_content_in_the_clear_leaves_an_encrypted_channel(content: bytes | None, layer: EncryptionLayer) -> None:
    message = SdsMessage("alice", "4" * 64, CHANNEL, 1, content=content)
    data, both = encode_sds_message(message), bind(layer)
    payload = both.protect(message, data)
    if content or layer is AROUND:
        assert both.around.decrypt(payload) == data
    else:
        assert payload == data


def test_repairs_and_resends_keep_the_layer_in_which_a_message_was_sent() -> None:
    inside = bind(INSIDE).inside
    assert inside is not None
    message = SdsMessage("alice", "5" * 64, CHANNEL, 1, content=inside.encrypt(SECRET))
    data = encode_sds_message(message)
    assert bind(AROUND).protect(message, data) == bind(INSIDE).protect(message, data) == data


@pytest.mark.parametrize("layers", [(AROUND, INSIDE), (INSIDE, AROUND)])
def test_what_waits_when_the_layer_changes_is_sent_as_it_was_wrapped(
    layers: tuple[EncryptionLayer, EncryptionLayer], tmp_path: Path
) -> None:
    world = World()
    stored = {"history_backend": "sqlite", "database": tmp_path / "alice.sqlite"}
    alice = join(world, "alice", layers[0], **stored)
    world.blocked.add("alice")
    alice.channel.send(SECRET)
    world.run(500)
    alice.channel.close()
    world.blocked.clear()
    bob = join(world, "bob", AROUND)
    alice = join(world, "alice", layers[1], **stored)
    alice.channel.send(SECRET * 2)
    world.run(7_000)
    assert sorted(bob.payloads) == [SECRET, SECRET * 2]
    assert not any(SECRET in message.payload for _, message in world.on_wire)


def test_what_waits_under_a_key_that_was_removed_fails_with_an_event(tmp_path: Path) -> None:
    """It is not sent around SDS: a recipient would take the ciphertext inside for the message."""
    world = World()
    stored = {"history_backend": "sqlite", "database": tmp_path / "alice.sqlite", "query_on_connect": False}
    alice = join(world, "alice", **stored)
    world.node("alice").stop()
    alice.channel.send(SECRET)
    world.run(500)
    alice.channel.close()
    bob = join(world, "bob", key=OTHER)
    alice = join(world, "alice", key=OTHER, **stored)
    alice.channel.send(SECRET * 2)
    world.run(1_000)
    assert bob.payloads == [SECRET * 2]
    assert [event.error for event in alice.of(MessageSendError)] == [
        "segment 1 of 1: It was encrypted with a key that is no longer configured."
    ]
    assert all(decode(message.payload) for _, message in world.on_wire)


def test_a_key_added_later_covers_what_was_wrapped_without_one(tmp_path: Path) -> None:
    world = World()
    stored = {"history_backend": "sqlite", "database": tmp_path / "alice.sqlite"}
    alice = world.join("alice", quick(**stored))
    world.blocked.add("alice")
    alice.channel.send(SECRET)
    world.run(500)
    alice.channel.close()
    world.run(500)
    world.blocked.clear()
    world.on_wire.clear()
    bob, _ = join(world, "bob"), join(world, "alice", **stored)
    world.run(7_000)
    assert bob.payloads == [SECRET]
    assert not any(SECRET in message.payload for _, message in world.on_wire)


def build(layer: EncryptionLayer, name: str = "alice") -> ChannelMachine:
    return ChannelMachine(CHANNEL, name, TOPIC, ReliableChannelConfig(), PARTS, inside=bind(layer).contents_hook)


def test_a_replay_makes_the_same_messages_and_needs_no_key() -> None:
    step = build(INSIDE).apply(SendRequested(1_000, SECRET * 100))
    again = decode_input(encode_input(step.given))
    assert again == step.given
    replayed = ChannelMachine(CHANNEL, "alice", TOPIC, ReliableChannelConfig(), PARTS).apply(again)
    assert replayed.effects == step.effects
    received = EnvelopeReceived(1_000, b"data", None, SECRET)
    assert decode_input(encode_input(received)) == received


def test_ids_are_those_of_the_ciphertexts_and_are_recomputed() -> None:
    """An id of the plaintext would let everybody test guesses: the rest of it is in the clear."""
    step = build(INSIDE).apply(SendRequested(1_000, SECRET * 100))
    segments = [effect.outgoing.message for effect in step.effects if isinstance(effect, SdsDispatch)]
    inside = bind(INSIDE).inside
    assert inside is not None
    assert len(segments) > 2
    for message in segments:
        plaintext = inside.decrypt(message.content or b"")
        assert id_verified(message, WireFamily.SPEC, plaintext)
        assert not id_verified(replace(message, content=plaintext), WireFamily.SPEC)


class Failing:
    """A hook for contents that fails, with a secret in its error text."""

    def encrypt(self, content: bytes) -> bytes:
        raise RuntimeError("the key is hunter2")

    decrypt = encrypt

    def inside_sds(self) -> Failing:
        return self


def test_a_failing_hook_sends_nothing_and_its_text_is_not_told() -> None:
    world = World()
    alice = world.join("alice", quick(encryption_layer=INSIDE), encryption=Failing())
    for send in (alice.channel.send, alice.channel.send_ephemeral):
        with pytest.raises(LocalError, match="RuntimeError") as raised:
            send(SECRET)
        assert "hunter2" not in str(raised.value)
    world.run(500)
    assert world.on_wire == []


def test_a_hook_without_inside_sds_encrypts_around_only() -> None:
    class Plain:
        encrypt = decrypt = staticmethod(bytes)

    with pytest.raises(IncompleteEncryptionError, match="inside_sds"):
        World().join("alice", quick(encryption_layer=INSIDE), encryption=Plain())
    bound = bind_encryption(Plain(), AROUND, DEFAULT_PUBSUB_TOPIC, TOPIC)
    assert bound is not None
    assert bound.inside is None
