"""The rows that one message of the sample tables leaves: envelopes, segments, delivery or loss, verdict."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.sample_values import AS_OF, KAFKA_TOPIC, PUBSUB_TOPIC, Message, SegmentFacts, at, digest, topic_of


def timestamp_of(message: Message, sent_s: float) -> int:
    """A sender's timestamp in ns; one sender writes ms."""
    ms = int(at(sent_s).timestamp() * 1000)
    return ms if message.name == "hostile 0" else ms * 10**6


@dataclass
class MessageRows:
    """The rows of every table that come of messages: of their envelopes, their delivery or loss, their verdict."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[str, Message] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _numbers: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, table: str, **row: Any) -> None:
        self.rows[table].append(row)

    # Places

    def _place(self, content_topic: str, partition: int | None = None) -> dict[str, Any]:
        at_partition = digest(content_topic)[0] % 3 if partition is None else partition
        self._offsets[at_partition] += 1
        return {
            "kafka_topic": KAFKA_TOPIC,
            "kafka_partition": at_partition,
            "kafka_offset": self._offsets[at_partition] - 1,
        }

    def _number(self, kind: str, channel_id: str) -> int:
        self._numbers[kind, channel_id] += 1
        return self._numbers[kind, channel_id]

    @staticmethod
    def channel(message: Message) -> dict[str, Any]:
        return {
            "pubsub_topic": PUBSUB_TOPIC,
            "content_topic": message.content_topic,
            "channel_id": message.channel_id,
        }

    # What happens

    def message(
        self,
        name: str,
        channel_id: str,
        sender: str,
        sent_s: float,
        *,
        size: int = 40,
        data: int = 1,
        parity: int = 0,
        lost: Iterable[int] = (),
        lost_parity: Iterable[int] = (),
        after: Sequence[str] = (),
        delivered_after_s: float | None = 0.3,
        late: bool = False,
        lost_dependencies: Sequence[str] = (),
        reason: str = "expired",
        ephemeral: bool = False,
        sealed: bool = False,
        copies: int = 1,
        content_topic: str | None = None,
        sds_id: str | None = None,
        source: str = "relay",
        partition: int | None = None,
        closed: bool = True,
    ) -> Message:
        """Send a message of ``size`` bytes in ``data`` + ``parity`` segments of which some are lost. It is delivered
        ``delivered_after_s`` after its last segment when enough arrive and that is not None; a set of segments of which
        too little arrives, or whose hash is wrong, is given up after five minutes unless it is not ``closed``."""
        topic = content_topic or topic_of(channel_id)
        payload = (name.encode("utf-8", "replace") + b" ") * (size // (len(name) + 1) + 1)
        payload = payload[:size]
        missing, missing_parity = set(lost), set(lost_parity)
        parts = []
        for number in range(data + parity):
            kind = "bare" if data == 1 and not parity else ("data" if number < data else "parity")
            index = None if kind == "bare" else (number if kind == "data" else number - data)
            when = sent_s + 0.02 * number
            identity = sds_id if sds_id is not None and number == 0 else digest(name, number).hex()[:40]
            gone = number in missing if kind != "parity" else index in missing_parity
            lamport = int(at(when).timestamp() * 1000)
            parts.append(SegmentFacts(identity, kind, index, lamport, when, digest("envelope", name, number), not gone))
        history = tuple((m.last.sds_id, m.last.envelope_hash, m.sender) for m in (self.messages[a] for a in after))
        arrived = sum(part.arrived for part in parts)
        delivered = arrived >= data and reason == "expired" and delivered_after_s is not None
        message = Message(
            name, channel_id, topic, sender, payload, digest("payload", payload), data, parity, tuple(parts),
            parts[-1].sent_s + 0.1 + delivered_after_s if delivered and delivered_after_s is not None else None,
            late, history,
        )  # fmt: skip
        self.messages[name] = message
        place = {}
        for part in parts:
            if part.arrived:
                for copy in range(copies):
                    place = self._arrival(message, part, copy, ephemeral, sealed, source, partition)
        if delivered:
            self._deliver(message, place, ephemeral, sealed, lost_dependencies)
        elif arrived and data + parity > 1 and closed:
            self._incomplete(message, reason)
        return message

    def _arrival(
        self,
        message: Message,
        part: SegmentFacts,
        copy: int,
        ephemeral: bool,
        sealed: bool,
        source: str,
        partition: int | None,
    ) -> dict[str, Any]:
        place = self._place(message.content_topic, partition)
        when = at(part.sent_s + 0.1 + 0.7 * copy)
        share = len(message.payload) // message.data_count
        common = {
            **place,
            "event_time": when,
            "source": source if copy == 0 else "store",
            "pubsub_topic": PUBSUB_TOPIC,
            "content_topic": message.content_topic,
            "sender_timestamp_ns": timestamp_of(message, part.sent_s),
        }
        self.add(
            "envelopes",
            **common,
            record_time=when,
            ingest_time=when + dt.timedelta(seconds=2),
            message_hash=part.envelope_hash,
            value=message.payload[:share],
            value_bytes=share + 180,
            ephemeral=ephemeral,
            kind="sds",
        )
        previous = part.lamport and [p for p in message.parts if p.lamport < part.lamport][-1:]
        chain = [(p.sds_id, p.envelope_hash, message.sender) for p in previous or ()]
        sds = {
            "channel_id": message.channel_id,
            "family": "spec",
            "sender_id": message.sender,
            "sds_id": part.sds_id,
            "sds_kind": "ephemeral" if ephemeral else "content",
            "lamport_timestamp": None if ephemeral else part.lamport,
            "causal_history": [
                {"sds_id": i, "retrieval_hint": h, "sender_id": s} for i, h, s in (chain or message.history)
            ],
            "repair_request": [],
            "content_digest": digest("content", part.sds_id),
            "content_bytes": share,
            "envelope_hash": part.envelope_hash,
            "segment_kind": part.kind,
            "entire_message_hash": message.payload_hash,
            "segment_index": part.index,
            "data_count": message.data_count,
            "parity_count": message.parity_count or None,
        }
        self.add(
            "sds_messages",
            **common,
            **sds,
            ingest_time=when + dt.timedelta(seconds=2),
            content=None if sealed else message.payload[:share],
            segment_dialect=None if part.kind == "bare" else "v0.1",
            encrypted=sealed,
            encryption_layer="around_sds" if sealed else None,
            id_scheme="keccak",
        )
        self.add("ordered_sds_messages", **common, **sds, sub_order=0, row_kind="message")
        return place

    def _deliver(
        self, message: Message, place: dict[str, Any], ephemeral: bool, sealed: bool, lost: Sequence[str]
    ) -> None:
        assert message.delivered_s is not None
        repaired = [p for p in message.parts if not p.arrived and p.kind == "data"]
        first, bare = message.parts[0], message.parts[0].kind == "bare"
        first_seen = at(min(p.sent_s for p in message.parts if p.arrived) + 0.1)
        when = at(message.delivered_s)
        common = {
            **self.channel(message),
            **place,
            "event_time": when,
            "family": "spec",
            "sender_id": message.sender,
            "entire_message_hash": message.payload_hash,
            "data_count": message.data_count,
            "parity_count": message.parity_count or None,
            "sender_timestamp_ns": timestamp_of(message, message.last.sent_s),
            "late": message.late,
            "lost_dependencies": list(lost),
        }
        ordered = {
            "first_sds_id": first.sds_id,
            "first_lamport_timestamp": None if ephemeral else first.lamport,
            "position_exact": True,
            "payload_bytes": len(message.payload),
            "repaired_segments": len(repaired),
        }
        number = self._number("delivery", message.channel_id)
        for part in message.parts:
            if not part.arrived and part.kind == "parity":
                continue
            self.add(
                "deliveries",
                **common,
                **(ordered if bare else {}),
                row_seq=self._number("row", message.channel_id),
                row_kind="message" if bare else "segment",
                delivery_seq=number if bare else None,
                sds_id=part.sds_id,
                lamport_timestamp=None if ephemeral else part.lamport,
                sds_kind="ephemeral" if ephemeral else "content",
                segment_kind=part.kind,
                segment_index=part.index,
                first_seen=at(part.sent_s + 0.1),
                repaired_by=None if part.arrived else "parity",
            )
        if not bare:
            self.add(
                "deliveries",
                **common,
                **ordered,
                row_seq=self._number("row", message.channel_id),
                row_kind="message",
                delivery_seq=number,
                sds_id=first.sds_id,
                lamport_timestamp=first.lamport,
                sds_kind="content",
                first_seen=first_seen,
            )
            self.add(
                "reassembled_messages",
                **place,
                **self.channel(message),
                event_time=at(message.last.sent_s + 0.1),
                family="spec",
                sender_id=message.sender,
                entire_message_hash=message.payload_hash,
                first_sds_id=first.sds_id,
                first_lamport_timestamp=first.lamport,
                position_exact=True,
                payload=None if sealed else message.payload,
                payload_bytes=len(message.payload),
                data_count=message.data_count,
                parity_count=message.parity_count,
                data_received=len(message.indexes_held("data")),
                parity_received=len(message.indexes_held("parity")),
                repaired=[p.index for p in repaired],
                sds_ids=message.sds_ids,
                segment_dialect="v0.1",
                first_seen=first_seen,
            )
        self.add(
            "delivered_messages",
            **{k: v for k, v in common.items() if k != "kafka_topic"},
            delivery_seq=number,
            causal_lamport=None if ephemeral else first.lamport,
            causal_sds_id=first.sds_id,
            position_exact=True,
            payload=None if sealed else message.payload,
            payload_bytes=len(message.payload),
            ephemeral=ephemeral,
            repaired_segments=len(repaired),
            first_seen=first_seen,
            written_at=when + dt.timedelta(seconds=4),
        )
        self.verdict(message, "delivered", "late" if message.late else None, ephemeral=ephemeral)

    def _incomplete(self, message: Message, reason: str) -> None:
        seen = [p for p in message.parts if p.arrived]
        self.add(
            "incomplete_messages",
            **self.channel(message),
            family="spec",
            sender_id=message.sender,
            entire_message_hash=message.payload_hash,
            event_time=at(seen[-1].sent_s + 300.1),
            status="given_up",
            reason=reason,
            data_count=message.data_count,
            parity_count=message.parity_count or None,
            data_held=message.indexes_held("data"),
            parity_held=message.indexes_held("parity"),
            data_missing=[p.index for p in message.parts if p.kind == "data" and not p.arrived],
            sds_ids=[p.sds_id for p in seen],
            first_seen=at(seen[0].sent_s + 0.1),
            last_seen=at(seen[-1].sent_s + 0.1),
        )
        self.verdict(message, "missing", "segment_missing" if reason == "expired" else reason)

    def verdict(
        self, message: Message, verdict: str, cause: str | None, *, settled: bool = True, ephemeral: bool = False
    ) -> None:
        """The row of ``delivery_status`` of a message; the participants who acknowledged it are added at the end."""
        arrived = sum(p.arrived for p in message.parts)
        seen = [p.sent_s + 0.1 for p in message.parts if p.arrived] or [message.parts[0].sent_s + 60]
        lacking = [p.index for p in message.parts if p.kind == "data" and not p.arrived]
        delivered = message.delivered_s is not None
        position = message.parts[0].sds_id if ephemeral else message.parts[0].lamport
        self.add(
            "delivery_status",
            **self.channel(message),
            message_key=f"{message.payload_hash.hex()}-{position}" if arrived else message.last.sds_id,
            as_of=AS_OF,
            sender_id=message.sender,
            entire_message_hash=message.payload_hash if arrived else None,
            sds_ids=message.sds_ids if arrived else [message.last.sds_id],
            verdict=verdict,
            cause=cause,
            detail=None if delivered else f"{arrived} of {message.data_count} needed segments arrived",
            data_missing=None if delivered or not lacking else lacking,
            acknowledged_by=[],
            first_seen=at(min(seen)),
            delivered_at=None if message.delivered_s is None else at(message.delivered_s),
            settled=settled,
        )
