"""The event source, and which events a change of a record makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.events import CustomEvent, EventName, EventSource
from reliable_channel.messaging.records import MessageRecord, events_of
from reliable_channel.transport.dispatcher import Dispatcher
from tests.support.messaging_world import CONTENT, World

RECORD = MessageRecord(WakuMessage(b"x", CONTENT))
FLAGS = st.fixed_dictionaries({name: st.booleans() for name in ("sending", "sent", "stored", "received")})


@given(FLAGS, FLAGS, st.booleans())
def test_events_are_those_that_the_change_of_properties_asks_for(
    before: dict[str, bool], after: dict[str, bool], failed: bool
) -> None:
    names = events_of(replace(RECORD, **before), replace(RECORD, **after), failed)
    assert (EventName.MESSAGE_CHANGE in names) == (before != after)
    assert (EventName.MESSAGE_ERROR in names) == failed
    for event, flag in ((EventName.MESSAGE_SENT, "sent"), (EventName.MESSAGE_RECEIVED, "received"),
                        (EventName.MESSAGE_STORED, "stored")):  # fmt: skip
        assert (event in names) == (after[flag] and not before[flag])
    assert len(names) == len(set(names))


def test_a_new_record_is_a_change() -> None:
    assert events_of(None, RECORD) == [EventName.MESSAGE_CHANGE]


def test_listeners_are_called_in_the_order_in_which_they_were_added(world: World) -> None:
    order: list[int] = []
    for number in range(3):
        world.node.events.add_event_listener("message:sent", lambda event, number=number: order.append(number))  # type: ignore[misc]
    world.send()
    world.run()
    assert order == [0, 1, 2]


def test_a_listener_that_raises_affects_nobody(world: World) -> None:
    heard: list[CustomEvent] = []

    def raising(event: CustomEvent) -> None:
        raise RuntimeError("mine alone")

    world.node.events.add_event_listener("message:sent", raising)
    world.node.events.add_event_listener("message:sent", heard.append)
    request_id = world.send()
    world.run()
    assert [event.detail for event in heard] == [world.record(request_id)]


def test_unknown_events_and_handlers_are_silently_ignored() -> None:
    source = EventSource()
    source.add_event_listener("message:nonsense", print)
    source.remove_event_listener("message:nonsense", print)
    source.remove_event_listener("message:sent", print)


def test_an_asynchronous_listener_is_refused() -> None:
    """Nobody awaits it, and no event reached it."""

    async def listener(_: CustomEvent) -> None: ...

    for wrong in (listener, None):
        with pytest.raises(LocalError, match="plain function"):
            EventSource().add_event_listener("message:sent", wrong)  # type: ignore[arg-type]


def test_a_removed_listener_hears_nothing(world: World) -> None:
    heard: list[CustomEvent] = []
    world.node.events.add_event_listener("message:sent", heard.append)
    world.node.events.remove_event_listener("message:sent", heard.append)
    world.send()
    world.run()
    assert heard == []


def test_an_event_comes_after_the_change_is_stored(world: World) -> None:
    seen: list[bool] = []

    def listener(event: CustomEvent) -> None:
        record: MessageRecord = event.detail
        seen.append(world.node.get_by_request_id(str(record.request_id)) == record)

    for name in EventName:
        if name is not EventName.HEALTH_CHANGE:
            world.node.events.add_event_listener(name, listener)
    world.subscribe()
    world.send()
    world.run()
    assert seen and all(seen)


def test_the_detail_of_sent_is_the_record_that_is_sent_and_sending_no_more(world: World) -> None:
    world.send()
    world.run()
    (record,) = [detail for name, detail in world.events if name == "message:sent"]
    assert (record.sending, record.sent) == (False, True)


def test_no_state_shows_a_record_as_sent_for_the_first_time_and_still_sending(world: World) -> None:
    world.send()
    world.run()
    assert not any(detail.sending and detail.sent for name, detail in world.events if name != "health:change")


def test_tasks_run_in_order_also_when_a_task_adds_more() -> None:
    queue, order = Dispatcher(), []

    def first() -> None:
        order.append("first")
        queue.put(lambda: order.append("third"))
        queue.drain()

    queue.put(first)
    queue.put(lambda: order.append("second"))
    queue.drain()
    assert order == ["first", "second", "third"]


def test_many_threads_drain_one_after_the_other_and_leave_nothing() -> None:
    queue, done, beside = Dispatcher(), [], []
    running = threading.Lock()

    def task() -> None:
        beside.append(not running.acquire(blocking=False))
        done.append(1)
        running.release()

    def work() -> None:
        for _ in range(200):
            queue.put(task)
            queue.drain()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 800
    assert not any(beside)


@pytest.mark.parametrize("name", list(EventName))
def test_every_documented_event_can_be_listened_to(name: EventName) -> None:
    source, heard = EventSource(), []
    handler: Callable[[CustomEvent], object] = heard.append
    source.add_event_listener(name.value, handler)
    source.add_event_listener(name.value, handler)
    source.emit(CustomEvent(name, None, 0))
    assert len(heard) == 1
