"""Selects and names the Arrow columns of ``envelopes``, ``sds_messages`` and ``quarantine`` from decoded records.

A batch has the columns of :func:`reliable_channel.pipeline.functions.decode_batch`, of Kafka and of the clock. Rows
are selected by masks; no row becomes a Python object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.core.wire.malformed import Reason
from reliable_channel.lake.schema import select_columns
from reliable_channel.lake.tables import ENVELOPES, QUARANTINE, SDS_MESSAGES, Table


@dataclass(frozen=True)
class DecodedBatch:
    """Some records of one Kafka partition, in record order.

    ``given``: coordinates, ``record_time``, ``event_time``, ``ingest_time`` and ``value``, with the names of the
    tables. ``decoded``: the fields of a decoded record, by name."""

    given: Mapping[str, pa.Array]
    decoded: Mapping[str, pa.Array]

    def envelopes(self) -> pa.RecordBatch:
        """The rows of ``envelopes``: all readable envelopes."""
        part = self.where(self.decoded["kind"].is_valid())
        return part._make_rows(ENVELOPES, {"value_bytes": pc.binary_length(part.given["value"])})

    def segments(self) -> pa.RecordBatch:
        """The rows of ``sds_messages``."""
        part = self.sds()
        return part._make_rows(SDS_MESSAGES, {"envelope_hash": part.decoded["message_hash"]})

    def sds(self) -> DecodedBatch:
        """The records that are SDS messages."""
        return self.where(pc.equal(self.decoded["kind"], "sds"))

    def quarantine(self, raw_bytes: int) -> pa.RecordBatch:
        """The rows of ``quarantine``: refused and reported records, with at most ``raw_bytes`` of each value."""
        part = self.where(self.decoded["reason"].is_valid())
        value = part.given["value"]
        # The one column made value by value: Arrow computes no digests. Quarantined records are few.
        digests = [None if each is None else hashlib.sha256(each).digest() for each in value.to_pylist()]
        special = {
            "raw": pc.binary_slice(value, 0, raw_bytes),
            "raw_bytes": pc.binary_length(value),
            "raw_digest": pa.array(digests, pa.binary()),
        }
        return part._make_rows(QUARANTINE, special)

    def where(self, wanted: pa.BooleanArray) -> DecodedBatch:
        """The rows for which ``wanted`` is true; null counts as false."""
        if wanted.true_count == len(wanted):
            return self
        given, decoded = (
            {name: column.filter(wanted) for name, column in columns.items()} for columns in (self.given, self.decoded)
        )
        return DecodedBatch(given, decoded)

    def refuse_above_quota(self, why: Mapping[int, str]) -> DecodedBatch:
        """The same rows with those at the offsets of ``why`` refused; ``why`` names the exceeded quota."""
        offsets = self.given["kafka_offset"].to_pylist()
        details = pa.array([why.get(offset) for offset in offsets], pa.string())
        refused = details.is_valid()
        if not refused.true_count:
            return self
        instead = {"stage": "quota", "reason": Reason.OVER_QUOTA.value, "kind": "quarantined", "disposition": "dropped"}
        changed = {name: pc.if_else(refused, value, self.decoded[name]) for name, value in instead.items()}
        changed["detail"] = pc.if_else(refused, details, self.decoded["detail"])
        return DecodedBatch(self.given, {**self.decoded, **changed})

    def _make_rows(self, table: Table, special: Mapping[str, pa.Array]) -> pa.RecordBatch:
        return select_columns({**self.decoded, **self.given, **special}, len(self.given["kafka_offset"]), table)
