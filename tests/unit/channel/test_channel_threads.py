"""Channels as applications use them: with their own thread, from plain Python and from asyncio."""

from __future__ import annotations

import asyncio
import itertools
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.channel import (
    ChannelClosedError,
    ChannelProblem,
    MemoryPersistence,
    MessageDelivered,
    MessageReceived,
    ReliableChannel,
    ReliableChannelConfig,
    SendState,
    SqlitePersistence,
    create_reliable_channel,
)
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.messaging.sending import PendingLimitError
from reliable_channel.transport.base import RequestId, SendBufferFull
from reliable_channel.transport.clock import SystemClock
from reliable_channel.transport.memory import MemoryNetwork
from tests.support.waiting import WAIT_S, until
from tests.unit.channel.channel_world import CHANNEL, TOPIC, fail_with, quick


def keep_busy(alice: ReliableChannel, bob: ReliableChannel) -> threading.Event:
    """Let a callback of bob's wait for the returned event: for a message of alice's, which has come."""
    running, go_on = threading.Event(), threading.Event()

    def wait(_: MessageReceived) -> None:
        running.set()
        go_on.wait(WAIT_S)

    bob.on_message_received(wait)
    alice.send(b"first")
    assert running.wait(WAIT_S)
    return go_on


class Pumped:
    """A memory network in real time, pumped by one thread of its own."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())
        self._channels: list[ReliableChannel] = []
        self.network = MemoryNetwork(clock=SystemClock())
        self._ended = threading.Event()
        self.pumping = threading.Lock()
        """Who holds it keeps the network from carrying anything."""
        self._thread = threading.Thread(target=self._run)
        for name in ("alice", "bob"):
            self.network.node(name).start()
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.002):
            with self.pumping:
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


def test_a_callback_that_waits_for_its_channel_is_refused(pumped: Pumped) -> None:
    """It waited for ever for its own end."""
    ended = threading.Event()
    with pumped.channel("alice") as alice, pumped.channel("bob") as bob:

        def answer(_: MessageReceived) -> None:
            request_id = bob.send(b"answer")
            with pytest.raises(LocalError, match="callback"):
                bob.wait([request_id])
            with pytest.raises(LocalError, match="callback"):
                bob.flush()
            ended.set()

        bob.on_message_received(answer)
        alice.send(b"hello")
        assert ended.wait(WAIT_S)


def test_asyncio_sends_and_iterates_and_leaves_no_thread(pumped: Pumped) -> None:
    async def chat() -> tuple[bytes, str]:
        async with pumped.channel("alice") as alice, pumped.channel("bob") as bob:
            received = bob.events(MessageReceived)
            delivered = alice.events(MessageDelivered)
            request_id = await alice.asend(b"hello", label="greeting")
            assert await alice.asend(b"hello", label="greeting") == request_id
            message = await asyncio.wait_for(anext(received), WAIT_S)
            await bob.asend(b"thanks")
            event = await asyncio.wait_for(anext(delivered), WAIT_S)
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
    with pytest.raises(EnvironmentFault, match="SystemExit"):
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


def test_closing_from_a_callback_waits_until_the_node_has_sent_the_acknowledgement(pumped: Pumped) -> None:
    """`listen --count` stops its node next: the acknowledgement waited there, and the sender never learned of it."""
    alice, bob = pumped.channel("alice"), pumped.channel("bob")
    called, closed = threading.Event(), threading.Event()

    def leave(_: MessageReceived) -> None:
        pumped.pumping.acquire()
        called.set()
        bob.close()
        closed.set()

    bob.on_message_received(leave)
    request_id = alice.send(b"the last one")
    assert called.wait(WAIT_S)
    try:
        assert not closed.wait(0.2)
    finally:
        pumped.pumping.release()
    assert closed.wait(WAIT_S)
    pumped.network.node("bob").stop()
    until(lambda: alice.send_state(request_id) is SendState.DELIVERED)


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
        with pytest.raises(SendBufferFull, match="1000 bytes"):
            alice.send_ephemeral(b"no room")


def test_asyncio_closes_a_channel_for_whose_space_all_its_threads_wait(pumped: Pumped) -> None:
    """The close waited for one of them, through the time-outs of all sends."""
    config = quick(max_queued_bytes=1, send_timeout_ms=round(WAIT_S * 1_000))

    async def close_in_between() -> list[object]:
        alice = pumped.channel("alice", config)
        pumped.network.node("alice").send = fail_with(SendBufferFull("full"))  # type: ignore[method-assign]
        await alice.asend(b"first")
        sends = [asyncio.create_task(alice.asend(b"more")) for _ in range(40)]
        await asyncio.sleep(0)
        await alice.aclose()
        return await asyncio.gather(*sends, return_exceptions=True)

    assert {type(each) for each in asyncio.run(close_in_between())} == {ChannelClosedError}


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


@pytest.mark.parametrize("end", ["stop", "close"])
def test_waiting_ends_without_success_when_another_thread_ends_the_channel(
    pumped: Pumped, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """After a stop ``wait`` never returned; ``flush`` said that what the node had not taken was sent."""
    alice = pumped.channel("alice")
    monkeypatch.setattr(pumped.network.node("alice"), "send", fail_with(SendBufferFull("The buffer is full.")))
    request_id = alice.send(b"no node takes this")
    ended: queue.Queue[bool] = queue.Queue()
    for call in (lambda: alice.wait([request_id]), alice.flush):
        threading.Thread(target=lambda call=call: ended.put(call()), daemon=True).start()  # type: ignore[misc]
    with pytest.raises(queue.Empty):
        ended.get(timeout=0.1)
    getattr(alice, end)()
    assert [ended.get(timeout=WAIT_S) for _ in range(2)] == [False, False]
    alice.close()


def test_waiting_ends_without_success_when_the_channel_stops_on_a_full_disk(
    pumped: Pumped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returned ``True``, and ``reliable-channel send`` ended with 0."""
    persistence = MemoryPersistence(keeps_journal=True)
    alice = pumped.channel("alice", quick(persistence=persistence))
    monkeypatch.setattr(pumped.network.node("alice"), "send", fail_with(SendBufferFull("The buffer is full.")))
    request_id = alice.send(b"x")
    monkeypatch.setattr(persistence, "append", fail_with(EnvironmentFault("The disk is full.")))
    with pytest.raises(EnvironmentFault):
        alice.send(b"y")
    assert alice.wait([request_id], timeout_s=WAIT_S) is False
    assert alice.flush(WAIT_S) is False
    with pytest.raises(EnvironmentFault):
        alice.start()


