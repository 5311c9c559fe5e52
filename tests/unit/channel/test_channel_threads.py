"""Channels as applications use them: with their own thread, from plain Python and from asyncio."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.channel import (
    ChannelProblem,
    MessageDelivered,
    MessageReceived,
    ReliableChannel,
    ReliableChannelConfig,
    SqlitePersistence,
    create_reliable_channel,
)
from reliable_channel.messaging.sending import PendingLimitError
from reliable_channel.transport.base import RequestId, SendBufferFull
from reliable_channel.transport.clock import SystemClock
from reliable_channel.transport.memory import MemoryNetwork
from tests.support.waiting import WAIT_S
from tests.unit.channel.channel_world import CHANNEL, TOPIC, quick


class Pumped:
    """A memory network in real time, pumped by one thread of its own."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())
        self._channels: list[ReliableChannel] = []
        self.network = MemoryNetwork(clock=SystemClock())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        for name in ("alice", "bob"):
            self.network.node(name).start()
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.002):
            self.network.pump()

    def channel(self, name: str, config: ReliableChannelConfig | None = None) -> ReliableChannel:
        channel = create_reliable_channel(self.network.node(name), CHANNEL, TOPIC, name, config=config or quick())
        self._channels.append(channel)
        return channel

    def threads_of_closed_channels(self) -> list[str]:
        """What closing has left behind. A test that failed before it closed its channels has said enough, and other
        libraries may begin threads when they like."""
        if not all(channel.is_closed for channel in self._channels):
            return []
        begun = [thread for thread in threading.enumerate() if thread not in self._before]
        return [thread.name for thread in begun if thread.name.startswith("reliable-channel")]

    def end(self) -> None:
        for channel in self._channels:
            channel.close()
        self._ended.set()
        self._thread.join()


@pytest.fixture
def pumped() -> Iterator[Pumped]:
    world = Pumped()
    yield world
    left = world.threads_of_closed_channels()
    world.end()
    assert left == [], "a thread was left behind"


def end_of_callbacks() -> None:
    """A channel's thread outlives a ``close`` from its own callback until the callback has returned."""
    for thread in threading.enumerate():
        if thread.name.startswith("reliable-channel"):
            thread.join(WAIT_S)


def test_plain_python_sends_waits_and_leaves_no_thread(pumped: Pumped) -> None:
    heard = threading.Event()
    with pumped.channel("alice") as alice, pumped.channel("bob") as bob:
        bob.on_message_received(lambda event: bob.send(b"answer to " + event.message))
        alice.on_message_received(lambda event: heard.set())
        request_id = alice.send(b"hello")
        assert heard.wait(WAIT_S)
        assert alice.wait([request_id], delivered=True, timeout_s=WAIT_S)
    assert alice.is_closed


def test_asyncio_sends_and_iterates_and_leaves_no_thread(pumped: Pumped) -> None:
    async def chat() -> tuple[bytes, str]:
        async with pumped.channel("alice") as alice, pumped.channel("bob") as bob:
            received = bob.events(MessageReceived)
            delivered = alice.events(MessageDelivered)
            request_id = await alice.asend(b"hello")
            message = await asyncio.wait_for(anext(received), WAIT_S)
            await bob.asend(b"thanks")
            event = await asyncio.wait_for(anext(delivered), WAIT_S)
            assert isinstance(message, MessageReceived)
            assert isinstance(event, MessageDelivered)
            assert event.request_id == request_id
            return message.message, event.name

    assert asyncio.run(chat()) == (b"hello", "reliable:message:delivered")


def test_a_callback_that_exits_stops_its_channel_and_says_so(pumped: Pumped) -> None:
    """``sys.exit()`` ends a thread without a word, and everybody who waits for the channel waited for ever."""
    alice, bob = pumped.channel("alice"), pumped.channel("bob")
    stopped: queue.Queue[str] = queue.Queue()
    bob.on_message_received(lambda _: sys.exit())
    bob.on(ChannelProblem, lambda event: stopped.put(event.kind))
    alice.send(b"hello")
    assert stopped.get(timeout=WAIT_S) == "stopped"
    with pytest.raises(RuntimeError, match="SystemExit"):
        bob.send(b"hello")


def test_closing_from_a_callback_and_from_many_threads_is_fine(pumped: Pumped) -> None:
    alice, bob = pumped.channel("alice"), pumped.channel("bob")
    closed = threading.Event()

    def leave(_: MessageReceived) -> None:
        bob.close()
        closed.set()

    bob.on_message_received(leave)
    alice.send(b"go away")
    assert closed.wait(WAIT_S)
    closers = [threading.Thread(target=alice.close) for _ in range(5)]
    for thread in closers:
        thread.start()
    for thread in closers:
        thread.join(WAIT_S)
    assert alice.is_closed
    end_of_callbacks()


