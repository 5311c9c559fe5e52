"""What others than the observer could tell: the senders' own records, and what a store node would hold.

The rows are those of ``sender_events``, in the JSON form of the evidence topic (hashes as lower-case hex, absent
fields left out), so that verdicts on messages which left no trace on the wire can be held against the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from reliable_channel.simulation.journal import ChannelJournal, Dispatch
from reliable_channel.simulation.scenario import Fault
from reliable_channel.wire.hashing import keccak256


def sender_events(journals: Iterable[ChannelJournal]) -> Iterator[dict[str, Any]]:
    """Every SDS message as ``queued`` when it was made and ``sent`` at each dispatch; what a fault withheld as
    ``rate_limited``, or as ``failed`` (the sender stopped before the network). Times in virtual Unix ms."""
    for journal in journals:
        for sent in journal.sds.values():
            yield _row(journal, sent.sds_id, "queued", sent.made_at_ms)
        for dispatch in journal.dispatches:
            if dispatch.by == journal.sds[dispatch.sds_id].sender:
                yield _row(journal, dispatch.sds_id, "sent", dispatch.at_ms, dispatch.envelope_hash)
        for dispatch in journal.withheld:
            event = "rate_limited" if _fault(journal, dispatch) is Fault.RATE_LIMITED else "failed"
            yield _row(journal, dispatch.sds_id, event, dispatch.at_ms)


def held_by_store(journals: Iterable[ChannelJournal]) -> set[bytes]:
    """The hashes (32 bytes) of all envelopes that a store node keeps: what was dispatched, but for ephemeral messages
    and those that propagated and were not stored."""
    held = set()
    for journal in journals:
        for dispatch in journal.dispatches:
            number = journal.sds[dispatch.sds_id].message
            ephemeral = number is not None and journal.messages[number].ephemeral
            if not ephemeral and _fault(journal, dispatch) is not Fault.NOT_STORED:
                held.add(dispatch.envelope_hash)
    return held


def _fault(journal: ChannelJournal, dispatch: Dispatch) -> Fault | None:
    number = journal.sds[dispatch.sds_id].message
    return None if number is None else journal.messages[number].fault


def _row(
    journal: ChannelJournal, sds_id: str, event: str, at_ms: int, envelope_hash: bytes | None = None
) -> dict[str, Any]:
    sent = journal.sds[sds_id]
    row: dict[str, Any] = {
        "kind": "sender",
        "event": event,
        "at_ms": at_ms,
        "pubsub_topic": journal.plan.pubsub_topic,
        "content_topic": journal.plan.content_topic,
        "channel_id": journal.plan.channel_id,
        "sender_id": sent.sender,
        "sds_id": sds_id,
    }
    if sent.message is not None:
        row["entire_message_hash"] = keccak256(journal.messages[sent.message].payload).hex()
    if envelope_hash is not None:
        row["envelope_hash"] = envelope_hash.hex()
    return row
