"""``send`` and ``channel status``, as far as they need no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.channel import SqlitePersistence, create_reliable_channel
from reliable_channel.cli import main
from reliable_channel.config import load
from reliable_channel.runtime.participant import ParticipantOptions, channel_config
from tests.unit.channel.channel_world import CHANNEL, TOPIC, World


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
    assert "alice\\x1b[2J" in out
    assert "\x1b" not in out
