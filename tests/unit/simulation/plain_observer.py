"""An observer in twenty lines of rules: the protocol core fed record by record, without Kafka, Spark or Delta.

It says what the tables should hold, so the simulation's truth can be held against the core alone, for many seeds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from reliable_channel.core.sds import (
    Acknowledged,
    Delivered,
    DependencyBeforeObservation,
    DependencyFound,
    DependencyLost,
    EphemeralReceived,
    Evidence,
    SdsChannel,
    SdsStep,
)
from reliable_channel.core.segmentation import (
    MessageCompleted,
    Reassembler,
    SegmentationConfig,
    SetExpired,
    missing_segments,
)
from reliable_channel.core.wire.hashing import sds_message_id
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import HistoryEntry, SdsKind, SdsMessage, decode_sds_message
from reliable_channel.core.wire.segment import decode_segment
from reliable_channel.core.wire.waku import decode_waku_message, message_hash
from reliable_channel.simulation.check.observed import (
    Acknowledgement,
    DeliveredMessage,
    DeliveredSegment,
    Observed,
    Quarantined,
)
from reliable_channel.simulation.check.observed import IncompleteMessage as Incomplete
from reliable_channel.simulation.journal import ObserverRecord

CLOSING_MS = 3_600_000
LAMPORT_AHEAD_MS = 86_400_000


@dataclass
class Channel:
    """One channel's state and what is known of its messages. A message is delivered with the k-th of its segments."""

    sds: SdsChannel
    rows: int = 0
    delivered: set[str] = field(default_factory=set)
    complete: list[tuple[int, list[str], DeliveredMessage]] = field(default_factory=list)
    repaired: set[str] = field(default_factory=set)
    bare: dict[str, DeliveredMessage] = field(default_factory=dict)
    messages: int = 0
    given_up: dict[str, str] = field(default_factory=dict)


