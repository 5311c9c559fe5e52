"""SDS messages on the wire (LIP-109), against bytes that js-waku wrote."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reliable_channel.core.wire._pb import sds_pb2 as pb
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import (
    MAX_HISTORY_ENTRIES,
    MAX_ID_CHARACTERS,
    HistoryEntry,
    HistoryLayout,
    SdsKind,
    SdsMessage,
    WireFamily,
    decode_in_families,
    decode_sds_message,
    encode_sds_message,
)

WIRES = json.loads((Path(__file__).parents[1] / "vectors" / "sds_wire.json").read_text())["wires"]
LAYOUTS = [
    (WireFamily.SPEC, HistoryLayout.ENTRIES, pb.SpecMessage),
    (WireFamily.NIM, HistoryLayout.ENTRIES, pb.NimMessage),
    (WireFamily.NIM, HistoryLayout.IDS, pb.NimIdsMessage),
]
CORPUS = sorted((Path(__file__).parent / "sds" / "corpus").glob("*.bin"))


def field_bytes(value: object) -> bytes | None:
    """A byte field of the vectors: hex, or compressed."""
    if value is None:
        return None
    if isinstance(value, str):
        return bytes.fromhex(value)
    assert isinstance(value, dict)
    if "hex" in value:
        return bytes.fromhex(value["hex"])
    data = gzip.decompress(base64.b64decode(value["gz"]))
    assert hashlib.sha256(data).hexdigest() == value["sha256"]
    return data


def entries_of(value: list[dict]) -> tuple[HistoryEntry, ...]:
    return tuple(
        HistoryEntry(entry["messageId"], field_bytes(entry.get("retrievalHint")), entry.get("senderId"))
        for entry in value
    )


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire["name"])
def test_a_message_of_js_waku_is_read_and_written_byte_for_byte(wire: dict) -> None:
    data = field_bytes(wire)
    assert data is not None
    assert (len(data), hashlib.sha256(data).hexdigest()) == (wire["len"], wire["sha256"])
    decoded = decode_sds_message(data)
    fields = wire["fields"]
    assert decoded == SdsMessage(
        sender_id=fields["senderId"],
        message_id=fields["messageId"],
        channel_id=fields["channelId"],
        lamport_timestamp=None if fields.get("lamportTimestamp") is None else int(fields["lamportTimestamp"]),
        causal_history=entries_of(fields["causalHistory"]),
        bloom_filter=field_bytes(fields.get("bloomFilter")),
        repair_request=entries_of(fields["repairRequest"]),
        content=field_bytes(fields.get("content")),
    )
    assert decoded.kind == SdsKind(wire["kind"])
    assert wire["canonical"]
    assert encode_sds_message(decoded) == data


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
some_bytes = st.one_of(st.none(), st.binary(min_size=1, max_size=64))
history = st.lists(st.builds(HistoryEntry, texts, some_bytes, st.one_of(st.none(), texts)), max_size=4).map(tuple)
valid_messages = st.builds(
    SdsMessage,
    sender_id=texts,
    message_id=texts,
    channel_id=texts,
    lamport_timestamp=st.one_of(st.none(), st.integers(1, 2**64 - 1)),
    causal_history=history,
    bloom_filter=some_bytes,
    repair_request=history,
    content=some_bytes,
).filter(lambda message: message.kind is not None)


@given(valid_messages)
def test_the_spec_family_round_trips(message: SdsMessage) -> None:
    assert decode_sds_message(encode_sds_message(message)) == message


@given(valid_messages)
def test_the_nim_family_round_trips_and_tells_the_same_kind(message: SdsMessage) -> None:
    decoded = decode_sds_message(encode_sds_message(message, WireFamily.NIM), WireFamily.NIM)
    assert isinstance(decoded, SdsMessage)
    assert decoded.kind == message.kind
    assert (decoded.lamport_timestamp, decoded.content or None) == (message.lamport_timestamp, message.content)
    assert (decoded.causal_history, decoded.repair_request) == (message.causal_history, message.repair_request)


def test_a_history_of_ids_is_read_with_what_the_message_says_of_them() -> None:
    """The bytes are those of nim-sds' own test of its layout."""
    data = bytes.fromhex(
        "0a06307866656564" + "1003" + "1a053078616161" + "1a053078626262" + "220930786368616e6e656c" + "2a0101"
        "42160a053078616161" + "1203010203" + "1a08" + b"0xsender".hex()
    )
    history = (HistoryEntry("0xaaa", b"\1\2\3", "0xsender"), HistoryEntry("0xbbb"))
    message = SdsMessage("", "0xfeed", "0xchannel", 3, history, content=b"\1")
    assert decode_sds_message(data, WireFamily.NIM) == message
    written = encode_sds_message(message, WireFamily.NIM, HistoryLayout.IDS)
    assert written == data.replace(b"\x2a\1\1", b"\x2a\1\1\x32\0"), "the filter is written though it is empty"


printable = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=80)
histories_of_ids = st.lists(
    st.builds(HistoryEntry, printable, some_bytes, st.one_of(st.none(), texts)),
    max_size=4,
    unique_by=lambda entry: entry.message_id,
).map(tuple)


