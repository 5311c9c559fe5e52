"""What the observer comes to know of a channel, record by record: arrivals, completions, and what is named before it is
known. Plain sets and counting, by the protocol's rules and without its state machines."""

from __future__ import annotations

from dataclasses import dataclass, field

from reliable_channel.simulation.journal import ChannelJournal, SentMessage
from reliable_channel.simulation.scenario import Fault

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
    before their message was complete; ``named`` are ids that were unknown when a message named them; ``acks`` are
    (SDS id, by whom) as causal histories say."""

    arrived: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    complete: dict[int, int] = field(default_factory=dict)
    named: dict[str, Naming] = field(default_factory=dict)
    acks: dict[tuple[str, str], int] = field(default_factory=dict)
    observed_since: int | None = None
    """The Lamport timestamp of the first message observed."""

    def known_at(self, sds_id: str) -> int | None:
        """When the SDS message was known to the observer, ``None`` when never."""
        times = [times[sds_id] for times in (self.arrived, self.repaired) if sds_id in times]
        return min(times) if times else None


def observe(journal: ChannelJournal) -> Observation:
    """Walk through the observer's records of a channel in the order of reception."""
    seen = Observation()
    for record in journal.observed:
        if record.forgery is not None and seen.observed_since is None:
            # A stranger may be the first to be observed; its clock counts as far as clocks may be ahead.
            claimed = record.forgery.message.lamport_timestamp
            seen.observed_since = None if claimed is None else min(claimed, record.at_ms + TOLERATED_MS)
        if record.sds_id is None or record.reason is not None:
            continue
        sent, now = journal.sds[record.sds_id], record.at_ms
        new = record.sds_id not in seen.arrived
        seen.arrived.setdefault(record.sds_id, now)
        if not new:
            continue
        if sent.lamport is not None and seen.observed_since is None:
            seen.observed_since = sent.lamport
        for dependency in sent.history:
            about = journal.sds.get(dependency)
            if about is None:  # a hostile message, which the participants take for one of theirs
                continue
            is_sync = about.message is None  # nim-sds names its sync messages, which nobody need acknowledge
            known = dependency in seen.arrived or dependency in seen.repaired
            # A message that was rebuilt before it arrived has been delivered without its history: what it names now is
            # not waited for, and who named what is still unknown is not remembered.
            first_heard = record.sds_id not in seen.repaired
            if about.sender != sent.sender and not is_sync and (known or first_heard):
                seen.acks.setdefault((dependency, sent.sender), now)
            if not known and first_heard:
                older = sent.lamport is not None and sent.lamport <= (seen.observed_since or 0)
                seen.named.setdefault(dependency, Naming(now, older))
        if sent.message is not None and sent.message not in seen.complete:
            _complete(journal.messages[sent.message], now, seen)
    return seen


def _complete(message: SentMessage, now: int, seen: Observation) -> None:
    """A message is whole when k of its k + m segments arrived and one of them says k: v0.1 parity does not
    (protocol.md §3). Then its other segments are known as well (§4, *verified repair*): the data segments always, the
    parity segments when one of them arrived and said how many there are."""
    if message.fault is Fault.HASH_MISMATCH:
        return
    held = [sds_id for sds_id in message.sds_ids if sds_id in seen.arrived]
    says_k = any(sds_id in seen.arrived for sds_id in message.sds_ids[: message.data_count])
    if len(held) < message.data_count or not says_k:
        return
    seen.complete[message.number] = now
    says_m = any(sds_id in seen.arrived for sds_id in message.sds_ids[message.data_count :])
    for sds_id in message.sds_ids if says_m else message.sds_ids[: message.data_count]:
        if sds_id not in seen.arrived:
            seen.repaired[sds_id] = now
