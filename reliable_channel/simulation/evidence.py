"""Generates evidence other than the observer's: the senders' own records, and what bridges saw.

The rows are those of ``sender_events``, in the JSON form of the evidence topic (hashes as lower-case hex, absent fields
left out), so that verdicts on messages which left no trace on the wire can be compared with the truth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import decode_waku_message, message_hash
from reliable_channel.simulation.journal import ChannelJournal, EnvelopeDispatch, ObserverRecord
from reliable_channel.simulation.randomness import stream
from reliable_channel.simulation.scenario import Fault

Row = dict[str, Any]
SIGHTED_EVERY_MS = 30_000


def sender_events(journals: Iterable[ChannelJournal]) -> Iterator[dict[str, Any]]:
    """Every SDS message as ``queued`` when it was made and ``sent`` at each dispatch; messages withheld by a fault as
    ``rate_limited``, or as ``failed`` (the sender stopped before dispatch). Times in virtual Unix ms."""
    for journal in journals:
        for sent in journal.sds.values():
            yield _make_row(journal, sent.sds_id, "queued", sent.made_at_ms)
        for dispatch in journal.dispatches:
            if dispatch.by == journal.sds[dispatch.sds_id].sender:
                yield _make_row(journal, dispatch.sds_id, "sent", dispatch.at_ms, dispatch.envelope_hash)
        for dispatch in journal.withheld:
            event = "rate_limited" if _find_fault(journal, dispatch) is Fault.RATE_LIMITED else "failed"
            yield _make_row(journal, dispatch.sds_id, event, dispatch.at_ms)


def sightings(records: Iterable[ObserverRecord], vantages: tuple[tuple[str, float], ...], seed: int) -> Iterator[Row]:
    """Which bridge saw which of the observer's envelopes: each bridge sees its share of them, and at least one sees
    every envelope. One row for the envelopes that a bridge saw within :data:`SIGHTED_EVERY_MS`."""
    by_slot: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for number, record in enumerate(records):
        waku = decode_waku_message(record.value or b"")
        if isinstance(waku, Malformed):
            continue
        pubsub_topic = dict(record.headers)["pubsub_topic"].decode()
        hash_ = message_hash(pubsub_topic, waku).hex()
        draw = stream(seed, "sighting", number)
        by = [name for name, share in vantages if draw.random() < share] or [draw.choice(vantages)[0]]
        for name in by:
            by_slot[record.at_ms // SIGHTED_EVERY_MS, name, pubsub_topic].append(hash_)
    for (slot, name, pubsub_topic), hashes in sorted(by_slot.items()):
        yield {
            "kind": "sightings",
            "vantage": name,
            "node": f"waku-node-{name}",
            "source": "relay",
            "pubsub_topic": pubsub_topic,
            "hashes": hashes,
            "at_ms": slot * SIGHTED_EVERY_MS,
        }


def _find_fault(journal: ChannelJournal, dispatch: EnvelopeDispatch) -> Fault | None:
    number = journal.sds[dispatch.sds_id].message
    return None if number is None else journal.messages[number].fault


def _make_row(
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
        message = journal.messages[sent.message]
        row |= {"send_id": message.sds_ids[0], "entire_message_hash": keccak256(message.payload).hex()}
    if envelope_hash is not None:
        row["envelope_hash"] = envelope_hash.hex()
    return row
