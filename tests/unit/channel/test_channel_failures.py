"""An input on which the state machine fails is set aside and named, as is a second device; the channel goes on."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.channel import ChannelProblem, MessageReceived, reports, retrieval
from reliable_channel.channel.persistence import MemoryPersistence
from reliable_channel.channel.retrieval import StoreRetrieval, TimeRange
from reliable_channel.channel.steps import EnvelopeReceived, encode_input
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.core.sds import SdsChannel, SdsStep
from reliable_channel.core.wire.hashing import js_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, decode_sds_message, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import StoreUnavailable
from reliable_channel.transport.memory import DEFAULT_PUBSUB_TOPIC, MemoryNetwork, MemoryNode
from reliable_channel.transport.store.model import StorePage, StoreQuery
from tests.support.sds_inside import log_positions
from tests.support.waiting import WAIT_S
from tests.unit.channel.channel_world import CHANNEL, TOPIC, World, quick
from tests.unit.channel.crashes import kill

BAD = "fails"
PUBSUB_TOPIC = "/waku/2/rs/0/0"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDS fails on some messages when it has changed the state already; the error's text holds the content."""
    real = SdsChannel.receive

    def receive(self: SdsChannel, message: SdsMessage, now: int, **options: Any) -> SdsStep:
        step = real(self, message, now, **options)
        if message.message_id.startswith(BAD):
            raise KeyError(message.content)
        return step

    monkeypatch.setattr(SdsChannel, "receive", receive)


def envelope(world: World, sds_id: str, history: tuple[str, ...] = (), at: int | None = None) -> WakuMessage:
    """A stranger's message, as it is on the wire."""
    message = SdsMessage(
        "mallory",
        sds_id,
        CHANNEL,
        world.now if at is None else at,
        tuple(HistoryEntry(named) for named in history),
        content=b"payload of the stranger",
    )
    return WakuMessage(encode_sds_message(message), TOPIC, timestamp=world.network.clock.now_ns())


def talk(persistence: MemoryPersistence | None, bad: list[int]) -> tuple[list[bytes], list[str], list[str]]:
    """Alice and Bob talk, and at some turns a stranger says something on which Bob fails: the payloads Bob got, the
    ids in his log, the kinds of his problems."""
    world = World()
    alice, bob = world.join("alice"), world.join("bob", quick(persistence=persistence))
    for number in range(6):
        if number in bad:
            world.node("bob").arrive(envelope(world, f"{BAD}{number}", ("never came",)), PUBSUB_TOPIC)
        (alice if number % 2 else bob).channel.send(f"message {number}".encode())
        world.run(1_000)
    log = [sds_id for _, sds_id in log_positions(bob.channel._cycle.machine.sds)]
    found = bob.payloads, log, bob.problems()
    world.close()
    return found


@pytest.mark.parametrize("bad", [[0], [2], [1, 2, 4], [0, 1, 2, 3, 4, 5]])
def test_the_channel_goes_on_as_if_the_input_had_not_come(bad: list[int], failing: None) -> None:
    payloads, log, problems = talk(MemoryPersistence(keeps_journal=True), bad)
    assert problems == ["input_failed"] * len(bad)
    assert (payloads, log) == talk(MemoryPersistence(keeps_journal=True), [])[:2]


def test_without_a_journal_it_goes_on_too(failing: None) -> None:
    payloads, _, problems = talk(None, [1, 3])
    assert problems == ["input_failed"] * 2
    assert payloads == talk(None, [])[0]


def test_the_event_names_the_input_and_holds_no_payload(failing: None) -> None:
    world = World()
    bob = world.join("bob", quick(persistence=MemoryPersistence(keeps_journal=True)))
    world.node("bob").arrive(envelope(world, BAD), PUBSUB_TOPIC)
    world.run(1_000)
    (problem,) = bob.of(ChannelProblem)
    assert (problem.kind, problem.sds_id) == ("input_failed", BAD)
    assert problem.detail.startswith("EnvelopeReceived of 'mallory': KeyError in receive, line ")
    assert "payload" not in problem.detail
    world.close()


def test_a_journal_that_holds_a_failing_input_does_not_stop_a_start(failing: None) -> None:
    """The version that wrote it could take the input; this one cannot."""
    persistence = MemoryPersistence(keeps_journal=True)
    world = World()
    alice = world.join("alice")
    world.join("bob", quick(persistence=persistence))
    for number in range(4):
        alice.channel.send(f"message {number}".encode())
        world.run(1_000)
    (key,) = persistence.channels()
    stored = persistence.load(key)
    journal = list(stored.journal)
    for index in (len(journal), 1, 0):
        journal.insert(index, encode_input(EnvelopeReceived(world.now, envelope(world, f"{BAD}{index}").payload, None)))
    persistence = MemoryPersistence(keeps_journal=True)
    persistence.append(key, journal, stored.fingerprint)
    persistence.mark_reported(key, sorted(stored.reported), stored.sequence)
    del world.recorders["bob"]
    kill(world.node("bob"))
    again = world.join("bob", quick(persistence=persistence))
    world.run(1_000)
    assert sorted(again.problems()) == ["input_failed"] * 3
    alice.channel.send(b"and on")
    world.run(1_000)
    assert again.of(MessageReceived)[-1].message == b"and on"
    log = [sds_id for _, sds_id in log_positions(again.channel._cycle.machine.sds)]
    assert len(log) == 5 and not any(sds_id.startswith(BAD) for sds_id in log)
    world.close()


