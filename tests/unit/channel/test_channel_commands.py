"""``send`` and ``channel status``, as far as they need no network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from reliable_channel.channel import (
    MemoryPersistence,
    MessageReceived,
    ReliableChannel,
    SqlitePersistence,
    create_reliable_channel,
)
from reliable_channel.cli import main
from reliable_channel.cli.commands.channel import print_event
from reliable_channel.config import load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.runtime import participant
from reliable_channel.runtime.participant import ParticipantOptions, channel_config
from reliable_channel.transport.base import SendBufferFull
from reliable_channel.transport.clock import SystemClock
from reliable_channel.transport.memory import MemoryNetwork
from tests.unit.channel.channel_world import CHANNEL, TOPIC, World, fail_with, quick


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_cannot_be_read_is_named_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    database = tmp_path / "channel.sqlite"
    status, out, err = run(capsys, "send", CHANNEL, "--file", str(tmp_path / name), "--database", str(database))
    assert (status, out) == (2, "")
    assert err.startswith(f"reliable-channel: {tmp_path / name} cannot be read: ")
    assert not database.exists()


@pytest.mark.parametrize(
    ("size", "cause"),
    [(0, "An empty payload cannot be sent."), (2**20 + 1, "The message is 1048577 bytes, the limit is 1048576 bytes.")],
)
def test_what_can_never_be_sent_is_refused_before_a_broker_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, size: int, cause: str
) -> None:
    (tmp_path / "payload").write_bytes(bytes(size))
    database = tmp_path / "channel.sqlite"
    status, out, err = run(capsys, "send", CHANNEL, "--file", str(tmp_path / "payload"), "--database", str(database))
    assert (status, out) == (2, "")
    assert err.startswith(f"reliable-channel: {cause}")
    assert not database.exists()


def test_the_status_is_for_people_and_shows_no_control_characters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    database, name = tmp_path / "channel.sqlite", "alice\x1b[2J"
    persistence = SqlitePersistence(database)
    settings = load("local", paths={"run_dir": str(tmp_path)})
    config = channel_config(settings, ParticipantOptions(CHANNEL, TOPIC, name, database), persistence)
    world = World()
    with create_reliable_channel(
        world.node("alice"), CHANNEL, TOPIC, name, config=config, clock=world.network.clock, threaded=False
    ) as channel:
        channel.send(b"hello")
    persistence.close()
    status, out, _ = run(capsys, "channel", "status", CHANNEL, "--database", str(database))
    assert status == 0
    assert "sends  1 sending, 0 queued, 0 sent, 0 delivered, 0 unacknowledged, 0 failed\n" in out
    assert "in use  no" in out
    assert "None" not in out and "False" not in out
    assert "alice\\x1b[2J" in out
    assert "\x1b" not in out
    status, _, err = run(capsys, "channel", "status", "talk\x07", "--database", str(database))
    assert (status, "\x07" in err) == (3, False)


def test_no_line_of_a_message_looks_like_a_message_of_somebody_else(capsys: pytest.CaptureFixture[str]) -> None:
    event = MessageReceived(
        channel_id=CHANNEL,
        at=1,
        message=b"one\r\nbob: two\tx",
        message_id="ab",
        sender_id="eve\nbob",
        content_topic=TOPIC,
        sequence=1,
    )
    print_event(event, as_json=False)
    assert capsys.readouterr().out == "eve\\nbob: one\\r\n  bob: two\tx\n"


Give = Callable[[ReliableChannel, Callable[[], None]], None]


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Lets the commands have this channel, and do this at its start."""

    def give(channel: ReliableChannel, start: Callable[[], None]) -> None:
        @contextmanager
        def open_participant(*_: object) -> Iterator[SimpleNamespace]:
            with channel:
                yield SimpleNamespace(channel=channel, start=start)

        monkeypatch.setattr(participant, "participant", open_participant)

    return give


def test_listening_ends_with_a_fault_when_the_channel_stops_on_a_full_disk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, give: Give
) -> None:
    """It waited for ever for what a stopped channel never receives."""
    node, persistence = MemoryNetwork(clock=SystemClock()).node("alice"), MemoryPersistence(keeps_journal=True)
    node.start()
    alice = create_reliable_channel(node, CHANNEL, TOPIC, "alice", config=quick(persistence=persistence))

    def fill_the_disk() -> None:
        monkeypatch.setattr(persistence, "append", fail_with(EnvironmentFault("The disk is full.")))
        with suppress(EnvironmentFault):
            alice.send(b"x")

    give(alice, fill_the_disk)
    status, _, err = run(capsys, "listen", CHANNEL, "--seconds", "20")
    assert (status, "stopped: The disk is full." in err) == (1, True)


def test_ephemeral_messages_that_the_node_does_not_take_are_not_sent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, give: Give
) -> None:
    """The exit code was 0."""
    node = MemoryNetwork(clock=SystemClock()).node("alice")
    node.start()
    monkeypatch.setattr(node, "send", fail_with(SendBufferFull("The buffer is full.")))
    give(create_reliable_channel(node, CHANNEL, TOPIC, "alice", config=quick()), lambda: None)
    status, _, err = run(capsys, "send", CHANNEL, "--ephemeral", "--timeout", "0.2", "one", "two")
    assert (status, err) == (1, "Not all ephemeral messages were sent in time; they are not kept.\n")


def test_ephemeral_messages_that_the_rate_limit_drops_are_not_sent(
    capsys: pytest.CaptureFixture[str], give: Give
) -> None:
    """The exit code was 0, and nothing was said."""
    limit = RateLimitConfig(enabled=True, messages_per_epoch=10, counts="messages")
    begun = time.time_ns() // 1_000_000

    class InOneEpoch(SystemClock):
        def now_ns(self) -> int:
            return super().now_ns() - begun % limit.epoch_size_ms * 1_000_000

    network, ended = MemoryNetwork(clock=InOneEpoch()), threading.Event()
    node, config = network.node("alice"), quick(rate_limit=limit)
    node.start()
    give(create_reliable_channel(node, CHANNEL, TOPIC, "alice", config=config, clock=network.clock), lambda: None)

    def pump() -> None:
        while not ended.wait(0.002):
            network.pump()

    pumping = threading.Thread(target=pump)
    pumping.start()
    status, _, err = run(capsys, "send", CHANNEL, "--ephemeral", "--timeout", "20", *"abcdefghijkl")
    ended.set()
    pumping.join()
    assert (status, err) == (1, "The rate limit dropped 3 of 12 ephemeral messages.\n")


def test_a_database_in_memory_is_refused() -> None:
    """It was the name of a file, which held the messages."""
    with pytest.raises(ConfigurationError, match="keeps nothing"):
        ParticipantOptions(CHANNEL, database=Path(":memory:")).database_path(load())
