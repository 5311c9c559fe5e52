"""Calls a Waku node's REST API in both dialects, and interprets its responses (docs/spec/waku-rest.md).

One method per call; the only state is the set of variants that the node supports; no threads. Success is ``OK``,
``true`` or an empty body; failures are text, JSON or empty, sometimes inside a 200.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any
from urllib.parse import quote

from reliable_channel.core.printable import escape_unprintable
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.http.client import BoundedHttp, HttpResponse, NodeUnreachable
from reliable_channel.transport.store.model import split
from reliable_channel.transport.waku_json import as_list, message_from_json, message_to_json

FILTER_TOPICS_PER_CALL = 100
UNSUBSCRIBE_TIMEOUT_S = 3.0
"""A go-waku node with a full queue never answers this call."""


class NodeDialect(StrEnum):
    """Which node answers."""

    NWAKU = "nwaku"
    GO_WAKU = "go-waku"


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to a publish: ``reason`` is ``None`` when the node accepted the message. ``detail`` is bounded;
    ``retry_after_s``: how long the node asks to be left alone (``HttpResponse``)."""

    reason: FailureReason | None = None
    detail: str = ""
    not_subscribed: bool = False
    """The node refused because it has not joined the pubsub topic; it may join it yet."""
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Read:
    """The result of a read. ``subscribed`` is ``False`` when the node reports that nobody subscribed; ``refused`` are
    entries that are not envelopes."""

    messages: tuple[WakuMessage, ...]
    subscribed: bool = True
    refused: tuple[Malformed, ...] = ()


class WakuApi:
    """One node. ``dialect`` is found by asking when it is not given. Every call raises ``NodeUnreachable`` when there
    is no answer. A call that only asks for something returns the node's refusal, ``None`` if there is none.
    Thread-safe."""

    def __init__(self, http: BoundedHttp, dialect: NodeDialect | None = None) -> None:
        self.http = http
        self.name = http.name
        self._dialect = dialect
        self._lightpush_v1 = False

    def dialect(self) -> NodeDialect:
        """The node's dialect: go-waku gives its version as a JSON string, nwaku as bare text."""
        if self._dialect is None:
            response = self._get_version()
            if not response.ok:
                raise NodeUnreachable(
                    f"{self.name} does not say its version (HTTP {response.status}).",
                    retry_after_s=response.retry_after_s,
                )
            self._dialect = NodeDialect.GO_WAKU if isinstance(response.json(), str) else NodeDialect.NWAKU
        return self._dialect

    def _get_version(self) -> HttpResponse:
        response = self.http.get("/debug/v1/version")
        return response if response.ok else self.http.get("/version")

    # relay

    def relay_subscribe(self, pubsub_topics: Sequence[str]) -> HttpResponse | None:
        """Join topics. On go-waku every call adds a queue that must be read: call it once (docs/spec/waku-rest.md
        *Relay*)."""
        return _read_refusal(self.http.post("/relay/v1/subscriptions", list(pubsub_topics)))

    def relay_unsubscribe(self, pubsub_topics: Sequence[str]) -> HttpResponse | None:
        """Leave topics."""
        return _read_refusal(
            self.http.delete("/relay/v1/subscriptions", list(pubsub_topics), timeout_s=UNSUBSCRIBE_TIMEOUT_S)
        )

    def relay_publish(self, pubsub_topic: str, message: WakuMessage) -> Published:
        """Publish a message. Success means that the node accepted it, not that anybody received it."""
        response = self.http.post(f"/relay/v1/messages/{segment(pubsub_topic)}", message_to_json(message))
        return Published() if response.ok else _read_publish_failure(response)

    def relay_read(self, pubsub_topic: str) -> Read:
        """Return the messages since the last read. **Reading removes them from the node.**"""
        return _read_messages(self.http.get(f"/relay/v1/messages/{segment(pubsub_topic)}"))

    # lightpush

    def lightpush(self, pubsub_topic: str | None, message: WakuMessage) -> Published:
        """Publish through a service node: v3, or v1 if the node does not support v3."""
        body: dict[str, Any] = {"message": message_to_json(message)}
        if pubsub_topic is not None:
            body["pubsubTopic"] = pubsub_topic
        if not self._lightpush_v1:
            response = self.http.post("/lightpush/v3/message", body)
            answer = response.json()
            if response.status == 404 or (response.status == 400 and not isinstance(answer, dict)):
                pass  # go-waku says 404 to an unknown path, nwaku 400 in text
            elif response.ok:
                return _read_lightpush(response)
            else:
                return _read_lightpush_failure(response.status, describe(response), response.retry_after_s)
        response = self.http.post("/lightpush/v1/message", body)
        if response.status != 404:
            self._lightpush_v1 = True
        return Published() if response.ok else _read_publish_failure(response)

    # filter

    def filter_subscribe(self, pubsub_topic: str, content_topics: Sequence[str]) -> HttpResponse | None:
        """Subscribe at a service node, at most 100 content topics a call."""
        return self._filter(self.http.post, pubsub_topic, content_topics)

    def filter_unsubscribe(self, pubsub_topic: str, content_topics: Sequence[str]) -> HttpResponse | None:
        """End subscriptions, as many a call. go-waku reports a failure inside a 200."""
        return self._filter(partial(self.http.delete, timeout_s=UNSUBSCRIBE_TIMEOUT_S), pubsub_topic, content_topics)

    @staticmethod
    def _filter(
        call: Callable[[str, Any], HttpResponse], pubsub_topic: str, content_topics: Sequence[str]
    ) -> HttpResponse | None:
        for part in split(content_topics, FILTER_TOPICS_PER_CALL):
            body = {"requestId": str(uuid.uuid4()), "contentFilters": list(part), "pubsubTopic": pubsub_topic}
            refused = _read_filter_refusal(call("/filter/v2/subscriptions", body))
            if refused is not None:
                return refused
        return None

    def filter_ping(self) -> HttpResponse | None:
        """Whether the service node still has the subscription; status 404 means that it has not."""
        return _read_filter_refusal(self.http.get(f"/filter/v2/subscriptions/{uuid.uuid4()}"))

    def filter_read(self, pubsub_topic: str, content_topic: str) -> Read:
        """Return the messages of this content topic since the last read. **Reading removes them from the node.**"""
        topics = [content_topic] if self.dialect() is NodeDialect.NWAKU else [pubsub_topic, content_topic]
        return _read_messages(self.http.get("/filter/v2/messages/" + "/".join(segment(topic) for topic in topics)))

    # about the node

    def health(self) -> HttpResponse:
        """``/health`` unchanged; go-waku without RLN answers 501."""
        return self.http.get("/health")

    def info(self) -> dict[str, Any]:
        """``listenAddresses`` and ``enrUri``; empty when the node does not say."""
        for path in ("/debug/v1/info", "/info"):
            response = self.http.get(path)
            if response.ok and isinstance(body := response.json(), dict):
                return body
        return {}

    def version(self) -> str:
        """The node's version, at most 100 characters."""
        response = self._get_version()
        body = response.json() if response.ok else ""
        return (body if isinstance(body, str) else response.text)[:100]

    def peers(self) -> list[dict[str, Any]] | None:
        """The admin API's list of peers; ``None`` where it is not enabled."""
        response = self.http.get("/admin/v1/peers")
        if not response.ok:
            return None
        return [peer for peer in as_list(response.json()) if isinstance(peer, dict)]


