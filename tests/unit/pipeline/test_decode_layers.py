"""Decoding encrypted channels, whole SDS messages or their contents (docs/channel.md, *Encryption*)."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.channel.aes_gcm import AesGcm
from reliable_channel.config import ChannelsSettings, ChannelTopic
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.wire.hashing import content_message_id, js_message_id, sds_message_id
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, encode_sds_message
from reliable_channel.pipeline.functions import decode_batch
from reliable_channel.pipeline.ingest.decode import RecordDecoder
from reliable_channel.pipeline.reassembly.sets import SegmentDecryptor, SegmentRow
from tests.support.decoding import NOW_MS, PUBSUB, TOPIC, envelope, sds


def read_in_layer(
    tmp_path: Path, layer: EncryptionLayer, store_plaintext: bool = True
) -> tuple[RecordDecoder, AesGcm, ChannelsSettings]:
    """A decoder for a topic that sends in ``layer``, the cipher for contents, and the topic's configuration."""
    key = AesGcm.generate_key()
    (tmp_path / "key").write_text(key.hex())
    topic = ChannelTopic(
        content_topic=TOPIC,
        decryption_key_files=(str(tmp_path / "key"),),
        encryption_layer=layer,
        store_plaintext=store_plaintext,
    )
    channels = ChannelsSettings(content_topics=(topic,))
    cipher = AesGcm(key).for_topics(PUBSUB.decode(), TOPIC)
    return RecordDecoder(channels), cipher, channels


@pytest.mark.parametrize("layer", EncryptionLayer)
@pytest.mark.parametrize("family", WireFamily)
def test_both_encryption_layers_are_read_and_named(tmp_path: Path, layer: EncryptionLayer, family: WireFamily) -> None:
    reader, cipher, _ = read_in_layer(tmp_path, layer)
    inside = SdsMessage("alice", "m1", "talk", 5, content=cipher.inside_sds().encrypt(b"secret"))
    around = replace(inside, content=b"secret")
    for message, payload, name in (
        (inside, encode_sds_message(inside, family), "inside_sds"),
        (around, cipher.encrypt(encode_sds_message(around, family)), "around_sds"),
    ):
        row = reader.decode(envelope(payload), PUBSUB, b"relay", NOW_MS * 1000)
        assert (row.kind, row.content, row.encryption_layer, row.family) == ("sds", b"secret", name, family.value)
        assert row.sds_id == message.message_id
        assert row.content_digest == hashlib.sha256(b"secret").digest()


@pytest.mark.parametrize("layer", EncryptionLayer)
def test_a_topic_with_a_key_refuses_what_is_in_the_clear_and_names_what_was_wrong(
    tmp_path: Path, layer: EncryptionLayer
) -> None:
    reader, cipher, _ = read_in_layer(tmp_path, layer)
    stranger = AesGcm(AesGcm.generate_key()).for_topics(PUBSUB.decode(), TOPIC)
    for content, reason, detail in (
        (b"in the clear", "plaintext_refused", "a key is configured"),
        (cipher.encrypt(b"in the other layer"), "plaintext_refused", "a key is configured"),
        (stranger.inside_sds().encrypt(b"?"), "undecryptable", "content inside SDS"),
        (cipher.inside_sds().encrypt(b""), "sds_invalid_kind", "empty"),
    ):
        row = reader.decode(envelope(sds(content)), PUBSUB, b"relay", NOW_MS * 1000)
        assert (row.kind, row.reason) == ("quarantined", reason)
        assert detail in (row.detail or "")
    sync = reader.decode(envelope(sds(None)), PUBSUB, b"relay", NOW_MS * 1000)
    if layer is EncryptionLayer.INSIDE_SDS:
        assert (sync.kind, sync.sds_kind, sync.encryption_layer) == ("sds", "sync", None)
    else:
        assert (sync.kind, sync.reason) == ("quarantined", "plaintext_refused")
        assert "encryption_layer: inside_sds" in (sync.detail or "")


@pytest.mark.parametrize("layer", EncryptionLayer)
def test_reassembly_decrypts_the_ciphertexts_of_both_layers(tmp_path: Path, layer: EncryptionLayer) -> None:
    reader, cipher, channels = read_in_layer(tmp_path, layer, store_plaintext=False)
    ciphertext = cipher.inside_sds().encrypt(b"secret")
    for payload, stored in ((sds(ciphertext), ciphertext), (sealed := cipher.encrypt(sds(b"secret")), sealed)):
        row = reader.decode(envelope(payload), PUBSUB, b"relay", NOW_MS * 1000)
        assert (row.content, row.content_bytes, row.encrypted) == (stored, 6, True)
        segment = SegmentRow(
            *("t", 0, 0, 0, PUBSUB.decode(), TOPIC, "talk", "spec", "alice", "m1", 5, "v0.1"),
            content=row.content or b"",
            encrypted=True,
        )
        assert SegmentDecryptor(channels)(segment).content == b"secret"


def test_an_id_is_recomputed_from_the_ciphertext_and_its_scheme_is_named(tmp_path: Path) -> None:
    reader, cipher, _ = read_in_layer(tmp_path, EncryptionLayer.INSIDE_SDS)
    for make, scheme in (
        (lambda content: sds_message_id("alice", NOW_MS, content), "keccak"),
        (js_message_id, "sha256"),
        (content_message_id, "keccak_content"),
    ):
        content = cipher.inside_sds().encrypt(b"secret")
        for plain, payload in ((False, content), (True, b"secret")):
            message = SdsMessage("alice", make(payload), "talk", NOW_MS, content=content)
            row = reader.decode(envelope(encode_sds_message(message)), PUBSUB, b"relay", NOW_MS * 1000)
            assert (row.id_verified, row.id_scheme) == ((False, None) if plain else (True, scheme))


@given(order=st.permutations(range(6)), cuts=st.sets(st.integers(0, 6)))
def test_rows_of_both_layers_are_the_same_for_every_cut(order: list[int], cuts: set[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        reader, cipher, _ = read_in_layer(Path(directory), EncryptionLayer.INSIDE_SDS)
        values = [
            *(envelope(payload) for payload in (sds(None), sds(b"plain"), cipher.encrypt(sds(b"around")))),
            *(envelope(sds(cipher.inside_sds().encrypt(each))) for each in (b"one", b"two")),
            envelope(cipher.encrypt(sds(None))),
        ]
        one_by_one = [vars(reader.decode(values[at], PUBSUB, b"relay", NOW_MS * 1000)) for at in order]
        bounds = sorted({0, *cuts, len(order)})
        rows = []
        for start, end in pairwise(bounds):
            some = [values[at] for at in order[start:end]]
            count = len(some)
            batch = decode_batch(
                reader,
                pa.array(some, pa.binary()),
                pa.array([PUBSUB] * count, pa.binary()),
                pa.array([b"relay"] * count, pa.binary()),
                pa.array([NOW_MS * 1000] * count, pa.int64()),
            )
            rows += batch.to_pylist()
        for row, wanted in zip(rows, one_by_one, strict=True):
            for name in ("kind", "reason", "content", "encryption_layer", "id_scheme", "sds_kind"):
                assert row[name] == wanted.get(name)
