"""Computes the truth at the observer from the network's journal, by counting and without the pipeline's code.

:mod:`reliable_channel.simulation.observation` tracks what the observer knows; this module turns it into rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.segment import decode_segment
from reliable_channel.simulation.faults import hash_to_announce
from reliable_channel.simulation.journal import ChannelJournal, ObserverRecord, SentMessage
from reliable_channel.simulation.observation import Observation, observe
from reliable_channel.simulation.scene import Fate
from reliable_channel.simulation.truth import (
    BadRecord,
    MessageOutcome,
    Presence,
    Reception,
    TrueAck,
    TrueAttack,
    TrueDependency,
    TrueMessage,
    TrueSegment,
    Truth,
)

MOST_LAMPORT = 2**63 - 1
"""A clock beyond it is stated as this: the files of the truth hold no more, and no message with either is delivered."""


def judge(journals: Sequence[ChannelJournal], records: Sequence[ObserverRecord]) -> Truth:
    """The truth about all channels. ``records`` is everything written for the observer, in order (for the bad ones)."""
    truth = Truth(bad=_list_bad_records(records), attacks=_list_attacks(journals, records))
    for journal in journals:
        _judge_channel(journal, truth)
    return truth


def _list_bad_records(records: Sequence[ObserverRecord]) -> list[BadRecord]:
    return [
        BadRecord(record=number, label=record.label, reason=record.reason, value=record.value)
        for number, record in enumerate(records)
        if record.reason is not None
    ]


def _list_attacks(journals: Sequence[ChannelJournal], records: Sequence[ObserverRecord]) -> list[TrueAttack]:
    """The records of hostile senders. Content under the id of an honest message that is known by then has no effect.
    Ephemeral and sync messages are in no log, so each is identified by its sender and content. Messages that strangers
    send in invented channels do not concern the honest ones."""
    honest = {journal.plan.channel_id: (journal.sds, observe(journal)) for journal in journals}
    attacks = []
    for number, record in enumerate(records):
        forgery = record.forgery
        if forgery is None:
            continue
        message = forgery.message
        sds, seen = honest.get(message.channel_id) or ({}, Observation())
        real = sds.get(message.message_id)
        fate = forgery.fate
        content = message.lamport_timestamp is not None and message.content is not None and fate is not Fate.COPY
        if content and real is not None and real.message is not None and real.lamport is not None:
            known = seen.find_time(message.message_id)
            # Times of arrival are whole ms: at the same one, either may have been first.
            if known is not None and known < record.at_ms:
                fate = Fate.NOTHING
        segment = None if message.content is None else decode_segment(message.content)
        announced = None if segment is None or isinstance(segment, Malformed) else segment.entire_message_hash.hex()
        attacks.append(
            TrueAttack(
                channel_id=message.channel_id,
                attack=forgery.attack,
                fate=fate.value,
                sds_id=message.message_id,
                sender=message.sender_id,
                lamport=None if message.lamport_timestamp is None else min(message.lamport_timestamp, MOST_LAMPORT),
                payload=message.content,
                payload_hash=announced,
                names=[entry.message_id for entry in message.causal_history],
                before_observation=seen.is_before(record, message.lamport_timestamp),
                at_ms=record.at_ms,
                record=number,
            )
        )
    return attacks


def _judge_channel(journal: ChannelJournal, truth: Truth) -> None:
    channel = journal.plan.channel_id
    seen = observe(journal)
    copies = Counter(r.sds_id for r in journal.observed if r.sds_id is not None)
    dispatches = Counter(d.sds_id for d in journal.dispatches)
    for sent in journal.sds.values():
        message = journal.messages[sent.message] if sent.message is not None else None
        truth.segments.append(
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
                arrived_at_ms=seen.arrived.get(sent.sds_id),
                repaired_at_ms=seen.repaired.get(sent.sds_id),
                dispatches=dispatches[sent.sds_id],
                observed_copies=copies[sent.sds_id],
            )
        )
    numbers = sorted(journal.messages)
    truth.messages.extend(_judge_message(journal, journal.messages[n], seen, dispatches) for n in numbers)
    truth.dependencies.extend(
        TrueDependency(channel, sds_id, naming.first_ms, naming.before_observation, seen.find_time(sds_id))
        for sds_id, naming in sorted(seen.named.items())
    )
    truth.acks.extend(TrueAck(channel, sds_id, by, at) for (sds_id, by), at in sorted(seen.acks.items()))
    truth.heard.extend(
        Reception(channel, sds_id, participant, at) for (participant, sds_id), at in sorted(journal.heard.items())
    )
    truth.presences.extend(Presence(channel, name) for name in sorted(journal.joined))


def _judge_message(
    journal: ChannelJournal,
    message: SentMessage,
    seen: Observation,
    dispatches: Counter[str],
) -> TrueMessage:
    complete_at = seen.complete.get(message.number)
    data = [i for i in range(message.data_count) if message.sds_ids[i] in seen.arrived]
    parity = [i for i in range(message.parity_count) if message.sds_ids[message.data_count + i] in seen.arrived]
    missing = [i for i in range(message.data_count) if i not in data]
    if complete_at is not None:
        outcome = MessageOutcome.DELIVERED
    elif data or parity:
        outcome = MessageOutcome.INCOMPLETE
    elif any(sds_id in seen.named for sds_id in message.sds_ids):
        outcome = MessageOutcome.REFERENCED
    else:
        outcome = MessageOutcome.NO_TRACE
    return TrueMessage(
        channel_id=journal.plan.channel_id,
        content_topic=journal.plan.content_topic,
        pubsub_topic=journal.plan.pubsub_topic,
        number=message.number,
        sender=message.sender,
        sent_at_ms=message.sent_at_ms,
        payload=message.payload,
        announced_keccak=hash_to_announce(message.payload, message.fault).hex(),
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
        missing_data=missing,
        by_parity=any(i in seen.repaired for i in message.sds_ids[: message.data_count]),
        by_retransmission=complete_at is not None and any(dispatches[i] > 1 for i in message.sds_ids),
        sender_confirmed=message.number in journal.confirmed,
    )
