"""Checks the rows that hostile senders caused and removes them, so that the remaining rows can be compared with the
truth.

A hostile message may be delivered as what it is: its own content under the sender it claims. It may never change,
duplicate or remove a row of an honest message: such rows stay, and the promises about honest messages report them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.simulation.check.observed import (
    Acknowledgement,
    DeliveredMessage,
    DeliveredSegment,
    Difference,
    IncompleteMessage,
    Observed,
    Quarantined,
)
from reliable_channel.simulation.scene import Fate
from reliable_channel.simulation.truth import MessageOutcome, TrueAttack, Truth

PROMISE = "hostile senders"
LOST, BEFORE_OBSERVATION = "lost", "before_observation"
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def reduce_histories(truth: Truth) -> Truth:
    """The truth in which a message depends only on what all of its copies name, those of hostile senders too."""
    copies = _group((a for a in truth.attacks if a.fate == Fate.COPY), lambda a: (a.channel_id, a.sds_id))
    if not copies:
        return truth
    segments = []
    for segment in truth.segments:
        for copy in copies.get((segment.channel_id, segment.sds_id), []):
            segment = dataclasses.replace(segment, history=[each for each in segment.history if each in copy.names])
        segments.append(segment)
    return dataclasses.replace(truth, segments=segments)


def find_reordered(truth: Truth) -> set[tuple[str, int]]:
    """The messages (channel, number) whose order among messages is free: a hostile sender's copy of one of their
    segments names less than the sender's, or it is the only one that came (or of a segment on which theirs depend), so
    they wait for whatever it names. The order of segments is not free: each waits for what all its copies name."""
    copied = {(a.channel_id, a.sds_id) for a in truth.attacks if a.fate == Fate.COPY}
    delayed = {(s.channel_id, s.sds_id) for s in truth.segments if s.arrived_at_ms and not s.observed_copies}
    before = -1
    while len(delayed) > before:
        before = len(delayed)
        delayed |= {
            (s.channel_id, s.sds_id)
            for s in truth.segments
            if any((s.channel_id, dependency) in delayed for dependency in s.history)
        }
    return {
        (s.channel_id, s.message)
        for s in truth.segments
        if s.message is not None and (s.channel_id, s.sds_id) in delayed | copied
    }


def drop_attacks(truth: Truth, observed: Observed) -> tuple[Observed, list[Difference]]:
    """The tables without the rows that attacks explain, and the differences in those rows."""
    if not truth.attacks:
        return observed, []
    truth = dataclasses.replace(truth, attacks=[*truth.attacks, *_list_rebuilt_elsewhere(truth)])
    messages, differences = _drop_messages(truth, observed.messages)
    claimed = _make_is_claimed(truth)
    rest = dataclasses.replace(
        observed,
        messages=messages,
        segments=_drop_segments(truth, observed.segments),
        incomplete=_drop_incomplete(truth, observed.incomplete),
        lost=_drop_lost(truth, observed.lost),
        acks=[ack for ack in observed.acks if not claimed(ack)],
        quarantine=_find_quarantined_honest(truth, observed),
    )
    return rest, differences


def _list_rebuilt_elsewhere(truth: Truth) -> list[TrueAttack]:
    """The segments that copies of a message's other segments, sent to a channel without participants, rebuild there."""
    origins = {s.sds_id: (s.channel_id, s.message) for s in truth.segments if s.message is not None}
    segments = _group(truth.segments, lambda s: (s.channel_id, s.message))
    honest = {s.channel_id for s in truth.segments}
    return [
        dataclasses.replace(attack, sds_id=segment.sds_id, lamport=segment.lamport)
        for attack in truth.attacks
        if attack.channel_id not in honest and attack.sds_id in origins and attack.payload_hash is not None
        for segment in segments[origins[attack.sds_id]]
        if segment.sds_id != attack.sds_id
    ]


def _drop_messages(truth: Truth, rows: Iterable[DeliveredMessage]) -> tuple[list[DeliveredMessage], list[Difference]]:
    """Each hostile message that has an id of its own is delivered once, with its payload and the sender it claims."""
    honest = {(m.channel_id, m.first_sds_id, m.sender, m.payload, m.ephemeral) for m in truth.messages}
    allowed = _group(
        (attack for attack in truth.attacks if attack.fate != Fate.NOTHING),
        lambda attack: (attack.channel_id, attack.sds_id, attack.sender),
    )
    rest, counts = [], Counter[tuple[str, str, str, int | None, bytes | None]]()
    for row in rows:
        key = (row.channel_id, row.first_sds_id, row.sender)
        explained = [a for a in allowed.get(key, []) if _is_content_of(a, row)]
        if not explained or (*key, row.payload, row.ephemeral) in honest:
            rest.append(row)
            continue
        counts[(*key, row.lamport, row.payload)] += 1
    differences = [
        Difference(PROMISE, channel, sds_id, f"is delivered {times} times as from {sender!r}")
        for (channel, sds_id, sender, *_), times in counts.items()
        if times > 1
    ]
    for attack in truth.attacks:
        if attack.fate == Fate.MESSAGE:
            times = counts[attack.channel_id, attack.sds_id, attack.sender, attack.lamport, attack.payload]
            if not times:
                differences.append(
                    Difference(PROMISE, attack.channel_id, attack.sds_id, f"({attack.attack}) is not delivered")
                )
    return rest, differences


