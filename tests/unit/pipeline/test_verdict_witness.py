"""A loss needs a witness: two participants that name it, or its own sender. No stranger writes the headline alone."""

from __future__ import annotations

from pathlib import Path

from reliable_channel.config import StoreNodeSettings, load
from reliable_channel.lake import tables
from reliable_channel.pipeline.verdict.gather import MAX_WITNESSED
from tests.support.verdict_round import judge

CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/reliable-channel/1/chat/proto", "channel_id": "c"}
BEGIN_MS = 1_767_225_600_000
CLAIMED, MISSING = ("unknown", "claimed_by_one"), ("missing", None)
NAMINGS = [
    # id, sender of the message, its history: (missing id, the sender that the entry states); acknowledged by others
    ("alone", "alice", [("named by one", None)], True),
    ("flood", "mallory", [(f"invented {number}", None) for number in range(50)], True),
    ("own flood", "mallory", [(f"own {number}", "mallory") for number in range(MAX_WITNESSED + 3)], True),
    ("copied", "alice", [("of all copies", "alice"), ("of her copy", "alice")], True),
    ("copied", "alice", [("of a stranger's copy", "alice"), ("of all copies", "alice")], True),
    ("for another", "mallory", [("of alice", "alice")], True),
    ("first of two", "alice", [("named by two", "dave")], False),
    ("second of two", "bob", [("named by two", "dave")], True),
    ("twice", "alice", [("named twice by one", "dave")], True),
    ("twice again", "alice", [("named twice by one", "dave")], True),
    ("chain", "carol", [("of the sender", "carol")], True),
    ("unheard", "carol", [("of a sender whom nobody acknowledges", "carol")], False),
]


def test_a_loss_needs_two_that_name_it_or_its_own_sender(tmp_path: Path) -> None:
    at = BEGIN_MS * 1000
    came, lost, acks = [], [], []
    for number, (sds_id, sender, history, acknowledged) in enumerate(NAMINGS):
        came.append(
            {
                **CHANNEL,
                **{"kafka_topic": "waku.envelopes", "kafka_partition": 0, "kafka_offset": number},
                **{"event_time": at, "ingest_time": at, "sender_id": sender, "sds_id": sds_id},
                **{"sds_kind": "content", "segment_kind": "bare", "lamport_timestamp": BEGIN_MS + number},
                "causal_history": [{"sds_id": i, "retrieval_hint": None, "sender_id": by} for i, by in history],  # type: ignore[attr-defined]
            }
        )
        for missing, _ in history:  # type: ignore[attr-defined]
            times = {"missing_since": at, "event_time": at + 60}
            lost.append({**CHANNEL, "sds_id": missing, "status": "lost", "needed_by": sds_id, **times})
        if acknowledged:
            by = {"acknowledged_by": "erin", "certainty": "certain"}
            acks.append({**CHANNEL, "sds_id": sds_id, **by})
    # A store was asked for one of them, and wants the address of a peer.
    asked = {
        **CHANNEL,
        "sds_id": "of the sender",
        "node": "n",
        "outcome": "error",
        "purpose": "refetch",
        "asked_at": at,
    }
    settings = load("local", paths={"run_dir": str(tmp_path)})
    settings = settings.model_copy(
        update={"store": settings.store.model_copy(update={"nodes": [StoreNodeSettings(url="http://store.example")]})}
    )
    evidence = {tables.SDS_MESSAGES: came, tables.LOST_DEPENDENCIES: lost, tables.ACKS: acks}
    evidence[tables.STORE_PRESENCE] = [asked | {"detail": "refused"}]
    judged = judge(settings, evidence, at + 7_200_000_000)
    named = {i for _, _, history, _ in NAMINGS for i, _ in history}  # type: ignore[attr-defined]
    verdict = {i: (row["verdict"], row["cause"]) for row in judged for i in row["sds_ids"] if i in named}
    witnessed = {"named by two", "of the sender", "of all copies"}
    witnessed |= {f"own {number}" for number in range(3, MAX_WITNESSED + 3)}
    assert verdict == {each: MISSING if each in witnessed else CLAIMED for each in named}
    (detail,) = {row["detail"] for row in judged if "of the sender" in row["sds_ids"]}
    assert "the node refused the query" in detail
    (detail,) = {row["detail"] for row in judged if "named by two" in row["sds_ids"]}
    assert "no store node was asked for it yet" in detail
