"""A day and a half in virtual time: what a participant keeps stops growing when its log is full."""

from __future__ import annotations

import random
from pathlib import Path

from reliable_channel.channel.persistence import SqlitePersistence
from reliable_channel.core.wire.waku import WakuMessage
from tests.unit.channel.channel_world import World, quick

HOUR_MS = 3_600_000
EVERY_MS = 20 * 60_000
LOG_ENTRIES = 25


def test_the_database_of_a_participant_stays_as_large_as_its_log(tmp_path: Path) -> None:
    rng = random.Random(5)

    def lossy(_sender: str, _receiver: str, _message: WakuMessage) -> tuple[float, ...]:
        return () if rng.random() < 0.1 else (50.0,)

    world = World(lossy)
    world.network.store_keeps = lambda message: False
    names = ("alice", "bob", "carol")
    for name in names:
        sds = {"max_log_entries": LOG_ENTRIES, "max_repeats": LOG_ENTRIES, "max_kept_bytes": 32 * 1024}
        persistence = SqlitePersistence(tmp_path / name)
        world.join(name, quick(persistence=persistence, max_journal_bytes=32 * 1024, sds=sds))

    sent: list[str] = []

    def measure_bytes() -> list[int]:
        """The database of the one who only listens, and the largest of its write-ahead log."""
        return [(tmp_path / name).stat().st_size for name in ("carol", "carol-wal")]

    def pass_hours(hours: int) -> None:
        end = world.now + hours * HOUR_MS
        while world.now < end:
            sent.append(world.recorders[rng.choice(names[:2])].channel.send(rng.randbytes(200)))
            world.run(4_000, 500)
            world.run(EVERY_MS - 4_000, 120_000)
            world.on_wire.clear()

    pass_hours(18)
    at_first = measure_bytes()
    pass_hours(18)
    assert len(world.recorders["carol"].payloads) == len(sent) > 4 * LOG_ENTRIES
    assert all(now <= 1.1 * before for now, before in zip(measure_bytes(), at_first, strict=True))
    world.close()
