"""The node on Kafka, without a broker: which records count as read."""

from __future__ import annotations

import threading

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_records import headers_of, value_of
from reliable_channel.transport.sharding import NamedTopic
from tests.support.waiting import WAIT_S

PUBSUB, TOPIC = "/waku/2/rs/0/0", "/app/1/x/proto"


def test_what_comes_when_nobody_is_subscribed_any_more_is_read_by_the_next_process() -> None:
    node = KafkaNode(KafkaClients({}, {}, {}), NamedTopic(PUBSUB), group_id="listener")
    heard: list[object] = []
    node.add_listener(heard.append)
    node.subscribe([TOPIC])
    node._dispatcher.start()
    took = threading.Event()
    for offset in range(4):
        message = WakuMessage(b"%d" % offset, TOPIC, timestamp=1)
        node._take(0, offset, value_of(message), tuple(headers_of(PUBSUB, None, None)))
        if offset == 1:
            node._dispatcher.put(took.set)
            assert took.wait(WAIT_S)
            node.unsubscribe([TOPIC])
    node._dispatcher.stop()
    assert len(heard) == 2, "nothing arrives of what is not subscribed"
    assert node._read == {0: 2}
