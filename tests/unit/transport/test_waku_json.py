"""What nodes write, in all its forms; and hostile answers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.http.client import HttpResponse
from reliable_channel.transport.recent import RecentHashes
from reliable_channel.transport.sharding import Autosharding
from reliable_channel.transport.waku_api import _read_lightpush, _read_lightpush_failure, _read_publish_failure
from reliable_channel.transport.waku_json import (
    hash_from_text,
    hash_to_hex,
    hash_to_urlsafe,
    message_from_json,
    message_to_json,
)

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "waku_rest.json").read_text())
INT64 = st.integers(-(2**63), 2**63 - 1)
messages = st.builds(
    WakuMessage,
    st.binary(max_size=50),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | INT64,
    st.none() | st.binary(min_size=1, max_size=64),
    st.none(),
    st.none() | st.booleans(),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(messages)
def test_a_message_survives_the_way_there_and_back(message: WakuMessage) -> None:
    assert message_from_json(json.loads(json.dumps(message_to_json(message)))) == message


@given(messages, st.booleans(), st.booleans())
def test_times_as_text_and_url_safe_base64_without_padding_are_read(
    message: WakuMessage, as_text: bool, url_safe: bool
) -> None:
    body = message_to_json(message)
    if as_text and message.timestamp is not None:
        body["timestamp"] = str(message.timestamp)
    if url_safe:
        body["payload"] = base64.urlsafe_b64encode(message.payload).decode().rstrip("=")
    assert message_from_json(body) == message


FIELDS = ["payload", "contentTopic", "timestamp", "version", "meta", "ephemeral", "proof"]


@given(st.dictionaries(st.sampled_from(FIELDS), anything) | anything)
def test_nothing_a_node_says_raises(value: Any) -> None:
    found = message_from_json(value)
    assert isinstance(found, WakuMessage | Malformed)
    if isinstance(found, WakuMessage):
        message_hash("/waku/2/rs/16/32", found)


def test_the_recorded_messages_have_the_recorded_hashes() -> None:
    checked = 0
    for recording in (r for r in VECTORS["gowaku"] if "message_hashes" in r):
        for body, expected in zip(recording["response"], recording["message_hashes"], strict=True):
            message = message_from_json(body)
            assert isinstance(message, WakuMessage)
            assert hash_to_hex(message_hash("/waku/2/rs/16/32", message)) == expected
            checked += 1
    assert checked == 7


@given(st.binary(min_size=32, max_size=32))
def test_a_hash_is_read_in_every_form(found: bytes) -> None:
    forms = [
        hash_to_hex(found),
        found.hex(),
        hash_to_urlsafe(found),
        base64.b64encode(found).decode(),
        hash_to_urlsafe(found).rstrip("="),
    ]
    assert [hash_from_text(form) for form in forms] == [found] * 5


@pytest.mark.parametrize("text", [None, 3, "", "0x", "0x12", "x" * 64, "é" * 64, "ab" * 31 + "  ", "A" * 10_000])
def test_what_is_no_hash_is_none(text: Any) -> None:
    assert hash_from_text(text) is None


@pytest.mark.parametrize(
    ("recording", "reason"),
    [
        ("relay publish, bad base64", FailureReason.REFUSED),
        ("relay publish, no payload", FailureReason.REFUSED),
        ("relay publish, topic not joined", FailureReason.UNREACHABLE),
        ("auto publish, no peer on that shard", FailureReason.NO_PEERS),
        ("meta of 65 bytes", FailureReason.REFUSED),
        ("lightpush at once again", FailureReason.RATE_LIMITED),
        ("lightpush, too large", FailureReason.TOO_LARGE),
        ("lightpush without pubsub topic", FailureReason.NO_PEERS),
        ("lightpush without payload", FailureReason.REFUSED),
        ("relay publish, topic not subscribed", FailureReason.REFUSED),
        ("relay publish, message over 150 KiB", FailureReason.TOO_LARGE),
        ("lightpush v1, no peers, or a duplicate", FailureReason.NO_PEERS),
        ("lightpush v1, empty payload", FailureReason.REFUSED),
        ("lightpush v1, rate limit", FailureReason.RATE_LIMITED),
    ],
)
def test_a_recorded_refusal_has_its_reason(recording: str, reason: FailureReason) -> None:
    found = next(r for r in [*VECTORS["gowaku"], *VECTORS["nwaku_documented"]] if r["name"] == recording)
    text = found.get("response", found.get("response_startswith", ""))
    published = _read_publish_failure(HttpResponse(found["status"], str(text).encode()))
    assert published.reason is reason


@pytest.mark.parametrize(
    ("status", "detail", "reason"),
    [
        (400, "Invalid push request", FailureReason.REFUSED),
        (413, "", FailureReason.TOO_LARGE),
        (420, "invalid message", FailureReason.REFUSED),
        (420, "duplicate message", FailureReason.DUPLICATE),
        (500, "Duplicate", FailureReason.DUPLICATE),
        (421, "", FailureReason.REFUSED),
        (429, "", FailureReason.RATE_LIMITED),
        (500, "", FailureReason.UNREACHABLE),
        (503, "", FailureReason.NO_PEERS),
        (504, "", FailureReason.UNREACHABLE),
        (505, "No peers for topic, skipping publish", FailureReason.NO_PEERS),
    ],
)
def test_a_protocol_code_of_lightpush_v3_has_its_reason(status: int, detail: str, reason: FailureReason) -> None:
    assert _read_lightpush_failure(status, detail).reason is reason


def test_a_push_that_reached_no_relay_peer_is_no_success() -> None:
    assert _read_lightpush(HttpResponse(200, b'{"relayPeerCount": 0}')).reason is FailureReason.NO_PEERS
    assert _read_lightpush(HttpResponse(200, b'{"relayPeerCount": 2}')).reason is None


def test_the_words_of_a_service_node_are_short_and_printable() -> None:
    words = "\x1b]0;owned\x07\n" + "x" * 5_000
    answer = json.dumps({"statusDesc": words, "statusCode": 505}).encode()
    pushed = _read_lightpush(HttpResponse(200, answer))
    assert pushed.reason is FailureReason.NO_PEERS
    for said in (
        pushed,
        _read_publish_failure(HttpResponse(500, answer)),
        _read_publish_failure(HttpResponse(500, words.encode())),
    ):
        assert said.detail.isprintable()
        assert said.detail.startswith(r"\x1b]0;owned\x07\nxxx")
        assert len(said.detail) < 400


def test_autosharding_is_that_of_the_recording() -> None:
    assert Autosharding(1).topic_for("/app/1/golden/proto") == "/waku/2/rs/1/4"
    assert Autosharding(1).topic_for("/0/app/1/golden/proto") == "/waku/2/rs/1/4"


@pytest.mark.parametrize("topic", ["", "x", "/a/1/b", "a/1/b/c", "//1/b/c", "/1/a/1/b/c"])
def test_a_content_topic_without_a_shard_is_refused(topic: str) -> None:
    with pytest.raises(LocalError):
        Autosharding(1).topic_for(topic)


@given(st.lists(st.integers(0, 20)))
def test_the_memory_of_hashes_is_bounded_and_knows_the_newest(numbers: list[int]) -> None:
    recent = RecentHashes(capacity=5)
    for number in numbers:
        recent.add(bytes([number]))
    assert len(recent) <= 5
    newest = list(dict.fromkeys(reversed(numbers)))[:5]
    assert all(bytes([number]) in recent for number in newest)
    assert recent.list_newest(3) == [bytes([n]) for n in reversed(newest[:3])]
