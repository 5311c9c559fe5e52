"""Many channels in one process: what is counted here grew with their number, or with its square."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.channel import ReliableChannel, create_reliable_channel
from reliable_channel.channel.channel import MAX_REST_MS
from reliable_channel.channel.cycle import ChannelCycle
from reliable_channel.channel.node_channels import NodeChannels
from reliable_channel.channel.persistence import ChannelKey
from reliable_channel.channel.retrieval import CATCH_UP_MARGIN_MS, CHECK_PERIOD_MS
from reliable_channel.core.wire import sds
from reliable_channel.transport.clock import SystemClock, now_ms
from reliable_channel.transport.memory import MemoryNetwork, MemoryNode
from reliable_channel.transport.store.model import StorePage, StoreQuery
from tests.support.waiting import until
from tests.unit.channel.channel_world import TOPIC, Recorder, World, quick

MANY = 30


def note_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Counter[str]:
    """Count the calls of a function."""
    calls: Counter[str] = Counter()
    function: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


@contextmanager
def open_channels(network: MemoryNetwork, name: str, topics: list[str], **options: Any) -> Iterator[list[Any]]:
    node = network.node(name)
    node.start()
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                create_reliable_channel(
                    node, f"channel {number}", topic, name, config=quick(), clock=network.clock, **options
                )
            )
            for number, topic in enumerate(topics)
        ]


def test_only_the_channels_of_a_topic_hear_of_its_envelopes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand channels were called for each envelope that one of them sent or received."""
    network = MemoryNetwork()
    offers, reports = note_calls(monkeypatch, ChannelCycle, "offer"), note_calls(monkeypatch, ChannelCycle, "report")
    topics = [f"/many/1/{number}/proto" for number in range(MANY)]
    with (
        open_channels(network, "alice", topics, threaded=False) as alices,
        open_channels(network, "bob", topics, threaded=False) as bobs,
    ):
        received: list[Any] = []
        bobs[7].on_message_received(received.append)
        offers.clear()
        reports.clear()
        alices[7].send(b"hello")
        alices[7].step()
        network.pump()
        assert (offers["offer"], reports["report"]) == (1, 1), (
            "one of bob's that it is here, one of alice's that it left"
        )
        bobs[7].step()
        assert [event.message for event in received] == [b"hello"]