def _is_content_of(attack: TrueAttack, row: DeliveredMessage) -> bool:
    """Whether the row is the attack's own content, or the message that its segments announce."""
    if row.ephemeral != (attack.lamport is None):
        return False
    if attack.payload_hash is None:
        return row.payload == attack.payload
    return row.payload is not None and keccak256(row.payload).hex() == attack.payload_hash


def _drop_segments(truth: Truth, rows: Sequence[DeliveredSegment]) -> list[DeliveredSegment]:
    """Rows of ``deliveries`` under a hostile message's id and claimed sender; of those that are also an honest
    content's, the last is the honest one, because a hostile message after an honest one under its id has no effect."""
    allowed = {(a.channel_id, a.sds_id, a.sender) for a in truth.attacks if a.fate != Fate.NOTHING}
    content = [s for s in truth.segments if s.message is not None and s.lamport is not None]
    honest = {(s.channel_id, s.sds_id, s.sender) for s in content if s.known_at_ms is not None}
    in_order = sorted(rows, key=lambda row: row.row_seq)  # tables are read in the order of their files
    last = {(row.channel_id, row.sds_id, row.sender): row.row_seq for row in in_order}
    either_way = _find_arrived_or_rebuilt(truth)
    return [
        dataclasses.replace(row, repaired=either_way.get((row.channel_id, row.sds_id), row.repaired))
        for row in rows
        if (key := (row.channel_id, row.sds_id, row.sender)) not in allowed
        or (key in honest and row.row_seq == last[key])
    ]


def _find_arrived_or_rebuilt(truth: Truth) -> dict[tuple[str, str], bool]:
    """Segments (channel, SDS id) that arrived, of messages to which a hostile segment pretends to belong, and whether
    the truth calls them rebuilt. Such a message may be rebuilt earlier or later than without the attack, so both values
    are right for them."""
    touched = {(a.channel_id, a.payload_hash) for a in truth.attacks if a.payload_hash is not None}
    messages = {(m.channel_id, m.number) for m in truth.messages if (m.channel_id, m.announced_keccak) in touched}
    return {
        (s.channel_id, s.sds_id): not s.history_seen
        for s in truth.segments
        if s.arrived_at_ms is not None and (s.channel_id, s.message) in messages
    }


def _drop_incomplete(truth: Truth, rows: Iterable[IncompleteMessage]) -> list[IncompleteMessage]:
    """Sets that hold a hostile segment may report other places as missing. A set must be reported for each honest
    message of which too few segments arrived."""
    touched = {(a.channel_id, a.sender, a.payload_hash) for a in truth.attacks if a.payload_hash is not None}
    rest, reported = [], Counter[tuple[str, str, str]]()
    for row in rows:
        key = (row.channel_id, row.sender, row.payload_hash)
        if key in touched:
            reported[key] += 1
        else:
            rest.append(row)
    for m in truth.messages:
        key = (m.channel_id, m.sender, m.announced_keccak)
        if m.outcome == MessageOutcome.INCOMPLETE and key in touched and reported[key]:
            reported[key] -= 1
            missing, count = (tuple(m.missing_data), m.data_count) if m.arrived_data else ((), None)
            rest.append(IncompleteMessage(*key, missing, count))
    return rest


def _drop_lost(truth: Truth, rows: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Missing ids that hostile messages named, invented or honest. An honest message that honest ones name and that
    never arrived must still be reported, whatever a hostile message states about its age."""
    named = {(a.channel_id, name) for a in truth.attacks for name in a.names}
    named |= {(a.channel_id, a.sds_id) for a in truth.attacks}
    status = {
        (d.channel_id, d.sds_id): BEFORE_OBSERVATION if d.before_observation else LOST
        for d in truth.dependencies
        if d.known_at_ms is None
    }
    rest = []
    for channel, sds_id, said in rows:
        if (channel, sds_id) not in named:
            rest.append((channel, sds_id, said))
        elif (channel, sds_id) in status:
            rest.append((channel, sds_id, status[channel, sds_id]))
    return rest


def _make_is_claimed(truth: Truth) -> Callable[[Acknowledgement], bool]:
    """Whether hostile messages claim an acknowledgement: by name for certain ones, by a forged filter or a causal past
    for others. A participant's own certain acknowledgements are not explained by that."""
    names = {(a.channel_id, name, a.sender) for a in truth.attacks for name in a.names}
    senders = {(a.channel_id, a.sender) for a in truth.attacks}
    participants = {(p.channel_id, p.participant) for p in truth.presences}
    hostile_ids = {(a.channel_id, a.sds_id) for a in truth.attacks}
    honest_ids = {(s.channel_id, s.sds_id) for s in truth.segments}

    true = {(ack.channel_id, ack.sds_id, ack.by) for ack in truth.acks}

    def is_claimed(ack: Acknowledgement) -> bool:
        by = (ack.channel_id, ack.by)
        if (ack.channel_id, ack.sds_id, ack.by) in true:
            return False
        if (ack.channel_id, ack.sds_id, ack.by) in names:
            return True
        about = (ack.channel_id, ack.sds_id)
        if about in hostile_ids and about not in honest_ids:
            return True
        return by in senders and (by not in participants or not ack.certain)

    return is_claimed


def _find_quarantined_honest(truth: Truth, observed: Observed) -> list[Quarantined]:
    positions = {(a.topic, a.partition, a.offset) for a in truth.attacks}
    return [row for row in observed.quarantine if (row.topic, row.partition, row.offset) not in positions]


def _group(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