class PlainObserver:
    """Feed it every record in order, then :meth:`finish`."""

    def __init__(self) -> None:
        self.tables = Observed()
        self._channels: dict[str, Channel] = {}
        self._reassemblers: dict[str, Reassembler] = defaultdict(
            lambda: Reassembler(SegmentationConfig(max_set_lifetime_ms=CLOSING_MS))
        )

    def finish(self, now: int) -> Observed:
        """The clock goes on until every timer has fired."""
        for name, channel in self._channels.items():
            self._expire(name, now + CLOSING_MS)
            self._follow(name, channel, channel.sds.tick(now + CLOSING_MS))
            self.tables.lost.extend((name, sds_id, status) for sds_id, status in sorted(channel.given_up.items()))
        return self.tables

    def record(self, offset: int, record: ObserverRecord) -> None:
        """One Kafka record."""
        waku = decode_waku_message(record.value)
        if isinstance(waku, Malformed):
            self._refuse(offset, record, waku.reason.value)
            return
        if not waku.content_topic.startswith("/reliable-channel/"):
            return
        message = decode_sds_message(waku.payload)
        if isinstance(message, Malformed):
            self._refuse(offset, record, message.reason.value)
            return
        if message.lamport_timestamp is not None and message.lamport_timestamp > record.at_ms + LAMPORT_AHEAD_MS:
            self._refuse(offset, record, "lamport_out_of_range")
            return
        hint = message_hash(dict(record.headers)["pubsub_topic"].decode(), waku)
        self._message(message, hint, record.at_ms)

    def _refuse(self, offset: int, record: ObserverRecord, reason: str) -> None:
        self.tables.quarantine.append(Quarantined("t", 0, offset, reason, record.value))

    def _message(self, message: SdsMessage, hint: bytes, now: int) -> None:
        name = message.channel_id
        channel = self._channels.setdefault(name, Channel(SdsChannel(name, None)))
        self._expire(name, now)
        self._follow(name, channel, channel.sds.tick(now))
        content, sender, lamport = message.content, message.sender_id, message.lamport_timestamp
        if message.kind is not SdsKind.CONTENT or content is None:
            self._follow(name, channel, channel.sds.receive(message, now, retrieval_hint=hint))
            return
        segment = decode_segment(content)
        if isinstance(segment, Malformed):
            channel.bare.setdefault(
                message.message_id, DeliveredMessage(name, sender, content, lamport, message.message_id, 0)
            )
            self._follow(name, channel, channel.sds.receive(message, now, retrieval_hint=hint))
            return
        # Whole messages are known before SDS delivers: what waits for the last segment of one must not overtake it.
        repaired: list[SdsMessage] = []
        for event in self._reassemblers[name].add(
            segment, now, scope=(name, sender), sds_id=message.message_id, lamport=lamport
        ):
            if isinstance(event, MessageCompleted):
                repaired += self._completed(name, channel, sender, event)
        self._follow(name, channel, channel.sds.receive(message, now, retrieval_hint=hint))
        for rebuilt in repaired:
            self._follow(name, channel, channel.sds.receive(rebuilt, now, repaired=True, id_verified=True))

    def _completed(self, name: str, channel: Channel, sender: str, event: MessageCompleted) -> list[SdsMessage]:
        """Note a whole message; returns its segments that never arrived, as SDS messages."""
        assert event.first_lamport is not None
        missing = missing_segments(event)
        ids = {(s.is_parity, s.index): s.sds_id for s in event.received}
        ids |= {(m.is_parity, m.index): sds_message_id(sender, event.first_lamport, m.content) for m in missing}
        row = DeliveredMessage(name, sender, event.payload, event.first_lamport, ids[False, 0], 0)
        channel.complete.append((event.data_count, list(ids.values()), row))
        # A send's segments are wrapped in one step, so each has the one before it in its causal past.
        order = sorted(ids)
        before = {place: ids[previous] for previous, place in pairwise(order)}
        return [
            SdsMessage(
                sender,
                ids[m.is_parity, m.index],
                name,
                m.lamport,
                causal_history=tuple(HistoryEntry(b) for b in [before.get((m.is_parity, m.index))] if b),
                content=m.content,
            )
            for m in missing
        ]

    def _expire(self, name: str, now: int) -> None:
        for event in self._reassemblers[name].expire(now):
            if isinstance(event, SetExpired):
                lacking = event.incomplete
                self.tables.incomplete.append(
                    Incomplete(
                        name,
                        lacking.scope[1],
                        lacking.entire_message_hash.hex(),
                        lacking.missing_data,
                        lacking.data_count,
                    )
                )

    def _follow(self, name: str, channel: Channel, step: SdsStep) -> None:
        for event in step.events:
            if isinstance(event, Delivered):
                self._delivered(name, channel, event)
            elif isinstance(event, EphemeralReceived):
                if event.message_id in channel.delivered:  # SDS remembers nothing of it; who reads the wire must
                    continue
                channel.delivered.add(event.message_id)
                channel.rows += 1
                self.tables.row_numbers.append((name, channel.rows))
                row = DeliveredMessage(name, event.sender_id, event.content, None, event.message_id, 0, ephemeral=True)
                self._deliver(channel, row)
            elif isinstance(event, DependencyLost):
                channel.given_up[event.message_id] = "lost"
            elif isinstance(event, DependencyBeforeObservation):
                channel.given_up[event.message_id] = "before_observation"
            elif isinstance(event, DependencyFound):
                channel.given_up.pop(event.message_id, None)
            elif isinstance(event, Acknowledged):
                evidence = event.evidence
                self.tables.acks.append(
                    Acknowledgement(
                        name, event.message_id, event.by, evidence.value, evidence is Evidence.CAUSAL_HISTORY
                    )
                )

    def _delivered(self, name: str, channel: Channel, event: Delivered) -> None:
        channel.rows += 1
        self.tables.row_numbers.append((name, channel.rows))
        self.tables.segments.append(
            DeliveredSegment(name, event.message_id, channel.rows, event.late, event.repaired, event.lost_dependencies)
        )
        channel.delivered.add(event.message_id)
        channel.given_up.pop(event.message_id, None)
        if event.message_id in channel.bare:
            self._deliver(channel, channel.bare.pop(event.message_id))
        self._deliver_whole(channel)

    def _deliver_whole(self, channel: Channel) -> None:
        for whole in list(channel.complete):
            needed, ids, row = whole
            if sum(sds_id in channel.delivered for sds_id in ids) >= needed:
                channel.complete.remove(whole)
                self._deliver(channel, row)

    def _deliver(self, channel: Channel, row: DeliveredMessage) -> None:
        channel.messages += 1
        self.tables.messages.append(
            DeliveredMessage(
                row.channel_id, row.sender, row.payload, row.lamport, row.first_sds_id, channel.messages, row.ephemeral
            )
        )
