"""What the backends keep, and who may use them."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliable_channel import __version__
from reliable_channel.channel import (
    ChangedConfigurationError,
    ChannelEvent,
    ChannelKey,
    DamagedStore,
    MemoryPersistence,
    MessageReceived,
    Persistence,
    SenderLocked,
    SendState,
    SqlitePersistence,
    inspect_channel,
    sends,
)
from reliable_channel.channel.persistence import StoredChannel
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.threads import ForkedError
from tests.support.forks import fork
from tests.unit.channel.channel_world import World, quick

KEY = ChannelKey("/waku/2/rs/0/0", "/t/1/x/proto", "lobby", "alice")
OTHER = replace(KEY, channel_id="other")


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Persistence:
    if request.param == "memory":
        return MemoryPersistence(keeps_journal=True)
    return SqlitePersistence(tmp_path / "channel.db")


def test_payloads_of_segments_are_kept_by_number_and_by_channel(backend: Persistence) -> None:
    assert backend.segments(KEY, [1]) == {}
    backend.put_segments(KEY, {1: b"one", 2: b"two", 3: b"three"})
    backend.put_segments(OTHER, {1: b"other"})
    backend.put_segments(KEY, {2: b"2"})
    assert backend.segments(KEY, [2, 3, 9]) == {2: b"2", 3: b"three"}
    backend.keep_segments(KEY, {3})
    assert backend.segments(KEY, [1, 2, 3]) == {3: b"three"}
    assert backend.segments(OTHER, [1]) == {1: b"other"}


def test_what_is_appended_is_loaded_in_order_and_by_channel(backend: Persistence) -> None:
    assert backend.load(KEY) == StoredChannel()
    backend.append(KEY, [b"1", b"2"], "f")
    backend.append(OTHER, [b"other"], "f")
    backend.append(KEY, [b"3"], "f")
    assert backend.load(KEY).journal == (b"1", b"2", b"3")
    assert backend.load(OTHER).journal == (b"other",)


def test_a_snapshot_replaces_journal_and_marks_but_not_the_sequence(backend: Persistence) -> None:
    backend.append(KEY, [b"1"], "f")
    backend.mark_reported(KEY, ["a", "b"], 2)
    assert backend.load(KEY).reported == {"a", "b"}
    backend.compact(KEY, b"snapshot", "g")
    assert backend.load(KEY) == StoredChannel(b"snapshot", (), frozenset(), 2, "g")


def test_looking_for_a_channel_makes_none(tmp_path: Path) -> None:
    """A name with a typing error was a channel of the database from then on."""
    kept = SqlitePersistence(tmp_path / "channel.db")
    assert inspect_channel(KEY, quick(), kept)["received"] == 0
    assert kept.channels() == []
    kept.close()


def test_values_and_the_sender_id_are_kept(backend: Persistence) -> None:
    assert backend.get("x") is None
    backend.put("x", b"1")
    backend.put("x", b"2")
    assert backend.get("x") == b"2"
    assert backend.sender_id() == backend.sender_id()


def test_sqlite_keeps_everything_over_a_reopening(tmp_path: Path) -> None:
    first = SqlitePersistence(tmp_path / "channel.db")
    name = first.sender_id()
    first.append(KEY, [b"1"], "f")
    first.close()
    first.close()
    second = SqlitePersistence(tmp_path / "channel.db")
    assert second.sender_id() == name
    assert second.load(KEY).journal == (b"1",)


def test_the_database_is_in_wal_mode_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "channel.db"
    SqlitePersistence(path)
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_step_leaves_nothing_behind(tmp_path: Path) -> None:
    backend = SqlitePersistence(tmp_path / "channel.db")
    with pytest.raises(EnvironmentFault):
        backend.append(KEY, [b"1", None], "f")  # type: ignore[list-item]
    assert backend.load(KEY).journal == ()


def test_a_database_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"file.*channel\.db"):
        SqlitePersistence(tmp_path / "file" / "channel.db")


@pytest.mark.parametrize("schema", [5, 99])
def test_another_schema_is_refused_and_stays(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "channel.db"
    SqlitePersistence(path).close()
    sqlite3.connect(path).execute(f"PRAGMA user_version={schema}").connection.commit()
    for _ in range(2):
        with pytest.raises(DamagedStore, match=f"has schema {schema}, this program knows"):
            SqlitePersistence(path)


def test_a_second_process_on_the_same_sender_and_database_is_refused_until_the_first_dies(tmp_path: Path) -> None:
    path = tmp_path / "channel.db"
    code = (
        "import sys; from reliable_channel.channel import SqlitePersistence;"
        f"kept = SqlitePersistence({str(path)!r}); kept.acquire('alice'); print('locked', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    backend = SqlitePersistence(path)
    with pytest.raises(SenderLocked, match=f"alice.*process {other.pid}"):
        backend.acquire("alice")
    backend.acquire("bob")()
    other.kill()
    other.communicate()
    backend.acquire("alice")()


def test_a_channel_refuses_a_locked_sender_and_leaves_nothing_open(tmp_path: Path) -> None:
    world = World()
    config = quick(history_backend="sqlite", database=tmp_path / "channel.db")
    alice = world.join("alice", config)
    with pytest.raises(SenderLocked):
        world.join("other node", config, sender_id="alice")
    assert world.node("other node").subscribed == frozenset()
    alice.channel.close()
    world.join("other node", config, sender_id="alice").channel.close()


def test_one_process_may_have_many_channels_of_one_sender(tmp_path: Path) -> None:
    world = World()
    config = quick(persistence=SqlitePersistence(tmp_path / "channel.db"))
    first = world.join("alice", config, channel_id="one")
    second = world.join("alice", config, channel_id="two")
    first.channel.close()
    with pytest.raises(SenderLocked):
        SqlitePersistence(tmp_path / "channel.db").acquire("alice")
    second.channel.close()
    SqlitePersistence(tmp_path / "channel.db").acquire("alice")()


def test_after_a_clean_close_state_and_numbers_go_on(tmp_path: Path) -> None:
    world = World()
    config = quick(history_backend="sqlite", database=tmp_path / "bob.db")
    alice, bob = world.join("alice"), world.join("bob", config)
    alice.channel.send(b"one")
    world.run(500)
    request_id = bob.channel.send(b"answer")
    world.run(500)
    bob.channel.close()
    bob = world.join("bob", config)
    alice.channel.send(b"two")
    world.run(1_000)
    assert [(event.message, event.sequence) for event in bob.of(MessageReceived)] == [(b"two", 2)]
    assert bob.channel.send_state(request_id) in (SendState.SENT, SendState.DELIVERED)


def test_the_memory_backend_forgets_with_the_process() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    alice.channel.send(b"one")
    world.run(500)
    bob.channel.close()
    bob = world.join("bob")
    world.run(1_000)
    assert [event.sequence for event in bob.of(MessageReceived)] == [1]


def test_an_unclean_journal_is_not_replayed_under_another_configuration() -> None:
    world = World()
    kept = MemoryPersistence(keeps_journal=True)
    alice = world.join("alice", quick(persistence=kept))
    alice.channel.send(b"one")
    snapshot = kept.load(alice.channel._cycle.key)
    alice.channel.close()
    kept = MemoryPersistence(keeps_journal=True)
    kept.append(alice.channel._cycle.key, snapshot.journal, snapshot.fingerprint)
    with pytest.raises(ChangedConfigurationError, match=r"sds\.causal_history_size"):
        world.join("alice", quick(persistence=kept, sds={"causal_history_size": 9}))
    world.join("alice", quick(persistence=kept))


@pytest.mark.parametrize("before", ["0.0.9", "0.2.0"])
def test_an_unclean_journal_of_another_version_names_the_remedy(before: str) -> None:
    world = World()
    kept = MemoryPersistence(keeps_journal=True)
    alice = world.join("alice", quick(persistence=kept))
    alice.channel.send(b"one")
    key = alice.channel._cycle.key
    left = kept.load(key)
    alice.channel.close()
    kept = MemoryPersistence(keeps_journal=True)
    kept.append(key, left.journal, left.fingerprint.replace(__version__, before))
    with pytest.raises(ChangedConfigurationError, match=r"another version of this program.* then upgrade"):
        world.join("alice", quick(persistence=kept))


def test_a_clean_snapshot_can_be_continued_under_another_configuration() -> None:
    world = World()
    kept = MemoryPersistence(keeps_journal=True)
    alice = world.join("alice", quick(persistence=kept))
    request_id = alice.channel.send(b"one")
    alice.channel.close()
    alice = world.join("alice", quick(persistence=kept, sds={"causal_history_size": 9}))
    assert alice.channel.send_state(request_id) is SendState.SENDING


class CountsSnapshots(MemoryPersistence):
    """Keeps a journal, and counts what replaced it."""

    def __init__(self) -> None:
        super().__init__(keeps_journal=True)
        self.snapshots = 0

    def compact(self, key: ChannelKey, snapshot: bytes, fingerprint: str) -> None:
        self.snapshots += 1
        super().compact(key, snapshot, fingerprint)


def test_a_journal_of_what_nobody_has_acknowledged_stays_until_somebody_does() -> None:
    world, kept = World(), CountsSnapshots()
    alice = world.join("alice", quick(persistence=kept, max_journal_bytes=10_000))
    world.join("bob")
    world.blocked.add("bob")
    ids = [alice.channel.send(bytes([number]) * 1_000) for number in range(40)]
    world.run(1_000)
    assert kept.snapshots == 0, "a snapshot would be as long as the journal it replaces"
    world.blocked.clear()
    world.run(120_000)
    assert {alice.channel.send_state(request_id) for request_id in ids} == {SendState.DELIVERED}
    for number in range(30):
        alice.channel.send(bytes([number]) * 10_000)
        world.run(30_000 if number % 10 == 9 else 100)
    assert kept.snapshots > 0, "the journal is long against what waits"


@pytest.mark.parametrize("damage", [b"junk", b"\xff" * 50])
def test_a_damaged_journal_or_snapshot_is_a_clear_fault(damage: bytes) -> None:
    world = World()
    for keep in ("append", "compact"):
        kept = MemoryPersistence(keeps_journal=True)
        alice = world.join("alice", quick(persistence=kept))
        key, fingerprint = alice.channel._cycle.key, alice.channel._cycle.journal.fingerprint
        alice.channel.close()
        kept = MemoryPersistence(keeps_journal=True)
        if keep == "append":
            kept.append(key, [damage], fingerprint)
        else:
            kept.compact(key, damage, fingerprint)
        with pytest.raises(DamagedStore):
            world.join("alice", quick(persistence=kept))


def full_disk(*_: object, **__: object) -> None:
    raise EnvironmentFault("The disk is full.")


def test_a_full_disk_stops_the_channel_before_anything_leaves_it() -> None:
    world = World()
    persistence = MemoryPersistence(keeps_journal=True)
    alice = world.join("alice", quick(persistence=persistence))
    persistence.append = full_disk  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match="full"):
        alice.channel.send(b"hello")
    assert "stopped" in alice.problems()
    with pytest.raises(EnvironmentFault, match="full"):
        alice.channel.send(b"again")
    assert not alice.channel.status()["started"]
    alice.channel.close()
    assert world.on_wire == []


def test_a_channel_that_cannot_store_its_start_does_not_start() -> None:
    """The second call did nothing, and the channel received nothing."""
    world = World()
    full = MemoryPersistence(keeps_journal=True)
    full.append = full_disk  # type: ignore[method-assign]
    bob = world.join("bob", quick(persistence=full, auto_start=False))
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="full"):
            bob.channel.start()
        assert world.node("bob").subscribed == frozenset()
    bob.channel.close()


def test_a_labelled_send_is_one_message_however_often_it_is_asked_for(backend: Persistence) -> None:
    world = World()
    config = quick(persistence=backend)
    alice, bob = world.join("alice", config), world.join("bob")
    first = alice.channel.send(bytes(300_000), label="row 1")
    assert alice.channel.send(bytes(300_000), label="row 1") == first
    world.run(1_000)
    alice.channel.close()
    alice = world.join("alice", config)
    assert alice.channel.send(bytes(300_000), label="row 1") == first
    assert alice.channel.send(bytes(300_000), label="row 2") != first
    world.run(1_000)
    assert len(bob.payloads) == 2
    kept = alice.channel.find_send("row 1")
    assert kept is not None
    assert (kept.send_id, kept.required, len(kept.segments)) == (first, 3, 3)


@pytest.mark.parametrize("keeps_journal", [True, False])
def test_a_label_whose_send_is_long_forgotten_is_not_sent_again(
    keeps_journal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sends, "MAX_FINISHED", 1)
    world = World()
    alice = world.join("alice", quick(persistence=MemoryPersistence(keeps_journal=keeps_journal)))
    bob = world.join("bob")
    first = alice.channel.send(b"row 1", label="row 1")
    world.run(2_000)
    alice.channel.send(b"another")
    world.run(2_000)
    assert alice.channel.send_state(first) is None
    world.on_wire.clear()
    assert alice.channel.send(b"row 1", label="row 1") == first
    world.run(500)
    assert [message.payload for sender, message in world.on_wire if sender == "alice"] == []
    assert bob.payloads == [b"row 1", b"another"]


def test_a_labelled_send_that_was_given_up_goes_out_again_as_the_same_bytes() -> None:
    world = World(lambda *_: ())
    kept = MemoryPersistence(keeps_journal=True)
    config = quick(persistence=kept, query_on_connect=False, sds={"max_retransmissions": 0, "sync_min_interval_ms": 0})
    alice, bob = world.join("alice", config), world.join("bob", quick(query_on_connect=False))
    request_id = alice.channel.send(b"nobody heard", label="row 1")
    world.run(6_000)
    assert alice.channel.send_state(request_id) is SendState.UNACKNOWLEDGED
    world.link = lambda *_: (0.0,)
    alice.channel.send(b"nobody heard", label="row 1")
    world.run(500)
    assert bob.payloads == [b"nobody heard"]
    first, second = (message.payload for _, message in world.on_wire[:2])
    assert first == second


def test_a_lock_that_cannot_be_taken_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    kept = SqlitePersistence(tmp_path / "channel.db")
    kept.acquire("alice")()
    (lock,) = tmp_path.glob("*.lock")
    lock.unlink()
    lock.mkdir()
    with pytest.raises(EnvironmentFault, match="cannot be locked"):
        kept.acquire("alice")


def test_a_disk_that_was_full_at_a_commit_is_used_again(tmp_path: Path) -> None:
    class FullOnce:
        def __init__(self, inner: sqlite3.Connection) -> None:
            self.inner = inner
            self.commits = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def execute(self, statement: str, *values: Any) -> Any:
            self.commits += statement == "COMMIT"
            if statement == "COMMIT" and self.commits == 1:
                raise sqlite3.OperationalError("database or disk is full")
            return self.inner.execute(statement, *values)

    kept = SqlitePersistence(tmp_path / "channel.db")
    kept._connection = FullOnce(kept._connection)  # type: ignore[assignment]
    with pytest.raises(EnvironmentFault, match="full"):
        kept.append(KEY, [b"lost"], "f")
    kept.append(KEY, [b"kept"], "f")
    assert kept.load(KEY).journal == (b"kept",)


def test_a_forked_process_cannot_use_a_channel_and_holds_no_lock_of_it(tmp_path: Path) -> None:
    config = quick(persistence=SqlitePersistence(tmp_path / "alice.db"))
    world = World()
    channel = world.join("alice", config).channel
    shared = SqlitePersistence.share(tmp_path / "shared.db")

    def child() -> None:
        for call in (
            lambda: channel.send(b"x"),
            lambda: channel.send_ephemeral(b"x"),
            lambda: channel.find_send("label"),
            lambda: channel.forget_label("label"),
            lambda: channel.send_state("id"),
            lambda: channel.request_ids("id"),
            lambda: channel.segment_ids("id"),
            lambda: channel.wait(["id"]),
            lambda: channel.on(ChannelEvent, print),
            channel.flush,
            channel.events,
            channel.status,
            channel.start,
            channel.stop,
            channel.step,
            shared.channels,
        ):
            with pytest.raises(ForkedError, match=str(os.getppid())):
                call()
        channel.close()
        own = SqlitePersistence.share(tmp_path / "shared.db")
        assert own is not shared
        assert own.channels() == []

    pid, end = fork(child)
    channel.close()
    again = SqlitePersistence(tmp_path / "alice.db")
    again.acquire("alice")()  # the child is still there
    again.close()
    os.close(end)
    assert os.waitpid(pid, 0)[1] == 0
    shared.close()


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
def test_a_channel_whose_database_is_deleted_does_not_say_that_it_has_stored_a_message(
    tmp_path: Path, is_replaced: bool
) -> None:
    """SQLite went on writing to a file that nobody can open again."""
    database = tmp_path / "alice.db"
    alice = World().join("alice", quick(history_backend="sqlite", database=database)).channel
    alice.send(b"stored")
    for file in tmp_path.glob("alice.db*"):
        file.unlink()
    if is_replaced:
        SqlitePersistence(database).close()
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="its file was deleted, moved or replaced"):
            alice.send(b"not stored")
    alice.close()
