"""Whatever fails, crashes and is cancelled in whatever order: once the network is well, every request has an end."""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.rate_limit import Traffic
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging import Message, MessagingNode, PlainEncoder
from reliable_channel.transport.base import FailureReason, NodeEvent, RequestId, SendFailed, Sent
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.node import NodeBase, new_request_id
from reliable_channel.transport.sharding import NamedTopic
from tests.support.examples import examples
from tests.support.messaging_world import CONTENT, PUBSUB, World, config

# Not "duplicate": after a time-out it counts as sent, and this network would not have the message.
FAILURES = [None, *(reason for reason in FailureReason if reason.value not in ("stopped", "duplicate"))]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.booleans()),
        st.tuples(st.just("fail"), st.sampled_from(FAILURES)),
        st.tuples(st.just("wait"), st.sampled_from([0, 500, 1_000, 5_000, 130_000])),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("retry"), st.integers(0, 9)),
        st.tuples(st.just("health"), st.sampled_from(list(HealthState))),
        st.tuples(st.just("crash"), st.none()),
    ),
    max_size=25,
)


class Crashing(World):
    """A world whose node can die between two steps: the next one finds the file as the last commit left it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.crashes = 0
        super().__init__(folder / "0.sqlite")

    def crash(self) -> None:
        self.node._started = False
        self.transport.remove_listener(self.node._on_transport)
        before, self.crashes = Path(self.database), self.crashes + 1
        self.database = self.folder / f"{self.crashes}.sqlite"
        for suffix in ("", "-wal"):
            if (before.parent / (before.name + suffix)).exists():
                shutil.copy(f"{before}{suffix}", f"{self.database}{suffix}")
        self.node._ledger.records.close()
        self.node = self.make_node()


@settings(max_examples=examples(100), deadline=None)
@given(STEPS)
def test_every_request_ends_as_its_record_says(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = Crashing(Path(folder))
        requests: list[str] = []
        cancelled: set[str] = set()
        for what, value in steps:
            if what == "send":
                requests.append(world.send(b"%d" % len(requests)))
            elif what == "fail":
                world.transport.failing = value
            elif what == "wait":
                world.clock.advance(value)
                world.run()
            elif what == "cancel" and value < len(requests):
                if requests[value] in world.node.get_pending_requests():
                    cancelled.add(requests[value])
                world.node.cancel_request(requests[value])
            elif what == "retry" and value < len(requests) and world.node.retry(requests[value]):
                cancelled.discard(requests[value])
            elif what == "health":
                world.transport.report(Health(value))
            elif what == "crash":
                world.crash()
            pending = world.node.get_pending_requests()
            assert len(pending) == len(set(pending))
            assert set(pending) <= set(requests)
        world.transport.failing = None
        world.transport.report(Health(HealthState.HEALTHY))
        for _ in range(4):
            world.clock.advance(130_000)
            world.run()
        assert world.node.get_pending_requests() == []
        delivered = Counter(message.payload for message in world.transport.sent)
        for number, request_id in enumerate(requests):
            record = world.record(request_id)
            assert not record.sending
            assert record.sent == (delivered[b"%d" % number] > 0), "sent means that the network has it"
            assert record.sent or record.error or request_id in cancelled
            assert not (record.sent and record.error), "a success clears the error"
        world.node.close()


class AnsweringNode(NodeBase):
    """A transport that answers every send from another thread."""

    def __init__(self) -> None:
        super().__init__(NamedTopic(PUBSUB), ManualClock())
        self._pool = ThreadPoolExecutor(4)
        self._health = Health(HealthState.HEALTHY)

    def start(self) -> None: ...

    def stop(self) -> None:
        self._pool.shutdown()

    def send(
        self,
        message: WakuMessage,
        pubsub_topic: str | None = None,
        *,
        max_wait_s: float | None = None,
        traffic: Traffic = Traffic.FIRST_SEGMENT,
    ) -> RequestId:
        request_id = new_request_id()
        self._pool.submit(self._emit, self._report_sent(request_id, message, PUBSUB))
        return request_id

    def subscribe(self, content_topics: Collection[str]) -> None: ...

    def query_store(self, query: Any) -> Any:
        raise NotImplementedError

    def _emit(self, event: NodeEvent) -> None:
        self._dispatcher.emit(event)


def test_many_threads_send_and_cancel_at_once_and_every_request_is_told_once() -> None:
    told: list[NodeEvent] = []
    ended: set[str] = set()
    everything_told = threading.Event()
    requests: list[str] = []
    node = MessagingNode(config(), AnsweringNode())

    def note(event: NodeEvent) -> None:
        told.append(event)
        if isinstance(event, Sent | SendFailed):
            ended.add(event.request_id)
            if len(ended) == 400:
                everything_told.set()

    node.port.add_listener(note)
    node.start()

    def work(number: int) -> None:
        for turn in range(50):
            request_id = node.send(PlainEncoder(PUBSUB, CONTENT), Message(uuid.uuid4().bytes))
            requests.append(request_id)
            if turn % 5 == number % 5:
                node.cancel_request(request_id)
            node.get_pending_requests()
            node.get_by_content_topic(CONTENT, take=3)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert everything_told.wait(120)
    node.close()
    ends = Counter(event.request_id for event in told if isinstance(event, Sent | SendFailed))
    assert set(ends) == set(requests)
    # A cancelled request that was on its way already is told twice: as cancelled, and then as sent after all.
    assert all(count <= 2 for count in ends.values())
    assert all(count == 1 for request_id, count in ends.items() if count_of(told, request_id, SendFailed) == 0)


def count_of(told: list[NodeEvent], request_id: str, kind: type) -> int:
    return sum(isinstance(event, kind) and event.request_id == request_id for event in told)  # type: ignore[attr-defined]
