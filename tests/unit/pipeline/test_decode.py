"""Decoding a Kafka record: every kind of bad input has its reason, and nothing raises."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.channel.aes_gcm import AesGcm
from reliable_channel.config import ChannelsSettings, ChannelTopic
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.segmentation.splitting import contents_for
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily, decode_in_families, encode_sds_message
from reliable_channel.core.wire.segment import Dialect
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message, message_hash
from reliable_channel.pipeline.ingest.decode import LAMPORT_MAX_AHEAD_MS, Decoded, RecordDecoder
from tests.support.decoding import NOW_MS, PAYLOAD, PUBSUB, TOPIC, decode, decoder, envelope, sds, segment

VECTORS = Path(__file__).parents[2] / "vectors"
BAD = {
    "null value": (None, Reason.NULL_VALUE),
    "garbage": (b"\xff" * 60, Reason.MALFORMED_ENVELOPE),
    "truncated": (envelope(sds())[:30], Reason.MALFORMED_ENVELOPE),
    "content topic not UTF-8": (
        envelope(b"x", "@@@@").replace(b"@@@@", b"\xff\xfe\xfd\xfc"),
        Reason.MALFORMED_ENVELOPE,
    ),
    "no content topic": (envelope(sds(), ""), Reason.EMPTY_CONTENT_TOPIC),
    "long meta": (envelope(sds(), meta=b"m" * 65), Reason.META_TOO_LONG),
    "10 MB": (envelope(bytes(10_000_000)), Reason.TOO_LARGE),
    "no SDS": (envelope(b"\xff" * 60), Reason.MALFORMED_SDS),
    "sender id not UTF-8": (
        envelope(sds(sender_id="@@@@").replace(b"@@@@", b"\xff\xfe\xfd\xfc")),
        Reason.MALFORMED_SDS,
    ),
    "no SDS id": (envelope(sds(message_id="")), Reason.SDS_WITHOUT_ID),
    "no channel id": (envelope(sds(channel_id="")), Reason.SDS_WITHOUT_CHANNEL),
    "neither timestamp nor content": (envelope(sds(content=None, lamport=None)), Reason.SDS_INVALID_KIND),
    "1001 history entries": (
        envelope(sds(causal_history=tuple(HistoryEntry(str(i)) for i in range(1_001)))),
        Reason.SDS_HISTORY_TOO_LONG,
    ),
    "Lamport 2^64 - 1": (envelope(sds(lamport=2**64 - 1)), Reason.LAMPORT_OUT_OF_RANGE),
    "Lamport a day ahead": (envelope(sds(lamport=NOW_MS + LAMPORT_MAX_AHEAD_MS + 1)), Reason.LAMPORT_OUT_OF_RANGE),
}


@pytest.mark.parametrize("family", WireFamily)
def test_a_message_of_the_other_family_is_refused_with_the_setting_that_reads_it(family: WireFamily) -> None:
    other = WireFamily.SPEC if family is WireFamily.NIM else WireFamily.NIM
    message = SdsMessage("alice", "m1", "talk", 5, content=b"hello")
    row = decoder(family=family).decode(envelope(encode_sds_message(message, other)), PUBSUB, b"relay", NOW_MS * 1000)
    assert (row.kind, row.stage, row.reason) == ("quarantined", "sds", "other_family")
    assert f"family: {other.value}" in (row.detail or "")


@pytest.mark.parametrize("family", WireFamily)
def test_without_a_setting_each_message_is_read_in_the_family_that_it_has(family: WireFamily) -> None:
    value = envelope(encode_sds_message(SdsMessage("alice", "m1", "talk", 5, content=b"hello"), family))
    row = auto().decode(value, PUBSUB, b"relay", NOW_MS * 1000)
    assert (row.kind, row.channel_id, row.family) == ("sds", "talk", family.value)
    assert vars(row) == vars(decoder(family=family).decode(value, PUBSUB, b"relay", NOW_MS * 1000))


def test_what_peers_sent_is_of_their_family_alone() -> None:
    recorded = json.loads((VECTORS / "sds_wire.json").read_text())["wires"]
    js = [
        gzip.decompress(base64.b64decode(wire["gz"])) if "gz" in wire else bytes.fromhex(wire["hex"])
        for wire in recorded
    ]
    runs = [json.loads(gzip.decompress(file.read_bytes())) for file in (VECTORS / "nim").glob("*.json.gz")]
    nim = [gzip.decompress(base64.b64decode(wire)) for run in runs for wire in run["wires"].values()]
    assert js and nim
    for family, other, wires in ((*WireFamily, js), (*reversed(WireFamily), nim)):
        read = [decode_in_families(wire, tuple(WireFamily)) for wire in wires]
        assert {each if isinstance(each, Malformed) else each[0] for each in read} == {family}
        assert all(isinstance(decode_in_families(wire, (other,)), Malformed) for wire in wires)


def test_what_somebody_made_valid_in_both_families_is_read_in_the_first() -> None:
    channel = encode_sds_message(SdsMessage("", "n", "nim talk", 7, content=b"nim"), WireFamily.NIM)
    both = encode_sds_message(SdsMessage("alice", "m1", "\n\x01a", 5, content=b"hello")) + channel
    spec, nim = (decode_in_families(both, (family,)) for family in WireFamily)
    assert not isinstance(spec, Malformed) and not isinstance(nim, Malformed)
    assert decode_in_families(both, tuple(WireFamily)) == spec


@pytest.mark.parametrize("family", WireFamily)
def test_a_message_that_no_family_reads_has_the_reason_of_the_one_that_read_most(family: WireFamily) -> None:
    history = tuple(HistoryEntry(str(number)) for number in range(1_001))
    message = SdsMessage("alice", "m1", "talk", 5, history, content=b"hello")
    row = auto().decode(envelope(encode_sds_message(message, family)), PUBSUB, b"relay", NOW_MS * 1000)
    assert (row.kind, row.reason) == ("quarantined", "sds_history_too_long")


def auto() -> RecordDecoder:
    return RecordDecoder(ChannelsSettings(content_topics=(TOPIC,)))


@pytest.mark.parametrize("family", WireFamily)
@pytest.mark.parametrize("dialect", Dialect)
def test_every_dialect_is_read_without_a_setting(family: WireFamily, dialect: Dialect) -> None:
    config = SegmentationConfig(segment_size_bytes=320, dialect=dialect, enable_reed_solomon=True, parity_rate=0.5)
    contents = contents_for(PAYLOAD, config)
    rows = [decode_content(content, family) for content in contents]
    assert {row.entire_message_hash for row in rows} == {keccak256(PAYLOAD)}
    assert {row.segment_dialect for row in rows} == {dialect.value}
    small = decode_content(contents_for(b"hello", config)[0], family)
    assert small.entire_message_hash == keccak256(b"hello")
    assert small.segment_kind == ("bare" if dialect is Dialect.V01 else "data")


def decode_content(content: bytes, family: WireFamily) -> Decoded:
    channels = ChannelsSettings(content_topics=(ChannelTopic(content_topic=TOPIC, family=family),))
    message = SdsMessage("alice", "m1", "talk", 5, content=content)
    value = envelope(encode_sds_message(message, family))
    return RecordDecoder(channels).decode(value, PUBSUB, b"relay", NOW_MS * 1000)


@pytest.mark.parametrize(("value", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_record_is_refused_with_its_reason(value: bytes | None, reason: Reason) -> None:
    row = decode(value)
    assert (row.reason, row.disposition) == (reason.value, "dropped")
    assert row.kind in (None, "quarantined")


BAD_HEADERS = {"no pubsub topic": (None, b"relay"), "not UTF-8": (b"\xff\xfe", b"relay"), "source": (PUBSUB, b"pigeon")}


@pytest.mark.parametrize(("pubsub", "source"), BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_wrong_headers_are_refused(pubsub: bytes | None, source: bytes | None) -> None:
    assert decode(envelope(sds()), pubsub, source).reason == Reason.BAD_HEADER.value


SDS_MESSAGES = {
    "hash of 31 bytes": ({"entire_message_hash": b"h" * 31}, Reason.SEGMENT_HASH_LENGTH),
    "index = count": ({"index": 2}, Reason.SEGMENT_INDEX),
    "zero counts": ({"data_count": 0}, Reason.SEGMENT_COUNT),
    "300 segments": ({"data_count": 300}, Reason.SEGMENT_COUNT),
    "parity index = count": ({"is_parity": True, "index": 1, "parity_count": 1}, Reason.SEGMENT_INDEX),
}


@pytest.mark.parametrize(("changes", "reason"), SDS_MESSAGES.values(), ids=SDS_MESSAGES.keys())
def test_what_looks_like_a_broken_segment_is_reported_and_kept_as_bare_payload(
    changes: dict[str, object], reason: Reason
) -> None:
    row = decode(envelope(sds(segment(**changes))))
    assert (row.kind, row.segment_kind) == ("sds", "bare")
    assert (row.reason, row.disposition, row.stage) == (reason.value, "kept", "segment")


@pytest.mark.parametrize("content", [b"hello", b"\x00" * 40, b'{"a": 1}', b"\x0a\x05hello"])
def test_an_honest_bare_payload_raises_no_suspicion(content: bytes) -> None:
    row = decode(envelope(sds(content)))
    assert (row.segment_kind, row.reason, row.entire_message_hash) == ("bare", None, keccak256(content))


@pytest.mark.parametrize("timestamp", [0, 2**63 - 1, -(2**63), None])
def test_the_senders_timestamp_is_only_data(timestamp: int | None) -> None:
    row = decode(envelope(sds(), timestamp=timestamp))
    assert (row.kind, row.sender_timestamp_ns) == ("sds", timestamp)


def test_unknown_fields_change_nothing() -> None:
    value = envelope(sds()) + b"\xfa\x3e\x03abc"  # field 1007, length-delimited
    assert decode(value).kind == "sds"


def test_plain_waku_traffic_is_no_error() -> None:
    row = decode(envelope(b"\xff" * 60, "/weather/1/now/json"))
    assert (row.kind, row.reason) == ("plain", None)


def test_content_and_filter_stand_in_the_row() -> None:
    content, bloom = segment(index=1, payload=PAYLOAD[512:]), bytes(range(250)) * 3
    value = envelope(sds(content, bloom_filter=bloom))
    row = decode(value)
    assert (row.content, row.content_bytes, row.bloom_filter) == (content, len(content), bloom)
    assert (row.segment_kind, row.segment_index, row.data_count) == ("data", 1, 2)


def test_a_lip243_segment_is_told_apart() -> None:
    row = decode(envelope(sds(segment(dialect=Dialect.LIP243, parity_count=1, data_count=1))))
    assert (row.segment_kind, row.segment_dialect, row.data_count, row.parity_count) == ("data", "lip243", 1, 1)


def test_the_message_hash_is_that_of_the_envelope() -> None:
    message = WakuMessage(sds(), TOPIC, timestamp=7, meta=b"m")
    row = decode(encode_waku_message(message))
    assert row.message_hash == message_hash(PUBSUB.decode(), message)


@pytest.mark.parametrize("dialect", Dialect)
def test_the_content_of_an_ephemeral_message_is_its_payload_without_the_segment_around_it(dialect: Dialect) -> None:
    (content,) = contents_for(PAYLOAD, SegmentationConfig(dialect=dialect))
    row = decode(envelope(sds(content, lamport=None)))
    assert (row.kind, row.sds_kind, row.segment_kind, row.reason) == ("sds", "ephemeral", "bare", None)
    assert (row.content, row.content_bytes) == (PAYLOAD, len(PAYLOAD))
    assert row.content_digest == hashlib.sha256(PAYLOAD).digest()
    assert (row.entire_message_hash, row.data_count, row.segment_index) == (keccak256(PAYLOAD), 1, None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(segment(), Reason.SEGMENT_COUNT, id="one of several"),
        pytest.param(
            segment(data_count=1, parity_count=1, is_parity=True, dialect=Dialect.LIP243),
            Reason.SEGMENT_COUNT,
            id="parity",
        ),
        pytest.param(
            segment(data_count=1, dialect=Dialect.LIP243), Reason.SEGMENT_HASH_MISMATCH, id="of another payload"
        ),
    ],
)
def test_an_ephemeral_message_that_participants_do_not_deliver_is_quarantined(content: bytes, reason: Reason) -> None:
    row = decode(envelope(sds(content, lamport=None)))
    assert (row.kind, row.stage, row.reason, row.disposition) == ("quarantined", "segment", reason.value, "dropped")


@pytest.mark.parametrize("lamport", [None, NOW_MS])
def test_without_a_dialect_that_has_bare_payloads_bytes_that_are_no_segment_are_quarantined(
    lamport: int | None,
) -> None:
    topic = ChannelTopic(content_topic=TOPIC, dialects=frozenset({Dialect.LIP243}))
    decoder = RecordDecoder(ChannelsSettings(content_topics=(topic,)))
    row = decoder.decode(envelope(sds(b"\xff\xff\xff", lamport=lamport)), PUBSUB, b"relay", NOW_MS * 1000)
    assert (row.kind, row.stage, row.reason) == ("quarantined", "segment", Reason.MALFORMED_SEGMENT.value)


def test_without_a_key_an_encrypted_topic_is_undecryptable() -> None:
    topic = ChannelTopic(content_topic=TOPIC, decryption_key_files=("missing.key",))
    row = RecordDecoder(ChannelsSettings(content_topics=(topic,))).decode(
        envelope(sds()), PUBSUB, b"relay", NOW_MS * 1000
    )
    assert (row.kind, row.reason) == ("quarantined", Reason.UNDECRYPTABLE.value)


@given(st.binary(max_size=300), st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_no_bytes_raise(noise: bytes, time_us: int, wrapped: bool) -> None:
    value = envelope(noise) if wrapped else noise
    row = decoder().decode(value, PUBSUB, b"relay", time_us)
    assert (row.reason is None) == (row.kind in ("sds", "plain")) or row.disposition == "kept"


@given(st.data())
def test_no_damage_to_a_good_record_raises(data: st.DataObject) -> None:
    good = bytearray(envelope(sds(segment())))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    row = decode(bytes(good))
    assert row.kind in (None, "plain", "sds", "quarantined")


def encrypted(tmp_path: Path, store_plaintext: bool = True) -> tuple[RecordDecoder, AesGcm]:
    old, new = AesGcm.generate_key(), AesGcm.generate_key()
    for name, key in (("old.key", old), ("new.key", new)):
        (tmp_path / name).write_text(key.hex())
    topic = ChannelTopic(
        content_topic=TOPIC,
        decryption_key_files=(str(tmp_path / "new.key"), str(tmp_path / "old.key")),
        store_plaintext=store_plaintext,
    )
    cipher = AesGcm(old).for_topics(PUBSUB.decode(), TOPIC)
    return RecordDecoder(ChannelsSettings(content_topics=(topic,))), cipher


def test_an_encrypted_channel_is_opened_with_any_of_its_keys(tmp_path: Path) -> None:
    reader, cipher = encrypted(tmp_path)
    row = reader.decode(envelope(cipher.encrypt(sds(b"secret"))), PUBSUB, b"relay", NOW_MS * 1000)
    assert (row.kind, row.content, row.encrypted) == ("sds", b"secret", False)


def test_plaintext_is_refused_where_a_key_is_configured(tmp_path: Path) -> None:
    reader, _ = encrypted(tmp_path)
    row = reader.decode(envelope(sds()), PUBSUB, b"relay", NOW_MS * 1000)
    assert (row.kind, row.reason) == ("quarantined", Reason.PLAINTEXT_REFUSED.value)


def test_what_no_key_opens_is_kept_as_undecryptable(tmp_path: Path) -> None:
    reader, _ = encrypted(tmp_path)
    stranger = AesGcm(AesGcm.generate_key()).for_topics(PUBSUB.decode(), TOPIC)
    row = reader.decode(envelope(stranger.encrypt(sds())), PUBSUB, b"relay", NOW_MS * 1000)
    assert (row.kind, row.reason) == ("quarantined", Reason.UNDECRYPTABLE.value)


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (None, "cannot be read: the variable is not set"),
        ("00" * 31, "is neither 64 hex digits nor 32 bytes"),
        ("no digits", "is neither 64 hex digits nor 32 bytes"),
    ],
)
def test_a_key_comes_from_the_environment_too(value: str | None, detail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that holds no key leaves its records in quarantine, and names itself without its content."""
    topic = ChannelTopic(content_topic=TOPIC, decryption_key_files=("env:CHANNEL_KEY",))
    channels = ChannelsSettings(content_topics=(topic,))
    key = AesGcm.generate_key()
    sealed = envelope(AesGcm(key).for_topics(PUBSUB.decode(), TOPIC).encrypt(sds(b"secret")))
    monkeypatch.setenv("CHANNEL_KEY", key.hex())
    good = RecordDecoder(channels).decode(sealed, PUBSUB, b"relay", NOW_MS * 1000)
    assert (good.kind, good.content) == ("sds", b"secret")
    if value is None:
        monkeypatch.delenv("CHANNEL_KEY")
    else:
        monkeypatch.setenv("CHANNEL_KEY", value)
    row = RecordDecoder(channels).decode(sealed, PUBSUB, b"relay", NOW_MS * 1000)
    assert row.reason == Reason.UNDECRYPTABLE.value
    assert row.detail == f"The key in env:CHANNEL_KEY {detail}."


def test_without_plaintext_only_hash_and_size_are_kept(tmp_path: Path) -> None:
    reader, cipher = encrypted(tmp_path, store_plaintext=False)
    sealed = cipher.encrypt(sds(b"secret"))
    row = reader.decode(envelope(sealed), PUBSUB, b"relay", NOW_MS * 1000)
    assert (row.content, row.content_bytes, row.encrypted) == (sealed, 6, True)
    assert row.entire_message_hash == keccak256(b"secret")
