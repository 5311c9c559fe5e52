"""The encryption hook and the AES-GCM that is ready to use (RELIABLE-CHANNEL-API)."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.channel import AesGcm, ChannelProblem, IncompleteEncryptionError, MessageSendError, aes_gcm
from reliable_channel.core.aes_gcm import NONCE_BYTES, OVERHEAD_BYTES, DecryptionRefusedError, EncryptionLayer
from reliable_channel.core.errors import ConfigurationError, LocalError
from reliable_channel.core.segmentation import SegmentationConfig
from tests.unit.channel.channel_world import TOPIC, World, quick

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
PUBSUB = "/waku/2/rs/0/0"


def bound(*keys: bytes, pubsub: str = PUBSUB, content: str = TOPIC) -> AesGcm:
    return AesGcm(list(keys)).for_topics(pubsub, content)


@given(content=st.binary(max_size=2_000))
def test_what_was_encrypted_comes_back_and_is_as_much_longer_as_declared(content: bytes) -> None:
    sealed = bound(OLD).encrypt(content)
    assert bound(OLD).decrypt(sealed) == content
    assert len(sealed) == len(content) + OVERHEAD_BYTES == len(content) + AesGcm.overhead_bytes


def test_every_encryption_has_a_nonce_of_its_own() -> None:
    hook = bound(OLD)
    nonces = {hook.encrypt(b"same")[5 : 5 + NONCE_BYTES] for _ in range(1_000)}
    assert len(nonces) == 1_000


@given(content=st.binary(min_size=1, max_size=200), data=st.data())
def test_any_changed_bit_is_refused(content: bytes, data: st.DataObject) -> None:
    sealed = bytearray(bound(OLD).encrypt(content))
    position = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[position // 8] ^= 1 << position % 8
    with pytest.raises(DecryptionRefusedError):
        bound(OLD).decrypt(bytes(sealed))


@given(junk=st.binary(max_size=100))
def test_junk_is_refused_by_the_one_documented_error(junk: bytes) -> None:
    with pytest.raises(DecryptionRefusedError):
        bound(OLD).decrypt(junk)


@pytest.mark.parametrize("moved", [{"pubsub": "/waku/2/rs/0/1"}, {"content": "/other/1/x/proto"}])
def test_pubsub_and_content_topic_are_authenticated(moved: dict[str, str]) -> None:
    with pytest.raises(DecryptionRefusedError):
        bound(OLD, **moved).decrypt(bound(OLD).encrypt(b"hello"))


def test_topics_cannot_be_shifted_into_each_other() -> None:
    sealed = bound(OLD, pubsub="/a/b", content="/c").encrypt(b"hello")
    with pytest.raises(DecryptionRefusedError):
        bound(OLD, pubsub="/a", content="/b/c").decrypt(sealed)


def test_during_rotation_both_generations_read_each_other_and_the_first_key_writes() -> None:
    before, during, after = bound(OLD, NEW), bound(NEW, OLD), bound(NEW)
    assert during.decrypt(before.encrypt(b"x")) == before.decrypt(during.encrypt(b"x")) == b"x"
    assert after.decrypt(during.encrypt(b"x")) == b"x"
    with pytest.raises(DecryptionRefusedError):
        after.decrypt(before.encrypt(b"x"))


def test_a_key_never_shows() -> None:
    assert "o" * 4 not in repr(bound(OLD))
    wrong: list[Any] = [
        b"short secret",
        "a secret of thirty-two letters ok",
        ["a secret of thirty-two letters.."],
        5,
        None,
    ]
    for keys in wrong:
        with pytest.raises(ConfigurationError) as refused:
            AesGcm(keys)
        assert "secret" not in str(refused.value)


def test_an_aes_gcm_bound_to_no_topics_refuses_to_encrypt() -> None:
    with pytest.raises(LocalError, match="topics"):
        AesGcm(OLD).encrypt(b"hello")


def test_participants_with_the_same_key_talk_and_the_wire_shows_nothing() -> None:
    world = World()
    alice, bob = (world.join(name, encryption=AesGcm(OLD)) for name in ("alice", "bob"))
    alice.channel.send(b"a secret of some length")
    world.run(6_000)
    assert bob.payloads == [b"a secret of some length"]
    for _, message in world.on_wire:
        assert b"secret" not in message.payload
        assert b"alice" not in message.payload


def test_a_retransmission_is_another_ciphertext_of_the_same_message() -> None:
    world = World(lambda *_: ())
    alice = world.join("alice", encryption=AesGcm(OLD))
    world.join("bob", encryption=AesGcm(OLD))
    alice.channel.send(b"hello")
    world.run(6_000)
    first, second = (message.payload for _, message in world.on_wire[:2])
    assert first != second
    assert bound(OLD).decrypt(first) == bound(OLD).decrypt(second)


def test_a_wrong_key_is_an_event_and_the_channel_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World()
    alice = world.join("alice", encryption=AesGcm(OTHER))
    bob, carol = (world.join(name, encryption=AesGcm(OLD)) for name in ("bob", "carol"))
    alice.channel.send(b"nobody can read this")
    carol.channel.send(b"everybody can read this")
    world.run(500)
    assert bob.payloads == [b"everybody can read this"]
    assert "undecryptable" in bob.problems()
    assert "oooo" not in caplog.text + str(bob.events)


def test_plaintext_is_refused_where_a_key_is_configured() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob", encryption=AesGcm(OLD))
    alice.channel.send(b"in the clear")
    world.run(500)
    assert bob.payloads == []
    assert bob.problems() == ["plaintext_refused"]


class Moody:
    """A hook that fails, with a secret in its error texts."""

    overhead_bytes = 0

    def encrypt(self, content: bytes) -> bytes:
        raise RuntimeError("the key is hunter2")

    def decrypt(self, payload: bytes) -> bytes:
        raise RuntimeError("the key is hunter2")


def test_a_failing_encrypt_is_a_send_error_and_its_text_is_not_told() -> None:
    world = World()
    alice = world.join("alice", encryption=Moody())
    request_id = alice.channel.send(b"hello")
    world.run(500)
    assert [event.request_id for event in alice.of(MessageSendError)] == [request_id]
    assert "encryption_failed" in alice.problems()
    assert "hunter2" not in str(alice.events)
    assert world.on_wire == []


def test_a_failing_decrypt_is_an_event_and_its_text_is_not_told() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob", encryption=Moody())
    alice.channel.send(b"hello")
    world.run(500)
    assert bob.problems() == ["plaintext_refused"]
    assert "hunter2" not in str(bob.events)


def test_an_encryption_needs_both_operations() -> None:
    class Half:
        def encrypt(self, content: bytes) -> bytes:
            return content

    with pytest.raises(IncompleteEncryptionError, match="decrypt"):
        World().join("alice", encryption=Half())


def test_a_large_encrypted_message_with_parity_fits_its_envelopes() -> None:
    world = World()
    config = quick(segmentation=SegmentationConfig(segment_size_bytes=150_000, enable_reed_solomon=True))
    alice, bob = (world.join(name, config, encryption=AesGcm(OLD)) for name in ("alice", "bob"))
    alice.channel.send(bytes(1_048_576))
    world.run(1_000)
    assert len(bob.payloads) == 1
    assert max(len(message.payload) for _, message in world.on_wire) <= 150_000 - 1_000


@pytest.mark.parametrize(
    "content",
    [
        b"0123456789abcdef0123456789abcdef",
        b"0123456789abcdef0123456789abcde\n",
        b"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY=",
        b"0" * 63,
        b"0" * 66,
        bytes(range(128, 159)),
        b"",
    ],
)
def test_a_key_file_of_another_length_is_refused_by_its_name(content: bytes, tmp_path: Path) -> None:
    """32 hex digits are a key of 16 bytes: never taken as the 32 bytes of the file."""
    file = tmp_path / "short.key"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"short\.key"):
        AesGcm.from_files([file])


@given(key=st.binary(min_size=32, max_size=32).filter(lambda key: max(key) > 127))
def test_a_key_file_holds_the_key_or_its_digits(key: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        raw, digits = Path(place) / "raw", Path(place) / "digits"
        raw.write_bytes(key)
        digits.write_text(key.hex() + "\n")
        sealed = AesGcm.from_files([raw]).for_topics("p", "c").encrypt(b"hello")
        assert AesGcm.from_files([digits]).for_topics("p", "c").decrypt(sealed) == b"hello"


def test_the_count_of_a_key_survives_the_objects_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel that is closed and opened again goes on counting."""
    monkeypatch.setattr(aes_gcm, "MAX_MESSAGES_PER_KEY", 3)
    key, other = AesGcm.generate_key(), AesGcm.generate_key()
    for topic in ("/a", "/b", "/c"):
        AesGcm([key, other]).for_topics("p", topic).encrypt(b"x")
    with pytest.raises(LocalError, match="Rotate"):
        AesGcm([key]).for_topics("p", "/a").encrypt(b"x")
    AesGcm([other, key]).for_topics("p", "/a").encrypt(b"x")


