"""The fake node answers as the recordings do: otherwise tests against it prove nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reliable_channel.core.wire.waku import WakuMessage, message_hash
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "waku_rest.json").read_text())
TOPIC = "/app/1/golden/proto"
HTTP = httpx.Client(trust_env=False, verify=False)  # noqa: S501 — loopback, and no TLS
BASE = 1795254432521844140
META = b"RELIABLE-CHANNEL-API/1"

NEEDS_A_REAL_NETWORK = {
    "info": "the recorded ENR and addresses",
    "peers": "the recorded peers",
    "store v3, the chosen peer lacks it": "a peer without the protocol",
    "auto publish, no peer on that shard": "autosharding is not in the fake",
    "auto read, empty": "autosharding is not in the fake",
    "auto subscribe, malformed content topic": "autosharding is not in the fake",
    "auto read, not subscribed": "autosharding is not in the fake",
    "filter ping within a second of the subscribe": "the service's rate limit",
    "lightpush at once again": "the service's rate limit",
    "add peer, malformed address": "adding peers is not in the fake",
    "store v3: hash as 0x-hex": "Go's own text of a parser error",
    "store v3: hash in standard base64": "Go's own text of a parser error",
    "store v3: ascending not boolean": "Go's own text of a parser error",
    "store v3: pageSize negative": "Go's own text of a parser error",
    "store v3: startTime not a number": "Go's own text of a parser error",
    "store v3: includeData not boolean": "Go's own text of a parser error",
    "store v3: peerAddr malformed": "Go's own text of a parser error",
    "store v1: bad startTime": "Go's own text of a parser error",
    "store v1: backward page": "the archive of the second run",
    "store v1: first page": "the archive of the second run",
    "store v1: next page, digest url-safe": "the archive of the second run",
    "store v1: time range": "the archive of the second run",
    "store v1, first page": "the archive of an earlier run",
}


def _body(recording: dict[str, Any]) -> bytes | None:
    if "raw_body" in recording:
        return str(recording["raw_body"]).encode()
    if "body" not in recording:
        return None
    text = json.dumps(recording["body"])
    for size in (149_000, 150_000, 153_600, 65):
        text = text.replace(f"(base64 of {size} bytes)", base64.b64encode(bytes(size)).decode())
    if '"(a list of 101 different topics)"' in text:
        text = text.replace('"(a list of 101 different topics)"', json.dumps([f"/app/1/{n}/proto" for n in range(101)]))
    return text.encode()


def _ask(node: FakeWakuNode, recording: dict[str, Any]) -> httpx.Response:
    return HTTP.request(
        recording["method"],
        node.url + recording["path"],
        params=recording.get("query"),
        content=_body(recording),
        headers={"Content-Type": "application/json"},
    )


@pytest.fixture
def go_waku() -> Iterator[FakeWakuNode]:
    with FakeWakuNode("go-waku") as node:
        yield node


def _prepare(node: FakeWakuNode, name: str) -> None:
    """The state in which a recording was made."""
    if name.startswith(("relay read, empty", "relay read after")) or name in ("relay read", "read of the four"):
        HTTP.post(node.url + "/relay/v1/subscriptions", json=[PUBSUB_TOPIC])
    if name == "relay read after unsubscribing" or name == "relay unsubscribe":
        HTTP.post(node.url + "/relay/v1/subscriptions", json=[PUBSUB_TOPIC])
    if name == "relay read after unsubscribing":
        HTTP.request("DELETE", node.url + "/relay/v1/subscriptions", json=[PUBSUB_TOPIC])
    if name == "relay read":
        for n in range(5):
            node.network.publish(PUBSUB_TOPIC, WakuMessage(b"message %d" % n, TOPIC, None, BASE + n, META))
        node.network.publish(PUBSUB_TOPIC, WakuMessage(b"ephemeral", TOPIC, timestamp=BASE + 9, ephemeral=True))
    if name == "read of the four":
        second = 1795255683868517533
        node.network.publish(PUBSUB_TOPIC, WakuMessage(b"no timestamp", TOPIC))
        node.network.publish(PUBSUB_TOPIC, WakuMessage(b"version", TOPIC, 2, second))
        node.network.publish(PUBSUB_TOPIC, WakuMessage(b"unknown field", TOPIC, None, second + 1))
        node.network.publish(PUBSUB_TOPIC, WakuMessage(b"\xff\xef", TOPIC, None, second + 2))
    if name in ("filter read", "filter read, empty", "filter unsubscribe", "ping later"):
        body = {"requestId": "x", "contentFilters": [TOPIC], "pubsubTopic": PUBSUB_TOPIC}
        HTTP.post(node.url + "/filter/v2/subscriptions", json=body)
    if name == "filter read":
        node.network.publish(PUBSUB_TOPIC, WakuMessage(b"for filter", TOPIC, None, BASE + 30))


@pytest.mark.parametrize(
    "recording",
    [r for r in VECTORS["gowaku"] if r["name"] not in NEEDS_A_REAL_NETWORK],
    ids=lambda r: r["name"],
)
def test_it_answers_a_recorded_request_of_go_waku_as_recorded(go_waku: FakeWakuNode, recording: dict[str, Any]) -> None:
    _prepare(go_waku, recording["name"])
    answer = _ask(go_waku, recording)
    assert answer.status_code == recording["status"]
    if recording["type"] == "json" and recording["response"] != "":
        assert answer.json() == recording["response"]
    else:
        assert answer.text == recording["response"]


def test_every_recording_is_either_answered_or_named_with_a_reason() -> None:
    assert set(NEEDS_A_REAL_NETWORK) <= {r["name"] for r in VECTORS["gowaku"]}


NWAKU_ANSWERED = [
    r
    for r in VECTORS["nwaku_documented"]
    if r["name"].startswith(("store page", "store, middle", "store, last", "store, backward", "store, presence"))
    or r["name"]
    in {
        "store, startTime = endTime",
        "relay subscribe",
        "relay subscribe, malformed topic",
        "relay publish",
        "relay publish, message over 150 KiB",
        "lightpush v3",
        "lightpush v1",
        "filter subscribe",
        "filter ping, no subscription",
        "filter read, topic not subscribed",
    }
]


@pytest.mark.parametrize("recording", NWAKU_ANSWERED, ids=lambda r: r["name"])
def test_it_answers_a_documented_request_of_nwaku_as_documented(recording: dict[str, Any]) -> None:
    with FakeWakuNode("nwaku") as node:
        if recording["path"].startswith("/store"):
            for n in range(5):
                node.network.publish(PUBSUB_TOPIC, WakuMessage(b"message %d" % n, TOPIC, None, BASE + n, META))
        answer = _ask(node, recording)
    assert answer.status_code == recording["status"]
    assert (answer.json() if recording["type"] == "json" else answer.text) == recording["response"]


def test_the_recorded_hashes_are_those_of_our_own_hashing() -> None:
    published = next(r for r in VECTORS["gowaku"] if r["name"] == "relay publish")
    message = WakuMessage(b"message 0", TOPIC, None, BASE, META)
    assert "0x" + message_hash(PUBSUB_TOPIC, message).hex() == published["message_hash"]


def test_a_topic_subscribed_three_times_is_read_from_three_queues_at_random() -> None:
    network = FakeWakuNetwork()
    with FakeWakuNode("go-waku", network, seed=3) as node:
        for _ in range(3):
            HTTP.post(node.url + "/relay/v1/subscriptions", json=[PUBSUB_TOPIC])
        network.publish(PUBSUB_TOPIC, WakuMessage(b"n0", TOPIC, None, BASE))
        path = node.url + "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"
        reads = [HTTP.get(path).json() for _ in range(30)]
    assert sum(read is not None for read in reads) == 3
    assert None in reads[: max(n for n, read in enumerate(reads) if read is not None)]