@given(valid_messages, histories_of_ids)
@example(SdsMessage("s", "m", "c", 1), (HistoryEntry("0a0161"), HistoryEntry("\N{HAIR SPACE}" * 3)))
def test_a_history_of_ids_and_one_of_entries_are_read_alike(
    message: SdsMessage, history: tuple[HistoryEntry, ...]
) -> None:
    message = replace(message, causal_history=history)
    for layout in HistoryLayout:
        data = encode_sds_message(message, WireFamily.NIM, layout)
        assert decode_in_families(data, list(WireFamily)) == (
            WireFamily.NIM,
            replace(message, content=message.content or b""),
        )


@pytest.mark.parametrize("part", ["causal_history", "repair_request"])
def test_an_entry_without_an_id_is_refused_in_the_nim_family_as_nim_sds_does(part: str) -> None:
    message = replace(SdsMessage("s", "m", "c", 1, content=b"x"), **{part: (HistoryEntry(""),)})
    for layout in HistoryLayout:
        refused = decode_sds_message(encode_sds_message(message, WireFamily.NIM, layout), WireFamily.NIM)
        assert isinstance(refused, Malformed)
        assert refused.reason is Reason.MALFORMED_SDS


@pytest.mark.parametrize("family", WireFamily)
def test_a_message_is_read_in_the_family_that_it_has(family: WireFamily) -> None:
    message = SdsMessage("alice", "id", "talk", 7, (HistoryEntry("before"),), b"filter", (), b"content")
    data = encode_sds_message(message, family)
    assert decode_in_families(data, [family]) == (family, decode_sds_message(data, family))
    assert decode_in_families(data, list(WireFamily)) == (family, decode_sds_message(data, family))


@pytest.mark.parametrize("family", WireFamily)
def test_what_no_family_can_read_has_the_reason_of_the_one_that_read_most(family: WireFamily) -> None:
    data = encode_sds_message(SdsMessage("alice", "", "talk", 7, (HistoryEntry("x"),), None, (), b"content"), family)
    refused = decode_in_families(data, [family])
    assert isinstance(refused, Malformed)
    assert decode_in_families(data, list(WireFamily)) == refused


@given(valid_messages, st.sampled_from([None, 0, 1, 127, 128, 16_384]), st.sampled_from(LAYOUTS))
def test_a_message_is_the_bytes_that_protobuf_writes(
    message: SdsMessage, size: int | None, written: tuple[WireFamily, HistoryLayout, type[Any]]
) -> None:
    family, layout, kind = written
    content = None if size is None else bytes(size)
    data = encode_sds_message(replace(message, content=content), family, layout)
    proto = kind.FromString(data)
    assert proto.SerializeToString() == data
    assert proto.content == (content or b"")
    assert proto.HasField("content") == (content is not None or family is WireFamily.NIM)
    assert proto.bloom_filter == (message.bloom_filter or b"")


def test_nim_always_writes_its_five_fields() -> None:
    data = encode_sds_message(SdsMessage("s", "m", "c", content=b"x"), WireFamily.NIM)
    proto = pb.NimMessage.FromString(data)
    assert proto.HasField("lamport_timestamp")
    assert proto.HasField("bloom_filter")
    assert proto.HasField("content")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.SpecMessage(sender_id="s", channel_id="c", lamport_timestamp=1), Reason.SDS_WITHOUT_ID),
        (pb.SpecMessage(message_id="m", channel_id="c", lamport_timestamp=1), Reason.SDS_WITHOUT_ID),
        (pb.SpecMessage(sender_id="s", message_id="m", lamport_timestamp=1), Reason.SDS_WITHOUT_CHANNEL),
        (pb.SpecMessage(sender_id="s", message_id="m", channel_id="c"), Reason.SDS_INVALID_KIND),
        (
            pb.SpecMessage(sender_id="s" * (MAX_ID_CHARACTERS + 1), message_id="m", channel_id="c"),
            Reason.MALFORMED_SDS,
        ),
        (
            pb.SpecMessage(
                sender_id="s",
                message_id="m",
                channel_id="c",
                lamport_timestamp=1,
                causal_history=[pb.HistoryEntry(message_id="d")] * (MAX_HISTORY_ENTRIES + 1),
            ),
            Reason.SDS_HISTORY_TOO_LONG,
        ),
    ],
)
def test_an_invalid_message_is_refused_with_its_reason(message: pb.SpecMessage, reason: Reason) -> None:
    refused = decode_sds_message(message.SerializeToString())
    assert isinstance(refused, Malformed)
    assert refused.reason is reason


@pytest.mark.parametrize("family", list(WireFamily))
@given(data=st.binary(max_size=300))
@example(data=b"\x0a\xff")
def test_any_bytes_give_a_message_or_a_reason(family: WireFamily, data: bytes) -> None:
    assert isinstance(decode_sds_message(data, family), SdsMessage | Malformed)


@given(valid_messages, st.data())
def test_a_damaged_message_gives_a_message_or_a_reason(message: SdsMessage, data: st.DataObject) -> None:
    wire = bytearray(encode_sds_message(message))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(decode_sds_message(bytes(wire)), SdsMessage | Malformed)


@pytest.mark.parametrize("family", list(WireFamily))
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_corpus_gives_a_message_or_a_reason(path: Path, family: WireFamily) -> None:
    assert isinstance(decode_sds_message(path.read_bytes(), family), SdsMessage | Malformed)
    assert CORPUS
