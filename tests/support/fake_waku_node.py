"""A Waku node's REST API on loopback, answering as the recordings in ``vectors/waku_rest.json`` do, with faults.

Both dialects: go-waku as recorded, nwaku as documented (waku-rest.md). Nodes of one :class:`FakeWakuNetwork` relay to
each other and share one archive. ``tests/unit/transport/test_fake_waku_node.py`` holds it to the recordings.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import random
import re
import socket
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from reliable_channel.store.memory_source import MemorySource
from reliable_channel.wire.waku import WakuMessage, encode_waku_message, message_hash
from support.fake_waku_faults import Call, Dialect, Faults, Reply
from support.fake_waku_store import StoreAnswers

PUBSUB_TOPIC = "/waku/2/rs/16/32"
PEER_ADDRESS = "/ip4/127.0.0.1/tcp/60001/p2p/16Uiu2HAkvaJ1E6ZaY3dAddTgUqvorsHYsY4cxuqSeCcvuccdR4Xz"


class FakeWakuNetwork:
    """What nodes share: the mesh and the archive."""

    def __init__(self) -> None:
        self.archive = MemorySource()
        self.nodes: list[FakeWakuNode] = []
        self.lock = threading.RLock()
        self._seen: set[bytes] = set()

    def publish(self, pubsub_topic: str, message: WakuMessage, origin: FakeWakuNode | None = None) -> bool:
        """Relay and store one message; ``False`` for a duplicate, which goes nowhere."""
        found = message_hash(pubsub_topic, message)
        with self.lock:
            if found in self._seen:
                return False
            self._seen.add(found)
            if not message.ephemeral:
                self.archive.add(pubsub_topic, message)
            for node in self.nodes:
                if node is not origin:
                    node.arrive(pubsub_topic, message)
            return True


class FakeWakuNode(StoreAnswers):
    """One node; use it as a context manager. ``url`` is its REST address, ``requests`` what it was asked."""

    def __init__(
        self,
        dialect: Dialect = "nwaku",
        network: FakeWakuNetwork | None = None,
        *,
        joined: tuple[str, ...] = (PUBSUB_TOPIC,),
        relay_cache: int | None = None,
        filter_cache: int | None = None,
        lightpush_v3: bool = True,
        store: bool = True,
        mesh_peers: int = 6,
        service_peers: int = 2,
        admin: bool = True,
        seed: int = 0,
    ) -> None:
        self.dialect: Dialect = dialect
        self.network = network or FakeWakuNetwork()
        self.faults = Faults()
        self.joined = set(joined)
        """Pubsub topics of the node's own configuration."""
        self.relay_cache = relay_cache or (50 if dialect == "nwaku" else 1000)
        self.filter_cache = filter_cache or (50 if dialect == "nwaku" else 30)
        self.lightpush_v3 = lightpush_v3 and dialect == "nwaku"
        self.store = store
        self.mesh_peers = mesh_peers
        self.service_peers = service_peers
        self.admin = admin
        self.requests: list[tuple[str, str]] = []
        self.published: list[tuple[str, WakuMessage]] = []
        self.authorizations: list[str] = []
        self._random = random.Random(seed)
        self._relay: dict[str, list[deque[dict[str, Any]]]] = {}
        self._filter: dict[tuple[str, str], deque[dict[str, Any]]] = {}
        self._last_read: dict[str, list[dict[str, Any]]] = {}
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self._connections: set[socket.socket] = set()
        if dialect == "nwaku":
            for topic in joined:
                self._relay[topic] = [deque()]
        self.network.nodes.append(self)

    # life

    def __enter__(self) -> FakeWakuNode:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def up(self) -> None:
        """Listen; on the same port as before when it was up already."""
        if self._server is None:
            self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
            self._server.daemon_threads = True
            self._port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections; caches and subscriptions stay."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            for connection in list(self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def restart(self) -> None:
        """A new process: caches and REST subscriptions are gone."""
        self.down()
        self._relay = {t: [deque()] for t in self.joined} if self.dialect == "nwaku" else {}
        self._filter.clear()
        self.up()

    # messages

    def arrive(self, pubsub_topic: str, message: WakuMessage) -> None:
        """A message from the mesh, or pushed by a filter service."""
        entry = self.to_json(message, relay=True)
        with self.network.lock:
            for cache in self._relay.get(pubsub_topic, []):
                cache.append(entry)
                while len(cache) > self.relay_cache:
                    cache.remove(min(cache, key=lambda one: one.get("timestamp") or 0))
            held = self._filter.get((pubsub_topic, message.content_topic))
            if held is not None:
                held.append(self.to_json(message, relay=False))
                while len(held) > self.filter_cache:
                    held.popleft()

    def to_json(self, message: WakuMessage, relay: bool, store: bool = False) -> dict[str, Any]:
        """A message as this dialect writes it."""
        entry: dict[str, Any] = {
            "payload": base64.b64encode(message.payload).decode(),
            "contentTopic": message.content_topic,
        }
        if message.meta:
            entry["meta"] = base64.b64encode(message.meta).decode()
        if self.dialect == "nwaku":
            entry |= {
                "version": message.version or 0,
                "timestamp": message.timestamp or 0,
                "ephemeral": bool(message.ephemeral),
            }
            if relay:
                entry["proof"] = ""
        else:
            if message.version is not None:
                entry["version"] = message.version
            if message.timestamp is not None:
                entry["timestamp"] = str(message.timestamp) if store else message.timestamp
            entry["ephemeral"] = message.ephemeral
        return entry

    # answering

    def answer(self, call: Call) -> Reply:
        self.requests.append((call.method, call.path))
        try:
            if call.raw:
                try:
                    call.body = json.loads(call.raw)
                except ValueError:
                    call.body = None
            call.segments = [unquote(part) for part in call.path.strip("/").split("/")]
            return self._route(call)
        except Reply as reply:
            return reply

    def _route(self, call: Call) -> Reply:
        head = "/".join(call.segments[:3])
        go = self.dialect == "go-waku"
        if head in ("debug/v1/info", "debug/v1/version"):
            return self._about(call.segments[2])
        if call.path in ("/info", "/version"):
            return Reply(404, "404 page not found\n", "text") if go else self._about(call.path[1:])
        if call.path == "/health":
            return self._health()
        if head == "admin/v1/peers" and self.admin:
            return self._peers(call)
        if head == "relay/v1/subscriptions":
            return self._relay_subscriptions(call)
        if head == "relay/v1/messages" and len(call.segments) == 4:
            return self._relay_messages(call, call.segments[3])
        if head == "lightpush/v1/message":
            return self._lightpush(call, v3=False)
        if head == "lightpush/v3/message" and self.lightpush_v3:
            return self._lightpush(call, v3=True)
        if head == "filter/v2/subscriptions":
            return self._filter_subscriptions(call)
        if head == "filter/v2/messages":
            return self._filter_messages(call)
        if head == "store/v3/messages" and self.store:
            return self._store_v3(call)
        if head == "store/v1/messages" and self.store and go:
            return self._store_v1(call)
        return Reply(404, "404 page not found\n", "text") if go else Reply(400, "", "text")

    def _ok(self) -> Reply:
        return Reply(200, True) if self.dialect == "go-waku" else Reply(200, "OK", "text")

    def _about(self, what: str) -> Reply:
        if what == "info":
            return Reply(200, {"listenAddresses": [PEER_ADDRESS], "enrUri": "enr:-Jq4Q"})
        return Reply(200, "-") if self.dialect == "go-waku" else Reply(200, "v0.37.1", "text")

    def _health(self) -> Reply:
        if self.dialect == "go-waku":
            return Reply(501, "Non RLN healthcheck is not implemented")
        ready = "READY" if self.mesh_peers or self.service_peers else "NOT_READY"
        status = (
            "Disconnected" if ready == "NOT_READY" else "Connected" if self.mesh_peers >= 6 else "PartiallyConnected"
        )
        return Reply(
            200,
            {
                "nodeHealth": "READY",
                "connectionStatus": status,
                "protocolsHealth": [{"Relay": ready}, {"Rln Relay": "NOT_MOUNTED"}],
            },
        )

    def _peers(self, call: Call) -> Reply:
        if call.method != "GET":
            return Reply(400, None, "none")
        kinds = [["/vac/waku/relay/2.0.0"]] * self.mesh_peers
        kinds += [["/vac/waku/lightpush/3.0.0", "/vac/waku/filter-subscribe/2.0.0-beta1"]] * self.service_peers
        if self.dialect == "go-waku":
            peers: list[dict[str, Any]] = [
                {"id": f"16U{n}", "multiaddrs": [PEER_ADDRESS], "protocols": p, "connected": True, "pubsubTopics": []}
                for n, p in enumerate(kinds)
            ]
            return Reply(200, [*peers, {"id": "x", "multiaddrs": [], "protocols": None, "connected": False}])
        return Reply(
            200,
            [
                {
                    "multiaddr": PEER_ADDRESS,
                    "protocols": p,
                    "shards": [32],
                    "connected": "Connected",
                    "agent": "",
                    "origin": "",
                }
                for p in kinds
            ],
        )

    # relay

    def _relay_subscriptions(self, call: Call) -> Reply:
        go = self.dialect == "go-waku"
        if not isinstance(call.body, list) or not all(isinstance(t, str) for t in call.body):
            return Reply(400, None, "none") if go else Reply(400, "Invalid content body", "text")
        if not go and (bad := [t for t in call.body if not re.fullmatch(r"/waku/2/rs/\d+/\d+", t)]):
            return Reply(400, f'Invalid pubsub topic(s): @["{bad[0]}"]', "text")
        with self.network.lock:
            for topic in call.body:
                if call.method == "DELETE":
                    if topic not in self._relay and go:
                        return Reply(500, None, "none")
                    self._relay.pop(topic, None)
                elif go:
                    self._relay.setdefault(topic, []).append(deque())
                else:
                    self._relay.setdefault(topic, [deque()])
        return self._ok()

    def _relay_messages(self, call: Call, topic: str) -> Reply:
        go = self.dialect == "go-waku"
        if call.method == "POST":
            message = self._parse(call.body)
            if topic not in self.joined and topic not in self._relay:
                return (
                    Reply(500, None, "none")
                    if go
                    else Reply(400, f"Failed to publish: Node not subscribed to topic: {topic}", "text")
                )
            size = len(encode_waku_message(message))
            if size > (150_000 if go else 153_600):
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
            return self._drained(call.path, chosen, None if go else [])

    def _drained(self, path: str, cache: deque[dict[str, Any]], empty: Any) -> Reply:
        found = list(cache)
        cache.clear()
        if self.faults.repeat_reads:
            found, self._last_read[path] = self._last_read.get(path, []) + found, found
        return Reply(200, found or empty)

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

    # lightpush

    def _lightpush(self, call: Call, v3: bool) -> Reply:
        go = self.dialect == "go-waku"
        body = call.body if isinstance(call.body, dict) else {}
        if "message" not in body and go:
            return Reply(400, "waku message is required", "text")
        try:
            message = self._parse(body.get("message"))
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
        if len(encode_waku_message(message)) > (150_000 if go else 153_600):
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

    # filter

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
        request_id, topics = body.get("requestId", "unknown"), body.get("contentFilters")
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
                return self._drained(call.path, held[0], [])
            if len(call.segments) == 4:
                if call.segments[3].count("/") != 4 or call.segments[3].startswith("/waku/2/rs"):
                    return Reply(400, "bad content topic", "text")
                pubsub_topic, topic = "/waku/2/rs/1/4", call.segments[3]
            else:
                pubsub_topic, topic = call.segments[3], call.segments[4]
            cache = self._filter.get((pubsub_topic, topic))
            if cache is None:
                return Reply(404, f"not subscribed to pubsubTopic:{pubsub_topic} contentTopic: {topic}", "text")
            return self._drained(call.path, cache, [])

    def _parse(self, body: Any) -> WakuMessage:
        """A request's message, or the node's refusal."""
        go = self.dialect == "go-waku"
        if not isinstance(body, dict):
            raise Reply(400, "Invalid content body, could not decode: not an object", "text")
        known = {"payload", "contentTopic", "version", "timestamp", "meta", "ephemeral", "proof"}
        if not go and set(body) - known:
            raise Reply(400, "Invalid content body, could not decode: unknown field", "text")
        if not body.get("payload"):
            raise Reply(
                400, "missing Payload field" if go else "Invalid content body, could not decode: payload", "text"
            )
        if not body.get("contentTopic"):
            raise Reply(
                400,
                "missing ContentTopic field" if go else "Invalid content body, could not decode: contentTopic",
                "text",
            )
        if isinstance(body.get("timestamp"), str):
            raise Reply(
                400,
                "json: cannot unmarshal string into Go struct field RestWakuMessage.timestamp of type int64"
                if go
                else "Invalid content body, could not decode: timestamp",
                "text",
            )
        payload = str(body["payload"])
        if go:
            payload = payload.replace("-", "+").replace("_", "/")
            payload += "=" * (-len(payload) % 4)
        try:
            decoded = base64.b64decode(payload, validate=True)
            meta = base64.b64decode(body.get("meta") or "", validate=True)
        except binascii.Error:
            raise Reply(
                400,
                "illegal base64 data at input byte 0" if go else "Invalid content body, could not decode: base64",
                "text",
            ) from None
        if len(meta) > 64:
            raise Reply(
                400, "invalid length for Meta field" if go else "Invalid content body, could not decode: meta", "text"
            )
        return WakuMessage(
            decoded,
            body["contentTopic"],
            body.get("version"),
            body.get("timestamp"),
            meta or None,
            None,
            body.get("ephemeral"),
        )


