"""Nodes that one thread starts or stops while another one stops them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import NodeEvent, SendFailed
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.sharding import NamedTopic
from reliable_channel.transport.waku_api import WakuApi
from reliable_channel.transport.waku_rest import WakuRestNode
from tests.support.waiting import WAIT_S, until

TOPICS = NamedTopic("/waku/2/rs/0/0")
NOBODY = "http://127.0.0.1:9"
AnyNode = WakuRestNode | KafkaNode


def start_rest_node() -> WakuRestNode:
    node = WakuRestNode(WakuApi(BoundedHttp(NOBODY)), TOPICS)
    node.start()
    return node


def start_kafka_node() -> KafkaNode:
    """As after ``start``, without a broker."""
    node = KafkaNode(KafkaClients({}, {}, {}), TOPICS)
    node._producer = SimpleNamespace(close=lambda _: None)  # type: ignore[assignment]
    node._dispatcher.start()
    return node


def begin_stop(node: AnyNode, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Thread, threading.Event]:
    """A thread that stops the node, once it is inside ``stop``, and what lets it go on."""
    stopping, go_on = threading.Event(), threading.Event()
    stop = node._dispatcher.stop

    def wait_and_stop() -> None:
        stopping.set()
        go_on.wait(WAIT_S)
        stop()

    monkeypatch.setattr(node._dispatcher, "stop", wait_and_stop)
    stopper = threading.Thread(target=node.stop, daemon=True)
    stopper.start()
    assert stopping.wait(WAIT_S)
    return stopper, go_on


@pytest.mark.parametrize("start", [start_rest_node, start_kafka_node])
def test_a_second_stop_returns_when_the_node_is_stopped(
    start: Callable[[], AnyNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returned at once, and the listeners were still called."""
    node = start()
    stopper, go_on = begin_stop(node, monkeypatch)
    second = threading.Thread(target=node.stop, daemon=True)
    second.start()
    second.join(0.1)
    assert second.is_alive(), "it waits for the other thread"
    go_on.set()
    for thread in (stopper, second):
        thread.join(WAIT_S)
    assert node._dispatcher._thread is None


def test_a_node_that_is_started_while_it_stops_calls_its_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of ``stop`` ended their thread again, and a started node reported nothing."""
    node = start_rest_node()
    stopper, go_on = begin_stop(node, monkeypatch)
    starter = threading.Thread(target=node.start, daemon=True)
    starter.start()
    starter.join(0.1)
    go_on.set()
    for thread in (stopper, starter):
        thread.join(WAIT_S)
    events: list[NodeEvent] = []
    node.add_listener(events.append)
    node.send(WakuMessage(b"x", "/app/1/x/proto"), max_wait_s=0)
    until(lambda: any(isinstance(event, SendFailed) for event in events))
    node.stop()


@pytest.mark.parametrize("start", [start_rest_node, start_kafka_node])
def test_a_listener_may_stop_the_node_that_another_thread_stops(start: Callable[[], AnyNode]) -> None:
    """Each would wait for the other."""
    node = start()
    called, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    def stop(_: object) -> None:
        called.set()
        go_on.wait(WAIT_S)
        node.stop()
        stopped.set()

    node.add_listener(stop)
    node._emit(SendFailed(None, None, "", 0))  # type: ignore[arg-type]
    assert called.wait(WAIT_S)
    stopper = threading.Thread(target=node.stop, daemon=True)
    stopper.start()
    until(lambda: not node._dispatcher._started)
    go_on.set()
    assert stopped.wait(WAIT_S)
    stopper.join(WAIT_S)
    assert not stopper.is_alive()
