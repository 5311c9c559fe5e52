"""Decoding by column gives exactly the rows of decoding one by one, whatever the bytes and whatever the batch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import ChannelsSettings, ChannelTopic
from reliable_channel.core.segmentation import contents_for
from reliable_channel.core.wire._pb import sds_pb2
from reliable_channel.core.wire.hashing import js_message_id, sds_message_id
from reliable_channel.core.wire.sds import MAX_HISTORY_ENTRIES, HistoryEntry, SdsMessage, WireFamily, encode_sds_message
from reliable_channel.core.wire.segment import Dialect
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.pipeline import functions
from reliable_channel.pipeline.ingest import decode_columns
from reliable_channel.pipeline.ingest.decode import LAMPORT_MAX_AHEAD_MS, RecordDecoder
from reliable_channel.pipeline.ingest.decode_columns import MAX_COLUMN_BYTES, SMALLEST_SPLIT, ColumnDecoder
from tests.fuzz import inputs

PUBSUB, SPEC, NIM, AUTO, AUTO_NIM, V01, LIP243, SEALED, ELSEWHERE = (
    "/waku/2/rs/1/0",
    "/spec/1/a/b",
    "/nim/1/a/b",
    "/auto/1/a/b",
    "/auto/1/nim/b",
    "/v01/1/a/b",
    "/lip243/1/a/b",
    "/key/1/a/b",
    "/x",
)
CHANNELS = ChannelsSettings(
    content_topics=(
        ChannelTopic(content_topic=SPEC, family=WireFamily.SPEC),
        ChannelTopic(content_topic=NIM, family=WireFamily.NIM),
        ChannelTopic(content_topic="/auto/1/*/b"),
        ChannelTopic(content_topic=V01, dialects=(Dialect.V01,)),
        ChannelTopic(content_topic=LIP243, dialects=(Dialect.LIP243,)),
        ChannelTopic(content_topic=SEALED, decryption_key_files=("env:NO_SUCH_KEY",)),
    )
)
AT_US = inputs.START_MS * 1000

Record = tuple[bytes | None, bytes | None, bytes | None, int]


def decoded(records: list[Record]) -> tuple[pa.StructArray, pa.StructArray]:
    """The rows by column, and one by one."""
    columns = [list(column) for column in zip(*records, strict=True)] or [[], [], [], []]
    types = (pa.binary(), pa.binary(), pa.binary(), pa.int64())
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    judge = RecordDecoder(CHANNELS)
    decoded = functions.decode_batch(judge, *arrays)
    decoded.validate(full=True)
    return decoded, functions.records([judge.decode(*record) for record in records])


def check(records: list[Record]) -> None:
    by_column, one_by_one = decoded(records)
    assert by_column.type == one_by_one.type
    assert by_column.to_pylist() == one_by_one.to_pylist()


def by_columns(records: list[Record]) -> int:
    """How many of the records need no judge."""
    arrays = [pa.array(list(column)) for column in zip(*records, strict=True)]
    parts = ColumnDecoder(RecordDecoder(CHANNELS)).decode(*arrays)
    return sum(len(part.rows) for part in parts)


# ---- bytes -------------------------------------------------------------------------------------------------------


@st.composite
def varints(draw: st.DrawFn) -> bytes:
    """Integers at the limits of their types; now and then in more bytes than they need."""
    edges = st.sampled_from([0, 1, 2, 127, 128, 2**31, 2**32 - 1, 2**32 + 5, 2**63, 2**64 - 1, 2**64 + 3, 2**70])
    return encode_varint(draw(edges), draw(st.sampled_from([0] * 9 + [1, 3, 5, 9, 11])))


def encode_varint(number: int, padding: int = 0) -> bytes:
    out = bytearray()
    while number > 0x7F or padding:
        padding -= number <= 0x7F
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


odd_texts = st.sampled_from(
    [
        b"",
        b"a",
        b"abc",
        "é日本".encode(),
        b"a\0b",
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        bytes(32),
    ]
)
NUMBERS = (1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 20, 21, 31)


@st.composite
def fields(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Any field: of any wire type, repeated, unknown, with a false length, a group closed by another one's end."""
    number = draw(st.sampled_from(NUMBERS * 3 + (0, 8, 15, 16, 100, 2**29 - 1, 2**29, 2**40)))
    wire = draw(st.sampled_from([0, 0, 1, 2, 2, 2, 2, 3, 4, 5, 6]))
    tag = encode_varint(number << 3 | wire, draw(st.sampled_from([0] * 9 + [1, 2, 5])))
    if wire == 0:
        return tag + draw(varints())
    if wire == 2:
        inner = b"".join(draw(st.lists(fields(depth + 1), max_size=3))) if depth < 2 else b""
        value = draw(odd_texts) if draw(st.booleans()) else inner
        wrong = draw(st.sampled_from([0] * 20 + [-1, 1, 100, 2**32]))
        return tag + encode_varint(max(0, len(value) + wrong), draw(st.sampled_from([0] * 9 + [1, 4]))) + value
    if wire == 3:
        inner = b"".join(draw(st.lists(fields(depth + 1), max_size=2))) if depth < 3 else b""
        return (
            tag
            + inner
            + (encode_varint((number + draw(st.sampled_from([0, 0, 0, 1]))) << 3 | 4) if draw(st.booleans()) else b"")
        )
    return tag + draw(st.binary(min_size=8, max_size=8))[: {1: 8, 5: 4}.get(wire, 0)]


