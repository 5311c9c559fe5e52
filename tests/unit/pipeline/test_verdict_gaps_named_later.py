"""What a gap of the bridge hides is unknown, judged by when it was sent; what nobody reads is called not followed."""

from __future__ import annotations

from pathlib import Path

from reliable_channel.config import load
from reliable_channel.lake import tables
from tests.support.verdict_round import CHANNEL, at, judge, make_gap, named, said


def test_what_was_sent_in_a_gap_is_unknown_also_when_it_is_named_later(tmp_path: Path) -> None:
    came = [
        said(0, "a1", "alice", 10, ()),
        said(1, "b1", "bob", 12, ("a1",)),
        # After the gap Alice names the last two that she has; Carol was heard before it, from a store, much later.
        said(2, "c1", "carol", 15, ("b1",), late_s=90),
        said(3, "a2", "alice", 60, ("lost-in-gap-1", "lost-in-gap-2")),
        said(4, "c2", "carol", 61, ("lost-in-gap-3", "a2")),
        # Later two are lost while the bridge listens: one behind a2, one behind Bob's own b2 and not in his history.
        said(5, "a3", "alice", 70, ("a2", "lost-later-1")),
        said(6, "b2", "bob", 71, ("a3",)),
        said(7, "b3", "bob", 80, ("lost-later-2", "lost-later-3")),
        # A stranger's clock is no time at all.
        {**said(8, "m1", "mallory", 81, ("b3",)), "lamport_timestamp": 2**63 - 1},
    ]
    missed = [
        named("lost-in-gap-1", "a2", 60),
        named("lost-in-gap-2", "a2", 60),
        named("lost-in-gap-3", "c2", 61),
        named("lost-later-1", "a3", 70),
        named("lost-later-2", "b3", 80),
        named("lost-later-3", "b3", 80),
    ]
    # Another bridge followed this topic all the time, and its node saw nothing of what is missing.
    heard = {**CHANNEL, "content_topic": "/reliable-channel/1/heard/proto"}
    came += [{**said(9, "h1", "alice", 10, ()), **heard}, {**said(10, "h2", "alice", 60, ("lost-elsewhere",)), **heard}]
    for number, row in enumerate(came):
        row["envelope_hash"] = bytes([number]) * 32
    missed.append({**named("lost-elsewhere", "h2", 60), **heard})
    sightings = [
        {"vantage": vantage, "source": source, "message_hash": row["envelope_hash"], "seen_at": row["event_time"]}
        for row in came
        for vantage, source in (("north", "relay"), ("south", "relay" if row["sds_id"][0] == "h" else "store"))
    ]
    sightings.append({**sightings[-1], "vantage": "west", "source": "relay", "seen_at": None})  # no time at all
    north = make_gap(status="unfilled")
    # Kafka lost records of another partition, to which no topic here belongs.
    other = {"kafka_partition": 1, "cause": "offset_jump", "name": "waku.envelopes/1/0", "status": "open"}
    times = {"from_time": at(55), "to_time": at(90), "vantage": None}
    answer = {"node": "n", "message_hash": b"?" * 32, "outcome": "present", "detail": "unproven", "asked_at": at(90)}
    # What names a loss outside the gap is acknowledged and of the same sender: a witness.
    acknowledged = [
        {**(heard if sds_id == "h2" else CHANNEL), "sds_id": sds_id, "acknowledged_by": "carol", "certainty": "certain"}
        for sds_id in ("a3", "b3", "h2")
    ]
    unread = {**CHANNEL, "content_topic": "/somebody/1/else/proto", "sender_id": "dave", "sds_id": "unread"}
    queued = {**unread, "event": "queued", "entire_message_hash": b"h" * 32, "event_time": at(30)}
    evidence = {
        tables.SDS_MESSAGES: came,
        tables.ACKS: acknowledged,
        tables.LOST_DEPENDENCIES: missed,
        tables.SOURCE_GAPS: [north, {**north, **other, **times}],
        tables.SENDER_EVENTS: [queued],
        tables.SIGHTINGS: sightings,
        # Somebody's hint leads to an encrypted envelope, which may be any.
        tables.STORE_PRESENCE: [{**CHANNEL, **answer, "sds_id": "lost-later-2"}],
    }
    judged = judge(load("local", paths={"run_dir": str(tmp_path)}), evidence, at(7_200))
    verdicts = {row["sds_ids"][0]: (row["verdict"], row["cause"]) for row in judged if len(row["sds_ids"]) == 1}
    assert {name: said for name, said in verdicts.items() if name.startswith("lost")} == {
        **{f"lost-in-gap-{number}": ("unknown", "source_gap") for number in (1, 2, 3)},
        **{f"lost-later-{number}": ("missing", None) for number in (1, 2, 3)},
        "lost-elsewhere": ("missing", None),
    }
    assert verdicts["unread"] == ("unknown", "not_followed")
