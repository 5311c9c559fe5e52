"""Queries one store node over REST: Store v3 in both dialects, v1 where there is no v3 (docs/spec/waku-rest.md, *Store
v3*).

Queries use only what every node understands, and answers are verified: hashes are recomputed, entries that were not
asked for are left out and counted, and an error inside an HTTP 200 counts as an error.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import hash_candidates
from reliable_channel.transport.http.client import BoundedHttp, HttpResponse, NodeUnreachable
from reliable_channel.transport.store.model import MAX_PAGE_SIZE, StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.waku_api import NodeDialect, WakuApi, describe
from reliable_channel.transport.waku_json import (
    as_list,
    decode_base64,
    hash_from_text,
    hash_to_hex,
    hash_to_urlsafe,
    message_from_json,
)

_MAX_TIME_NS = 2**63 - 1
_LONGEST_RANGE_NS = 24 * 3_600 * 10**9
"""logos-delivery refuses a query with two ends that are farther apart, since autumn 2026."""
_MAX_ENTRIES = 2 * MAX_PAGE_SIZE
"""Entries of an answer that are looked at. No honest node sends as many, and a body may hold a million small ones."""
_MAX_V1_CURSORS = 1_000
"""Positions of Store v1 that are kept; then all are forgotten, and another walk under way ends with
``unknown_cursor``."""


class StoreFault(StrEnum):
    """Why a store node returned no page."""

    UNREACHABLE = "unreachable"
    BUSY = "busy"
    """429, 503, 504: retry later."""
    PEER_FAILED = "peer_failed"
    """The node asked a peer and that failed: 300, 400, 5xx inside HTTP 200, or an error of the node itself."""
    UNKNOWN_CURSOR = "unknown_cursor"
    NEEDS_CONTENT_TOPICS = "needs_content_topics"
    """The node answers only queries that name content topics."""
    REFUSED = "refused"
    """The node rejects the query as malformed, or cannot serve it."""


_NO_V3 = ("protocols not supported", "dial to self", "no suitable peers", "stream reset")
"""The answer of a go-waku node when neither it nor its peer supports Store v3; Store v1 may work."""

RETRIABLE = frozenset({StoreFault.UNREACHABLE, StoreFault.BUSY, StoreFault.PEER_FAILED})


class StoreNodeError(EnvironmentFault):
    """A node returned no page. ``fault`` is the kind of the failure; the cause names the node without credentials.
    ``retry_after_s``: how long the node asks to be left alone (``HttpResponse``)."""

    def __init__(self, node: str, fault: StoreFault, detail: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{node}: {fault.value}: {detail[:200]}")
        self.node = node
        self.fault = fault
        self.detail = detail[:200]
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[StoreNodeError], tuple[str, StoreFault, str, float]]:
        return (StoreNodeError, (self.node, self.fault, self.detail, self.retry_after_s))


class RestStoreNode:
    """A store node, or a node that asks a store peer: ``peer_address`` is that peer's multiaddr (go-waku needs it for
    look-ups by hash). Thread-safe."""

    def __init__(self, http: BoundedHttp, dialect: NodeDialect | None = None, peer_address: str | None = None) -> None:
        self._http = http
        self._api = WakuApi(http, dialect)
        self.peer_address = peer_address
        self._v1 = False
        self._v1_cursors: dict[bytes, dict[str, str]] = {}
        self.name = http.name

    def query(self, query: StoreQuery) -> StorePage:
        """One page. Raises :class:`StoreNodeError`, and ``LocalError`` for hashes beside filters."""
        if query.hashes and (query.content_topics or query.start_time_ns is not None or query.end_time_ns is not None):
            raise LocalError(
                "A store query holds hashes and a filter together.", "Ask for hashes alone, or by topics and time."
            )
        if _is_empty_range(query):
            return StorePage((), None, self.name)
        try:
            dialect = self._api.dialect()
            v3_fault: StoreNodeError | None = None
            if not self._v1 and query.cursor not in self._v1_cursors:
                response = self._http.get("/store/v3/messages", self._make_parameters(query, dialect))
                if not (response.status == 404 or (response.status == 400 and not response.body)):
                    try:
                        return self._read_page(query, self._read_body(response))
                    except StoreNodeError as error:
                        if query.hashes or not _v1_may_answer(error, dialect):
                            raise
                        v3_fault = error
                elif query.hashes:
                    raise StoreNodeError(
                        self.name, StoreFault.REFUSED, "the node has no Store v3, and v1 knows no hashes"
                    )
            return self._ask_v1(query, v3_fault)
        except NodeUnreachable as error:
            raise StoreNodeError(self.name, StoreFault.UNREACHABLE, error.cause, error.retry_after_s) from None

    def _ask_v1(self, query: StoreQuery, v3_fault: StoreNodeError | None) -> StorePage:
        """Query one page by Store v1. If v3 failed as well (``v3_fault``), its error is raised, since it is more
        specific."""
        response = self._http.get("/store/v1/messages", self._make_parameters_v1(query))
        if v3_fault is None and response.status != 404:
            self._v1 = True
        try:
            return self._read_page_v1(query, self._read_body(response))
        except StoreNodeError:
            if v3_fault is not None:
                raise v3_fault from None
            raise

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    # asking

    def _make_parameters(self, query: StoreQuery, dialect: NodeDialect) -> dict[str, str]:
        write = hash_to_hex if dialect is NodeDialect.NWAKU else hash_to_urlsafe
        # Times are cut locally, so data is needed where a time is given.
        parameters = {
            "includeData": _write_flag(query.include_data or query.end_time_ns is not None),
            "pageSize": str(query.page_size),
        }
        parameters["ascending"] = _write_flag(query.forward)
        if query.hashes:
            parameters["hashes"] = ",".join(write(h) for h in query.hashes)
            parameters["pageSize"] = str(MAX_PAGE_SIZE)
        else:
            parameters |= self._make_filters(query)
            if _is_long(query):  # the page at the other end ends it (_read_page)
                del parameters["endTime" if query.forward else "startTime"]
        if query.cursor is not None:
            parameters["cursor"] = write(query.cursor)
        if self.peer_address is not None:
            parameters["peerAddr"] = self.peer_address
        return parameters

    def _make_filters(self, query: StoreQuery) -> dict[str, str]:
        parameters: dict[str, str] = {}
        if query.pubsub_topic is not None:
            parameters["pubsubTopic"] = query.pubsub_topic
        if query.content_topics:
            parameters["contentTopics"] = ",".join(query.content_topics)
        if query.start_time_ns is not None and query.start_time_ns > 0:
            parameters["startTime"] = str(query.start_time_ns)
        if query.end_time_ns is not None:
            # 1 ns wider: the specification leaves the end out, running nodes do not.
            parameters["endTime"] = str(min(query.end_time_ns + 1, _MAX_TIME_NS))
        return parameters

    def _make_parameters_v1(self, query: StoreQuery) -> dict[str, str]:
        parameters = {"pageSize": str(query.page_size), "ascending": _write_flag(query.forward)}
        parameters |= self._make_filters(query)
        if query.cursor is not None:
            position = self._v1_cursors.get(query.cursor)
            if position is None:
                raise StoreNodeError(self.name, StoreFault.UNKNOWN_CURSOR, "not a cursor of this Store v1 node")
            parameters |= position
        if self.peer_address is not None:
            parameters["peerAddr"] = self.peer_address
        return parameters

    # reading

    def _read_body(self, response: HttpResponse) -> dict[str, Any]:
        """The answer's body, or the fault that it reports."""
        body = response.json()
        answer = body if isinstance(body, dict) else {}
        text = describe(response)
        if response.ok:
            code = answer.get("statusCode", answer.get("status_code", 200))
            if code not in (200, None, 0):
                raise StoreNodeError(self.name, _classify(code), f"status {code} inside HTTP 200: {text}")
            if not isinstance(body, dict):
                raise StoreNodeError(self.name, StoreFault.PEER_FAILED, "the answer is no JSON object")
            return answer
        if "cursor not found" in text:
            raise StoreNodeError(self.name, StoreFault.UNKNOWN_CURSOR, text)
        if "contentTopics are required" in text:
            raise StoreNodeError(self.name, StoreFault.NEEDS_CONTENT_TOPICS, text)
        if response.status in (429, 503, 504) or "not available" in text:  # 404 while nwaku is initializing
            fault = StoreFault.BUSY
        else:
            # 412: neither archive nor peer now; discovery may find one.
            fault = StoreFault.PEER_FAILED if response.status >= 500 or response.status == 412 else StoreFault.REFUSED
        raise StoreNodeError(self.name, fault, f"HTTP {response.status}: {text}", response.retry_after_s)

    def _read_page(self, query: StoreQuery, body: dict[str, Any]) -> StorePage:
        values = as_list(body.get("messages"))[:_MAX_ENTRIES]
        cursor = hash_from_text(body.get("paginationCursor", body.get("pagination_cursor")))
        if _is_long(query):
            within = [value for value in values if not _is_past(query, value)]
            values, cursor = within, cursor if len(within) == len(values) else None
        entries = [self._read_entry(query, value) for value in values]
        return self._sort_page(query, entries, None if query.hashes else cursor)

    def _read_entry(self, query: StoreQuery, value: Any) -> StoreEntry | None:
        """One entry, ``None`` when it does not match the query."""
        if not isinstance(value, dict):
            return None
        stated_hash = hash_from_text(value.get("messageHash", value.get("message_hash")))
        if stated_hash is None or (query.hashes and stated_hash not in query.hashes):
            return None
        if value.get("message") is None:
            return StoreEntry(stated_hash) if not query.include_data else None
        message = message_from_json(value["message"])
        pubsub_topic = value.get("pubsubTopic", value.get("pubsub_topic")) or query.pubsub_topic
        if isinstance(message, Malformed) or not isinstance(pubsub_topic, str):
            return None
        if stated_hash not in hash_candidates(pubsub_topic, message):
            return None
        if not _fits(query, pubsub_topic, message):
            return None
        if not query.include_data:
            return StoreEntry(stated_hash, verified=True)
        return StoreEntry(stated_hash, message, pubsub_topic, verified=True)

    def _read_page_v1(self, query: StoreQuery, body: dict[str, Any]) -> StorePage:
        entries: list[StoreEntry | None] = []
        for value in as_list(body.get("messages"))[:_MAX_ENTRIES]:
            message = message_from_json(value)
            if isinstance(message, Malformed) or query.pubsub_topic is None:
                entries.append(None)
                continue
            # v1 returns no meta, so the hash of what was sent with one is lost (docs/spec/waku-rest.md *Store v3*).
            computed = hash_candidates(query.pubsub_topic, message)[0]
            entry = StoreEntry(computed, message, query.pubsub_topic, verified=False)
            entries.append(entry if _fits(query, query.pubsub_topic, message) else None)
        return self._sort_page(query, entries, self._remember_v1(body.get("cursor")))

    def _remember_v1(self, cursor: Any) -> bytes | None:
        """v1's cursor of three values, kept under a name of 32 bytes."""
        if not isinstance(cursor, dict) or (digest := decode_base64(cursor.get("digest"))) is None:
            return None
        # Nodes write the digest in standard base64 and read it only url-safe (docs/spec/waku-rest.md *Store v3*).
        position = {"digest": hash_to_urlsafe(digest)[:200]}
        position |= {key: str(cursor.get(key, ""))[:20] for key in ("senderTime", "storeTime")}
        name = hashlib.sha256(repr(sorted(position.items())).encode()).digest()
        if len(self._v1_cursors) >= _MAX_V1_CURSORS:
            self._v1_cursors.clear()
        self._v1_cursors[name] = position
        return name

    def _sort_page(self, query: StoreQuery, given: list[StoreEntry | None], cursor: bytes | None) -> StorePage:
        kept = {entry.message_hash: entry for entry in given if entry is not None}
        entries = list(kept.values())
        if all(entry.message is not None for entry in entries):
            entries.sort(key=lambda one: ((one.message.timestamp or 0) if one.message else 0, one.message_hash))
        if cursor is not None and cursor == query.cursor:
            raise StoreNodeError(self.name, StoreFault.PEER_FAILED, "the cursor does not move")
        refused = sum(entry is None for entry in given)
        return StorePage(tuple(entries), cursor, self.name, refused)