def test_timers_on_which_it_fails_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    bob = world.join("bob", quick(persistence=MemoryPersistence(keeps_journal=True)))
    world.run(1_000)
    calls, since, real = 0, world.now, SdsChannel.tick

    def tick(self: SdsChannel, now: int, late_ms: int) -> SdsStep:
        nonlocal calls
        if now < since:
            return real(self, now, late_ms)
        calls += 1
        raise KeyError

    monkeypatch.setattr(SdsChannel, "tick", tick)
    monkeypatch.setattr(SdsChannel, "next_due", lambda self: since)
    due = bob.channel.step()
    assert due is not None and due > world.now + 30_000
    world.run(10_000)
    assert (calls, bob.problems()) == (1, ["input_failed"])
    monkeypatch.undo()
    world.close()


def test_three_messages_that_wait_for_one_another_stop_nobody() -> None:
    """D1 names X, D2 names X, X names D1."""
    world = World()
    bob = world.join("bob", quick(persistence=MemoryPersistence(keeps_journal=True)))
    world.run(1_000)
    at = world.now
    for sds_id, history in (("D1", ("X",)), ("D2", ("X",)), ("X", ("D1",))):
        world.node("bob").arrive(envelope(world, sds_id, history, at), PUBSUB_TOPIC)
        world.run(1_000)
    assert "input_failed" not in bob.problems(), "the cause is mended in the core"
    world.close()


@pytest.mark.parametrize("stored", [False, True], ids=["before it is stored", "after it is stored"])
def test_a_send_that_ctrl_c_interrupts_stops_the_channel_and_the_next_start_goes_on(stored: bool) -> None:
    """It went on with a message that it never sent, for which the recipients of all later ones waited."""
    world, kept = World(), MemoryPersistence(keeps_journal=True)
    alice, bob = world.join("alice", quick(persistence=kept)), world.join("bob")
    append = kept.append

    def interrupt(*arguments: Any) -> None:
        kept.append = append  # type: ignore[method-assign]
        if stored:
            append(*arguments)
        raise KeyboardInterrupt

    kept.append = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        alice.channel.send(b"interrupted")
    assert (alice.problems(), alice.channel.status()["started"]) == (["stopped"], False)
    with pytest.raises(EnvironmentFault, match="KeyboardInterrupt"):
        alice.channel.send(b"refused")
    alice.channel.close()
    alice = world.join("alice", quick(persistence=kept))
    alice.channel.send(b"next")
    world.run(5_000)
    assert bob.payloads == [b"interrupted"] * stored + [b"next"]


def test_another_device_with_the_same_sender_id_is_reported_once_per_channel() -> None:
    world = World()
    config = quick(query_on_connect=False)
    phone = world.join("phone", config, sender_id="alice")
    laptop = world.join("laptop", config, sender_id="alice")
    bob = world.join("bob", config)
    for number in range(3):
        phone.channel.send(b"from the phone %d" % number)
        world.run(2_000)
        bob.channel.send(b"from bob %d" % number)
        world.run(2_000)
    assert (laptop.problems(), bob.problems()) == (["shared_sender_id"], [])
    (problem,) = laptop.of(ChannelProblem)
    assert "'alice'" in problem.detail
    laptop.channel.send(b"from the laptop")
    world.run(2_000)
    assert phone.problems() == ["shared_sender_id"]


def test_what_names_ones_own_messages_of_a_state_that_was_not_kept_does_not_wait_for_them() -> None:
    """The store had them, and they were ignored: an hour passed before what named them was received."""
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    for recorder, payload in ((alice, b"one"), (bob, b"two"), (alice, b"three")):
        recorder.channel.send(payload)
        world.run(3_000)
    alice.channel.close()
    alice = world.join("alice")
    answers = [b"%d" % number for number in range(3)]
    for answer in answers:
        bob.channel.send(answer)
    world.run(10_000)
    assert alice.payloads == [b"two", *answers]


def test_what_names_such_a_message_without_its_sender_waits_until_a_copy_of_it_comes() -> None:
    """The store had it, and it was ignored as one's own."""
    world = World()
    alice, _ = world.join("alice"), world.node("bob").subscribe([TOPIC])
    alice.channel.send(b"one")
    world.run(3_000)
    mine = next(message for sender, message in world.on_wire if sender == "alice")
    own = decode_sds_message(mine.payload)
    assert isinstance(own, SdsMessage)
    alice.channel.close()
    alice = world.join("alice")
    answer = SdsMessage("carol", "c1", CHANNEL, world.now + 1, (HistoryEntry(own.message_id),), content=b"two")
    world.network.publish("carol", replace(mine, payload=encode_sds_message(answer)), DEFAULT_PUBSUB_TOPIC)
    world.run(20_000)
    assert alice.payloads == [b"two"]


