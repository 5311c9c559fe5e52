"""Filter subscriptions and their caches in the fake Waku node (docs/spec/waku-rest.md *Filter v2*)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tests.support.fake_waku_admin import PEER_ADDRESS
from tests.support.fake_waku_faults import Call, Dialect, Reply
from tests.support.fake_waku_publish import PUBSUB_TOPIC

if TYPE_CHECKING:
    from tests.support.fake_waku_node import FakeWakuNetwork


class FilterAnswers:
    """What a node answers to filter clients."""

    dialect: Dialect
    network: FakeWakuNetwork
    service_peers: int
    _filter: dict[tuple[str, str], deque[dict[str, Any]]]

    def _drain(self, path: str, cache: deque[dict[str, Any]], empty: Any) -> Reply:
        """What a cache held; it is empty then."""
        raise NotImplementedError

    def _filter_subscriptions(self, call: Call) -> Reply:
        go = self.dialect == "go-waku"
        if call.method == "GET":
            request_id = call.segments[-1]
            if self._filter:
                return Reply(200, {"requestId": request_id, "statusDesc": "OK"})
            text = "peer has no subscription" if go else "NOT_FOUND: peer has no subscriptions"
            return Reply(404, {"requestId": request_id, "statusDesc": text})
        if call.method == "PUT" and go:
            return Reply(405, None, "none")
        body = call.body if isinstance(call.body, dict) else {}
        request_id, topics = body.get("requestId", "unknown"), body.get("contentFilters") or []
        if not topics and not go:
            return Reply(400, {"requestId": "unknown", "statusDesc": "BAD_REQUEST: Failed to decode request"})
        if not self.service_peers:
            text = (
                "subscription failed" if go else "SERVICE_UNAVAILABLE: No suitable service peer & no discovery method"
            )
            return Reply(400 if go else 503, {"requestId": request_id, "statusDesc": text})
        if len(topics) > 100:
            return Reply(
                400,
                {
                    "requestId": request_id,
                    "statusDesc": "subscription failed" if go else "BAD_REQUEST: exceeds maximum criteria",
                },
            )
        pubsub_topic = body.get("pubsubTopic", PUBSUB_TOPIC)
        with self.network.lock:
            for topic in topics:
                if call.method == "DELETE":
                    if self._filter.pop((pubsub_topic, topic), None) is None and go:
                        return Reply(
                            200,
                            {
                                "requestId": request_id,
                                "statusDesc": "can't unsubscribe from " + PEER_ADDRESS.rsplit("/", 1)[1],
                            },
                        )
                else:
                    self._filter.setdefault((pubsub_topic, topic), deque())
        return Reply(200, {"requestId": request_id, "statusDesc": "OK"})

    def _filter_messages(self, call: Call) -> Reply:
        with self.network.lock:
            if self.dialect == "nwaku":
                topic = call.segments[3] if len(call.segments) == 4 else ""
                held = [cache for (_, content), cache in self._filter.items() if content == topic]
                if not held:
                    return Reply(400, f"Not subscribed to topic: {topic}", "text")
                return self._drain(call.path, held[0], [])
            if len(call.segments) == 4:
                if call.segments[3].count("/") != 4 or call.segments[3].startswith("/waku/2/rs"):
                    return Reply(400, "bad content topic", "text")
                pubsub_topic, topic = "/waku/2/rs/1/4", call.segments[3]
            else:
                pubsub_topic, topic = call.segments[3], call.segments[4]
            cache = self._filter.get((pubsub_topic, topic))
            if cache is None:
                return Reply(404, f"not subscribed to pubsubTopic:{pubsub_topic} contentTopic: {topic}", "text")
            return self._drain(call.path, cache, [])
