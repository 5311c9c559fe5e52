"""Listeners: callbacks, asynchronous iterators, and what a bad one may not do."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from reliable_channel.channel import (
    ChannelEvent,
    ChannelProblem,
    IrretrievableMessage,
    MessageReceived,
    MessageSent,
    MissingMessage,
    create_reliable_channel,
    event_stream,
)
from reliable_channel.channel.event_stream import EventStream
from reliable_channel.core.errors import LocalError
from reliable_channel.transport.dispatcher import Dispatcher
from tests.support.waiting import WAIT_S
from tests.unit.channel.channel_world import CHANNEL, TOPIC, World, quick


def received(number: int) -> MessageReceived:
    return MessageReceived(
        channel_id="c",
        at=number,
        message=b"%d" % number,
        message_id="",
        sender_id="s",
        content_topic="t",
        sequence=number,
    )


def test_listeners_are_called_in_the_order_of_registration() -> None:
    dispatcher, heard = Dispatcher(), []
    for name in "abc":
        dispatcher.on(ChannelEvent, call=lambda _, name=name: heard.append(name))  # type: ignore[misc]
    dispatcher.emit(received(1))
    assert heard == ["a", "b", "c"]


def test_a_raising_listener_affects_nobody(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    heard: list[bytes] = []

    def bad(event: MessageReceived) -> None:
        raise ValueError("a listener's own trouble")

    bob.channel.on(MessageReceived, bad)
    bob.channel.on_message_received(lambda event: heard.append(event.message))
    with caplog.at_level(logging.ERROR):
        alice.channel.send(b"one")
        world.run(500)
        alice.channel.send(b"two")
        world.run(500)
    assert heard == [b"one", b"two"]
    assert "a listener" in caplog.text


def test_a_removed_listener_hears_nothing_more_and_can_be_removed_twice() -> None:
    dispatcher, heard = Dispatcher(), []
    remove = dispatcher.on("message-received", call=heard.append)
    dispatcher.emit(received(1))
    remove()
    remove()
    dispatcher.emit(received(2))
    assert [event.at for event in heard] == [1]


def test_a_listener_may_send() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    bob.channel.on_message_received(lambda event: bob.channel.send(b"echo of " + event.message))
    alice.channel.send(b"hello")
    world.run(1_000)
    assert alice.payloads == [b"echo of hello"]


def test_a_listener_may_close_the_channel() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob", quick())
    bob.channel.on_message_received(lambda _: bob.channel.close())
    alice.channel.send(b"the last word")
    world.run(1_000)
    assert bob.channel.is_closed
    assert world.node("bob").subscribed == frozenset()


def test_an_iterator_gives_the_events_of_its_kinds_and_ends_when_the_channel_closes() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    stream = alice.channel.events(MessageSent, "message-received")
    alice.channel.send(b"hello")
    world.run(500)
    bob.channel.send(b"hi")
    world.run(500)
    alice.channel.close()

    async def read() -> list[str]:
        return [event.name async for event in stream]

    assert asyncio.run(read()) == ["reliable:message:sent", "reliable:message:received"]


def test_an_iterator_that_waits_is_woken_from_another_thread() -> None:
    async def run() -> ChannelEvent:
        dispatcher = Dispatcher()
        stream: EventStream[ChannelEvent] = EventStream(dispatcher, (), 10)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await asyncio.to_thread(dispatcher.emit, received(7))
        return await asyncio.wait_for(waiting, WAIT_S)

    assert asyncio.run(run()).at == 7


def test_a_slow_reader_loses_the_oldest_and_knows_how_many() -> None:
    dispatcher = Dispatcher()
    stream: EventStream[ChannelEvent] = EventStream(dispatcher, (), 3)
    for number in range(5):
        dispatcher.emit(received(number))
    stream.end()

    async def read() -> list[int]:
        return [event.at async for event in stream]

    assert asyncio.run(read()) == [2, 3, 4]
    assert stream.dropped == 2


def test_a_slow_reader_loses_the_oldest_beyond_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand messages of 1 MiB are 100 GiB."""
    monkeypatch.setattr(event_stream, "MAX_QUEUE_BYTES", 10)
    dispatcher = Dispatcher()
    stream: EventStream[ChannelEvent] = EventStream(dispatcher, (), 100)
    for number in range(5):
        dispatcher.emit(replace(received(number), message=bytes(4)))
    dispatcher.emit(replace(received(5), message=bytes(11)))
    dispatcher.emit(replace(received(6), message=bytes(10)))
    stream.end()

    async def read() -> list[int]:
        return [event.at async for event in stream]

    assert asyncio.run(read()) == [6]
    assert stream.dropped == 6


