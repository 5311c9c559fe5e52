"""Tracks the observer's knowledge of a channel, record by record: arrivals, completions, and ids named before they are
known. It uses plain sets and counting, not the protocol's state machines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.simulation.journal import ChannelJournal, ObserverRecord, SentMessage, SentSds
from reliable_channel.simulation.scenario import Fault
from reliable_channel.simulation.scene import Fate

TOLERATED_MS = 300_000
"""How far ahead of its arrival the clock of a message may be and still count."""


@dataclass(slots=True)
class Naming:
    """An id that was named before it was known: when first, and whether it is older than the observation."""

    first_ms: int
    before_observation: bool


@dataclass(slots=True)
class Observation:
    """All times are virtual Unix ms. ``complete`` is by message number; ``repaired`` are segments that never arrived
    before their message was complete; ``named`` are ids that were unknown when a message named them; ``acks`` are (SDS
    id, participant) from causal histories."""

    arrived: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """The order in which SDS ids arrived."""
    repaired: dict[str, int] = field(default_factory=dict)
    complete: dict[int, int] = field(default_factory=dict)
    named: dict[str, Naming] = field(default_factory=dict)
    acks: dict[tuple[str, str], int] = field(default_factory=dict)
    observed_since: int | None = None
    """The Lamport timestamp of the first message observed, or its arrival if that is earlier."""
    first: ObserverRecord | None = None
    """The record of the first message observed: all ids it names are older than the observation."""

    def is_before(self, record: ObserverRecord, lamport: int | None) -> bool:
        """Whether unknown ids named by a record with this Lamport timestamp are older than the observation."""
        return record is self.first or (lamport is not None and lamport <= (self.observed_since or 0))

    def find_time(self, sds_id: str) -> int | None:
        """When the SDS message was known to the observer, ``None`` when never."""
        times = [times[sds_id] for times in (self.arrived, self.repaired) if sds_id in times]
        return min(times) if times else None


def observe(journal: ChannelJournal) -> Observation:
    """Walk through the observer's records of a channel in the order of reception."""
    seen = Observation()
    sends_of: dict[tuple[str, bytes, Fault | None], list[SentMessage]] = defaultdict(list)
    for message in journal.messages.values():
        sends_of[message.sender, message.payload, message.fault].append(message)
    read: set[str] = set()
    """The ids whose senders' own histories were seen."""
    for record in journal.observed:
        if seen.first is None and _is_taken(journal, record):
            seen.first, seen.observed_since = record, min(_read_lamport(journal, record) or 0, record.at_ms)
        copied = record.forgery is not None and record.forgery.fate is Fate.COPY
        sds_id = record.forgery.message.message_id if copied and record.forgery else record.sds_id
        if sds_id is None or record.reason is not None:
            continue
        sent, now = journal.sds[sds_id], record.at_ms
        new = sds_id not in seen.arrived
        seen.arrived.setdefault(sds_id, now)
        seen.places.setdefault(sds_id, len(seen.places))
        if not copied and sds_id not in read:
            read.add(sds_id)
            _read_history(journal, sent, record, seen)
        if new and sent.message is not None and sent.message not in seen.complete:
            message = journal.messages[sent.message]
            _complete(message, sends_of[message.sender, message.payload, message.fault], now, seen)
    return seen


def _read_history(journal: ChannelJournal, sent: SentSds, record: ObserverRecord, seen: Observation) -> None:
    for dependency in sent.history:
        about = journal.sds.get(dependency)
        if about is None:  # a hostile message, which the participants take for one of theirs
            continue
        is_sync = about.message is None  # nim-sds names its sync messages, which nobody need acknowledge
        known = dependency in seen.arrived or dependency in seen.repaired
        if about.sender != sent.sender and not is_sync:
            seen.acks.setdefault((dependency, sent.sender), record.at_ms)
        if not known:
            seen.named.setdefault(dependency, Naming(record.at_ms, seen.is_before(record, sent.lamport)))


def _read_lamport(journal: ChannelJournal, record: ObserverRecord) -> int | None:
    if record.forgery is not None:
        return record.forgery.message.lamport_timestamp
    return None if record.sds_id is None else journal.sds[record.sds_id].lamport


def _is_taken(journal: ChannelJournal, record: ObserverRecord) -> bool:
    """Whether the channel is observed since this message, were it the first: a stranger may be the first, too."""
    lamport = _read_lamport(journal, record)
    if lamport is None or record.reason is not None or lamport > record.at_ms + TOLERATED_MS:
        return False
    if record.forgery is None:
        return True
    message = decode_sds_message(record.forgery.data)
    return not isinstance(message, Malformed) and message.channel_id == journal.plan.channel_id


def _complete(message: SentMessage, same: list[SentMessage], now: int, seen: Observation) -> None:
    """A message is complete when k of its k + m segments arrived and one of them carries k (v0.1 parity does not).
    Sends of one payload lend each other missing segments: when none has k segments and all of them together have k
    places, the one that was seen first is complete, and the others keep what they lent (docs/segmentation.md, *Sets and
    sends*). ``same``: the sends of its payload.

    Its other segments are then known as well (*verified repair*): the data segments always, the parity segments if one
    of its own segments, or a borrowed one, carried their number."""
    if message.fault is Fault.HASH_MISMATCH:
        return
    k = message.data_count
    sends = _find_waiting_sends(same, seen)
    together = {index for each in sends for index in _find_positions(each, seen)}
    able = [each for each in sends if min(_find_positions(each, seen)) < k]
    if message in able and len(_find_positions(message, seen)) >= k:
        whole, known = message, _find_positions(message, seen)
    elif able and len(together) >= k:
        whole = able[0]
        known = _find_positions(whole, seen) | {*sorted(together)[:k]}
    else:
        return
    seen.complete[whole.number] = now
    for sds_id in whole.sds_ids if max(known) >= k else whole.sds_ids[:k]:
        if sds_id not in seen.arrived:
            seen.repaired[sds_id] = now


def _find_waiting_sends(same: list[SentMessage], seen: Observation) -> list[SentMessage]:
    """The incomplete ones of sends of which a segment arrived, in the order in which they were first seen."""
    waiting = [each for each in same if each.number not in seen.complete and _find_positions(each, seen)]
    return sorted(waiting, key=lambda each: min(seen.places[i] for i in each.sds_ids if i in seen.places))


def _find_positions(message: SentMessage, seen: Observation) -> set[int]:
    """The positions in the message, data and then parity, of the segments that arrived."""
    return {index for index, sds_id in enumerate(message.sds_ids) if sds_id in seen.arrived}