def segment(topic: str) -> str:
    """A topic as one path segment, slashes encoded."""
    return quote(topic, safe="")


def describe(response: HttpResponse) -> str:
    """The error text, from any of the fields that nodes use, printable: some of it is of other nodes."""
    body = response.json()
    if isinstance(body, dict):
        texts = (body.get(key) for key in ("statusDesc", "status_desc", "error_message", "error"))
        return next((escape_unprintable(text[:300]) for text in texts if text and isinstance(text, str)), "")
    return escape_unprintable(body[:300]) if isinstance(body, str) else response.text


def _read_refusal(response: HttpResponse) -> HttpResponse | None:
    return None if response.ok else response


def _read_filter_refusal(response: HttpResponse) -> HttpResponse | None:
    return response if describe(response).lower().startswith("can't") else _read_refusal(response)  # even with a 200


def _read_messages(response: HttpResponse) -> Read:
    if response.status in (400, 404):
        return Read((), subscribed=False)
    if not response.ok:
        raise NodeUnreachable(
            f"Reading messages failed (HTTP {response.status}: {describe(response)}).",
            retry_after_s=response.retry_after_s,
        )
    body = response.json()
    if not isinstance(body, list) and response.body.strip() not in (b"", b"null"):
        # Reading has removed them: no loss is silent. An object may be an error inside a 200.
        raise NodeUnreachable(f"Reading messages failed: {len(response.body)} bytes that are no JSON list.")
    decoded = [message_from_json(value) for value in as_list(body)]
    return Read(
        tuple(one for one in decoded if not isinstance(one, Malformed)),
        refused=tuple(one for one in decoded if isinstance(one, Malformed)),
    )


def _read_lightpush(response: HttpResponse) -> Published:
    """lightpush v3, HTTP 200: ``relayPeerCount`` when the service node sent it on."""
    body = response.json()
    if not isinstance(body, dict):
        return Published()
    peers = body.get("relayPeerCount", body.get("relay_peer_count"))
    if isinstance(peers, int) and not isinstance(peers, bool):
        return Published(None if peers else FailureReason.NO_PEERS, "" if peers else "relayed to no peer")
    code = body.get("statusCode", body.get("status_code"))
    if isinstance(code, int) and code != 200:
        return _read_lightpush_failure(code, describe(response))
    return Published()


def _read_lightpush_failure(status: int, detail: str, retry_after_s: float = 0.0) -> Published:
    """HTTP status = protocol code (docs/spec/waku-rest.md *Lightpush*)."""
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
    reason = reasons.get(status, FailureReason.UNREACHABLE)
    return Published(reason, detail or f"HTTP {status}", retry_after_s=retry_after_s)


def _read_publish_failure(response: HttpResponse) -> Published:
    """Interpret a failed publish of relay or lightpush v1. The text is more specific than the status, if there is
    one."""
    detail = describe(response)
    text = detail.lower()
    if "duplicate" in text:
        reason = FailureReason.DUPLICATE
    elif response.status == 429 or "rate limit" in text or "rate limmit" in text:
        reason = FailureReason.RATE_LIMITED
    elif response.status == 413 or "size exceed" in text:
        reason = FailureReason.TOO_LARGE
    elif any(sign in text for sign in ("peers", "not_published_to_any_peer")):
        reason = FailureReason.NO_PEERS
    elif "missing" in text or "base64" in text or "field" in text or response.status == 400:
        reason = FailureReason.REFUSED
    else:
        # go-waku's empty 500 is no peer, a topic not joined, or too large: nobody can tell, so it may be retried.
        reason = FailureReason.UNREACHABLE
    not_subscribed = "not subscribed to topic" in text
    return Published(reason, detail or f"HTTP {response.status}", not_subscribed, response.retry_after_s)
