"""Records: looking them up, their bounds, and that they survive a restart and SIGKILL."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.messaging.records import MAX_ERROR_CHARACTERS, MessageRecord
from reliable_channel.messaging.requests import RequestStore, StoredRequest
from reliable_channel.messaging.sending import PendingLimitError
from reliable_channel.messaging.store import RecordStore
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.threads import ForkedError
from tests.support.forks import fork
from tests.support.messaging_world import CONTENT, OTHER, PUBSUB, World


def test_a_look_up_of_what_is_unknown_or_no_identifier_returns_nothing(world: World) -> None:
    world.send()
    assert world.node.get_by_request_id("unknown") is None
    for text in ("", "abc123", "0x" + "0" * 64, "zz" * 32, "0x" + "٣" * 64):
        assert world.node.get_by_hash(text) is None
    assert world.node.get_by_content_topic("/unknown") == []
    assert world.node.get_by_subscription_id("unknown") == []


def test_records_keep_every_property_of_the_envelope(world: World) -> None:
    world.subscribe()
    sent = WakuMessage(b"\x00\xff", CONTENT, 3, world.clock.now_ns(), b"meta", b"proof", False)
    world.network.publish("stranger", sent, PUBSUB)
    world.run()
    (record,) = world.node.get_by_content_topic(CONTENT)
    assert record.message == sent
    assert record.message_hash == message_hash(PUBSUB, sent)


@given(total=st.integers(0, 12), skip=st.integers(0, 15), take=st.one_of(st.none(), st.integers(0, 15), st.just(2**80)))
def test_skip_and_take_are_those_of_a_list(total: int, skip: int, take: int | None) -> None:
    store = filled(total)
    everything = listed(store, CONTENT, None)
    assert [record.message.payload for record in everything] == [b"%d" % number for number in range(total)]
    expected = everything[skip:] if take is None else everything[skip : skip + take]
    assert listed(store, CONTENT, None, skip, take) == expected
    store.close()


@given(total=st.integers(0, 8), skip=st.integers(0, 10), take=st.one_of(st.none(), st.integers(0, 10)))
def test_skip_and_take_by_subscription_are_those_of_a_list(total: int, skip: int, take: int | None) -> None:
    store = RecordStore(":memory:", 100, 10**9)
    expected = []
    for number in range(2 * total):
        mine = number % 2 == 0
        message = WakuMessage(b"%d" % number, CONTENT, timestamp=1)
        record = MessageRecord(message, message_hash=message_hash(PUBSUB, message), pubsub_topic=PUBSUB)
        after = store.add(record, number, ("mine",) if mine else ("other",))
        expected += [after] if mine else []
    cut = expected[skip:] if take is None else expected[skip : skip + take]
    assert listed(store, None, "mine", skip, take) == cut
    store.close()


def test_a_skip_beyond_any_number_is_past_the_end() -> None:
    store = filled(3)
    assert listed(store, CONTENT, None, skip=2**70) == []
    store.close()


@pytest.mark.parametrize(("skip", "take"), [(-1, None), (0, -1)])
def test_negative_numbers_are_refused(world: World, skip: int, take: int | None) -> None:
    with pytest.raises(ValueError, match="not negative"):
        world.node.get_by_content_topic(CONTENT, skip, take)


def test_since_gives_what_changed_after_a_cursor_in_the_order_of_the_changes(world: World) -> None:
    first, second = world.send(b"1"), world.send(b"2")
    cursor = world.node.record_cursor
    assert world.node.get_by_content_topic(CONTENT, since=cursor) == []
    world.node.cancel_request(second)
    world.node.cancel_request(first)
    changed = world.node.get_by_content_topic(CONTENT, since=cursor)
    assert [record.request_id for record in changed] == [second, first]
    assert world.node.get_by_content_topic(CONTENT, since=changed[0].change_seq) == changed[1:]


def subscribed(total: int) -> RecordStore:
    """Records of one content topic; every second one was received under the subscription *mine*."""
    store = RecordStore(":memory:", total, 10**9)
    for number in range(total):
        message = WakuMessage(b"%d" % number, CONTENT, timestamp=1)
        record = MessageRecord(message, message_hash=message_hash(PUBSUB, message), pubsub_topic=PUBSUB)
        store.add(record, number, ("mine",) if number % 2 else ())
    return store


@pytest.mark.parametrize("key", [(CONTENT, None), (None, "mine")])
def test_who_waits_for_changes_costs_nothing_for_the_records_that_have_not_changed(key: tuple[Any, Any]) -> None:
    """All records were looked through at every event, for each of 64 waiting calls: 11 ms with 10 000 of them."""
    store = subscribed(2_000)
    cursor = store.change_seq()
    store.update(listed(store, CONTENT, None)[1], stored=True)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    store._connection.set_progress_handler(count, 1)
    assert len(store.keys(*key, since=cursor)) == 1
    store._connection.set_progress_handler(None, 0)
    assert steps < 1_000
    store.close()


@pytest.mark.parametrize("key", [(CONTENT, None), (None, "mine"), (OTHER, None), (None, "other")])
def test_a_cursor_near_and_far_gives_the_same_records(key: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store = subscribed(20)
    for number in (7, 3, 12):
        store.update(listed(store, CONTENT, None)[number], stored=True)
    for since in range(store.change_seq() + 2):
        for window in ({}, {"take": 2}, {"skip": 3, "take": 4}):
            near = store.keys(*key, since=since, **window)
            with monkeypatch.context() as far:
                far.setattr("reliable_channel.messaging.store.FEW_CHANGES", -1)
                assert store.keys(*key, since=since, **window) == near
    store.close()


def listed(store: RecordStore, *key: Any, **window: int) -> list[MessageRecord]:
    return list(store.by_keys(store.keys(*key, **window)))


def filled(total: int, max_records: int = 100, max_age_ms: int = 10**9) -> RecordStore:
    store = RecordStore(":memory:", max_records, max_age_ms)
    for number in range(total):
        add(store, b"%d" % number, now=number)
    return store


def add(store: RecordStore, payload: bytes, now: int, **changes: object) -> MessageRecord:
    message = WakuMessage(payload, CONTENT, timestamp=1)
    record = MessageRecord(message, message_hash=message_hash(PUBSUB, message), pubsub_topic=PUBSUB, **changes)  # type: ignore[arg-type]
    return store.add(record, now)


def test_the_oldest_records_go_beyond_the_configured_number() -> None:
    store = filled(7, max_records=5)
    assert [record.message.payload for record in listed(store, CONTENT, None)] == [b"2", b"3", b"4", b"5", b"6"]
    assert store.by_hash(message_hash(PUBSUB, WakuMessage(b"0", CONTENT, timestamp=1))) is None
    store.close()


def test_the_oldest_records_go_beyond_the_configured_bytes() -> None:
    store = RecordStore(":memory:", 100, 10**9, max_bytes=25)
    for number in range(4):
        add(store, b"%d" % number * 10, now=number)
    assert [record.message.payload[:1] for record in listed(store, CONTENT, None)] == [b"2", b"3"]
    store.close()


def test_what_strangers_write_into_the_proof_of_an_envelope_counts_as_bytes() -> None:
    """They were kept beyond the bound, and all read by each confirmation."""
    store = RecordStore(":memory:", 100, 10**9, max_bytes=25)
    for number in range(4):
        message = WakuMessage(b"%d" % number, CONTENT, timestamp=1, rate_limit_proof=bytes(9))
        record = MessageRecord(message, message_hash=message_hash(PUBSUB, message), pubsub_topic=PUBSUB)
        store.add(record, now=number)
    assert [record.message.payload for record in listed(store, CONTENT, None)] == [b"2", b"3"]
    assert [record.message.size for record in store.read_unconfirmed([CONTENT], 0)] == [0, 0]
    assert store._count_totals() == (store._count, store._bytes) == (2, 20)
    store.close()


def test_a_refused_change_reads_no_other_record() -> None:
    """Each send that was refused because too many wait (429) counted all records anew: 1.3 s of a million."""
    store = filled(3)
    statements: list[str] = []
    store._connection.set_trace_callback(statements.append)
    with pytest.raises(ValueError), store.transaction():
        add(store, b"more", now=3)
        statements.clear()
        raise ValueError
    store._connection.set_trace_callback(None)
    assert statements == ["ROLLBACK"]
    assert store._count_totals() == (store._count, store._bytes) == (3, 3)
    assert store._read_numbers() == (store._next_id, store._next_seq)
    store.close()


def test_many_records_are_read_in_their_order_a_batch_at_a_time() -> None:
    store = filled(120, max_records=200)
    keys = store.keys(CONTENT, None, skip=5)
    assert list(store.by_keys(keys)) == listed(store, CONTENT, None, skip=5)
    walk = store.by_keys(keys)
    next(walk)
    store.update(listed(store, CONTENT, None)[100], received=True)
    assert len(list(walk)) == 114
    store.close()


def test_records_go_beyond_the_configured_age() -> None:
    store = filled(3, max_age_ms=10)
    add(store, b"later", now=12)
    assert [record.message.payload for record in listed(store, CONTENT, None)] == [b"2", b"later"]
    store.close()


def test_a_pending_request_keeps_its_record_beyond_every_bound(new_world: Callable[..., World]) -> None:
    world = new_world(max_records=2, max_record_age_ms=1_000)
    world.transport.failing = FailureReason.NO_PEERS
    pending = world.send()
    world.subscribe(OTHER)
    world.run(2_000)
    for number in range(4):
        world.arrives(b"%d" % number, OTHER)
    assert world.record(pending).sending
    assert [record.message.payload for record in world.node.get_by_content_topic(OTHER)] == [b"3"]


def test_a_send_beyond_the_bytes_of_records_is_refused_and_not_lost(new_world: Callable[..., World]) -> None:
    """Where pending requests had all of them, the record of a further one was deleted as it was made: the request was
    accepted and never sent, without an event."""
    world = new_world(max_record_bytes=1_000)
    world.transport.failing = FailureReason.NO_PEERS
    accepted = [world.send(bytes(400)) for _ in range(2)]
    with pytest.raises(PendingLimitError, match="1000 bytes of send requests are pending"):
        world.send(bytes(400))
    assert world.node.get_pending_requests() == accepted
    world.transport.failing = None
    world.run(10_000)
    assert [world.record(request).sent for request in accepted] == [True, True]
    alone = world.send(bytes(2_000))
    world.run()
    assert world.record(alone).sent, "alone, a message of any size passes"


def test_a_new_record_costs_no_look_at_each_pending_request() -> None:
    """6.5 ms of CPU for each envelope received while 9 800 requests were pending, in place of 0.4."""
    store = RecordStore(":memory:", 500, 10**9)
    requests = RequestStore(store)
    steps: list[int] = []
    for number in range(600):
        if number >= 502:
            store._connection.set_progress_handler(lambda: steps.append(number), 1)  # noqa: B023
        record = add(store, b"%d" % number, now=number)
        if number < 498:
            requests.add(StoredRequest(str(number), record.record_id), False)
    store._connection.set_progress_handler(None, 0)
    assert max(steps.count(number) for number in range(503, 600)) < 2_000
    assert [record.message.payload for record in listed(store, CONTENT, None, skip=498)] == [b"598", b"599"]
    requests.update("7", state="sent")
    add(store, b"600", now=600)
    payloads = [record.message.payload for record in listed(store, CONTENT, None)]
    assert (b"7" in payloads, payloads[-3:]) == (False, [b"598", b"599", b"600"])
    store.close()


def test_an_error_text_from_outside_is_cut_to_one_bounded_line() -> None:
    store = filled(1)
    (record,) = listed(store, CONTENT, None)
    after = store.update(record, error="line\n" * 1_000)
    assert after.error is not None
    assert len(after.error) <= MAX_ERROR_CHARACTERS
    assert "\n" not in after.error
    store.close()


def test_the_same_envelope_sent_by_two_requests_is_two_records_of_one_hash(world: World) -> None:
    first, second = world.send(timestamp=9), world.send(timestamp=9)
    world.subscribe()
    world.run()
    world.transport.arrive(world.transport.sent[0], PUBSUB)
    assert world.record(first).received
    assert world.record(second).received
    assert world.node.get_by_hash(world.record(first).hash_hex) == world.record(second), "the newest"


def test_records_and_pending_requests_survive_a_restart(new_world: Callable[..., World], tmp_path: Path) -> None:
    world = new_world(tmp_path / "messages.sqlite")
    world.subscribe()
    world.arrives()
    sent = world.send(b"sent")
    world.run()
    world.transport.failing = FailureReason.NO_PEERS
    pending = world.send(b"pending")
    world.run()
    before = world.node.get_by_content_topic(CONTENT)
    world.node.close()

    world.transport.failing = None
    world.node = world.make_node()
    assert world.node.get_pending_requests() == [pending]
    world.run()
    after = world.node.get_by_content_topic(CONTENT)
    assert [record.message for record in after] == [record.message for record in before]
    assert world.record(sent) == before[1]
    assert (world.record(pending).sent, world.record(pending).error) == (True, None)


def test_a_retry_goes_on_where_it_stopped_after_a_restart(new_world: Callable[..., World], tmp_path: Path) -> None:
    world = new_world(tmp_path / "messages.sqlite")
    world.transport.failing = FailureReason.UNREACHABLE
    request_id = world.send()
    world.run(3_000)
    world.node.close()
    world.transport.failing = FailureReason.DUPLICATE
    world.node = world.make_node()
    world.run()
    assert world.record(request_id).sent, "what was in doubt before the restart is in doubt after it"


def test_ephemeral_messages_are_not_persisted(new_world: Callable[..., World], tmp_path: Path) -> None:
    world = new_world(tmp_path / "messages.sqlite")
    world.subscribe()
    world.arrives(b"transient-in", ephemeral=True)
    request_id = world.send(b"transient-out", ephemeral=True)
    world.run()
    assert world.record(request_id).sent
    assert len(world.node.get_by_content_topic(CONTENT)) == 2
    world.node.close()
    for file in tmp_path.iterdir():
        assert b"transient" not in file.read_bytes()
    world.node = world.make_node()
    assert world.node.get_by_content_topic(CONTENT) == []
    assert world.node.get_by_request_id(request_id) is None


CHILD = """
import sys
from tests.support.messaging_world import World
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.threads import ForkedError
from tests.support.forks import fork
world = World(sys.argv[1])
world.transport.failing = FailureReason.UNREACHABLE
while True:
    request_id = world.send(b"before the kill")
    world.run()
    print(request_id, flush=True)