class Converting:
    """A hook whose results are of another type."""

    def __init__(self, convert: Callable[[bytes], object]) -> None:
        self._convert = convert

    def encrypt(self, content: bytes) -> Any:
        return self._convert(b"sealed" + content)

    def decrypt(self, payload: bytes) -> Any:
        if not payload.startswith(b"sealed"):
            raise ValueError
        return self._convert(payload[6:])

    def inside_sds(self) -> Converting:
        return self


@pytest.mark.parametrize("layer", EncryptionLayer)
@pytest.mark.parametrize("convert", [bytearray, memoryview])
def test_a_hook_may_return_any_buffer(layer: EncryptionLayer, convert: Callable[[bytes], object]) -> None:
    """Nothing was received, and inside SDS the channel stopped."""
    world = World()
    config = quick(encryption=Converting(convert), encryption_layer=layer)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(b"hello")
    world.run(5_000)
    assert bob.payloads == [b"hello"]


@pytest.mark.parametrize("convert", [lambda _: None, lambda content: content.decode("latin-1")])
def test_a_hook_that_returns_no_bytes_fails_and_stops_no_channel(convert: Callable[[bytes], object]) -> None:
    world = World()
    alice = world.join("alice", quick(encryption=Converting(convert)))
    bob = world.join("bob", quick(encryption=Converting(bytes)))
    for one in (alice, bob):
        one.channel.send(b"hello")
    world.run(5_000)
    kinds = {event.kind for event in alice.of(ChannelProblem)}
    assert kinds == {"encryption_failed", "dispatch_failed", "undecryptable"}
    with pytest.raises(LocalError, match="TypeError"):
        inside = quick(encryption=Converting(convert), encryption_layer=EncryptionLayer.INSIDE_SDS)
        world.join("carol", inside).channel.send(b"hello")
