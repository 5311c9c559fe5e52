"""Decoded records as Arrow rows of ``envelopes``, ``segments`` and ``quarantine``: the shape in which they are written.

Built column by column; a list of dictionaries per row would cost as much as the decoding itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.pipeline.ingest.decode import FIELDS, Decoded
from reliable_channel.pipeline.storage.arrow_schema import ARROW_TYPES
from reliable_channel.pipeline.tables import ENVELOPES, HISTORY_TYPE, QUARANTINE, SEGMENTS, Table
from reliable_channel.wire.sds import HistoryEntry

_ENTRY = ARROW_TYPES[HISTORY_TYPE].value_type
_NAMES = {"envelope_hash": "message_hash"}
"""Columns of ``segments`` that are called something else elsewhere."""


@dataclass(frozen=True)
class DecodedBatch:
    """Some records of one Kafka partition, in its order. ``given``: the columns that are Kafka's or the clock's, by the
    names of the tables: coordinates, ``record_time``, ``event_time``, ``ingest_time``, ``value``."""

    given: Mapping[str, pa.Array]
    rows: Sequence[Decoded]

    def envelopes(self) -> pa.RecordBatch:
        """What could be read as an envelope."""
        part = self.where([row.kind is not None for row in self.rows])
        return part._as(ENVELOPES, {"value_bytes": pc.binary_length(part.given["value"])})

    def segments(self) -> pa.RecordBatch:
        """The SDS messages."""
        return self.where([row.kind == "sds" for row in self.rows])._as(SEGMENTS, {})

    def quarantine(self, raw_bytes: int) -> pa.RecordBatch:
        """What was refused or reported; at most ``raw_bytes`` of each record's value."""
        part = self.where([row.reason is not None for row in self.rows])
        value = part.given["value"]
        digests = [None if each is None else hashlib.sha256(each).digest() for each in value.to_pylist()]
        special = {
            "raw": pc.binary_slice(value, 0, raw_bytes),
            "raw_bytes": pc.binary_length(value),
            "raw_digest": pa.array(digests, pa.binary()),
        }
        return part._as(QUARANTINE, special)

    def where(self, wanted: list[bool]) -> DecodedBatch:
        """The rows that are ``wanted``."""
        if all(wanted):
            return self
        mask = pa.array(wanted, pa.bool_())
        given = {name: column.filter(mask) for name, column in self.given.items()}
        return DecodedBatch(given, [row for row, chosen in zip(self.rows, wanted, strict=True) if chosen])

    def _as(self, table: Table, special: Mapping[str, pa.Array]) -> pa.RecordBatch:
        given = {**self.given, **special}
        arrays = []
        for column in table.columns:
            type_ = ARROW_TYPES[column.type]
            if column.name in given:
                arrays.append(given[column.name].cast(type_))
            elif column.type == HISTORY_TYPE:
                arrays.append(history_array(self._values(column.name)))
            else:
                arrays.append(pa.array(self._values(_NAMES.get(column.name, column.name)), type_))
        return pa.RecordBatch.from_arrays(arrays, [*table.names()])

    def _values(self, name: str) -> list[Any]:
        """What was decoded, by its name; nulls for a column that decoding does not know."""
        return list(map(attrgetter(name), self.rows)) if name in FIELDS else [None] * len(self.rows)


def history_array(histories: Sequence[tuple[HistoryEntry, ...]]) -> pa.ListArray:
    """Causal histories as a list array of structs."""
    offsets = [0]
    entries: list[HistoryEntry] = []
    for history in histories:
        entries.extend(history)
        offsets.append(len(entries))
    flat = pa.StructArray.from_arrays(
        [
            pa.array([e.message_id for e in entries], pa.string()),
            pa.array([e.retrieval_hint for e in entries], pa.binary()),
            pa.array([e.sender_id for e in entries], pa.string()),
        ],
        fields=list(_ENTRY),
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
