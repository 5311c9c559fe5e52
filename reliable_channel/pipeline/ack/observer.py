"""The keyed state of ack: one channel, as an :class:`~reliable_channel.core.sds.SdsChannel` of this observer.

Takes rows of ``ordered_sds_messages`` and returns rows of the ack job's tables, in pure Python. It adds the facts that
SDS does not know: which Kafka record brought a message, and which application message a segment belongs to. An
application message is delivered when it has been rebuilt and SDS has delivered k of its segments.

A message is remembered (:mod:`.accepted_messages`) only after SDS has accepted its record, so a record that SDS refuses
changes no row of another one. Ephemeral messages, which SDS does not remember, have separate ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from reliable_channel.core import sds
from reliable_channel.core.delivery import keep_newest
from reliable_channel.core.errors import LocalError
from reliable_channel.core.shares import drop_surplus
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.hashing import sha256
from reliable_channel.core.wire.sds import SdsMessage
from reliable_channel.lake.schema import Row
from reliable_channel.lake.tables import CHANNEL_KEY, DAY_MS, DELIVERED_MESSAGES, DELIVERIES
from reliable_channel.pipeline.ack import output_rows as rows
from reliable_channel.pipeline.ack.accepted_messages import (
    DIGEST_BYTES,
    AcceptedMessage,
    AcceptedMessages,
    digest_of,
    sds_key,
)
from reliable_channel.pipeline.ack.rebuilt import RebuiltMessages
from reliable_channel.pipeline.ack.records import InputRow

MAX_PARTS = 8_000
"""The maximum number of delivered segments of undelivered application messages."""
MAX_SETTLED = 2_000
"""The maximum number of delivered SDS messages remembered for acknowledgements."""
MAX_EPHEMERALS = 2_000
"""About how many ephemeral messages are remembered, so that a copy is not delivered again. Then the sender with most
loses its oldest."""
SENDER_BYTES = 4
"""How many bytes of an ephemeral message's name are of its sender alone."""
MAX_NEEDED_BY = 10_000
"""The maximum number of missing ids whose first naming message is remembered."""
GUARDED_MS = max(table.retention_ms or 0 for table in (DELIVERIES, DELIVERED_MESSAGES))
"""How long (ms) tables keep a delivery; a channel that forgets it earlier could write it twice."""

ChannelKey = tuple[str, str, str, str]
"""Pubsub topic, content topic, channel id, wire family: participants of two families cannot read each other, so what
they send under one id is followed as two channels."""