def test_a_stranger_meets_no_dependency_with_anothers_message_under_ones_own_name() -> None:
    """An id of js-waku is of the content alone, so it does not show whose the message is."""
    world = World()
    alice = world.join("alice")
    bobs = SdsMessage("bob", js_message_id(b"one"), CHANNEL, world.now + 1, content=b"one")
    answer = SdsMessage("carol", "c1", CHANNEL, world.now + 2, (HistoryEntry(bobs.message_id),), content=b"two")
    for message in (answer, replace(bobs, sender_id="alice"), bobs):
        assert alice.payloads == []
        envelope = WakuMessage(encode_sds_message(message), TOPIC, timestamp=world.now * 10**6)
        world.network.publish("carol", envelope, DEFAULT_PUBSUB_TOPIC)
        world.run(1_000)
    assert alice.payloads == [b"one", b"two"]


def test_ones_own_messages_that_come_back_are_no_other_device(tmp_path: Path) -> None:
    """From a store, and after a restart."""
    world = World()
    config = quick(history_backend="sqlite", database=tmp_path / "alice.sqlite", max_journal_entries=3)
    alice, bob = world.join("alice", config), world.join("bob")
    for number in range(4):
        alice.channel.send(b"%d" % number)
        bob.channel.send(b"hello %d" % number)
        world.run(3_000)
    alice.channel.close()
    alice = world.join("alice", config)
    world.run(3_000)
    for sender, message in list(world.on_wire):
        if sender == "alice":
            world.network.publish("stranger", message, DEFAULT_PUBSUB_TOPIC)
    world.run(3_000)
    assert alice.problems() == []


def test_a_channel_that_is_busy_keeps_nothing_of_what_another_one_sent() -> None:
    """A callback that takes long holds up its own channel only."""
    world = World()
    busy, other = world.join("alice"), world.join("alice", channel_id="other")
    for _ in range(10):
        other.channel.send(bytes(100_000))
        other.channel.step()
        world.network.pump()
    assert len(world.node("alice").sent) == 10
    assert not busy.channel._cycle._results


@pytest.mark.parametrize("name", ["channel_id", "content_topic", "sender_id"])
def test_a_name_that_is_no_unicode_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        World().join("alice", **{name: "\ud800"})


def test_a_store_that_never_answers_holds_no_channel_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "STOP_TIMEOUT_S", 0.1)
    asked, go_on = threading.Event(), threading.Event()

    class Hanging(MemoryNode):
        def query_store(self, query: StoreQuery) -> StorePage:
            asked.set()
            go_on.wait()
            raise StoreUnavailable("at last")

    store = StoreRetrieval(Hanging(MemoryNetwork(), "alice"), DEFAULT_PUBSUB_TOPIC, TOPIC, lambda _: None)
    store.ask_range(TimeRange(1, 2))
    assert asked.wait(WAIT_S)
    stopping = threading.Thread(target=store.stop)
    stopping.start()
    stopping.join(WAIT_S)
    ended = not stopping.is_alive()
    go_on.set()
    stopping.join()
    assert ended


def test_envelopes_that_strangers_name_delay_no_range_and_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MAX_WAITING_HASHES", 2_000)
    queries: list[StoreQuery] = []

    class Slow(MemoryNode):
        """A store that is asked for more than it answers."""

        def query_store(self, query: StoreQuery) -> StorePage:
            queries.append(query)
            name_envelopes(200)
            if len(queries) == 4:
                store.stop()
            return StorePage((), None)

    def name_envelopes(number: int) -> None:
        for _ in range(number):
            store.ask_again(os.urandom(32))

    store = StoreRetrieval(Slow(MemoryNetwork(), "alice"), DEFAULT_PUBSUB_TOPIC, TOPIC, lambda _: None, threaded=False)
    store.start()
    name_envelopes(5_000)
    assert len(store._hashes) == 2_000
    store.ask_range(TimeRange(1, 2))
    store.run_pending()
    assert [bool(query.hashes) for query in queries] == [True, False, True, True]


@pytest.mark.parametrize("in_callback", [True, False])
def test_what_has_arrived_when_a_channel_closes_is_there_when_it_opens_again(
    in_callback: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's offsets are past it: nobody brings it again, unless a store has it. However much it is."""
    monkeypatch.setattr(reports, "MAX_UNDELIVERED", 1)
    world = World()
    config = quick(history_backend="sqlite", database=tmp_path / "bob.sqlite", query_on_connect=False)
    alice, bob = world.join("alice"), world.join("bob", config)

    def close(_: MessageReceived) -> None:
        for number in range(1, 4):
            alice.channel.send(b"%d" % number)
            alice.channel.step()
        world.network.pump()
        bob.channel.close()

    if in_callback:
        bob.channel.on_message_received(close)
    alice.channel.send(b"0")
    world.run(300)
    if not in_callback:
        close(bob.of(MessageReceived)[0])
    world.blocked.add("alice")
    again = world.join("bob", config)
    world.run(300)
    assert [*bob.payloads, *again.payloads] == [b"0", b"1", b"2", b"3"]