@pytest.mark.parametrize(
    "cheap",
    [
        lambda at: ChannelProblem(channel_id="c", at=at, kind="undecryptable", detail=""),
        lambda at: MissingMessage(channel_id="c", at=at, sds_id="x", sender_id=None),
        lambda at: IrretrievableMessage(
            channel_id="c", at=at, sds_id="x", sender_id=None, missing_since=0, refetches=1
        ),
    ],
    ids=["problems", "missing", "irretrievable"],
)
def test_what_strangers_cause_with_few_envelopes_takes_half_of_the_room_of_a_slow_reader(
    cheap: Callable[[int], ChannelEvent],
) -> None:
    dispatcher: Dispatcher[ChannelEvent] = Dispatcher()
    stream: EventStream[ChannelEvent] = EventStream(dispatcher, (), 4)
    for number in range(2):
        dispatcher.emit(received(number))
    for number in range(10, 20):
        dispatcher.emit(cheap(number))
    stream.end()

    async def read() -> list[int]:
        return [event.at async for event in stream]

    assert asyncio.run(read()) == [0, 1, 10, 11]
    assert stream.dropped == 8


def test_an_event_as_plain_values_holds_no_bytes() -> None:
    plain = received(1).as_dict()
    assert plain["event"] == "reliable:message:received"
    assert plain["message"] == b"1".hex()


def test_two_readers_of_one_iterator_share_its_events() -> None:
    """The first to wait was forgotten, and waited for ever."""
    dispatcher: Dispatcher[ChannelEvent] = Dispatcher()

    async def read() -> list[int]:
        stream: EventStream[ChannelEvent] = EventStream(dispatcher, (), 10)
        readers = [asyncio.ensure_future(anext(stream)) for _ in range(2)]
        await asyncio.sleep(0)
        for number in (1, 2):
            dispatcher.emit(received(number))
        return [event.at for event in await asyncio.wait_for(asyncio.gather(*readers), 10)]

    assert sorted(asyncio.run(read())) == [1, 2]


def test_an_iterator_that_nobody_holds_takes_no_message(tmp_path: Path) -> None:
    """Whoever left the loop after a message lost all that came before the next loop."""
    world = World()
    alice = world.join("alice")
    config = quick(history_backend="sqlite", database=tmp_path / "bob.db")
    bob = create_reliable_channel(
        world.node("bob"), CHANNEL, TOPIC, "bob", config=config, clock=world.network.clock, threaded=False
    )

    async def read_one() -> bytes:
        async for event in bob.events(MessageReceived):
            return event.message
        raise AssertionError("the channel closed")

    async def read(payload: bytes) -> bytes:
        alice.channel.send(payload)
        world.run(100)
        bob.step()
        reading = asyncio.ensure_future(read_one())
        await asyncio.sleep(0)
        bob.step()
        return await asyncio.wait_for(reading, WAIT_S)

    for payload in (b"one", b"two"):
        assert asyncio.run(read(payload)) == payload
        assert not bob.message_events.listens(received(1))
    bob.close()


def test_a_reader_whose_task_nobody_holds_goes_on() -> None:
    """Event loops hold their tasks weakly, and the iterator holds the task that waits."""

    async def run() -> int:
        dispatcher: Dispatcher[ChannelEvent] = Dispatcher()
        heard: asyncio.Queue[int] = asyncio.Queue()

        async def read() -> None:
            stream: EventStream[ChannelEvent] = EventStream(dispatcher, (), 10)
            async for event in stream:
                await heard.put(event.at)

        asyncio.ensure_future(read())  # noqa: RUF006
        await asyncio.sleep(0)
        gc.collect()
        dispatcher.emit(received(7))
        return await asyncio.wait_for(heard.get(), WAIT_S)

    assert asyncio.run(run()) == 7


def test_an_asynchronous_callback_is_refused() -> None:
    """Nobody awaits it: each message counted as reported, and was never looked at."""

    async def callback(event: ChannelEvent) -> None: ...

    class Callback:
        async def __call__(self, event: ChannelEvent) -> None: ...

    for call in (callback, partial(callback), Callback()):
        with pytest.raises(LocalError, match="events"):
            World().join("alice").channel.on(MessageReceived, call)