def _handler(node: FakeWakuNode) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            node._connections.add(self.connection)

        def finish(self) -> None:
            node._connections.discard(self.connection)
            with contextlib.suppress(OSError):
                super().finish()

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            split = urlsplit(self.path)
            if "Authorization" in self.headers:
                node.authorizations.append(self.headers["Authorization"])
            faults = node.faults
            if faults.paths in split.path:
                if faults.slow_s:
                    time.sleep(faults.slow_s)
                if faults.down:
                    self.close_connection = True
                    self.connection.close()
                    return
                if faults.status is not None:
                    self._reply(Reply(faults.status, faults.body, "text"))
                    return
            query = {k: v[-1] for k, v in parse_qs(split.query, keep_blank_values=True).items()}
            reply = node.answer(Call(self.command, split.path, query, raw))
            if faults.garbage is not None and faults.paths in split.path:
                self._send(200, faults.garbage, "application/json")
                return
            self._reply(reply)

        def _reply(self, reply: Reply) -> None:
            if reply.kind == "json":
                self._send(reply.status, json.dumps(reply.body).encode(), "application/json")
            else:
                self._send(reply.status, str(reply.body or "").encode(), "text/plain" if reply.kind == "text" else None)

        def _send(self, status: int, body: bytes, kind: str | None) -> None:
            try:
                self.send_response(status)
                if kind:
                    self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 — the names http.server calls

        def log_message(self, *_: object) -> None:
            pass

    return Handler
