"""What the tables say each sender's rate limit was spent on is what the simulated senders really dispatched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.simulation.scenario import PERFECT, ChannelPlan, LinkQuality, Scenario, SizeMix
from reliable_channel.simulation.world import simulate
from tests.support.judged_tables import write_judged

EPOCH_MS = 60_000


def test_every_dispatched_envelope_is_counted_once_for_the_sender_of_its_message(tmp_path: Path) -> None:
    plan = ChannelPlan(
        channel_id="field",
        content_topic="/reliable-channel/1/field/proto",
        participants=("alice", "bob", "carol"),
        messages=30,
        duration_ms=300_000,
        segment_size=512,
        sizes=SizeMix(short=0.5, medium=0.0, large=0.5, max_segments=4),
        between=LinkQuality(loss=0.2),
        to_observer=PERFECT,
        ephemeral=0.1,
    )
    world = simulate(Scenario(seed=7, channels=(plan,), drain_ms=240_000))
    (journal,) = world.journals
    sender = {sds_id: segment.sender for sds_id, segment in journal.sds.items()}
    first: dict[bytes, tuple[int, str]] = {}
    for dispatch in sorted(journal.dispatches, key=lambda dispatch: dispatch.at_ms):
        first.setdefault(dispatch.envelope_hash, (dispatch.at_ms, dispatch.sds_id))
    true = Counter((sender[sds_id], at_ms // EPOCH_MS) for at_ms, sds_id in first.values())
    repeated = len(first) - len({sds_id for _, sds_id in first.values()})

    lake = TableSnapshot(write_judged(tmp_path, world).paths)
    rows = lake.select("SELECT sender_id, sent_ms, role FROM dispatches")
    assert Counter((row["sender_id"], row["sent_ms"] // EPOCH_MS) for row in rows) == true
    roles = Counter(row["role"] for row in rows)
    assert roles["repeat"] == repeated > 0
    assert {"content", "repeat", "sync", "ephemeral"} <= roles.keys()
