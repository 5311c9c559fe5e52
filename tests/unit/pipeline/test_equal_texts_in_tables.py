"""Equal texts of two js-waku users reach the tables as two messages; a conflict is decided by what ingest found."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.hashing import content_message_id, js_message_id, sds_message_id
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import Dialect
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from tests.support.adapters import Adapters

T0 = 1_767_225_600_000
TOPIC = "/reliable-channel/1/chat/proto"
HEADERS = {"pubsub_topic": b"/waku/2/rs/1/0", "source": b"relay"}


def record(sender: str, content: bytes, lamport: int, message_id: str | None = None) -> bytes:
    message = SdsMessage(sender, message_id or js_message_id(content), "talk", lamport, content=content)
    return encode_waku_message(WakuMessage(encode_sds_message(message), TOPIC, timestamp=lamport * 10**6))


def delivered(records: list[bytes]) -> tuple[list[tuple[str, bytes | None]], list[str]]:
    """Sender and payload of each message, and the channel events."""
    adapters = Adapters()
    for offset, value in enumerate(records):
        adapters.record(offset, value, HEADERS, T0 + 100 + offset)
    found = adapters.close(T0 + 3_600_000)
    events = [fields for table, fields in adapters.outputs if table == "channel_events"]
    return [(row.sender, row.payload) for row in found.messages], events


@pytest.mark.parametrize("make_id", [js_message_id, content_message_id], ids=["js-waku", "LIP-173"])
def test_five_records_each_of_three_equal_texts_are_three_messages_without_a_conflict(
    make_id: Callable[[bytes], str],
) -> None:
    sends = [record(name, b"ok", T0 + n, make_id(b"ok")) for n, name in enumerate(("bob", "carol", "bob"))]
    messages, events = delivered(sends * 5)
    assert messages == [("bob", b"ok"), ("carol", b"ok"), ("bob", b"ok")]
    assert events == []


@pytest.mark.parametrize("make_id", [js_message_id, content_message_id], ids=["js-waku", "LIP-173"])
@pytest.mark.parametrize(
    ("payload", "dialect", "parts"),
    [
        pytest.param(b"ok", Dialect.LIP243, 1, id="wrapped"),
        pytest.param(bytes(range(200)), Dialect.V01, 4, id="four segments"),
        pytest.param(bytes(range(200)), Dialect.LIP243, 4, id="four wrapped segments"),
    ],
)
@pytest.mark.parametrize("copies", [1, 3])
def test_a_payload_that_is_sent_again_in_segments_with_the_same_ids_is_delivered_again(
    copies: int, payload: bytes, dialect: Dialect, parts: int, make_id: Callable[[bytes], str]
) -> None:
    contents = contents_for(payload, SegmentationConfig(segment_size_bytes=64, dialect=dialect))
    assert len(contents) == parts
    sends = [
        [record(name, content, T0 + at + n, make_id(content)) for n, content in enumerate(contents)]
        for name, at in (("bob", 0), ("carol", 10), ("bob", 20), ("bob", 30))
    ]
    messages, events = delivered([each for send in sends for each in send * copies] + [*chain(*sends)])
    assert messages == [(name, payload) for name in ("bob", "carol", "bob", "bob")]
    assert events == []


@pytest.mark.parametrize("message_id", [js_message_id(b"truth"), sds_message_id("bob", T0, b"truth")])
@given(order=st.permutations([0, 0, 0, 1, 1, 1]))
def test_the_message_whose_id_is_recomputed_stands_in_any_order(message_id: str, order: list[int]) -> None:
    records = [record("bob", b"truth", T0, message_id), record("mallory", b"lie", T0, message_id)]
    messages, events = delivered([records[number] for number in order])
    senders = [sender for sender, _ in messages]
    assert senders == (["bob"] if order[0] == 0 else ["mallory", "bob"])
    assert events, "a conflict is told"
