"""The Messaging API in edge mode at a running go-waku node: lightpush, filter, and the store's word."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging import MessageRecord
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.sharding import NamedTopic
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.rest_node import RestStoreNode
from reliable_channel.transport.waku_api import WakuApi
from reliable_channel.transport.waku_rest import Pace, WakuRestNode
from tests.support.messaging_site import Site
from tests.support.messaging_world import CONTENT
from tests.support.waiting import until
from tests.support.waku_process import PROGRAM, PUBSUB_TOPIC, WakuProcess

pytestmark = [pytest.mark.waku, pytest.mark.skipif(not PROGRAM, reason="no Waku node was built: make test-node")]


def test_a_message_is_sent_received_and_confirmed_by_the_store(nodes: list[WakuProcess]) -> None:
    first, second, third = nodes
    clock = ManualClock(time.time_ns())
    transport = WakuRestNode(
        WakuApi(BoundedHttp(second.url)),
        NamedTopic(PUBSUB_TOPIC),
        Mode.EDGE,
        store=StoreClient([RestStoreNode(BoundedHttp(first.url))], RetryPolicy(attempts=1)),
        pace=Pace(poll_s=0.05, health_s=0.2),
        clock=clock,
    )
    elsewhere = WakuApi(BoundedHttp(third.url))

    def publish(message: WakuMessage) -> None:
        assert elsewhere.relay_publish(PUBSUB_TOPIC, message).reason is None

    site = Site(transport, publish, clock, edge=True)
    heard: list[MessageRecord] = []

    def payloads() -> set[bytes]:
        return {record.message.payload for record in heard}

    site.start(store_confirmation=True, confirm_content_topics=(CONTENT,))
    with closing(site.node):
        site.subscribe(heard.append)

        def subscribed() -> bool:
            """Whether anything of the mesh has come: the filter service takes a moment to begin."""
            site.arrives(b"anybody there? %d" % time.monotonic_ns())
            time.sleep(0.2)
            site.node.tick()
            return bool(heard)

        until(subscribed, "the filter subscription is in force")
        request_id = site.send(b"from the edge")
        site.until(lambda: site.record(request_id).sent)
        site.arrives(b"from the mesh")
        site.until(lambda: payloads() >= {b"from the edge", b"from the mesh"})
        for _ in range(2):
            clock.advance(60_000)
            site.node.tick()
        site.until(lambda: site.record(request_id).stored)
        found = {record.message.payload: record for record in site.node.history([CONTENT])}
    assert found.keys() >= {b"from the edge", b"from the mesh"}
    assert found[b"from the edge"].request_id == request_id
