"""Inputs that get past the first check: valid messages of a few senders with small pools of ids, clocks and payloads,
so that they meet; some of their fields hostile; some of their bytes broken."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.hashing import js_message_id, keccak256, sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily, encode_sds_message
from reliable_channel.core.wire.segment import Dialect, Segment, encode_segment
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from tests.fuzz.cases_format import Step

START_MS = 1_767_225_600_000
CHANNEL, TOPIC, PUBSUB = "talk", "/reliable-channel/1/chat/proto", "/waku/2/rs/1/0"
SEGMENTS = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5)
PAYLOADS = (b"A" * 100, b"B" * 150 + b"\0" * 10, b"\0" * 130)
SENDERS = ("alice", "bob", "mallory")
FILTER = FilterFormat()

short_ids = st.sampled_from(["x", "y", "z", "w", "D1", "D2"])
odd_ids = st.one_of(
    st.sampled_from(["\x00", "é" * 300, "i" * 1_024, "i" * 1_025, "i" * 30_000]), st.text(min_size=1, max_size=20)
)
ids = st.one_of(short_ids, short_ids, short_ids, odd_ids)
hints = st.one_of(
    st.none(), st.just(bytes(32)), st.binary(max_size=40), st.just(b"h" * 5_000), st.just(b"\n\x420x" + b"a" * 64)
)
lamports = st.one_of(
    st.integers(-3, 5).map(lambda d: START_MS + d),
    st.sampled_from([0, 1, START_MS + 60_000, START_MS + 600_000, START_MS + 86_400_000, 2**63, 2**64 - 1]),
)
entries = st.builds(HistoryEntry, ids, hints, st.one_of(st.none(), st.sampled_from(SENDERS), odd_ids))
many_entries = st.builds(
    lambda stem, count, width: tuple(HistoryEntry(f"{stem}{i}" + "-" * width) for i in range(count)),
    short_ids,
    st.sampled_from([10, 300, 1_000, 1_001]),
    st.sampled_from([0, 0, 50]),
)
histories = st.one_of(st.lists(entries, max_size=4).map(tuple), st.lists(entries, max_size=4).map(tuple), many_entries)
filters = st.one_of(
    st.none(),
    st.none(),
    st.just(bytes(FILTER.byte_count)),
    st.just(b"\xff" * FILTER.byte_count),
    st.binary(max_size=30),
    st.sets(short_ids).map(lambda found: _filter_of(found)),
)


def _filter_of(found: set[str]) -> bytes:
    words = bytearray(FILTER.byte_count)
    FILTER.insert(words, found)
    return bytes(words)


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """A segment of one of a few payloads as some sender makes it, or one that contradicts it."""
    payload = draw(st.sampled_from(PAYLOADS))
    if draw(st.booleans()):
        return draw(st.sampled_from(contents_for(payload, SEGMENTS)))
    parity = draw(st.booleans())
    dialect = draw(st.sampled_from(list(Dialect)))
    false = Segment(
        keccak256(payload),
        draw(st.integers(0, 4)),
        draw(st.sampled_from([None, 1, 2, 3, 200])),
        draw(st.sampled_from([None, 0, 1, 2, 50])),
        parity,
        draw(st.sampled_from([b"", b"\0" * 64, b"f" * 64, payload[:64]])),
        draw(st.sampled_from([None, 0, 100, 2**32])),
        dialect,
    )
    try:
        return encode_segment(false)
    except (ValueError, TypeError):
        return contents_for(payload, SEGMENTS)[0]


contents = st.one_of(segments(), segments(), st.binary(min_size=1, max_size=20), st.just(b"ok"), st.just(b""))


@st.composite
def sds_messages(draw: st.DrawFn) -> SdsMessage:
    """A message of one of a few senders; its id is recomputable, the hash of its content, or one of a few others."""
    sender, lamport, content = draw(st.sampled_from(SENDERS)), draw(lamports), draw(contents)
    kind = draw(st.sampled_from(["content"] * 6 + ["sync", "ephemeral"]))
    made = sds_message_id(sender, lamport, content)
    return SdsMessage(
        sender_id=sender if draw(st.integers(0, 9)) else draw(odd_ids),
        message_id=draw(st.sampled_from([made, js_message_id(content), ""])) or draw(ids),
        channel_id=CHANNEL,
        lamport_timestamp=None if kind == "ephemeral" else lamport,
        causal_history=draw(histories),
        bloom_filter=draw(filters),
        repair_request=draw(st.one_of(st.just(()), st.just(()), histories)),
        content=None if kind == "sync" else content,
    )


@st.composite
def broken(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes with a few of them changed, cut, doubled or replaced; or any bytes."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        change = draw(st.sampled_from(["flip", "cut", "insert", "double", "drop"]))
        if change == "flip" and data:
            data[at] ^= draw(st.integers(1, 255))
        elif change == "cut":
            del data[at:]
        elif change == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        elif change == "double":
            data += data[at : at + 5_000]
        elif change == "drop":
            del data[at : at + draw(st.integers(1, 8))]
    return bytes(data)


def sds_bytes(family: WireFamily = WireFamily.SPEC) -> st.SearchStrategy[bytes]:
    """SDS messages on the wire, one in four broken."""
    whole = sds_messages().map(lambda message: _encoded(message, family))
    return st.one_of(whole, whole, whole, broken(whole))


def _encoded(message: SdsMessage, family: WireFamily) -> bytes:
    if message.lamport_timestamp is not None and family is WireFamily.NIM:
        # nim-sds has a signed field.
        message = SdsMessage(
            message.sender_id,
            message.message_id,
            message.channel_id,
            message.lamport_timestamp % 2**63,
            message.causal_history,
            message.bloom_filter,
            message.repair_request,
            message.content,
        )
    return encode_sds_message(message, family)


def sds_bytes_of(content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """SDS content messages that carry ``content``."""

    def made(sender: str, lamport: int, carried: bytes, other: str | None) -> bytes:
        sds_id = other or sds_message_id(sender, lamport, carried)
        return encode_sds_message(SdsMessage(sender, sds_id, CHANNEL, lamport, (), None, (), carried))

    near = st.integers(0, 6).map(lambda ahead: START_MS + ahead)
    return st.builds(made, st.sampled_from(SENDERS), near, content, st.one_of(st.none(), st.none(), short_ids))


def envelopes(payloads: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Waku envelopes on the channel's topic around ``payloads``, one in eight broken."""
    whole = st.builds(
        lambda payload, ephemeral: encode_waku_message(
            WakuMessage(payload, TOPIC, 0, START_MS * 1_000_000, None, None, ephemeral)
        ),
        payloads,
        st.sampled_from([None, None, True]),
    )
    return st.integers(0, 7).flatmap(lambda n: whole if n else broken(whole))