"""


def test_after_sigkill_every_request_that_was_promised_is_still_there(
    new_world: Callable[..., World], tmp_path: Path
) -> None:
    database = tmp_path / "messages.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(database)],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        promised = [child.stdout.readline().strip() for _ in range(20)]
        child.send_signal(signal.SIGKILL)
        promised += child.stdout.read().split()
    assert child.returncode == -signal.SIGKILL
    world = new_world(database)
    assert set(world.node.get_pending_requests()) >= set(promised)
    world.run()
    assert all(world.record(request_id).sent for request_id in promised if len(request_id) == 36)


SECOND = """
import sys
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.messaging.store import RecordStore
try:
    RecordStore(sys.argv[1], 1, 1)
except EnvironmentFault as fault:
    print(fault)
"""


def test_a_second_process_on_the_same_database_is_refused(new_world: Callable[..., World], tmp_path: Path) -> None:
    database = tmp_path / "messages.sqlite"
    new_world(database).send()
    shutil.copy(database, tmp_path / "copy")  # closing its descriptor drops SQLite's own locks of this process
    done = subprocess.run([sys.executable, "-c", SECOND, str(database)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "another node uses it" in done.stdout


def test_a_database_is_free_again_when_its_node_is_closed(new_world: Callable[..., World], tmp_path: Path) -> None:
    database = tmp_path / "messages.sqlite"
    world = new_world(database)
    with pytest.raises(EnvironmentFault, match="another node uses it"):
        RecordStore(database, 1, 1)
    world.node.close()
    RecordStore(database, 1, 1).close()


def test_a_file_that_is_no_database_is_refused_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "messages.sqlite"
    file.write_bytes(b"no database" * 100)
    with pytest.raises(EnvironmentFault, match=r"messages\.sqlite cannot be opened: .*another file, or restore it"):
        RecordStore(file, 1, 1)


def test_a_database_that_another_program_has_locked_is_refused_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "messages.sqlite"
    RecordStore(file, 1, 1).close()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(EnvironmentFault, match=r"locked\. Stop the other process"):
            RecordStore(file, 1, 1)


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "messages.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(EnvironmentFault, match="newer"):
        RecordStore(file, 1, 1)


def test_a_change_that_fails_leaves_nothing_behind(world: World) -> None:
    with pytest.raises(RuntimeError), world.node._ledger.step():
        world.send()
        raise RuntimeError("half way")
    assert world.node.get_by_content_topic(CONTENT) == []
    assert world.names() == ["health:change"]


def test_a_forked_process_cannot_use_a_node_and_holds_no_lock_of_it(tmp_path: Path) -> None:
    world = World(tmp_path / "messages.sqlite")

    def child() -> None:
        for call in (
            world.send,
            lambda: world.node.get_by_request_id("id"),
            lambda: world.node.get_by_content_topic(CONTENT),
            lambda: world.node.cancel_request("id"),
            lambda: world.node.history([CONTENT]),
            world.node.get_pending_requests,
            world.subscribe,
            world.node.tick,
            world.node.start,
            world.node.stop,
        ):
            with pytest.raises(ForkedError, match=str(os.getppid())):
                call()
        world.node.close()

    pid, end = fork(child)
    world.node.close()
    world.make_node().close()  # the child is still there
    os.close(end)
    assert os.waitpid(pid, 0)[1] == 0


def test_records_whose_database_is_deleted_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite went on writing to a file that nobody can open again."""
    monkeypatch.chdir(tmp_path)
    store = RecordStore("node.db", 10, 60_000)
    monkeypatch.chdir("/")
    with store.transaction():
        pass
    for file in tmp_path.glob("node.db*"):
        file.unlink()
    with pytest.raises(EnvironmentFault, match="its file was deleted, moved or replaced"), store.transaction():
        pass
    store.close()
