"""Collects the SDS ids, payloads and envelopes that new rows of evidence are about. No Spark.

:mod:`.affected` finds the verdicts that these can change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from deltalake import DeltaTable

from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.follow import iterate_rows, list_added_files
from reliable_channel.lake.tables import CHANNEL_KEY, Table
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES
from reliable_channel.pipeline.lookup import search_ids
from reliable_channel.pipeline.verdict.gather import SPAN
from reliable_channel.pipeline.verdict.position import RoundPosition

_BY_ID = (*CHANNEL_KEY, "sds_id")

COLUMNS: dict[Table, tuple[str, ...]] = {
    tables.DELIVERIES: (
        *_BY_ID,
        "row_kind",
        "segment_kind",
        "entire_message_hash",
        "first_sds_id",
        "first_lamport_timestamp",
        "kafka_offset",
    ),
    tables.REASSEMBLED_MESSAGES: (*CHANNEL_KEY, "sds_ids", "entire_message_hash"),
    tables.INCOMPLETE_MESSAGES: (*CHANNEL_KEY, "sds_ids", "entire_message_hash"),
    tables.SENDER_EVENTS: (*_BY_ID, "send_id"),
    tables.SDS_MESSAGES: (*_BY_ID, "sds_kind", "segment_kind", "entire_message_hash", "lamport_timestamp"),
    tables.LOST_DEPENDENCIES: _BY_ID,
    tables.ACKS: _BY_ID,
    tables.REPAIR_REQUESTS: _BY_ID,
    tables.CHANNEL_EVENTS: _BY_ID,
    tables.STORE_PRESENCE: (*_BY_ID, "message_hash"),
    tables.SIGHTINGS: ("message_hash", "source"),
    tables.QUARANTINE: ("message_hash", "stage", "raw"),
}
"""The tables with evidence about messages, and their columns that identify the messages."""

REMEMBERED_MS = min(table.retention_ms for table in COLUMNS if table.retention_ms is not None)
"""How far back (ms of the recorded clock) the evidence is complete. Older messages keep their last verdict."""

MAX_NEW_ROWS = 200_000
"""With more new rows Spark judges everything, so the driver need not hold the rows."""


Channel = tuple[str | None, str | None, str | None]
_channel = itemgetter(*CHANNEL_KEY)


@dataclass
class Touched:
    """The subjects of new rows. ``ids``: SDS ids with their channels; ``texts``: ids and keys of messages in any
    channel; ``payloads``: hashes of payloads of segments; ``rebuilt``: the delivered ones, with the offsets of the
    records that completed them; ``spans``: the spans of Lamport timestamps (:data:`~.gather.SPAN`) of the segments;
    ``envelopes``: hashes of envelopes in rows of stores, of ingest or of logs; ``lamport``: the lowest Lamport
    timestamp of the new messages of a channel; ``silence``: whether it changed when no bridge listened, so that every
    verdict but *delivered* may change."""

    ids: set[tuple[Channel, str]] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    payloads: set[bytes] = field(default_factory=set)
    rebuilt: set[tuple[bytes, int]] = field(default_factory=set)
    spans: set[int] = field(default_factory=set)
    envelopes: set[bytes] = field(default_factory=set)
    lamport: dict[Channel, int] = field(default_factory=dict)
    silence: bool = False

    def take(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add new rows of ``table``, with its ``COLUMNS``."""
        for row in rows:
            if table is tables.QUARANTINE:
                self.envelopes.update(filter(None, [row["message_hash"]]))
                self.texts |= search_ids(row["stage"], row["raw"])
                continue
            if table is tables.SIGHTINGS:
                if row["source"] not in BRIDGE_SOURCES:
                    self.envelopes.update(filter(None, [row["message_hash"]]))
                continue
            channel: Channel = _channel(row)
            ids = {*map(row.get, ("sds_id", "first_sds_id", "send_id")), *(row.get("sds_ids") or ())}
            self.ids |= {(channel, sds_id) for sds_id in ids if sds_id is not None}
            self.envelopes.update(filter(None, [row.get("message_hash")]))
            if row.get("sds_kind") == "content" and (lamport := row["lamport_timestamp"]) is not None:
                self.lamport[channel] = min(lamport, self.lamport.get(channel, lamport))
            if (payload := row.get("entire_message_hash")) is None:
                continue
            if table is tables.DELIVERIES and row["row_kind"] == "message":
                lamport = row["first_lamport_timestamp"]
                self.texts.add(f"{payload.hex()}-{row['first_sds_id'] if lamport is None else lamport}")
                if row["segment_kind"] is None and (offset := row["kafka_offset"]) is not None:
                    self.rebuilt.add((payload, offset))
            if row.get("segment_kind") != "bare":
                self.payloads.add(payload)
                if (lamport := row.get("lamport_timestamp")) is not None:
                    self.spans.add(lamport // SPAN)


def read_touched(
    paths: PathSettings, opened: Mapping[Table, DeltaTable], position: RoundPosition | None
) -> Touched | None:
    """The subjects of the rows added since ``position``, or of all rows without one; ``None`` if unknown, or for more
    than :data:`MAX_NEW_ROWS` rows."""
    files: dict[Table, dict[str, int]] = {}
    for table in COLUMNS:
        added: dict[str, int] | None
        if position is None:
            added = {path: file.rows for path, file in data_files(opened[table]).items()}
        else:
            table_id, version = position.read.get(table.name, ("", 0))
            if table_id != str(opened[table].metadata().id):
                return None
            added = list_added_files(paths, table, opened[table], version)
        if added is None:
            return None
        files[table] = added
    if sum(rows for added in files.values() for rows in added.values()) > MAX_NEW_ROWS:
        return None
    touched = Touched()
    for table, added in files.items():
        try:
            for rows in iterate_rows(paths, table, added, COLUMNS[table]):
                touched.take(table, rows.to_pylist())
        except FileNotFoundError:  # VACUUM has removed it since; Spark reads the tables anew
            return None
    return touched