_texts = st.one_of(
    st.sampled_from([TOPIC, PUBSUB, "AAAA", "0x" + "00" * 32, "talk", "alice", "delivered", "sender", "gap"]),
    st.text(max_size=12),
    st.just("x" * 5_000),
)
_keys = st.one_of(
    st.sampled_from(
        [
            *("messages", "message", "messageHash", "payload", "contentTopic", "pubsubTopic", "pubsub_topic"),
            *("timestamp", "version", "meta", "ephemeral", "paginationCursor", "statusCode", "statusDesc", "cursor"),
            *("relayPeerCount", "kind", "event", "at_ms", "offset", "partition", "sds_id", "channel_id", "sender_id"),
            *("content_topic", "start", "end", "peers", "multiaddr", "listenAddresses", "enrUri", "detail"),
            *("channelId", "senderId", "contentTopics", "topics", "requestId"),
        ]
    ),
    st.text(max_size=6),
)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308, float("inf"), float("nan")]),
    _texts,
)
_json = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_keys, inner, max_size=6)),
    max_leaves=14,
)
json_bodies = st.one_of(
    st.dictionaries(_keys, _json, max_size=8).map(lambda found: json.dumps(found).encode()),
    _json.map(lambda found: json.dumps(found).encode()),
    broken(_json.map(lambda found: json.dumps(found).encode())),
    st.sampled_from([b"", b"null", b"[" * 100_000, b"{" + b'"a":{' * 5_000, b"9" * 10_000, b"\xff\xfe", b'"\\ud800"']),
)
nim_filters = st.builds(
    lambda words: FilterFormat(FilterFamily.NIM).encode(words),
    st.sampled_from([bytes(FILTER.byte_count), b"\xff" * FILTER.byte_count, b""]),
)
pauses = st.sampled_from([0, 0, 0, 1, 1_000, 6_000, 70_000, 400_000, 3_600_000, 9 * 86_400_000])


def steps(*kinds: tuple[str, st.SearchStrategy[bytes]], most: int = 12) -> st.SearchStrategy[list[Step]]:
    """Sequences of steps of several kinds, each with its data."""
    one = st.one_of([st.builds(Step, st.just(kind), pauses, data) for kind, data in kinds])
    return st.lists(one, min_size=1, max_size=most)
