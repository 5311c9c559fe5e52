"""The adapters of the pipeline as one loop, record by record, without Spark: decode, sets by hash, observers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from reliable_channel.config import load
from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.sds import HistoryEntry, WireFamily
from reliable_channel.lake.schema import Row
from reliable_channel.pipeline.ack.observer import ChannelKey, ChannelObserver
from reliable_channel.pipeline.ack.output_rows import Ack, Delivery, LostDependency
from reliable_channel.pipeline.ack.records import InputRow
from reliable_channel.pipeline.ingest.decode import Decoded, RecordDecoder
from reliable_channel.pipeline.reassembly.set_results import SCOPE, Message, Ordered, ReportedSet
from reliable_channel.pipeline.reassembly.sets import HashSets, SegmentRow
from reliable_channel.simulation.check.observed import Acknowledgement, DeliveredMessage, DeliveredSegment, Observed

TOPIC = "waku.envelopes"
SETS = SegmentationConfig(max_set_lifetime_ms=3_600_000)


class Adapters:
    """The chain as one loop; a tick at the end."""

    def __init__(
        self, expiry_ms: int | None = None, sds: SdsParameters | None = None, decoder: RecordDecoder | None = None
    ) -> None:
        settings = load("local")
        self._decoder = decoder or RecordDecoder(settings.channels)
        self._sds = sds or SdsParameters()
        self._sets: dict[bytes, HashSets] = {}
        self._channels: dict[ChannelKey, ChannelObserver] = {}
        self._payloads: dict[tuple[int, str], bytes] = {}
        """By the offset of the record that made them whole, and the SDS id."""
        self._lost: list[tuple[str, str, str]] = []
        self._expiry_ms = expiry_ms
        self.tables = Observed()
        self.rows: list[Row] = []
        """The outputs as rows."""
        self.rebuilt: list[Row] = []
        self.given_up: list[ReportedSet] = []
        self.segments: list[dict[str, Any]] = []
        """What ``sds_messages`` has of each segment."""

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """The outputs as table and JSON, which can be compared and sorted."""
        return [(type(row).__name__, json.dumps(row._asdict(), sort_keys=True, default=bytes.hex)) for row in self.rows]

    def record(self, offset: int, value: bytes, headers: dict[str, bytes], at_ms: int) -> Decoded:
        """One Kafka record; returns what is decoded of it."""
        row = self._decoder.decode(value, headers["pubsub_topic"], headers["source"], at_ms * 1000)
        if row.kind != "sds" or row.sds_kind == "tick":
            return row
        key = (str(row.pubsub_topic), str(row.content_topic), str(row.channel_id), str(row.family))
        content = row.content
        rows = list(self._results(row, key, offset, at_ms, content)) if content else []
        shared = {name: getattr(row, name) for name in InputRow._fields if hasattr(row, name)}
        shared["causal_history"] = tuple(row.causal_history)
        shared["envelope_hash"] = row.message_hash
        message = {**shared, "row_kind": "message", "kafka_topic": TOPIC, "kafka_partition": 0, "kafka_offset": offset}
        rows.append(("message", {**message, "event_us": at_ms * 1000}))
        rows.sort(key=lambda r: ("completed", "message", "repaired").index(r[0]))
        if content and row.segment_kind == "bare":
            self._payloads[offset, str(row.sds_id)] = content
        if key not in self._channels:
            sds = self._sds.in_family(WireFamily(key[-1]))
            self._channels[key] = ChannelObserver(key, None, sds, self._expiry_ms)
        observer = self._channels[key]
        for _, fields in rows:
            self._take(observer, InputRow(**{k: v for k, v in fields.items() if k in InputRow._fields}))
        return row

    def tick(self, offset: int, at_ms: int) -> None:
        """The recorded clock after a record: where a micro-batch may end."""
        for sets in self._sets.values():
            for result in sets.tick((TOPIC, 0), offset, at_ms * 1000):
                self._note(result)
        for observer in self._channels.values():
            self._take(observer, InputRow("tick", TOPIC, 0, offset, at_ms * 1000))

    def _note(self, result: Row) -> None:
        if isinstance(result, Message):
            self.rebuilt.append(result)
        elif isinstance(result, ReportedSet):
            self.given_up.append(result)

    def close(self, at_ms: int) -> Observed:
        """A tick long after the last record."""
        self.tick(1 << 40, at_ms)
        recovered = {row[:2] for row in self._lost if row[2] == "recovered"}
        self.tables.lost.extend(row for row in self._lost if row[:2] not in recovered)
        return self.tables

    def _results(
        self, row: Decoded, key: ChannelKey, offset: int, at_ms: int, content: bytes
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if row.segment_kind not in ("data", "parity"):
            return
        sets = self._sets.setdefault(bytes(row.entire_message_hash or b""), HashSets(SETS))
        segment = SegmentRow(
            TOPIC,
            0,
            offset,
            at_ms * 1000,
            *key,
            str(row.sender_id),
            str(row.sds_id),
            row.lamport_timestamp,
            str(row.segment_dialect),
            content,
        )
        self.segments.append({name: getattr(row, name) for name in (*SCOPE, "entire_message_hash", "sds_id")})
        self.segments[-1]["event_time"] = at_ms * 1000
        for result in sets.add(segment):
            self._note(result)
            if isinstance(result, Message) and result.payload is not None:
                self._payloads[offset, result.first_sds_id] = result.payload
            if isinstance(result, Ordered):
                fields = {name: value for name, value in result._asdict().items() if value is not None}
                fields["event_us"] = at_ms * 1000
                fields["causal_history"] = tuple(HistoryEntry(h["sds_id"]) for h in result.causal_history or ())
                fields["sds_ids"] = tuple(result.sds_ids or ())
                yield result.row_kind, fields

    def _take(self, observer: ChannelObserver, row: InputRow) -> None:
        for output in observer.take(row):
            f = output._asdict()
            self.rows.append(output)
            if isinstance(output, Ack):
                certain = f["certainty"] == "certain"
                ack = Acknowledgement(f["channel_id"], f["sds_id"], f["acknowledged_by"], f["evidence"], certain)
                self.tables.acks.append(ack)
            elif isinstance(output, LostDependency):
                self._lost.append((f["channel_id"], f["sds_id"], f["status"]))
            elif isinstance(output, Delivery):
                self._check_delivered(f)

    def _check_delivered(self, f: dict[str, Any]) -> None:
        channel, ephemeral = f["channel_id"], f["sds_kind"] == "ephemeral"
        self.tables.row_numbers.append((channel, f["row_seq"]))
        if f.get("segment_kind") is not None and not ephemeral:
            repaired = f.get("repaired_by") is not None
            self.tables.segments.append(
                DeliveredSegment(channel, f["sds_id"], f["row_seq"], f["late"], repaired, (), f["sender_id"])
            )
        if f["row_kind"] == "message":
            first = f["first_sds_id"]
            row = DeliveredMessage(
                channel,
                f["sender_id"],
                self._payloads.get((f["kafka_offset"], first)),
                f["first_lamport_timestamp"],
                first,
                f["delivery_seq"],
                ephemeral,
            )
            self.tables.messages.append(row)