@st.composite
def mixed(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes, with fields before or after them, or cut short."""
    parts = [draw(whole)]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        parts.insert(draw(st.integers(0, len(parts))), draw(fields()))
    data = b"".join(parts)
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 19)) == 0 else data


def payloads(family: WireFamily) -> st.SearchStrategy[bytes]:
    valid = inputs.sds_bytes(family)
    return st.one_of(valid, valid, mixed(valid), st.lists(fields(), max_size=5).map(b"".join))


def envelopes() -> st.SearchStrategy[bytes]:
    payload = st.one_of(payloads(WireFamily.SPEC), payloads(WireFamily.NIM))
    valid = st.builds(
        lambda *given: encode_waku_message(WakuMessage(*given)),
        payload,
        st.sampled_from([SPEC, NIM, AUTO, AUTO, V01, LIP243, SEALED, ELSEWHERE, ""]),
        st.sampled_from([None, 0, 2**32 - 1]),
        st.sampled_from([None, 0, -1, -(2**63), 2**63 - 1, AT_US * 1000]),
        st.sampled_from([None, b"", b"m" * 64, b"m" * 65]),
        st.sampled_from([None, b"", b"proof"]),
        st.sampled_from([None, False, True]),
    )
    return st.one_of(valid, valid, valid, mixed(valid), inputs.broken(valid))


records = st.tuples(
    st.one_of(envelopes(), envelopes(), envelopes(), st.none(), st.binary(max_size=20)),
    st.sampled_from([PUBSUB.encode()] * 9 + ["/é".encode(), b"", None, b"\xff", b"p" * 600]),
    st.sampled_from([b"relay"] * 6 + [b"store", b"sender", b"nobody", b"", None, b"\xff"]),
    st.sampled_from([AT_US] * 5 + [0, -1, -(10**15), 2**62]),
)


@given(st.lists(records, max_size=40))
def test_both_give_the_same_rows(given: list[Record]) -> None:
    check(given)


# ---- one at a time -----------------------------------------------------------------------------------------------


def record(message: SdsMessage, topic: str = SPEC, **changes: Any) -> Record:
    family = WireFamily.NIM if topic in (NIM, AUTO_NIM) else WireFamily.SPEC
    envelope = WakuMessage(encode_sds_message(message, family), topic, timestamp=AT_US * 1000, **changes)
    return encode_waku_message(envelope), PUBSUB.encode(), b"relay", AT_US


def message(**changes: Any) -> SdsMessage:
    given = {"sender_id": "alice", "message_id": "m", "channel_id": "talk", "lamport_timestamp": inputs.START_MS}
    return SdsMessage(**{**given, "content": b"hello", **changes})


WRAPPED = [
    content
    for dialect in Dialect
    for payload in (b"whole", b"whole" * 100)
    for content in contents_for(payload, replace(inputs.SEGMENTS, dialect=dialect, segment_size_bytes=192))
]


def usual(number: int) -> Record:
    """What honest senders send."""
    content = b"content %d" % number
    made = sds_message_id("alice", inputs.START_MS, content) if number % 2 else js_message_id(content)
    return record(message(message_id=made, content=content, causal_history=(HistoryEntry("a", b"h" * 32, "bob"),)))


@pytest.mark.parametrize("topic", [SPEC, NIM, AUTO, AUTO_NIM, V01, ELSEWHERE])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"content": None},
        {"lamport_timestamp": None},
        {"bloom_filter": b"f" * 100},
        {"causal_history": (HistoryEntry("a"), HistoryEntry("b", b"", ""), HistoryEntry("c", b"h", "s"))},
        {"repair_request": (HistoryEntry("a", b"h", "s"),)},
        *({"content": content} for content in contents_for(b"whole" * 50, inputs.SEGMENTS)),
    ],
)
def test_usual_records_need_no_judge(topic: str, changes: dict[str, Any]) -> None:
    batch = [record(message(**changes), topic)] * 3
    check(batch)
    assert by_columns(batch) == 3


@pytest.mark.parametrize("topic", [SPEC, NIM, AUTO, AUTO_NIM, LIP243])
@pytest.mark.parametrize(
    "changes",
    [
        *({"content": each, "lamport_timestamp": lamport} for each in WRAPPED for lamport in (None, inputs.START_MS)),
        *(
            {name: text}
            for name in ("sender_id", "message_id", "channel_id")
            for text in ("", "é" * 1_024, "i" * 1_025)
        ),
        *(
            {name: (HistoryEntry("a" * size),)}
            for name in ("causal_history", "repair_request")
            for size in (1_024, 1_025)
        ),
        *({"causal_history": (HistoryEntry("a", b"h" * size),)} for size in (1_024, 1_025)),
        *({"causal_history": (HistoryEntry("a", None, "s" * size),)} for size in (1_024, 1_025)),
        {"causal_history": (HistoryEntry(""),) * MAX_HISTORY_ENTRIES},
        {"repair_request": (HistoryEntry(""),) * (MAX_HISTORY_ENTRIES + 1)},
        *({"lamport_timestamp": inputs.START_MS + LAMPORT_MAX_AHEAD_MS + more} for more in (0, 1)),
        {"lamport_timestamp": 0},
        {"lamport_timestamp": 2**64 - 1},
        {"lamport_timestamp": None, "content": None},
        {"content": b""},
        {"bloom_filter": b""},
        {"content": b"c" * MAX_COLUMN_BYTES},
    ],
)
def test_limits_are_those_of_the_judge(topic: str, changes: dict[str, Any]) -> None:
    check([usual(1), record(message(**changes), topic), usual(2)])


@pytest.mark.parametrize("topic", [NIM, AUTO_NIM])
def test_a_history_of_ids_is_left_to_the_judge(topic: str) -> None:
    ids = sds_pb2.NimIdsMessage(message_id="m", lamport_timestamp=1, channel_id="talk", content=b"x", sender_id="alice")
    ids.causal_history.extend([js_message_id(b"a"), js_message_id(b"b")])
    ids.causal_history_entries.add(message_id=js_message_id(b"b"), retrieval_hint=b"h" * 32)
    wire = encode_waku_message(WakuMessage(ids.SerializeToString(), topic, timestamp=AT_US * 1000))
    check([usual(1), (wire, PUBSUB.encode(), b"relay", AT_US), record(message(), topic)])
    row = RecordDecoder(CHANNELS).decode(wire, PUBSUB.encode(), b"relay", AT_US)
    assert row.causal_history == (HistoryEntry(js_message_id(b"a")), HistoryEntry(js_message_id(b"b"), b"h" * 32))


def test_one_malformed_record_leaves_only_its_neighbours_to_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    class Counting:
        def array_to_record_batch(self, data: pa.Array) -> pa.RecordBatch:
            nonlocal read
            read += len(data)
            return handler.array_to_record_batch(data)

        def record_batch_to_array(self, batch: pa.RecordBatch) -> pa.Array:
            return handler.record_batch_to_array(batch)

    handler = decode_columns._ENVELOPES
    monkeypatch.setattr(decode_columns, "_ENVELOPES", Counting())
    batch = [usual(number) for number in range(1_024)]
    batch[700] = (b"\xff", *batch[700][1:])
    check(batch)
    read = 0
    assert len(batch) - by_columns(batch) <= SMALLEST_SPLIT
    assert read <= 3 * len(batch)
    read = 0
    assert by_columns([batch[700]] * 1_024) == 0
    assert read <= len(batch) * 7, "halved down to the smallest split, then left to the judge"


ODD_FIELDS = {
    "unknown field": "480178",
    "a text again": "0a03626f62",
    "a number again": "5001",
    "history again": "5a030a0161",
    "empty text": "1200",
    "tag in seven bytes": "e2808080800000",
    "tag beyond 32 bits": "82808080100166",
    "length in three bytes": "0a818000" + "61",
    "number beyond 64 bits": "50ffffffffffffffffff7f",
    "number in eleven bytes": "5080808080808080808080" + "00",
    "wrong wire type": "0801",
    "group": "7b7c",
    "group closed by another": "0b14",
    "group in a group closed by another": "7b83018c017c7b83017c8401",
    "open group": "7b",
    "end of no group": "7c",
    "field 0": "0001",
    "field 0 in a group": "7b00017c",
    "deep groups": "7b" * 99 + "7c" * 99,
    "deeper groups": "7b" * 150 + "7c" * 150,
    "no UTF-8": "0a01ff",
    "surrogate": "0a03eda080",
    "wire type 7": "0f",
    "cut": "0a05",
}


@pytest.mark.parametrize("field", ODD_FIELDS.values(), ids=ODD_FIELDS.keys())
@pytest.mark.parametrize("family", WireFamily)
def test_odd_bytes_are_left_to_the_judge(family: WireFamily, field: str) -> None:
    topic = NIM if family is WireFamily.NIM else SPEC
    payload, odd = encode_sds_message(message(), family), bytes.fromhex(field)
    batch = []
    for inside in (payload + odd, odd + payload):
        batch.append(encode_waku_message(WakuMessage(inside, topic)))
    whole = encode_waku_message(WakuMessage(payload, topic))
    batch += [whole + odd, odd + whole]
    check([(each, PUBSUB.encode(), b"relay", AT_US) for each in batch])


def test_the_deepest_record_fits_a_small_stack() -> None:
    """ptars descends into groups without a limit; without our bound this ends the process."""
    program = f"""
import threading
from tests.unit.pipeline import test_decode_columns as t
deep = b"\\x7b" * {MAX_COLUMN_BYTES}
envelope = t.encode_waku_message(t.WakuMessage(b"", t.SPEC, timestamp=1))
inside = t.encode_waku_message(t.WakuMessage(deep[: len(deep) - len(envelope) - 4], t.SPEC, timestamp=1))
assert len(inside) <= len(deep)
batch = [(each, t.PUBSUB.encode(), b"relay", t.AT_US) for each in (deep, inside)]
threading.stack_size(1 << 20)
done = []
thread = threading.Thread(target=lambda: done.append(t.check(batch)))
thread.start()
thread.join()
assert done == [None]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
