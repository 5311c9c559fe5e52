"""A Waku node's REST API on loopback, answering as the recordings in ``vectors/waku_rest.json`` do, with faults.

Both dialects: go-waku as recorded, nwaku as documented (docs/spec/waku-rest.md). Nodes of one :class:`FakeWakuNetwork`
relay to each other and share one archive. What a node answers is in the modules beside this one;
``tests/unit/transport/test_fake_waku_node.py`` holds it to the recordings.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import threading
from collections import deque
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.store.source import MemorySource
from tests.support.fake_waku_admin import PEER_ADDRESS, AdminAnswers
from tests.support.fake_waku_faults import Call, Dialect, Faults, Reply
from tests.support.fake_waku_filter import FilterAnswers
from tests.support.fake_waku_http import handler_of
from tests.support.fake_waku_messages import message_to_json
from tests.support.fake_waku_publish import PUBSUB_TOPIC, PublishAnswers
from tests.support.fake_waku_store import StoreAnswers

__all__ = ["PEER_ADDRESS", "PUBSUB_TOPIC", "FakeWakuNetwork", "FakeWakuNode"]


class FakeWakuNetwork:
    """What nodes share: the mesh and the archive."""

    def __init__(self) -> None:
        self.archive = MemorySource()
        self.nodes: list[FakeWakuNode] = []
        self.lock = threading.RLock()
        self._seen: set[bytes] = set()

    def publish(self, pubsub_topic: str, message: WakuMessage, origin: PublishAnswers | None = None) -> bool:
        """Relay and store one message; ``False`` for a duplicate, which goes nowhere."""
        envelope_hash = message_hash(pubsub_topic, message)
        with self.lock:
            if envelope_hash in self._seen:
                return False
            self._seen.add(envelope_hash)
            if not message.ephemeral:
                self.archive.add(pubsub_topic, message)
            for node in self.nodes:
                if node is not origin:
                    node.arrive(pubsub_topic, message)
            return True


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print no stack trace for a connection that :meth:`FakeWakuNode.down` or the client has ended."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class FakeWakuNode(AdminAnswers, PublishAnswers, FilterAnswers, StoreAnswers):
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
        rln: bool = False,
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
        self.rln = rln
        self.requests: list[tuple[str, str]] = []
        self.published: list[tuple[str, WakuMessage]] = []
        self.authorizations: list[str] = []
        self._random = random.Random(seed)
        self._relay: dict[str, list[deque[dict[str, Any]]]] = {}
        self._filter: dict[tuple[str, str], deque[dict[str, Any]]] = {}
        self._last_read: dict[str, list[dict[str, Any]]] = {}
        self._server: _Server | None = None
        self._port = 0
        self.connections: set[socket.socket] = set()
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
            self._server = _Server(("127.0.0.1", self._port), handler_of(self))
            self._server.daemon_threads = True
            self._port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections; caches and subscriptions stay."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            for connection in list(self.connections):
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
                self._drop_oldest(cache)
            held = self._filter.get((pubsub_topic, message.content_topic))
            if held is not None:
                held.append(self.to_json(message, relay=False))
                while len(held) > self.filter_cache:
                    held.popleft()

    def _drop_oldest(self, cache: deque[dict[str, Any]]) -> None:
        """nwaku's limit holds for all topics together, go-waku's for each queue."""
        caches = [c for queues in self._relay.values() for c in queues] if self.dialect == "nwaku" else [cache]
        while sum(map(len, caches)) > self.relay_cache:
            oldest = min(
                ((one.get("timestamp") or 0, n, c) for c in caches for n, one in enumerate(c)), key=lambda x: x[0]
            )
            del oldest[2][oldest[1]]

    def to_json(self, message: WakuMessage, relay: bool, store: bool = False) -> dict[str, Any]:
        """A message as this node's dialect writes it."""
        return message_to_json(self.dialect, message, relay, store)

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
            return self._answer_about(call.segments[2])
        if call.path in ("/info", "/version"):
            return Reply(404, "404 page not found\n", "text") if go else self._answer_about(call.path[1:])
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
