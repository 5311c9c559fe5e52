"""The calls of a Waku node's REST API, in both dialects, each answer read as waku-rest.md says.

One method per call, no state but which variants the node knows; no threads. Success is ``OK``, ``true`` or nothing;
failures are text, JSON or nothing, sometimes inside a 200.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.http import Answer, BoundedHttp, NodeUnreachable
from reliable_channel.transport.waku_json import listed, message_from_json, message_to_json
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.waku import WakuMessage

FILTER_TOPICS_PER_CALL = 100
UNSUBSCRIBE_TIMEOUT_S = 3.0
"""A go-waku node with a full queue never answers this call."""


class Dialect(StrEnum):
    """Which node answers."""

    NWAKU = "nwaku"
    GO_WAKU = "go-waku"


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to a publish: ``reason`` is ``None`` when the node accepted the message. ``detail`` is bounded."""

    reason: FailureReason | None = None
    detail: str = ""
    relay_peers: int | None = None
    not_subscribed: bool = False
    """The node refused because it has not joined the pubsub topic; it may join it yet."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a read returned. ``subscribed`` is ``False`` when the node says that nobody subscribed; ``refused`` are
    entries that are no envelopes."""

    messages: tuple[WakuMessage, ...]
    subscribed: bool = True
    refused: tuple[Malformed, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A call the node did not accept."""

    status: int
    detail: str


class WakuApi:
    """One node. ``dialect`` is found by asking when it is not given. Every call raises ``NodeUnreachable`` when there
    is no answer. Thread-safe."""

    def __init__(self, http: BoundedHttp, dialect: Dialect | None = None) -> None:
        self.http = http
        self.name = http.name
        self._dialect = dialect
        self._lightpush_v1 = False

    def dialect(self) -> Dialect:
        """The node's dialect: go-waku gives its version as a JSON string, nwaku as bare text."""
        if self._dialect is None:
            answer = self.http.get("/debug/v1/version")
            if not answer.ok:
                answer = self.http.get("/version")
            if not answer.ok:
                raise NodeUnreachable(f"{self.name} does not say its version (HTTP {answer.status}).")
            self._dialect = Dialect.GO_WAKU if isinstance(answer.json(), str) else Dialect.NWAKU
        return self._dialect

    # relay

    def relay_subscribe(self, pubsub_topics: Sequence[str]) -> Refused | None:
        """Join topics. On go-waku every call adds a queue that must be read: call it once (waku-rest.md *Relay*)."""
        return _refusal(self.http.post("/relay/v1/subscriptions", list(pubsub_topics)))

    def relay_unsubscribe(self, pubsub_topics: Sequence[str]) -> Refused | None:
        """Leave topics."""
        return _refusal(
            self.http.delete("/relay/v1/subscriptions", list(pubsub_topics), timeout_s=UNSUBSCRIBE_TIMEOUT_S)
        )

    def relay_publish(self, pubsub_topic: str, message: WakuMessage) -> Published:
        """Publish. A success says that the node took it, not that anybody got it."""
        answer = self.http.post(f"/relay/v1/messages/{segment(pubsub_topic)}", message_to_json(message))
        return Published() if answer.ok else _publish_failure(answer)

    def relay_read(self, pubsub_topic: str) -> Read:
        """What came since the last read. **Reading takes it out of the node.**"""
        return _read(self.http.get(f"/relay/v1/messages/{segment(pubsub_topic)}"))

    # lightpush

    def lightpush(self, pubsub_topic: str | None, message: WakuMessage) -> Published:
        """Publish through a service node: v3, or v1 where the node does not know v3."""
        body: dict[str, Any] = {"message": message_to_json(message)}
        if pubsub_topic is not None:
            body["pubsubTopic"] = pubsub_topic
        if not self._lightpush_v1:
            answer = self.http.post("/lightpush/v3/message", body)
            found = answer.json()
            if answer.status == 404 or (answer.status == 400 and not isinstance(found, dict)):
                pass  # go-waku says 404 to an unknown path, nwaku 400 in text
            elif answer.ok:
                return _pushed(found)
            else:
                return _lightpush_failure(answer.status, _description(answer))
        answer = self.http.post("/lightpush/v1/message", body)
        if answer.status != 404:
            self._lightpush_v1 = True
        return Published() if answer.ok else _publish_failure(answer)

    # filter

    def filter_subscribe(self, pubsub_topic: str, content_topics: Sequence[str]) -> Refused | None:
        """Subscribe at a service node, at most 100 content topics a call."""
        for begin in range(0, len(content_topics), FILTER_TOPICS_PER_CALL):
            part = list(content_topics[begin : begin + FILTER_TOPICS_PER_CALL])
            refused = _filter_refusal(self.http.post("/filter/v2/subscriptions", _filter(pubsub_topic, part)))
            if refused is not None:
                return refused
        return None

    def filter_unsubscribe(self, pubsub_topic: str, content_topics: Sequence[str]) -> Refused | None:
        """End subscriptions. go-waku tells of a failure inside a 200."""
        body = _filter(pubsub_topic, list(content_topics))
        return _filter_refusal(self.http.delete("/filter/v2/subscriptions", body, timeout_s=UNSUBSCRIBE_TIMEOUT_S))

    def filter_ping(self) -> Refused | None:
        """Whether the service node still has the subscription; status 404 says that it has not."""
        return _filter_refusal(self.http.get(f"/filter/v2/subscriptions/{uuid.uuid4()}"))

    def filter_read(self, pubsub_topic: str, content_topic: str) -> Read:
        """What came since the last read of this content topic. **Reading takes it out of the node.**"""
        topics = [content_topic] if self.dialect() is Dialect.NWAKU else [pubsub_topic, content_topic]
        return _read(self.http.get("/filter/v2/messages/" + "/".join(segment(topic) for topic in topics)))

    # about the node

    def health(self) -> Answer:
        """``/health`` as it is; go-waku without RLN answers 501."""
        return self.http.get("/health")

    def info(self) -> dict[str, Any]:
        """``listenAddresses`` and ``enrUri``; empty when the node does not say."""
        for path in ("/debug/v1/info", "/info"):
            answer = self.http.get(path)
            if answer.ok and isinstance(found := answer.json(), dict):
                return found
        return {}

    def version(self) -> str:
        """The node's version, at most 100 characters."""
        for path in ("/debug/v1/version", "/version"):
            answer = self.http.get(path)
            if answer.ok:
                found = answer.json()
                return (found if isinstance(found, str) else answer.text)[:100]
        return ""

    def peers(self) -> list[dict[str, Any]] | None:
        """The admin API's list of peers; ``None`` where it is not enabled."""
        answer = self.http.get("/admin/v1/peers")
        if not answer.ok:
            return None
        return [peer for peer in listed(answer.json()) if isinstance(peer, dict)]


def segment(topic: str) -> str:
    """A topic as one path segment, slashes encoded."""
    return quote(topic, safe="")


def _filter(pubsub_topic: str, content_topics: list[str]) -> dict[str, Any]:
    return {"requestId": str(uuid.uuid4()), "contentFilters": content_topics, "pubsubTopic": pubsub_topic}


def _description(answer: Answer) -> str:
    """The error text, wherever the node put it."""
    found = answer.json()
    if isinstance(found, dict):
        for key in ("statusDesc", "status_desc", "error_message", "error"):
            if isinstance(found.get(key), str):
                return str(found[key])[:300]
        return ""
    return found[:300] if isinstance(found, str) else answer.text


def _refusal(answer: Answer) -> Refused | None:
    return None if answer.ok else Refused(answer.status, _description(answer))


def _filter_refusal(answer: Answer) -> Refused | None:
    description = _description(answer)
    if answer.ok and description.lower().startswith("can't"):
        return Refused(answer.status, description)  # a failure with status 200
    return None if answer.ok else Refused(answer.status, description)


def _read(answer: Answer) -> Read:
    if answer.status in (400, 404):
        return Read((), subscribed=False)
    if not answer.ok:
        raise NodeUnreachable(f"Reading messages failed (HTTP {answer.status}: {_description(answer)}).")
    decoded = [message_from_json(value) for value in listed(answer.json())]
    return Read(
        tuple(one for one in decoded if not isinstance(one, Malformed)),
        refused=tuple(one for one in decoded if isinstance(one, Malformed)),
    )


def _pushed(body: Any) -> Published:
    """lightpush v3, HTTP 200: ``relayPeerCount`` when the service node sent it on."""
    if not isinstance(body, dict):
        return Published()
    peers = body.get("relayPeerCount", body.get("relay_peer_count"))
    if isinstance(peers, int) and not isinstance(peers, bool):
        return Published(None if peers else FailureReason.NO_PEERS, "" if peers else "relayed to no peer", peers)
    code = body.get("statusCode", body.get("status_code"))
    if isinstance(code, int) and code != 200:
        return _lightpush_failure(code, str(body.get("statusDesc") or ""))
    return Published()


def _lightpush_failure(status: int, detail: str) -> Published:
    """HTTP status = protocol code (waku-rest.md *Lightpush*)."""
    if "duplicate" in detail.lower():
        return Published(FailureReason.DUPLICATE, detail)
    reasons = {
        400: FailureReason.REFUSED,
        413: FailureReason.TOO_LARGE,
        420: FailureReason.REFUSED,
        421: FailureReason.REFUSED,
        429: FailureReason.RATE_LIMITED,
        503: FailureReason.NO_PEERS,
        505: FailureReason.NO_PEERS,
    }
    return Published(reasons.get(status, FailureReason.UNREACHABLE), detail or f"HTTP {status}")


def _publish_failure(answer: Answer) -> Published:
    """Relay and lightpush v1: the text says more than the status, where there is a text."""
    detail = _description(answer)
    text = detail.lower()
    if "duplicate" in text:
        reason = FailureReason.DUPLICATE
    elif answer.status == 429 or "rate limit" in text or "rate limmit" in text:
        reason = FailureReason.RATE_LIMITED
    elif answer.status == 413 or "size exceed" in text:
        reason = FailureReason.TOO_LARGE
    elif any(sign in text for sign in ("peers", "not_published_to_any_peer")):
        reason = FailureReason.NO_PEERS
    elif "missing" in text or "base64" in text or "field" in text or answer.status == 400:
        reason = FailureReason.REFUSED
    else:
        # go-waku's empty 500 is no peer, a topic not joined, or too large: nobody can tell, so it may be retried.
        reason = FailureReason.UNREACHABLE
    return Published(reason, detail or f"HTTP {answer.status}", not_subscribed="not subscribed to topic" in text)