@pytest.mark.parametrize(("call", "before"), [("send", "_await_space"), ("send_ephemeral", "_check")])
def test_a_message_that_is_sent_while_another_thread_closes_is_refused(
    pumped: Pumped, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str, before: str
) -> None:
    """The database was closed under it: an ``EnvironmentFault`` and a problem of kind ``stopped``."""
    alice = pumped.channel("alice", quick(history_backend="sqlite", database=tmp_path / "alice.db"))
    problems: list[object] = []
    alice.on(ChannelProblem, problems.append)
    check = getattr(alice, before)

    def check_and_be_overtaken() -> None:
        check()
        monkeypatch.undo()
        alice.close()

    monkeypatch.setattr(alice, before, check_and_be_overtaken)
    with pytest.raises(ChannelClosedError):
        getattr(alice, call)(b"late")
    assert problems == []


def test_a_channel_that_cannot_store_what_has_arrived_reports_that_without_its_lock(
    pumped: Pumped, monkeypatch: pytest.MonkeyPatch
) -> None:
    persistence = MemoryPersistence(keeps_journal=True)
    alice, bob = pumped.channel("alice"), pumped.channel("bob", quick(persistence=persistence))
    looked: queue.Queue[object] = queue.Queue()

    def look(event: ChannelProblem) -> None:
        look = threading.Thread(target=lambda: looked.put(bob.status()), daemon=True)
        look.start()
        look.join(1)

    bob.on(ChannelProblem, look)
    go_on = keep_busy(alice, bob)
    second = alice.send(b"second")
    assert alice.wait([second], timeout_s=WAIT_S)
    until(lambda: len(bob._cycle.arrivals))
    monkeypatch.setattr(bob, "_acknowledge", lambda: None)
    monkeypatch.setattr(persistence, "append", fail_with(EnvironmentFault("The disk is full.")))
    threading.Timer(0.1, go_on.set).start()
    bob.stop()
    assert looked.get_nowait()


def test_whoever_stops_second_waits_for_the_first(pumped: Pumped) -> None:
    """It returned while callbacks were still running."""
    alice, bob = pumped.channel("alice"), pumped.channel("bob")
    go_on = keep_busy(alice, bob)
    first, second = threading.Thread(target=bob.stop), threading.Thread(target=bob.stop)
    first.start()
    until(lambda: not bob._started)
    second.start()
    second.join(0.1)
    assert second.is_alive()
    go_on.set()
    for thread in (first, second):
        thread.join(WAIT_S)