def test_callbacks_that_close_each_others_channel_at_once_both_end(pumped: Pumped) -> None:
    alice, bob = pumped.channel("alice"), pumped.channel("bob")
    both_run, done = threading.Barrier(2), threading.Semaphore(0)

    def close(other: ReliableChannel) -> None:
        both_run.wait(WAIT_S)
        other.close()
        done.release()

    alice.on_message_received(lambda _: close(bob))
    bob.on_message_received(lambda _: close(alice))
    alice.send(b"go away")
    bob.send(b"you too")
    for _ in range(2):
        assert done.acquire(timeout=WAIT_S)
    end_of_callbacks()


def test_closing_waits_for_the_callback_that_runs_and_for_its_thread(pumped: Pumped) -> None:
    alice, bob = pumped.channel("alice"), pumped.channel("bob")
    running, released, order = threading.Event(), threading.Event(), []

    def slow(_: MessageReceived) -> None:
        running.set()
        assert released.wait(WAIT_S)
        order.append("callback")

    def close() -> None:
        bob.close()
        order.append("closed")

    bob.on_message_received(slow)
    alice.send(b"take your time")
    assert running.wait(WAIT_S)
    closer = threading.Thread(target=close)
    closer.start()
    closer.join(0.1)  # time enough for a close that does not wait
    released.set()
    closer.join(WAIT_S)
    alice.close()
    assert order == ["callback", "closed"]


def test_whoever_closes_second_finds_the_channel_closed(pumped: Pumped, tmp_path: Path) -> None:
    persistence = SqlitePersistence(tmp_path / "bob.db")
    alice, bob = pumped.channel("alice"), pumped.channel("bob", quick(persistence=persistence))
    closing, compact = threading.Event(), persistence.compact

    def slowly(*arguments: Any) -> None:
        second.start()
        closing.set()
        compact(*arguments)

    def close() -> None:
        bob.close()
        persistence.close()  # what the first one still wanted to keep would fail now

    second = threading.Thread(target=close)
    persistence.compact = slowly  # type: ignore[method-assign]
    bob.on_message_received(lambda event: bob.close())
    alice.send(b"go away")
    assert closing.wait(WAIT_S)
    second.join(WAIT_S)
    alice.close()
    again = SqlitePersistence(tmp_path / "bob.db")
    assert [again.load(key).snapshot is not None for key in again.channels()] == [True]
    end_of_callbacks()


def test_many_threads_may_send_at_once(pumped: Pumped) -> None:
    received: list[bytes] = []
    complete = threading.Event()
    with pumped.channel("alice") as alice, pumped.channel("bob") as bob:

        def note(event: MessageReceived) -> None:
            received.append(event.message)
            if len(received) == 200:
                complete.set()

        bob.on_message_received(note)
        senders = [
            threading.Thread(target=lambda n=n: [alice.send(b"%d/%d" % (n, i)) for i in range(50)])  # type: ignore[misc]
            for n in range(4)
        ]
        for thread in senders:
            thread.start()
        assert complete.wait(WAIT_S)
        for thread in senders:
            thread.join()
    assert sorted(received) == sorted(b"%d/%d" % (n, i) for n in range(4) for i in range(50))


def test_send_waits_for_space_and_says_so_when_there_is_none(pumped: Pumped) -> None:
    config = quick(max_queued_bytes=1_000, send_timeout_ms=50)
    with pumped.channel("alice", config) as alice:

        def full(*_: object, **__: object) -> None:
            raise SendBufferFull("The buffer is full.")

        pumped.network.node("alice").send = full  # type: ignore[assignment]
        alice.send(bytes(2_000))
        with pytest.raises(SendBufferFull, match="1000 bytes"):
            alice.send(b"no room")


def test_a_full_node_is_asked_again_and_never_waited_for(pumped: Pumped) -> None:
    node, asked = pumped.network.node("alice"), []
    send = node.send

    def full_at_first(*arguments: Any, max_wait_s: float | None = None, **_: Any) -> RequestId:
        asked.append(max_wait_s)
        if len(asked) < 3:
            raise PendingLimitError("10 send requests are pending.", "Try again later.")
        return send(*arguments)

    node.send = full_at_first  # type: ignore[assignment, method-assign]
    with pumped.channel("alice") as alice:
        assert alice.wait([alice.send(b"hello")], timeout_s=WAIT_S)
        assert alice.status()["sends"]["sent"] == 1
    assert asked == [0, 0, 0]


def test_opening_and_closing_many_times_leaves_nothing(pumped: Pumped) -> None:
    for _ in range(20):
        with pumped.channel("alice") as alice:
            alice.send(b"hello")
    assert pumped.network.node("alice").subscribed == frozenset()
    assert not any(thread.name.startswith("reliable-channel") for thread in threading.enumerate())
