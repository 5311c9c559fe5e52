"""From what happened on the network to what is true at the observer: counting, and none of the pipeline's code.

The rules are the protocol's, said as plainly as possible: a message is delivered when at least k of its k + m
segments arrived and one of them says k (protocol.md §3); what is complete makes its missing siblings known
(§4, *verified repair*); an id that arrived messages depend on and that never became known is lost (§5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from reliable_channel.simulation.journal import ChannelJournal, ObserverRecord, SentMessage
from reliable_channel.simulation.scenario import Fault
from reliable_channel.simulation.truth import (
    BadRecord,
    Heard,
    LostDependency,
    Outcome,
    TrueAck,
    TrueMessage,
    TrueSegment,
    Truth,
)
from reliable_channel.wire.hashing import keccak256


def judge(journals: Iterable[ChannelJournal], records: Sequence[ObserverRecord]) -> Truth:
    """The truth about all channels. ``records`` is everything written for the observer, in order (for the bad ones)."""
    truth = Truth(messages=[], segments=[], acks=[], heard=[], lost=[], bad=_bad_records(records))
    for journal in journals:
        _judge_channel(journal, truth)
    return truth


def _bad_records(records: Sequence[ObserverRecord]) -> list[BadRecord]:
    return [
        BadRecord(record=number, label=record.label, reason=record.reason, value=record.value)
        for number, record in enumerate(records)
        if record.reason is not None
    ]


def _judge_channel(journal: ChannelJournal, truth: Truth) -> None:
    channel = journal.plan.channel_id
    arrivals = _arrivals(journal)
    copies = Counter(r.sds_id for r in journal.observed if r.sds_id is not None)
    dispatches = Counter(d.sds_id for d in journal.dispatches)
    complete = {m.number: _complete_at(m, arrivals) for m in journal.messages.values()}
    segments = []
    for sent in journal.sds.values():
        message = journal.messages[sent.message] if sent.message is not None else None
        repaired = complete.get(sent.message) if sent.message is not None else None
        segments.append(
            TrueSegment(
                channel_id=channel,
                sds_id=sent.sds_id,
                sender=sent.sender,
                lamport=sent.lamport,
                history=list(sent.history),
                made_at_ms=sent.made_at_ms,
                message=sent.message,
                ordinal=sent.ordinal,
                is_parity=message is not None and sent.ordinal is not None and sent.ordinal >= message.data_count,
                arrived_at_ms=arrivals.get(sent.sds_id),
                repaired_at_ms=_repaired_at(repaired, arrivals.get(sent.sds_id)),
                dispatches=dispatches[sent.sds_id],
                observed_copies=copies[sent.sds_id],
            )
        )
    segments.sort(key=lambda s: (s.made_at_ms, s.lamport or 0, s.sds_id))
    referenced = _first_references(segments)
    known = {s.sds_id for s in segments if s.known_at_ms is not None}
    truth.segments.extend(segments)
    truth.messages.extend(
        _judge_message(journal, m, arrivals, complete[m.number], referenced, dispatches)
        for m in sorted(journal.messages.values(), key=lambda m: m.number)
    )
    truth.lost.extend(
        LostDependency(channel, sds_id, at) for sds_id, at in sorted(referenced.items()) if sds_id not in known
    )
    truth.acks.extend(_acks(journal, segments))
    truth.heard.extend(
        Heard(channel, sds_id, participant, at) for (participant, sds_id), at in sorted(journal.heard.items())
    )


def _arrivals(journal: ChannelJournal) -> dict[str, int]:
    """SDS id → first decodable arrival at the observer."""
    first: dict[str, int] = {}
    for record in journal.observed:
        if record.sds_id is not None and record.reason is None:
            first.setdefault(record.sds_id, record.at_ms)
    return first


def _complete_at(message: SentMessage, arrivals: dict[str, int]) -> int | None:
    """When the observer held k of the k + m segments and knew k; parity segments alone do not say k."""
    if message.fault is Fault.HASH_MISMATCH:
        return None
    data = sorted(arrivals[i] for i in message.sds_ids[: message.data_count] if i in arrivals)
    every = sorted(arrivals[i] for i in message.sds_ids if i in arrivals)
    if len(every) < message.data_count or not data:
        return None
    return max(every[message.data_count - 1], data[0])


def _repaired_at(complete_at: int | None, arrived_at: int | None) -> int | None:
    """The record that completes a set is itself no repair, and what comes later was known by then."""
    if complete_at is None or (arrived_at is not None and arrived_at <= complete_at):
        return None
    return complete_at


def _judge_message(
    journal: ChannelJournal,
    message: SentMessage,
    arrivals: dict[str, int],
    complete_at: int | None,
    referenced: dict[str, int],
    dispatches: Counter[str],
) -> TrueMessage:
    data = [i for i in range(message.data_count) if message.sds_ids[i] in arrivals]
    parity = [i for i in range(message.parity_count) if message.sds_ids[message.data_count + i] in arrivals]
    missing = [i for i in range(message.data_count) if i not in data]
    if complete_at is not None:
        outcome = Outcome.DELIVERED
    elif data or parity:
        outcome = Outcome.INCOMPLETE
    elif any(sds_id in referenced for sds_id in message.sds_ids):
        outcome = Outcome.REFERENCED
    else:
        outcome = Outcome.NO_TRACE
    return TrueMessage(
        channel_id=journal.plan.channel_id,
        content_topic=journal.plan.content_topic,
        pubsub_topic=journal.plan.pubsub_topic,
        number=message.number,
        sender=message.sender,
        sent_at_ms=message.sent_at_ms,
        payload=message.payload,
        payload_keccak=keccak256(message.payload).hex(),
        ephemeral=message.ephemeral,
        data_count=message.data_count,
        parity_count=message.parity_count,
        first_sds_id=message.sds_ids[0],
        last_sds_id=message.sds_ids[-1],
        first_lamport=journal.sds[message.sds_ids[0]].lamport,
        fault=message.fault.value if message.fault else None,
        outcome=outcome.value,
        complete_at_ms=complete_at,
        arrived_data=data,
        arrived_parity=parity,
        missing_data=missing,
        by_parity=complete_at is not None and bool(missing),
        by_retransmission=complete_at is not None and any(dispatches[i] > 1 for i in message.sds_ids),
        sender_confirmed=message.number in journal.confirmed,
    )


def _first_references(segments: Sequence[TrueSegment]) -> dict[str, int]:
    """SDS id → when a message that arrived first named it in its causal history. What arrives when it is known already
    waits for nothing."""
    first: dict[str, int] = {}
    arrived = [(s.arrived_at_ms, s) for s in segments if s.arrived_at_ms is not None and s.history_seen]
    for at, segment in sorted(arrived, key=lambda pair: (pair[0], pair[1].sds_id)):
        for sds_id in segment.history:
            first.setdefault(sds_id, at)
    return first


def _acks(journal: ChannelJournal, segments: Sequence[TrueSegment]) -> list[TrueAck]:
    """Every certain acknowledgement that arrived: an id in the history of another participant's message."""
    first: dict[tuple[str, str], int] = {}
    arrived = [(s.arrived_at_ms, s) for s in segments if s.arrived_at_ms is not None]
    for at, segment in sorted(arrived, key=lambda pair: (pair[0], pair[1].sds_id)):
        for sds_id in segment.history:
            about = journal.sds.get(sds_id)
            if about is not None and about.sender != segment.sender:
                first.setdefault((sds_id, segment.sender), at)
    return [TrueAck(journal.plan.channel_id, sds_id, by, at) for (sds_id, by), at in sorted(first.items())]
