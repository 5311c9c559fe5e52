"""The queue of a node's listeners: bounded by number and by bytes."""

from __future__ import annotations

import sys
import threading

import pytest

from reliable_channel.transport import dispatcher
from reliable_channel.transport.dispatcher import Dispatcher
from tests.support.waiting import WAIT_S, until


@pytest.mark.parametrize("bounds", [{"MAX_WAITING": 2}, {"MAX_WAITING_BYTES": 250}])
def test_what_waits_for_a_slow_listener_is_bounded(bounds: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, bound in bounds.items():
        monkeypatch.setattr(dispatcher, name, bound)
    node: Dispatcher[object] = Dispatcher()
    node.start()
    began, go_on, done = threading.Event(), threading.Event(), threading.Event()
    ran: list[int] = []

    def block() -> None:
        began.set()
        go_on.wait(WAIT_S)

    def fill() -> None:
        for number in range(5):
            node.put_bounded(lambda number=number: ran.append(number), 100)  # type: ignore[misc]
        done.set()

    node.put(block)
    assert began.wait(WAIT_S)
    filler = threading.Thread(target=fill)
    filler.start()
    assert not done.wait(0.2)
    go_on.set()
    assert done.wait(WAIT_S)
    filler.join()
    assert node.put_bounded(lambda: ran.append(5), 1_000), "one that is larger than the bound passes alone"
    node.stop()
    assert ran == [0, 1, 2, 3, 4, 5]
    assert not node.put_bounded(lambda: None, 1)


def test_a_listener_that_exits_does_not_end_the_thread_of_all_others() -> None:
    node: Dispatcher[object] = Dispatcher()
    node.start()
    ran = threading.Event()
    node.put(sys.exit)
    node.put(ran.set)
    assert ran.wait(WAIT_S)
    node.stop()


def test_a_listener_that_stops_and_starts_leaves_no_thread_behind() -> None:
    """The thread it runs on went on beside the new one."""
    node: Dispatcher[object] = Dispatcher()
    threads: list[threading.Thread] = []
    node.start()

    def restart() -> None:
        threads.append(threading.current_thread())
        node.stop()
        node.start()

    node.put(restart)
    until(lambda: threads)
    threads[0].join(WAIT_S)
    assert not threads[0].is_alive()
    node.put(lambda: threads.append(threading.current_thread()))
    until(lambda: len(threads) == 2)
    assert threads[0] is not threads[1]
    node.stop()
