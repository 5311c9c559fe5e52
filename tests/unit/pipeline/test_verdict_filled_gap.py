"""What a gap of the bridge hides that a store filled, judged by what another bridge saw meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.config import load
from reliable_channel.lake import tables
from tests.support.verdict_round import CHANNEL, at, judge, make_gap, named, said


@pytest.mark.parametrize("is_contradicted", [True, False])
def test_a_gap_that_a_store_filled_hides_losses_if_another_bridge_saw_what_the_store_lacks(
    is_contradicted: bool, tmp_path: Path
) -> None:
    other = {**CHANNEL, "content_topic": "/reliable-channel/1/heard/proto"}
    came = [
        said(0, "a1", "alice", 10, ()),
        said(1, "a2", "alice", 60, ("lost-in-gap",)),
        said(2, "b1", "bob", 61, ("a2",)),
        said(3, "a3", "alice", 70, ("a2", "lost-later")),
        {**said(4, "d1", "dave", 30, ()), **other},  # only the other bridge, and only while it followed the topic
    ]
    for number, row in enumerate(came):
        row["envelope_hash"] = bytes([number + 1]) * 32
    sightings = [
        {"vantage": "south" if row["sds_id"] == "d1" else "north", "source": "relay", "seen_at": row["event_time"]}
        | {"pubsub_topic": CHANNEL["pubsub_topic"], "message_hash": row["envelope_hash"]}
        for row in came
    ]
    if not is_contradicted:
        sightings.append({**sightings[4], "vantage": "north", "source": "store", "seen_at": at(55)})
    envelope = {name: came[4][name] for name in ("kafka_topic", "kafka_partition", "kafka_offset", "event_time")}
    envelope |= {"pubsub_topic": other["pubsub_topic"], "content_topic": other["content_topic"], "source": "relay"}
    envelope |= {"record_time": at(30), "ingest_time": at(30), "message_hash": came[4]["envelope_hash"]}
    envelope |= {"sender_timestamp_ns": at(30) * 1_000, "ephemeral": False, "kind": "sds"}
    acknowledged = [
        {**CHANNEL, "sds_id": sds_id, "acknowledged_by": "carol", "certainty": "certain"} for sds_id in ("a2", "a3")
    ]
    evidence = {
        tables.SDS_MESSAGES: came,
        tables.ENVELOPES: [envelope],
        tables.ACKS: acknowledged,
        tables.LOST_DEPENDENCIES: [named("lost-in-gap", "a2", 60), named("lost-later", "a3", 70)],
        tables.SOURCE_GAPS: [make_gap(status="filled", pubsub_topics=[CHANNEL["pubsub_topic"]])],
        tables.SIGHTINGS: sightings,
    }
    judged = judge(load("local", paths={"run_dir": str(tmp_path)}), evidence, at(7_200))
    found = {row["sds_ids"][0]: (row["verdict"], row["cause"]) for row in judged}
    in_gap = ("unknown", "source_gap") if is_contradicted else ("missing", None)
    assert (found["lost-in-gap"], found["lost-later"]) == (in_gap, ("missing", None))