def _is_long(query: StoreQuery) -> bool:
    """Whether both ends are given, too far apart for some nodes."""
    start, end = query.start_time_ns, query.end_time_ns
    return start is not None and start > 0 and end is not None and end + 1 - start > _LONGEST_RANGE_NS


def _is_past(query: StoreQuery, value: Any) -> bool:
    """Whether an entry of a long query is behind the end that the node was not told."""
    message = message_from_json(value.get("message") if isinstance(value, dict) else None)
    if isinstance(message, Malformed):
        return False
    at, start, end = message.timestamp or 0, query.start_time_ns or 0, query.end_time_ns or 0
    return at > end if query.forward else at < start


def _fits(query: StoreQuery, pubsub_topic: str, message: WakuMessage) -> bool:
    at = message.timestamp or 0
    return (
        query.admits(pubsub_topic, message.content_topic)
        and (query.start_time_ns is None or at >= query.start_time_ns)
        and (query.end_time_ns is None or at <= query.end_time_ns)
    )


def _write_flag(value: bool) -> str:
    return "true" if value else "false"  # Python's `True` would page backward on nwaku


def _v1_may_answer(error: StoreNodeError, dialect: NodeDialect) -> bool:
    return dialect is NodeDialect.GO_WAKU and (
        error.fault is StoreFault.NEEDS_CONTENT_TOPICS or any(sign in error.detail for sign in _NO_V3)
    )


def _is_empty_range(query: StoreQuery) -> bool:
    """Whether a range ends before it begins, or before time 0: nodes would treat such an end as unset."""
    if query.end_time_ns is None:
        return False
    return query.end_time_ns < (query.start_time_ns or 0) or query.end_time_ns < 0


def _classify(code: object) -> StoreFault:
    if code in (429, 503, 504):
        return StoreFault.BUSY
    return StoreFault.REFUSED if code == 400 else StoreFault.PEER_FAILED
