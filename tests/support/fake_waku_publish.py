"""Publishing and the relay cache of the fake Waku node (docs/spec/waku-rest.md *Relay*, *Lightpush*)."""

from __future__ import annotations

import random
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from tests.support.fake_waku_faults import Call, Dialect, Faults, Reply
from tests.support.fake_waku_messages import MAX_MESSAGE_BYTES, message_of

if TYPE_CHECKING:
    from tests.support.fake_waku_node import FakeWakuNetwork

PUBSUB_TOPIC = "/waku/2/rs/16/32"


class PublishAnswers:
    """What a node answers to relay and lightpush."""

    dialect: Dialect
    faults: Faults
    network: FakeWakuNetwork
    joined: set[str]
    service_peers: int
    published: list[tuple[str, WakuMessage]]
    _random: random.Random
    _relay: dict[str, list[deque[dict[str, Any]]]]
    _last_read: dict[str, list[dict[str, Any]]]

    def _ok(self) -> Reply:
        return Reply(200, True) if self.dialect == "go-waku" else Reply(200, "OK", "text")

    def _relay_subscriptions(self, call: Call) -> Reply:
        go = self.dialect == "go-waku"
        if not isinstance(call.body, list) or not all(isinstance(t, str) for t in call.body):
            return Reply(400, None, "none") if go else Reply(400, "Invalid content body", "text")
        if not go and (bad := [t for t in call.body if not re.fullmatch(r"/waku/2/rs/\d+/\d+", t)]):
            return Reply(400, f'Invalid pubsub topic(s): @["{bad[0]}"]', "text")
        with self.network.lock:
            for topic in call.body:
                if call.method == "DELETE":
                    if topic not in self._relay and topic not in self.joined and go:
                        return Reply(500, None, "none")
                    # For everybody: other REST clients, and the node's own configuration.
                    self._relay.pop(topic, None)
                    self.joined.discard(topic)
                elif go:
                    self._relay.setdefault(topic, []).append(deque())
                else:
                    self._relay.setdefault(topic, [deque()])
        return self._ok()

    def _relay_messages(self, call: Call, topic: str) -> Reply:
        go = self.dialect == "go-waku"
        if call.method == "POST":
            message = message_of(self.dialect, call.body)
            if topic not in self.joined and topic not in self._relay:
                return (
                    Reply(500, None, "none")
                    if go
                    else Reply(400, f"Failed to publish: Node not subscribed to topic: {topic}", "text")
                )
            size = len(encode_waku_message(message))
            if size > MAX_MESSAGE_BYTES[self.dialect]:
                return (
                    Reply(500, None, "none")
                    if go
                    else Reply(400, "Failed to publish: Message size exceeded maximum of 153600 bytes", "text")
                )
            if self.faults.no_peers and go:
                return Reply(500, None, "none")
            self._out(topic, message)
            return self._ok()
        with self.network.lock:
            queues = self._relay.get(topic)
            if queues is None:
                return Reply(404, "no subscription found for pubsubTopic" if go else "", "text")
            chosen = queues[0] if len(queues) == 1 else self._random.choice(queues)
            return self._drain(call.path, chosen, None if go else [])

    def _drain(self, path: str, cache: deque[dict[str, Any]], empty: Any) -> Reply:
        messages = list(cache)
        cache.clear()
        if self.faults.repeat_reads:
            messages, self._last_read[path] = self._last_read.get(path, []) + messages, messages
        return Reply(200, messages or empty)

    def _out(self, topic: str, message: WakuMessage) -> bool:
        if self.faults.publish_reaches_nobody:
            return True
        if message.timestamp is None and self.dialect == "nwaku":
            message = WakuMessage(
                message.payload,
                message.content_topic,
                message.version,
                time.time_ns(),
                message.meta,
                None,
                message.ephemeral,
            )
        self.published.append((topic, message))
        fresh = self.network.publish(topic, message, self)
        if self.faults.publish_but_fail is not None:
            raise Reply(self.faults.publish_but_fail, "", "text")
        return fresh

    def _lightpush(self, call: Call, v3: bool) -> Reply:
        go = self.dialect == "go-waku"
        body = call.body if isinstance(call.body, dict) else {}
        if "message" not in body and go:
            return Reply(400, "waku message is required", "text")
        try:
            message = message_of(self.dialect, body.get("message"))
        except Reply as reply:
            if go:
                raise Reply(503, reply.body, "text") from None
            if v3:
                raise Reply(400, {"statusDesc": f"Invalid push request: {reply.body}"}) from None
            raise
        if "pubsubTopic" not in body and go:
            return Reply(503, "no suitable remote peers", "text")
        if self.faults.no_peers or not self.service_peers:
            if v3:
                return Reply(505, {"statusDesc": "No peers for topic, skipping publish"})
            return Reply(
                503,
                "no suitable remote peers" if go else "Failed to request a message push: not_published_to_any_peer",
                "text",
            )
        if len(encode_waku_message(message)) > MAX_MESSAGE_BYTES[self.dialect]:
            if v3:
                return Reply(413, {"statusDesc": "message size exceeded"})
            return Reply(
                503, "lightpush errorCould not publish message: message size exceeds gossipsub max message size", "text"
            )
        fresh = self._out(body.get("pubsubTopic", PUBSUB_TOPIC), message)
        if v3:
            return Reply(200, {"relayPeerCount": 1}) if fresh else Reply(420, {"statusDesc": "duplicate message"})
        if not fresh and not go:
            return Reply(503, "Failed to request a message push: not_published_to_any_peer", "text")
        return self._ok()