class ChannelObserver:
    """The state of one channel.

    A channel that was silent for ``expiry_ms`` (``None``: never expires) becomes dormant. Its state then keeps only the
    counters and its position, so that nothing is delivered twice, however late a store returns it. These are deleted
    too when retention has removed the rows that they guard, or at once if nothing was delivered: :attr:`is_blank`."""

    def __init__(
        self, key: ChannelKey, participant_id: str | None, config: sds.SdsParameters, expiry_ms: int | None = None
    ) -> None:
        self._key = key
        *channel, self._family = key
        self._columns: dict[str, Any] = dict(zip(CHANNEL_KEY, channel, strict=True))
        self._participant_id = participant_id
        self._config = config
        self._expiry_ms = expiry_ms
        self.topic_partition: tuple[str, int] = ("", 0)
        self._begin()

    def _begin(self) -> None:
        """Reset to a channel about which nothing is known."""
        self.is_blank = True
        """Whether nothing is known, so that there is no state to store."""
        self._channel = sds.SdsChannel(self._key[2], self._participant_id, self._config)
        self._last_message_ms = 0
        self._dormant_since = 0
        self._now = 0
        self._row_seq = 0
        self._delivery_seq = 0
        self._forget_messages()

    def _forget_messages(self) -> None:
        self._seen = AcceptedMessages(self._config.max_waiting, MAX_PARTS, MAX_SETTLED)
        self._rebuilt = RebuiltMessages(self._seen)
        self._needed_by: dict[str, str] = {}
        self._ephemerals: dict[bytes, None] = {}

    def take(self, row: InputRow) -> list[Row]:
        """Process one row, in record order. Timers due before it run first, each at its own due time."""
        out: list[Row] = []
        now = max(self._now, row.event_us // 1000)
        # A loop, because a channel that still misses something is put off instead, perhaps several times until now.
        while (due := self._dormant_due()) is not None and due <= now:
            self._run_timers(due, out)
            self._become_dormant(out)
        if (due := self._deletion_due()) is not None and due <= now:
            self._begin()
        if row.row_kind == "tick" and self.is_blank:  # a tick must not create state for a channel that was deleted
            return out
        self.is_blank = False
        self._run_timers(now, out)
        match row.row_kind:
            case "message":
                self.topic_partition = (row.kafka_topic, row.kafka_partition)
                self._last_message_ms, self._dormant_since = now, 0
                if row.sds_kind == "ephemeral":
                    self._take_ephemeral(row, out)
                else:
                    self._take_content(row, out)
            case "repaired":
                self._apply_repaired(row, out)
            case "completed":
                self._apply_completed(row, out)
            case "unreadable":
                raise ValueError("its values cannot be read")
        return out

    @property
    def is_dormant(self) -> bool:
        """Whether the channel is dormant: only its counters and its position are left."""
        return bool(self._dormant_since)

    def timer_due_us(self) -> int | None:
        """When the next timer of SDS is due (event time, µs)."""
        due = self._channel.next_due()
        return None if due is None else due * 1000

    def end_due_us(self) -> int | None:
        """When (event time, µs) the channel becomes dormant, or is deleted, if nothing more arrives."""
        dues = [due for due in (self._dormant_due(), self._deletion_due()) if due is not None]
        return min(dues) * 1000 if dues else None

    def is_due(self, at_us: int) -> bool:
        """Whether a tick at this event time (µs) changes anything."""
        return any(due is not None and due <= at_us for due in (self.timer_due_us(), self.end_due_us()))

    # ---- time ----------------------------------------------------------------------------------------------------

    def _run_timers(self, now: int, out: list[Row]) -> None:
        self._now = now
        self._report(self._channel.tick(now).events, None, out)

    def _dormant_due(self) -> int | None:
        """When (ms) the channel becomes dormant if nothing more arrives. Rounded up to a full day, or every message
        would change it."""
        if self._expiry_ms is None or not self._last_message_ms:
            return None
        return -(-(self._last_message_ms + self._expiry_ms) // DAY_MS) * DAY_MS

    def _deletion_due(self) -> int | None:
        """When (ms) the state of a dormant channel is deleted."""
        if not self._dormant_since:
            return None
        return self._dormant_since + (GUARDED_MS if self._row_seq or self._participant_id is not None else 0)

    def _become_dormant(self, out: list[Row]) -> None:
        """Make the channel dormant, unless a missing message is not yet given up."""
        if self._channel.missing_ids():
            self._last_message_ms = self._now
            return
        out.extend([self._drop_row(row, "the channel was silent") for row in self._rebuilt.list_waiting()])
        self._forget_messages()
        self._channel.forget()
        self._last_message_ms, self._dormant_since = 0, self._now

    # ---- input ---------------------------------------------------------------------------------------------------

    def _take_ephemeral(self, row: InputRow, out: list[Row]) -> None:
        """Deliver an ephemeral message once, independently of what SDS remembers under its id."""
        name = _name_ephemeral(row)
        if name in self._ephemerals:
            return
        events = self._pass_to_sds(row)
        self._report(events, row, out)
        if any(isinstance(event, sds.EphemeralReceived) for event in events):
            self._ephemerals[name] = None
            drop_surplus(self._ephemerals, lambda name: name[:SENDER_BYTES], MAX_EPHEMERALS, MAX_EPHEMERALS // 8)
            base = self._number_row(self._now, message=True)
            out.append(rows.ephemeral_row(base, row, AcceptedMessage.first(row, self._now)))

    def _take_content(self, row: InputRow, out: list[Row]) -> None:
        """Process a content or sync message."""
        own = self._participant_id is not None and row.sender_id == self._participant_id
        before = own and self._is_past(row)
        events = self._pass_to_sds(row)
        if _accepts(events, row) or (own and not before and self._is_past(row)):
            self._seen.accept(AcceptedMessage.first(row, self._now))
        if any(isinstance(event, sds.Conflict) and event.winner == "second" for event in events):
            self._seen.forget_losers(row.sds_id or "", row.sender_id or "")
        self._report(events, row, out)

    def _pass_to_sds(self, row: InputRow) -> Sequence[sds.SdsEvent]:
        """Pass a row to SDS; returns the events."""
        message = SdsMessage(
            sender_id=row.sender_id or "",
            message_id=row.sds_id or "",
            channel_id=self._key[2],
            lamport_timestamp=row.lamport_timestamp,
            causal_history=row.causal_history,
            bloom_filter=row.bloom_filter,
            repair_request=row.repair_request,
        )
        repaired = row.repaired_by is not None
        facts: dict[str, Any] = {
            "retrieval_hint": row.envelope_hash,
            "content_digest": row.content_digest,
            # A repaired row exists because its id was recomputed from the rebuilt segment.
            "id_verified": True if repaired else row.id_verified,
            "content_bytes": row.content_bytes,
        }
        if self._participant_id is not None and row.sender_id == self._participant_id:
            return self._channel.observe_sent(message, self._now, **facts).events
        return self._channel.receive(message, self._now, repaired=repaired, **facts).events

    def _apply_repaired(self, row: InputRow, out: list[Row]) -> None:
        """Process a rebuilt segment like a received one. If the segment itself arrives later, only its acknowledgements
        are new."""
        sds_id, lamport = row.sds_id or "", row.lamport_timestamp
        if lamport is None or self._channel.is_forgotten(sds_id, lamport, row.sender_id):
            return
        seen = self._seen.get(sds_key(sds_id, row.sender_id))
        if seen is not None and seen.digest == digest_of(row) and not self._is_further(sds_id, lamport, row):
            return
        if seen is None and self._channel.sender_of(sds_id) == row.sender_id:
            return
        self._take_content(row, out)

    def _apply_completed(self, row: InputRow, out: list[Row]) -> None:
        """Let a rebuilt message wait until SDS has delivered enough of its segments, unless so many cannot come any
        more."""
        # Own messages are observed, not delivered (SdsChannel.observe_sent).
        if row.sender_id == self._participant_id or self._rebuilt.knows(row):
            return

        def may_come(sds_id: str, lamport: int) -> bool:
            """Another sender's message under an id may still be replaced by the one whose content gives this id."""
            sender_id = self._channel.sender_of(sds_id)
            if sender_id is None:
                return not self._channel.is_forgotten(sds_id, lamport, row.sender_id)
            return sender_id != row.sender_id or sds_key(sds_id, sender_id) in self._seen

        def is_further(sds_id: str, lamport: int) -> bool:
            return self._is_further(sds_id, lamport, row)

        possible = self._rebuilt.possible(row, may_come, is_further)
        if possible < (row.data_count or 1):
            if possible:
                out.append(self._drop_row(row, "its first segments were forgotten: too many of others came"))
            return
        held = self._rebuilt.add(row)
        if held is not None:
            self._write_delivered(row, held, self._now, out)
        out.extend([self._drop_row(given_up, "too many wait") for given_up in self._rebuilt.too_many()])

    def _is_further(self, sds_id: str, lamport: int, row: InputRow) -> bool:
        """Whether SDS may deliver a delivered segment once more: where ids are hashes of the content, the same payload
        can be sent again under the same ids."""
        key = sds_key(sds_id, row.sender_id)
        seen = self._seen.get(key) if self._seen.is_settled(key) else None
        if seen is None or seen.sender_verified:
            return False
        return not self._channel.has_delivered(sds_id, lamport, row.sender_id or "")

    def _is_past(self, row: InputRow) -> bool:
        lamport = row.lamport_timestamp
        return lamport is not None and self._channel.is_past(row.sds_id or "", lamport, row.sender_id)

    def _drop_row(self, row: InputRow, why: str) -> Row:
        return rows.channel_event(self.base(self._now), "pending_message_dropped", row.sds_id, row.sender_id, why, row)

    # ---- events --------------------------------------------------------------------------------------------------

    def _report(self, events: Iterable[sds.SdsEvent], row: InputRow | None, out: list[Row]) -> None:
        """Make the rows of events. ``row`` caused them; ``None``: a timer."""
        for event in events:
            match event:
                case sds.Delivered():
                    self._deliver(event, out)
                case sds.DuplicateSeen(_, message_id, sender_id):
                    if (again := self._seen.get(sds_key(message_id, sender_id))) is not None:
                        again.copies += 1
                case sds.Acknowledged():
                    seen = self._seen.get(sds_key(event.message_id, event.sender_id))
                    out.append(rows.ack(self.base(event.at), event, seen, row))
                case sds.MissingDependency(_, message_id, named_by):
                    self._needed_by[message_id] = named_by
                    if len(self._needed_by) > MAX_NEEDED_BY:
                        del self._needed_by[next(iter(self._needed_by))]
                case sds.RefetchDue():
                    out.append(rows.refetch(self.base(event.at), event, self._needed_by.get(event.message_id)))
                case sds.DependencyLost():
                    out.append(rows.loss_row(self.base(event.at), event, self._needed_by.get(event.message_id)))
                case sds.DependencyBeforeObservation(at, message_id, named_by):
                    fields = {"status": "before_observation", "needed_by": named_by, "missing_since": at * 1000}
                    out.append(rows.LostDependency(**self.base(at), sds_id=message_id, **fields))
                case sds.RepairRequestSeen():
                    out.append(rows.repair_request(self.base(event.at), event, row))
                case _:
                    out.extend(rows.other(self.base(event.at), event, self._participant_id, row))

    def _deliver(self, event: sds.Delivered, out: list[Row]) -> None:
        """Write a segment or bare message that SDS delivered, and the rebuilt messages that it completes."""
        if event.late:
            out.append(rows.recovery_row(self.base(event.at), event, self._needed_by.get(event.message_id)))
        self._needed_by.pop(event.message_id, None)
        seen = self._seen.get(sds_key(event.message_id, event.sender_id))
        if seen is None or seen.digest != event.digest:  # forgotten, because more messages waited than are remembered
            out.append(rows.segment_row(self._number_row(event.at), event, None))
            return
        for sender_id, count in self._seen.deliver(seen, self._channel.seniors).items():
            detail = f"{count} of the parts entries"
            out.append(rows.channel_event(self.base(event.at), "evicted", None, sender_id, detail, None))
        seen.late, seen.lost = event.late, keep_newest(event.lost_dependencies)
        base = self._number_row(event.at, message=seen.segment_kind == "bare")
        out.append(rows.segment_row(base, event, seen))
        for row, held in self._rebuilt.take_completed_by(seen):
            self._write_delivered(row, held, event.at, out)

    def _write_delivered(self, row: InputRow, held: list[AcceptedMessage], at: int, out: list[Row]) -> None:
        """Write a rebuilt message. ``at`` (ms): when SDS delivered the last segment it needed. For a timer this is its
        due time, not that of the row or tick which let it run."""
        repaired = self._rebuilt.count_repaired(row)
        out.append(rows.message_row(self._number_row(at, message=True), row, held, repaired))

    def _number_row(self, at: int, *, message: bool = False) -> dict[str, Any]:
        """The columns of every row of ``deliveries``, with the next running numbers."""
        self._row_seq += 1
        base = self.base(at)
        base["family"], base["row_seq"] = self._family, self._row_seq
        if message:
            self._delivery_seq += 1
            base["delivery_seq"] = self._delivery_seq
        return base

    # ---- helpers -------------------------------------------------------------------------------------------------

    def base(self, at: int) -> dict[str, Any]:
        """The columns of every row of this channel; ``at`` in ms of event time."""
        return {**self._columns, "event_time": at * 1000}

    # ---- state ---------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Serialize the state."""
        proto = pb.ObserverStateProto(
            # The job answers no repair request, for which alone SDS keeps the bytes of messages.
            channel=self._channel.to_bytes(with_kept=False),
            now_ms=self._now,
            row_seq=self._row_seq,
            delivery_seq=self._delivery_seq,
            ephemerals=list(self._ephemerals),
            needed_ids=list(self._needed_by),
            needed_by_ids=list(self._needed_by.values()),
            kafka_topic=self.topic_partition[0],
            kafka_partition=self.topic_partition[1],
            last_heard_ms=self._last_message_ms,
            dormant_since_ms=self._dormant_since,
        )
        self._seen.write(proto)
        self._rebuilt.write(proto)
        return proto.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        key: ChannelKey,
        participant_id: str | None,
        config: sds.SdsParameters,
        expiry_ms: int | None = None,
    ) -> ChannelObserver:
        """Restore the result of :meth:`to_bytes`, under the given configuration. Raises ``LocalError`` for any other
        bytes."""
        try:
            proto = pb.ObserverStateProto.FromString(data)
        except DecodeError as error:
            raise LocalError(
                f"The ack state of channel {key[2]!r} cannot be read: {error}.",
                "Start over with `reliable-channel rebuild`.",
            ) from error
        restored = cls(key, participant_id, config, expiry_ms)
        restored.is_blank = False
        restored._last_message_ms, restored._dormant_since = proto.last_heard_ms, proto.dormant_since_ms
        restored._channel = sds.SdsChannel.from_bytes(proto.channel, config)
        restored._now = proto.now_ms
        restored._row_seq = proto.row_seq
        restored._delivery_seq = proto.delivery_seq
        restored._seen.read(proto)
        restored._rebuilt.read(proto)
        restored._needed_by = dict(zip(proto.needed_ids, proto.needed_by_ids, strict=True))
        restored._ephemerals = dict.fromkeys(proto.ephemerals)
        restored.topic_partition = (proto.kafka_topic, proto.kafka_partition)
        return restored


def _name_ephemeral(row: InputRow) -> bytes:
    """Names an ephemeral message by its sender, id and content."""
    sender = (row.sender_id or "").encode("utf-8", "surrogatepass")
    message = sds_key(row.sds_id, row.sender_id).encode("utf-8", "surrogatepass")
    return sha256(sender)[:SENDER_BYTES] + sha256(digest_of(row) + message)[: DIGEST_BYTES - SENDER_BYTES]


def _accepts(events: Sequence[sds.SdsEvent], row: InputRow) -> bool:
    """Whether SDS accepted the very record of ``row``: delivered it, or buffers it until its dependencies arrive."""
    own = row.sds_id, row.sender_id, digest_of(row)
    accepted = (event for event in events if isinstance(event, _ACCEPTANCES))
    return any((event.message_id, event.sender_id, event.digest) == own for event in accepted)


_ACCEPTANCES = (sds.Delivered, sds.Buffered)
