"""Waku envelopes and their hash (14/WAKU2-MESSAGE)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire._pb.waku_message_pb2 import WakuMessage as WakuMessageProto
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.waku import (
    MAX_META_BYTES,
    WakuMessage,
    decode_waku_message,
    encode_waku_message,
    message_hash,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "waku_message_hash.json").read_text())["vectors"]

envelopes = st.builds(
    WakuMessage,
    payload=st.binary(max_size=100),
    content_topic=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
    version=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    timestamp=st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    meta=st.one_of(st.none(), st.binary(max_size=MAX_META_BYTES)),
    rate_limit_proof=st.one_of(st.none(), st.binary(max_size=20)),
    ephemeral=st.one_of(st.none(), st.booleans()),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_hash_is_that_of_the_specification(vector: dict) -> None:
    message = WakuMessage(
        payload=bytes.fromhex(vector["payload"]),
        content_topic=vector["content_topic"],
        timestamp=vector["timestamp"],
        meta=None if vector["meta"] is None else bytes.fromhex(vector["meta"]),
    )
    assert message_hash(vector["pubsub_topic"], message).hex() == vector["hash"]


def test_an_absent_timestamp_is_left_out_of_the_hash() -> None:
    without = message_hash("t", WakuMessage(b"p", "c"))
    assert without != message_hash("t", WakuMessage(b"p", "c", timestamp=0))


@given(envelopes)
def test_an_envelope_round_trips(message: WakuMessage) -> None:
    assert decode_waku_message(encode_waku_message(message)) == message


@given(envelopes, st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 140_000]))
def test_an_envelope_is_the_bytes_that_protobuf_writes(message: WakuMessage, size: int) -> None:
    data = encode_waku_message(replace(message, payload=bytes(size)))
    assert WakuMessageProto.FromString(data).SerializeToString() == data
    assert len(WakuMessageProto.FromString(data).payload) == size


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, Reason.NULL_VALUE),
        (b"\x0a\xff", Reason.MALFORMED_ENVELOPE),
        (b"", Reason.EMPTY_CONTENT_TOPIC),
        (encode_waku_message(WakuMessage(b"", "c", meta=bytes(MAX_META_BYTES + 1))), Reason.META_TOO_LONG),
    ],
)
def test_bytes_that_are_no_envelope_are_refused_with_a_reason(data: bytes | None, reason: Reason) -> None:
    refused = decode_waku_message(data)
    assert isinstance(refused, Malformed)
    assert refused.reason is reason


def test_unknown_fields_are_ignored() -> None:
    message = WakuMessage(b"payload", "/app/1/chat/proto")
    assert decode_waku_message(encode_waku_message(message) + b"\xf8\x07\x01") == message


@given(st.binary(max_size=200))
def test_any_bytes_give_an_envelope_or_a_reason(data: bytes) -> None:
    assert isinstance(decode_waku_message(data), WakuMessage | Malformed)
