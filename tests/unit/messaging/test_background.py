"""The node on its own threads: it sends, retries and confirms by itself, and leaves no thread behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.messaging import MessagingNode
from reliable_channel.messaging.store import NodeClosedError
from reliable_channel.messaging.worker import Worker
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.memory import MemoryNetwork
from tests.support.fake_waku_node import FakeWakuNode
from tests.support.messaging_site import Site, waku_site
from tests.support.messaging_world import CONTENT, config
from tests.support.waiting import WAIT_S, until


@pytest.fixture
def site() -> Iterator[Site]:
    with FakeWakuNode("nwaku") as fake:
        made = waku_site(fake, edge=True)
        made.node = MessagingNode(
            config(
                mode="edge", cluster_id=16, shards=(32,), store_confirmation=True, confirm_content_topics=(CONTENT,)
            ),
            made.transport,
            clock=made.clock,
        )
        yield made
        made.node.close()


def test_retries_and_confirmation_run_in_the_background(site: Site) -> None:
    assert site.fake is not None
    site.node.start()
    until(lambda: site.node.health_indicator == "Healthy")
    site.fake.faults.publish_but_fail = 500
    request_id = site.send()
    until(lambda: site.record(request_id).error)
    site.fake.faults.publish_but_fail = None
    site.clock.advance(1_000)
    until(lambda: site.record(request_id).sent)
    until(lambda: site.node._confirmation.next_due() is not None)
    site.clock.advance(60_000)
    until(lambda: site.record(request_id).stored)


def test_stopping_leaves_no_thread_and_starting_again_goes_on(site: Site) -> None:
    before = set(threading.enumerate())
    site.node.start()
    site.node.start()
    request_id = site.send(b"one")
    until(lambda: site.record(request_id).sent)
    site.node.stop()
    site.node.stop()
    ours = [thread for thread in set(threading.enumerate()) - before if "process_request" not in thread.name]
    assert [thread.name for thread in ours if thread.is_alive()] == []
    pending = site.send(b"two")
    site.node.start()
    until(lambda: site.record(pending).sent)
    site.node.close()
    site.node.close()


def test_a_node_that_could_not_start_starts_when_it_can(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start did nothing, and what was sent waited for ever."""

    def refuse(_: object) -> None:
        raise EnvironmentFault("The broker does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(site.transport, "subscribe", refuse)
        with pytest.raises(EnvironmentFault):
            site.node.start()
    request_id = site.send()
    site.node.start()
    until(lambda: site.record(request_id).sent)


def test_a_close_that_ctrl_c_interrupts_leaves_no_thread(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait half a minute for a store; the node received on, without its database."""
    before = set(threading.enumerate())
    site.node.start()
    worker = site.node._store_worker
    stop = worker.stop

    def interrupt() -> None:
        stop()
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        site.node.close()
    assert [one.name for one in set(threading.enumerate()) - before if "process_request" not in one.name] == []


def test_a_node_stopped_from_a_listener_does_not_wait_for_itself(site: Site) -> None:
    site.node.events.add_event_listener("message:sent", lambda event: site.node.stop())
    site.node.start()
    request_id = site.send()
    until(lambda: site.record(request_id).sent)
    until(lambda: site.node.health_indicator == "Unhealthy")


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_listener_may_end_the_node_that_is_starting(site: Site, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transport may call its listeners while it starts, in the same thread."""
    before = set(threading.enumerate())
    monkeypatch.setattr(site.transport, "subscribe", lambda _: getattr(site.node, end)())
    site.node.start()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("messaging-")]
    if end == "close":
        with pytest.raises(NodeClosedError):
            site.send()


def test_a_closed_node_is_not_started_and_starts_no_thread(site: Site) -> None:
    site.node.close()
    before = set(threading.enumerate())
    with pytest.raises(NodeClosedError):
        site.node.start()
    with pytest.raises(NodeClosedError):
        site.subscribe()
    assert set(threading.enumerate()) == before


def test_a_worker_whose_work_fails_goes_on() -> None:
    from reliable_channel.messaging.worker import Worker

    turns: list[int] = []

    def work() -> None:
        turns.append(1)
        if len(turns) == 1:
            raise RuntimeError("once")

    worker = Worker("test-worker", ManualClock(), work, lambda: None)
    worker.start()
    until(lambda: len(turns) == 1)
    worker.wake()
    until(lambda: len(turns) >= 2)
    worker.stop()


def test_a_fault_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each round wrote a stack trace, onto a disk that was full."""
    turns: list[int] = []

    def work() -> None:
        turns.append(1)
        raise EnvironmentFault("The disk is full.", "Free some space.")

    worker = Worker("test", ManualClock(), work, lambda: 0)
    worker.start()
    for number in (1, 2, 3):
        until(lambda number=number: len(turns) >= number)  # type: ignore[misc]
        worker.wake()
    worker.stop()
    assert [record.exc_info for record in caplog.records] == [None]
    assert "Free some space" in caplog.text


def test_work_that_exits_does_not_end_its_thread() -> None:
    """A listener of a record runs on it."""
    again = threading.Event()
    works = iter((sys.exit, again.set))
    worker = Worker("test", ManualClock(), lambda: next(works)(), lambda: 0)
    worker.start()
    assert again.wait(WAIT_S)
    worker.stop()


def test_a_worker_that_is_stopped_and_started_by_its_own_work_is_one_thread() -> None:
    """The earlier one went on beside the new one: a listener that restarted its node doubled them each time."""
    workers: list[threading.Thread] = []

    def work() -> None:
        workers.append(threading.current_thread())
        if len(workers) == 1:
            worker.stop()
            worker.start()

    worker = Worker("test", ManualClock(), work, lambda: 0)
    worker.start()
    until(lambda: workers)
    workers[0].join(WAIT_S)
    assert not workers[0].is_alive()
    until(lambda: len(set(workers)) == 2)
    worker.stop()


def stop_slowly(site: Site, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Thread, threading.Event]:
    """A thread that stops the node, once it is inside ``stop``, and what lets it go on."""
    stopping, go_on = threading.Event(), threading.Event()
    stop = site.transport.stop

    def wait_and_stop() -> None:
        stopping.set()
        go_on.wait(WAIT_S)
        stop()

    monkeypatch.setattr(site.transport, "stop", wait_and_stop)
    stopper = threading.Thread(target=site.node.stop, daemon=True)
    stopper.start()
    assert stopping.wait(WAIT_S)
    return stopper, go_on


def test_a_node_closed_while_another_thread_stops_it_keeps_its_database_until_then(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was closed under ``stop``, which failed to report the last health."""
    site.node.start()
    until(lambda: site.node.health_indicator == "Healthy")
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    stopper, go_on = stop_slowly(site, monkeypatch)
    closer = threading.Thread(target=site.node.close, daemon=True)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive(), "it waits for the other thread"
    assert site.node.get_pending_requests() == []
    go_on.set()
    stopper.join(WAIT_S)
    closer.join(WAIT_S)
    assert failures == []
    with pytest.raises(LocalError, match="closed"):
        site.send()


def test_a_listener_may_close_the_node_that_another_thread_stops(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would wait for the other."""
    called, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def close(_: object) -> None:
        called.set()
        go_on.wait(WAIT_S)
        site.node.close()
        closed.set()

    site.node.events.add_event_listener("message:sent", close)
    site.node.start()
    site.send()
    assert called.wait(WAIT_S)
    stopper = threading.Thread(target=site.node.stop, daemon=True)
    stopper.start()
    until(lambda: not site.node._started)
    go_on.set()
    assert closed.wait(WAIT_S)
    stopper.join(WAIT_S)
    assert not stopper.is_alive()
    with pytest.raises(LocalError, match="closed"):
        site.send()


@pytest.mark.parametrize("is_kept", [False, True], ids=["memory", "sqlite"])
def test_a_process_that_ends_with_pending_requests_says_so(tmp_path: Path, is_kept: bool) -> None:
    """It ended without a word; in memory the messages were lost."""
    script = f"""
from reliable_channel.config import load
from reliable_channel.messaging import Message, MessagingConfig, MessagingNode, PlainEncoder
from reliable_channel.runtime.build import waku_node

settings = load("local", node={{"url": "http://127.0.0.1:1", "mode": "edge", "pubsub_topic": "/waku/2/rs/16/32"}})
config = MessagingConfig.of(mode="edge", cluster_id=16, shards=[32], bootstrap_nodes=[])
node = MessagingNode(config, waku_node(settings), {str(tmp_path / "a.db") if is_kept else ":memory:"!r})
node.start()
node.send(PlainEncoder("/waku/2/rs/16/32", "/app/1/x/proto"), Message(b"x"))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "when its process ended, and requests are pending (1)" in ended.stderr
    assert ("the next start continues them" if is_kept else "they are lost") in ended.stderr


def test_a_node_without_threads_that_nobody_uses_is_collected() -> None:
    node = MessagingNode(config(), MemoryNetwork().node("me"))
    node.start(background=False)
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None