class ComparedTopic(str):
    """A content topic that counts how often it is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        ComparedTopic.comparisons += 1
        return str.__eq__(self, str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def test_a_channel_that_closes_looks_at_no_other_topic() -> None:
    """Each close looked at all open channels: 10 000 closes took 50 million comparisons."""
    channels = NodeChannels()
    keys = [ChannelKey("/waku/2/rs/0/0", ComparedTopic(f"/many/1/{one}/proto"), "c", "alice") for one in range(MANY)]
    for key in keys:
        channels.reserve(key)
    for key in keys:
        channels.release(key)
    assert ComparedTopic.comparisons == 0
    for key in keys:
        channels.reserve(key)  # as none is open any more


def test_an_envelope_of_a_shared_topic_is_read_once_for_all_other_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    network = MemoryNetwork()
    with (
        open_channels(network, "alice", [TOPIC] * MANY, threaded=False) as alices,
        open_channels(network, "bob", [TOPIC] * MANY, threaded=False) as bobs,
    ):
        for channel in bobs:
            channel.step()
            channel._cycle.work.clear()
        decoded = note_calls(monkeypatch, sds, "_decode")
        alices[7].send(b"hello")
        alices[7].step()
        decoded.clear()
        network.pump()
        assert [number for number, channel in enumerate(bobs) if channel._cycle.work.is_set()] == [7]
        for channel in bobs:
            channel.step()
        assert decoded["_decode"] == 2, "to find the channel, and there"


def note_queries(node: MemoryNode) -> list[StoreQuery]:
    queries: list[StoreQuery] = []
    query_store = node.query_store

    def query(query: StoreQuery) -> StorePage:
        queries.append(query)
        return query_store(query)

    node.query_store = query  # type: ignore[method-assign]
    return queries


def test_what_other_channels_of_a_topic_said_is_not_fetched_from_a_store() -> None:
    """A channel that does not read an envelope has heard of it all the same."""
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    world.recorders["bob, elsewhere"] = Recorder(
        create_reliable_channel(
            world.node("bob"), "kitchen", TOPIC, "bob", config=quick(), clock=world.network.clock, threaded=False
        )
    )
    world.run(1_000)
    queries = note_queries(world.node("bob"))
    alice.channel.send(b"hello")
    world.run(CHECK_PERIOD_MS + 2_000, step_ms=1_000)
    assert bob.payloads == [b"hello"]
    assert [query.hashes for query in queries] == [()], "the check, in which nothing is unknown"


def test_the_channels_of_a_topic_query_a_store_together() -> None:
    """Each read all that was sent on the topic, when it was opened and every ten minutes."""
    network = MemoryNetwork()
    queries = note_queries(network.node("bob"))
    with (
        open_channels(network, "alice", [TOPIC] * MANY, threaded=False) as alices,
        open_channels(network, "bob", [TOPIC] * MANY, threaded=False) as bobs,
    ):
        received: list[bytes] = []
        for channel in bobs:
            channel.on_message_received(lambda event: received.append(event.message))
            channel.step()
        assert len(queries) == 1
        network.node("bob").stop()
        alices[7].send(b"hello")
        alices[7].step()
        network.pump()
        network.node("bob").start()
        for channel in bobs:
            channel.step()
        assert (len(queries), received) == (2, [b"hello"])
        network.run(CHECK_PERIOD_MS)
        for channel in bobs:
            channel.step()
        assert len(queries) == 3


def test_a_channel_that_is_opened_later_reads_what_it_missed() -> None:
    """The check that it shares is past that."""
    world = World()
    alice = world.join("alice", channel_id="kitchen")
    world.join("bob")
    world.run(1_000)
    alice.channel.send(b"early")
    world.run(1_000)
    kitchen = world.join("bob", channel_id="kitchen")
    world.run(2_000)
    assert kitchen.payloads == [b"early"]


def test_a_silent_channel_asks_for_no_more_than_the_others_of_its_topic(tmp_path: Path) -> None:
    """It would ask for up to a day of what they said, whenever its node comes back or it is opened again."""
    network = MemoryNetwork()
    node, config = network.node("bob"), quick(history_backend="sqlite", database=tmp_path / "bob.sqlite")
    node.start()
    queries = note_queries(node)

    def open_channel(channel_id: str) -> ReliableChannel:
        return create_reliable_channel(
            node, channel_id, TOPIC, "bob", config=config, clock=network.clock, threaded=False
        )

    silent, busy = open_channel("silent"), open_channel("channel 0")
    with open_channels(network, "alice", [TOPIC], threaded=False) as (alice,):
        network.run(3 * CATCH_UP_MARGIN_MS)
        alice.send(b"hello")
        alice.step()
        network.pump()
    heard = now_ms(network.clock)
    busy.step()
    queries.clear()
    node.stop()
    node.start()
    silent.step()
    silent.close()
    silent = open_channel("silent")
    silent.step()
    silent.close()
    busy.close()
    assert [query.start_time_ns // 1_000_000 for query in queries] == [heard - CATCH_UP_MARGIN_MS] * 2


def test_a_channel_that_closes_leaves_the_queries_to_the_others() -> None:
    network = MemoryNetwork()
    queries = note_queries(network.node("bob"))
    with open_channels(network, "bob", [TOPIC] * 2, threaded=False) as (first, second):
        first.close()
        second.step()
        assert len(queries) == 1


def test_the_status_of_a_channel_decodes_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 000 sends it took half a second, under the lock of the channel."""
    with open_channels(MemoryNetwork(), "alice", [TOPIC], threaded=False) as (channel,):
        for number in range(3):
            channel.send(b"%d" % number)
        decoded = note_calls(monkeypatch, sds, "_decode")
        assert channel.status()["unacknowledged_segments"] == 3
        assert not decoded


def test_a_channel_that_waits_has_one_thread() -> None:
    """It kept a second one for queries of a store."""
    before = set(threading.enumerate())
    with open_channels(MemoryNetwork(SystemClock()), "alice", [TOPIC]):
        until(lambda: [each.name for each in set(threading.enumerate()) - before] == ["reliable-channel-channel 0"])


def test_a_channel_rests_until_there_is_something_to_do() -> None:
    """It ran a cycle every second: a thousand channels took a sixth of a core for nothing."""
    with open_channels(MemoryNetwork(), "alice", [TOPIC], threaded=False) as (channel,):
        rests: list[float] = []

        class Work(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                rests.append(timeout or 0.0)
                channel._worker = None  # ends the loop
                return False

        channel.step()
        due = (channel.step() - now_ms(channel._cycle.clock)) / 1_000
        channel._cycle.work, channel._worker = Work(), threading.current_thread()
        channel._run()
        assert rests == [min(due, MAX_REST_MS / 1_000)]
        assert due > 1.0
