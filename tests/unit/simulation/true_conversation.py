"""A small truth made by hand, and the tables of an observer who made no mistake."""

from __future__ import annotations

from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.simulation.check.observed import (
    Acknowledgement,
    DeliveredMessage,
    DeliveredSegment,
    IncompleteMessage,
    Observed,
    Quarantined,
)
from reliable_channel.simulation.truth import (
    BadRecord,
    MessageOutcome,
    Presence,
    Reception,
    TrueAck,
    TrueDependency,
    TrueMessage,
    TrueSegment,
    Truth,
)

CHANNEL = "c"


def message(
    number: int, sender: str, payload: bytes, ids: list[str], data: int, outcome: MessageOutcome, **more
) -> TrueMessage:
    """A message of ``data`` data segments with these SDS ids; ``more`` overrides fields."""
    delivered = outcome is MessageOutcome.DELIVERED
    fields = {
        "channel_id": CHANNEL,
        "content_topic": "/t/1/c/proto",
        "pubsub_topic": "/waku/2/rs/1/0",
        "number": number,
        "sender": sender,
        "sent_at_ms": 1_000 * number,
        "payload": payload,
        "announced_keccak": keccak256(payload).hex(),
        "ephemeral": False,
        "data_count": data,
        "parity_count": len(ids) - data,
        "first_sds_id": ids[0],
        "last_sds_id": ids[-1],
        "first_lamport": 1_000 * number,
        "fault": None,
        "outcome": outcome.value,
        "complete_at_ms": 1_000 * number + 50 if delivered else None,
        "arrived_data": list(range(data)) if delivered else [],
        "missing_data": [],
        "by_parity": False,
        "by_retransmission": False,
        "sender_confirmed": False,
    }
    return TrueMessage(**{**fields, **more})


def segment(sds_id: str, sender: str, number: int, nth: int, history: list[str], **more) -> TrueSegment:
    """Segment ``nth`` of message ``number``, arrived 50 ms after it was sent; ``more`` overrides fields."""
    fields = {
        "channel_id": CHANNEL,
        "sds_id": sds_id,
        "sender": sender,
        "lamport": 1_000 * number + nth,
        "history": history,
        "made_at_ms": 1_000 * number,
        "message": number,
        "ordinal": nth,
        "is_parity": False,
        "arrived_at_ms": 1_000 * number + 50,
        "repaired_at_ms": None,
        "dispatches": 1,
        "observed_copies": 1,
    }
    return TrueSegment(**{**fields, **more})


def true_conversation() -> Truth:
    """Alice speaks (0), Bob answers with three segments of which parity rebuilt one (1), Alice sends a file of which
    one segment is missing (2), Bob says something that nobody here got but Carol names (3), Carol speaks (4), and a
    last word left no trace (5)."""
    return Truth(
        messages=[
            message(0, "alice", b"hello", ["a0"], 1, MessageOutcome.DELIVERED),
            message(
                1, "bob", b"B" * 30, ["b0", "b1", "bp"], 2, MessageOutcome.DELIVERED, missing_data=[1], by_parity=True
            ),
            message(
                2, "alice", b"A" * 40, ["f0", "f1"], 2, MessageOutcome.INCOMPLETE, arrived_data=[0], missing_data=[1]
            ),
            message(3, "bob", b"lost", ["l0"], 1, MessageOutcome.REFERENCED, missing_data=[0]),
            message(4, "carol", b"bye", ["c0"], 1, MessageOutcome.DELIVERED),
            message(5, "carol", b"gone", ["g0"], 1, MessageOutcome.NO_TRACE, missing_data=[0]),
        ],
        segments=[
            segment("a0", "alice", 0, 0, []),
            segment("b0", "bob", 1, 0, ["a0"]),
            segment("b1", "bob", 1, 1, ["b0", "a0"], arrived_at_ms=None, repaired_at_ms=1_050),
            segment("bp", "bob", 1, 2, ["b1", "b0"], is_parity=True),
            segment("f0", "alice", 2, 0, ["bp"]),
            segment("f1", "alice", 2, 1, ["f0", "bp"], arrived_at_ms=None),
            segment("l0", "bob", 3, 0, ["f0", "bp"], arrived_at_ms=None),
            segment("c0", "carol", 4, 0, ["l0", "f0"]),
            segment("g0", "carol", 5, 0, ["c0"], arrived_at_ms=None),
            segment("s0", "bob", 6, 0, ["c0", "l0"], message=None, ordinal=None),
        ],
        acks=[
            TrueAck(CHANNEL, "a0", "bob", 1_050),
            TrueAck(CHANNEL, "bp", "alice", 2_050),
            TrueAck(CHANNEL, "f0", "carol", 4_050),
            TrueAck(CHANNEL, "l0", "carol", 4_050),
            TrueAck(CHANNEL, "c0", "bob", 6_050),
        ],
        heard=[
            Reception(CHANNEL, sds_id, who, 0)
            for who, ids in {"bob": "a0 c0 f0", "alice": "a0 b0 b1 bp", "carol": "a0 b0 b1 bp f0 l0"}.items()
            for sds_id in ids.split()
        ],
        presences=[Presence(CHANNEL, who) for who in ("alice", "bob", "carol")],
        dependencies=[TrueDependency(CHANNEL, "l0", 4_050, False, None)],
        bad=[BadRecord(7, "garbage", "malformed_envelope", b"\xff\xff\xff", "waku.envelopes", 1, 42)],
    )


def faultless() -> Observed:
    """What the tables hold when every promise is kept."""
    return Observed(
        messages=[
            DeliveredMessage(CHANNEL, "alice", b"hello", 0, "a0", 1),
            DeliveredMessage(CHANNEL, "bob", b"B" * 30, 1_000, "b0", 2),
            DeliveredMessage(CHANNEL, "carol", b"bye", 4_000, "c0", 3),
        ],
        segments=[
            DeliveredSegment(CHANNEL, "a0", 1),
            DeliveredSegment(CHANNEL, "b0", 2),
            DeliveredSegment(CHANNEL, "b1", 3, repaired=True),
            DeliveredSegment(CHANNEL, "bp", 4),
            DeliveredSegment(CHANNEL, "f0", 6),
            DeliveredSegment(CHANNEL, "c0", 7),
        ],
        row_numbers=[(CHANNEL, n) for n in range(1, 8)],
        incomplete=[IncompleteMessage(CHANNEL, "alice", keccak256(b"A" * 40).hex(), (1,), 2)],
        lost=[(CHANNEL, "l0", "lost")],
        acks=[
            Acknowledgement(CHANNEL, "a0", "bob", "causal_history", True),
            Acknowledgement(CHANNEL, "a0", "carol", "implied", False),
            Acknowledgement(CHANNEL, "bp", "alice", "causal_history", True),
            Acknowledgement(CHANNEL, "f0", "carol", "causal_history", True),
            Acknowledgement(CHANNEL, "c0", "bob", "causal_history", True),
            Acknowledgement(CHANNEL, "b0", "alice", "filter", False),
        ],
        quarantine=[Quarantined("waku.envelopes", 1, 42, "malformed_envelope", b"\xff\xff\xff")],
        envelopes=12,
    )
