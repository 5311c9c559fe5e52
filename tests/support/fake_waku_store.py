"""The store part of the fake Waku node: Store v3 in both dialects, Store v1 of go-waku (docs/spec/waku-rest.md *Store
v3*)."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.store.model import StoreQuery
from tests.support.fake_waku_faults import Call, Faults, Reply

if TYPE_CHECKING:
    from tests.support.fake_waku_node import FakeWakuNetwork


class StoreAnswers:
    """What a node answers from the archive of its network."""

    dialect: str
    faults: Faults
    network: FakeWakuNetwork

    def to_json(self, message: WakuMessage, relay: bool, store: bool = False) -> dict[str, Any]:
        """A message as this dialect writes it."""
        raise NotImplementedError

    def _store_v3(self, call: Call) -> Reply:
        if self.faults.store_status_code is not None:
            return Reply(
                200,
                {
                    "requestId": "",
                    "statusCode": self.faults.store_status_code,
                    "statusDesc": "peer failed",
                    "messages": [],
                },
            )
        if self.faults.store_v3:
            return Reply(500, {"messages": None, "error_message": self.faults.store_v3})
        return self._store_v3_go(call) if self.dialect == "go-waku" else self._store_v3_nwaku(call)

    def _store_v3_nwaku(self, call: Call) -> Reply:
        query = call.query
        if int(query.get("endTime") or 0) - int(query.get("startTime") or 2**63) > 24 * 3_600 * 10**9:
            return Reply(400, "time range exceeds 24h", "text")
        size = int(query.get("pageSize") or 0) or 20
        cursor = bytes.fromhex(query["cursor"][2:]) if query.get("cursor") else None
        hashes = tuple(bytes.fromhex(h[2:]) for h in query.get("hashes", "").split(",") if h)
        forward = query.get("ascending", "true") == "true"
        place = None if cursor is None else self.network.archive.position(cursor)
        if cursor is not None and place is None:
            return Reply(500, "BAD_RESPONSE: archive error: cursor not found", "text")
        selected = self.network.archive.select(_selection(query, hashes), place, (size if 0 < size <= 100 else 100) + 1)
        entries, last = self._page(selected, 100 if not 0 < size <= 100 else size, forward)
        answer: dict[str, Any] = {"requestId": "", "statusCode": 200, "statusDesc": "OK", "messages": []}
        for found_hash, topic, message in entries:
            entry: dict[str, Any] = {"messageHash": "0x" + found_hash.hex()}
            if query.get("includeData", "").lower() in ("true", "1", "yes", "on"):
                entry |= {"message": self.to_json(message, relay=False), "pubsubTopic": topic}
            answer["messages"].append(entry)
        if last is not None:
            answer["paginationCursor"] = "0x" + last.hex()
        return Reply(200, answer)

    def _store_v3_go(self, call: Call) -> Reply:
        query = call.query
        hashes: tuple[bytes, ...] = ()
        if query.get("hashes"):
            try:
                hashes = tuple(_urlsafe(h) for h in query["hashes"].split(","))
            except binascii.Error:
                return Reply(400, {"status_code": 400, "status_desc": "illegal base64 data at input byte 0"})
            if "pubsubTopic" in query:
                return Reply(
                    400, {"status_code": 400, "status_desc": "cant use content filters while specifying message hashes"}
                )
            if "peerAddr" not in query:
                return Reply(
                    500,
                    {
                        "messages": None,
                        "error_message": "a peer ID or multiaddress is required when checking for message hashes",
                    },
                )
        elif not query.get("pubsubTopic") or not query.get("contentTopics"):
            return Reply(400, {"status_code": 400, "status_desc": "pubsubTopic and contentTopics are required"})
        elif query["contentTopics"].count(",") >= 10:
            return Reply(400, {"status_code": 400, "status_desc": "too many content topics"})
        cursor = base64.urlsafe_b64decode(query["cursor"]) if query.get("cursor") else None
        place = None if cursor is None else self.network.archive.position(cursor)
        size = min(int(query.get("pageSize") or 20), 100)
        forward = query.get("ascending", "true") == "true"
        selected = self.network.archive.select(_selection(query, hashes), place, size + 1)
        entries, last = self._page(selected, size, forward)
        answer: dict[str, Any] = {"request_id": "r", "status_code": 200, "status_desc": "OK", "messages": []}
        for found_hash, topic, message in entries:
            entry: dict[str, Any] = {"message_hash": base64.b64encode(found_hash).decode(), "pubsub_topic": topic}
            if query.get("includeData") == "true":
                entry["message"] = self.to_json(message, relay=False, store=True)
            answer["messages"].append(entry)
        if last is not None:
            answer["pagination_cursor"] = base64.b64encode(last).decode()
        if not answer["messages"]:
            answer["messages"] = None
        return Reply(200, answer)

    def _store_v1(self, call: Call) -> Reply:
        query = call.query
        size = int(query.get("pageSize") or 20)
        forward = query.get("ascending", "true") == "true"
        place = None
        if query.get("digest"):
            try:
                wanted = _urlsafe(query["digest"])
            except binascii.Error:
                return Reply(400, {"messages": None, "error_message": "illegal base64 data at input byte 23"})
            place = self.network.archive.position(wanted)  # digests here are message hashes; real ones are not
        selected = self.network.archive.select(_selection(query, ()), place, size + 1)
        entries, last = self._page(selected, size, forward)
        answer: dict[str, Any] = {"messages": []}
        for _, _topic, message in entries:
            entry = {"payload": base64.b64encode(message.payload).decode(), "contentTopic": message.content_topic}
            answer["messages"].append(entry | ({"timestamp": message.timestamp} if message.timestamp else {}))
        if last is not None and (at := self.network.archive.position(last)):
            stamp = str(at.timestamp_ns)
            answer["cursor"] = {
                "pubsubTopic": query.get("pubsubTopic", ""),
                "senderTime": stamp,
                "storeTime": stamp,
                "digest": base64.b64encode(last).decode(),
            }
        return Reply(200, answer if answer["messages"] else {"messages": None})

    def _page(
        self, selected: list[Any], size: int, forward: bool
    ) -> tuple[list[tuple[bytes, str, WakuMessage]], bytes | None]:
        page, last = selected[:size], selected[size - 1].message_hash if len(selected) > size else None
        data = self.network.archive.load([p.message_hash for p in page])
        entries = [(p.message_hash, *data[p.message_hash]) for p in (page if forward else reversed(page))]
        if self.faults.store_corrupt:
            entries = [(h, t, WakuMessage(b"forged", m.content_topic, timestamp=m.timestamp)) for h, t, m in entries]
        return entries, last


def _urlsafe(text: str) -> bytes:
    """Url-safe base64 and nothing else; Python's decoder would take the standard letters as well."""
    if set(text) & set("+/"):
        raise binascii.Error
    return base64.b64decode(text, altchars=b"-_", validate=True)


def _selection(query: dict[str, str], hashes: tuple[bytes, ...]) -> StoreQuery:
    start, end = int(query.get("startTime") or 0), int(query.get("endTime") or 0)
    topics = tuple(t for t in query.get("contentTopics", "").split(",") if t)
    return StoreQuery(
        query.get("pubsubTopic") or None,
        topics,
        start if start > 0 else None,
        end if end > 0 else None,
        hashes,
        forward=query.get("ascending", "true") == "true",
    )