def test_a_channel_that_is_started_while_another_thread_stops_it_forgets_nothing(
    pumped: Pumped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of ``stop`` forgot what the started channel had given to the node."""
    alice, bob = pumped.channel("alice"), pumped.channel("bob")
    go_on = keep_busy(alice, bob)
    ids = map(str, itertools.count())
    monkeypatch.setattr(pumped.network.node("bob"), "send", lambda *_, **__: RequestId(next(ids)))  # none is reported

    def start_and_send() -> None:
        bob.start()
        bob.send(b"second")

    stopping, starting = threading.Thread(target=bob.stop), threading.Thread(target=start_and_send)
    stopping.start()
    until(lambda: not bob._started)
    starting.start()
    starting.join(0.5)
    go_on.set()
    for thread in (stopping, starting):
        thread.join(WAIT_S)
    until(lambda: any(dispatch.send_id for dispatch in [*bob._cycle.outgoing.in_flight.values()]))


def test_what_has_arrived_is_kept_when_one_thread_stops_a_channel_and_another_closes_it(pumped: Pumped) -> None:
    config = quick(persistence=MemoryPersistence(keeps_journal=True), query_on_connect=False)
    alice, bob = pumped.channel("alice"), pumped.channel("bob", config)
    go_on = keep_busy(alice, bob)
    alice.send(b"second")
    until(lambda: len(bob._cycle.arrivals))
    alice.close()  # she repeats nothing
    stopping, closing = threading.Thread(target=bob.stop), threading.Thread(target=bob.close)
    stopping.start()
    until(lambda: not bob._started)  # it waits for the callback
    closing.start()
    go_on.set()
    for thread in (stopping, closing):
        thread.join(WAIT_S)
    received: queue.Queue[bytes] = queue.Queue()
    again = pumped.channel("bob", config)
    again.on_message_received(lambda event: received.put(event.message))
    assert received.get(timeout=10) == b"second"
    again.close()


def test_opening_and_closing_many_times_leaves_nothing(pumped: Pumped) -> None:
    for _ in range(20):
        with pumped.channel("alice") as alice:
            alice.send(b"hello")
    assert pumped.network.node("alice").subscribed == frozenset()
    assert not any(thread.name.startswith("reliable-channel") for thread in threading.enumerate())


def test_a_channel_that_a_failed_send_has_stopped_does_nothing_more(pumped: Pumped) -> None:
    """Its thread went on with a state that holds a message which is stored nowhere."""
    kept = MemoryPersistence(keeps_journal=True)
    alice, bob = pumped.channel("alice", quick(persistence=kept)), pumped.channel("bob")
    heard, acknowledged = queue.Queue[bytes](), threading.Event()
    alice.on_message_received(lambda event: heard.put(event.message))
    bob.on_message_delivered(lambda _: acknowledged.set())
    append, kept.append = kept.append, fail_with(EnvironmentFault("The disk is full."))  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match="disk"):
        alice.send(b"lost")
    kept.append = append  # type: ignore[method-assign]
    bob.send(b"hello")
    assert not acknowledged.wait(2.0), "it still acknowledges"
    assert heard.empty()


def test_a_close_that_ctrl_c_interrupts_leaves_nothing_behind(
    pumped: Pumped, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its thread and its place at the node stayed, without the database."""
    database = tmp_path / "bob.sqlite"
    bob = pumped.channel("bob", quick(history_backend="sqlite", database=database))
    monkeypatch.setattr(bob, "_acknowledge", fail_with(KeyboardInterrupt()))  # it waits for the node there
    with pytest.raises(KeyboardInterrupt):
        bob.close()
    assert pumped.threads_of_closed_channels() == []
    alice, again = pumped.channel("alice"), pumped.channel("bob", quick(history_backend="sqlite", database=database))
    heard: queue.Queue[bytes] = queue.Queue()
    again.on_message_received(lambda event: heard.put(event.message))
    alice.send(b"hello")
    assert heard.get(timeout=WAIT_S) == b"hello"


@pytest.mark.parametrize("database", ["", "the next start sends them"], ids=["memory", "sqlite"])
def test_a_process_that_ends_before_its_sends_have_left_says_so(tmp_path: Path, database: str) -> None:
    """A script whose last line sends ended without a word, and nothing was sent."""
    kept = f"history_backend='sqlite', database={str(tmp_path / 'a.db')!r}" if database else ""
    script = f"""
from reliable_channel.channel import ReliableChannelConfig, create_reliable_channel
from reliable_channel.transport.memory import MemoryNetwork

node = MemoryNetwork().node("alice")
node.start()
closed = create_reliable_channel(node, "closed", "/app/1/x/proto", "alice")
closed.send(b"x")
closed.close()
create_reliable_channel(node, "lobby", "/app/1/x/proto", "alice", config=ReliableChannelConfig({kept})).send(b"x")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    (line,) = ended.stderr.splitlines()
    assert "channel lobby was not closed when its process ended, and sends have not left (1)" in line
    assert (database or "they are lost") in line


def test_a_channel_for_which_there_is_no_thread_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was open and did nothing, and its end was another error."""
    node, start = MemoryNetwork().node("alice"), threading.Thread.start
    node.start()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        create_reliable_channel(node, CHANNEL, TOPIC, "alice")
    assert node.subscribed == frozenset()
    monkeypatch.setattr(threading.Thread, "start", start)
    create_reliable_channel(node, CHANNEL, TOPIC, "alice").close()
