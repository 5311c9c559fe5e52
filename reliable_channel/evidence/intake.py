"""Converts records of the evidence topic into rows of ``sender_events``, ``source_gaps`` and ``sightings``.

Senders record the outcome of each message, recipients the messages that they gave up; bridges record the gaps in what
they read and which bridge saw which envelope. The records are JSON of this project's processes, on a topic that others
may also write to: their size is bounded, they are validated, and invalid ones are skipped and counted. Each record is
processed exactly once, because the tables store its topic position as an application transaction. A later record of a
gap replaces the earlier row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from deltalake import Transaction

from reliable_channel.config import PathSettings
from reliable_channel.core import foreign_json
from reliable_channel.evidence.node_logs import to_text
from reliable_channel.lake.append import append_rows, open_to_write
from reliable_channel.lake.commit import replace_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, quote
from reliable_channel.lake.retry import retry_on_conflict
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CHANNEL_KEY, SENDER_EVENTS, SIGHTINGS, SOURCE_GAPS, Table
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES, LOST
from reliable_channel.messaging.sender_events import SenderEventKind
from reliable_channel.pipeline.ingest.recreated_topic import refuse_shorter_topic

MAX_RECORD_BYTES = 64 * 1024
MAX_IDS = 1_000
"""The most ids of one record that become rows. A record has no room for more of this project's ids, but for thousands
of shorter ones, and each row repeats the record's texts."""
ROWS_AT_ONCE = 20_000
"""About how many rows are held in memory before they are written, each of up to ten texts."""
_MIN_MS = 1_577_836_800_000
"""The begin of 2020: an earlier time is in seconds, or of a clock that was never set."""
_MAX_MS = 253_402_300_799_999
"""The end of the year 9999: Python's datetime has no later time."""
_TEXTS = (*CHANNEL_KEY, "sender_id", "sds_id", "send_id", "event", "detail")
_EVENTS = frozenset(SenderEventKind)
_HASHES = ("entire_message_hash", "envelope_hash")
WRITTEN = (SENDER_EVENTS, SOURCE_GAPS, SIGHTINGS)
OF_A_BRIDGE = -1
"""The partition of a bridge's gap: it has none."""
BRIDGE_CAUSES = frozenset(
    {"bridge_restart", "bridge_suspended", "node_unreachable", "cache_full", "resubscribed", "too_large"}
)


class Collected(NamedTuple):
    """What became of records: how many are rows now, how many were refused, and where the first of these is; how many
    Kafka withheld, until a transaction ends."""

    written: int = 0
    refused: int = 0
    first_refused: str = ""
    withheld: int = 0

    def __str__(self) -> str:
        refused = f"; {self.refused} others are none (the first: {self.first_refused})" if self.refused else ""
        withheld = f"; an open transaction withholds {self.withheld}" if self.withheld else ""
        return f"{self.written} records of evidence{refused}{withheld}"


@dataclass(frozen=True, slots=True)
class EvidenceRecord:
    """One Kafka record of the evidence topic."""

    partition: int
    offset: int
    value: bytes | None


def read_position(paths: PathSettings, topic: str, partition: int) -> int:
    """Return the next offset to process: the smallest position of the tables. Creates tables that do not exist."""
    create_tables(paths, WRITTEN)
    return min(_read_position_of(paths, table, topic, partition) for table in WRITTEN)


def name_source(paths: PathSettings, topic: str, topic_id: str, ends: Mapping[int, int]) -> str:
    """The name under which the tables keep the position in a topic: a topic that was created anew has another id, and
    is read from its beginning. ``topic_id``: empty if the broker knows no ids; ``ends``: the end of each partition.

    Raises ``ConfigurationError`` if a position is beyond the end: what comes up to there would not be read."""
    source = f"{topic}/{topic_id}" if topic_id else topic
    refuse_shorter_topic(topic, {partition: read_position(paths, source, partition) for partition in ends}, ends)
    return source


def write(paths: PathSettings, topic: str, records: Iterable[EvidenceRecord], envelopes_topic: str) -> Collected:
    """Append the records as rows, each exactly once. The records of a partition must be in order. ``topic``: as
    :func:`name_source` names it."""
    written, refused = 0, list[str]()
    parts: dict[int, _Part] = {}
    for record in records:
        part = parts.setdefault(record.partition, _Part())
        made = convert_record(record, envelopes_topic)
        if made is not None:
            part.rows[made[0]] += [(record.offset, row) for row in made[1]]
            written += 1
        else:
            refused.append(f"partition {record.partition}, offset {record.offset}")
        part.end = record.offset + 1
        if sum(map(len, part.rows.values())) >= ROWS_AT_ONCE:
            _write_part(paths, topic, record.partition, parts.pop(record.partition))
    for partition, part in sorted(parts.items()):
        _write_part(paths, topic, partition, part)
    return Collected(written, len(refused), refused[0] if refused else "")


@dataclass(slots=True)
class _Part:
    """The rows of records of a partition, by table and with the records' offsets; ``end``: the offset after them."""

    rows: dict[Table, list[tuple[int, dict[str, Any]]]] = field(default_factory=lambda: {each: [] for each in WRITTEN})
    end: int = 0


def _write_part(paths: PathSettings, topic: str, partition: int, part: _Part) -> None:
    for table in WRITTEN:
        start = _read_position_of(paths, table, topic, partition)
        if start >= part.end:  # an earlier run went further with this table before it ended
            continue
        new = [row for offset, row in part.rows[table] if offset >= start]
        transaction = Transaction(_app(topic, partition), part.end)
        if table is SOURCE_GAPS and new:
            _replace_gaps(paths, new, transaction)
        else:
            append_rows(paths, table, as_arrow(new, table), transaction)  # also without rows: it stores the position


@retry_on_conflict
def _replace_gaps(paths: PathSettings, rows: list[dict[str, Any]], transaction: Transaction) -> None:
    """Replace each gap's row in the table by its latest one."""
    last = {row["name"]: row for row in rows}
    # Hashed, because anybody may choose a name, and it must not be read as SQL.
    names = (hashlib.md5(name.encode(), usedforsecurity=False).hexdigest() for name in last)
    predicate = f"kafka_partition = {OF_A_BRIDGE} and md5(name) in ({', '.join(map(quote, names))})"
    gaps = open_to_write(paths, SOURCE_GAPS)
    replace_rows(gaps, predicate, as_arrow([*last.values()], SOURCE_GAPS), transaction)


def convert_record(record: EvidenceRecord, envelopes_topic: str) -> tuple[Table, list[dict[str, Any]]] | None:
    """Convert one record to its table and rows (JSON values, times in µs); ``None`` if it is not evidence."""
    if record.value is None or len(record.value) > MAX_RECORD_BYTES:
        return None
    try:
        fields = foreign_json.loads(record.value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    match fields.get("kind"):
        case "sender" | "dispatch":
            return _read_sender_event(fields)
        case "loss":
            return _read_loss(fields)
        case "gap":
            return _read_gap(fields, record, envelopes_topic)
        case "sightings":
            return _read_sightings(fields)
    return None


def _read_sightings(fields: dict[str, Any]) -> tuple[Table, list[dict[str, Any]]] | None:
    at, vantage, source = _read_time(fields), to_text(fields.get("vantage")), to_text(fields.get("source"))
    hashes = fields.get("hashes")
    if at is None or not vantage or source not in BRIDGE_SOURCES or not isinstance(hashes, list):
        return None
    common = {"vantage": vantage, "source": source, "seen_at": at}
    common |= {name: to_text(fields.get(name)) for name in ("node", "pubsub_topic")}
    # A node may give an envelope twice in one batch; the rows of both would be equal.
    known = dict.fromkeys(hash_ for value in hashes if (hash_ := _to_hash(value)) is not None)
    return (SIGHTINGS, [{**common, "message_hash": value} for value in known]) if known else None


def _read_sender_event(fields: dict[str, Any]) -> tuple[Table, list[dict[str, Any]]] | None:
    at = _read_time(fields)
    row: dict[str, Any] = {name: to_text(fields.get(name)) for name in _TEXTS}
    if at is None or row["event"] not in _EVENTS or (row["sds_id"] and not _names_channel(row)):
        return None
    row |= {name: _to_hash(fields.get(name)) for name in _HASHES}
    return SENDER_EVENTS, [{**row, "event_time": at}]


def _read_loss(fields: dict[str, Any]) -> tuple[Table, list[dict[str, Any]]] | None:
    """One row for each segment that the recipient held; without one, no row can be attributed to a message."""
    at, reported_by, ids = _read_time(fields), to_text(fields.get("reported_by")), fields.get("sds_ids")
    if at is None or not reported_by or not isinstance(ids, list):
        return None
    reason, detail = to_text(fields.get("reason")), to_text(fields.get("detail"))
    row: dict[str, Any] = {name: to_text(fields.get(name)) for name in (*CHANNEL_KEY, "sender_id")}
    if not _names_channel(row):
        return None
    row |= {"entire_message_hash": _to_hash(fields.get("entire_message_hash")), "event": LOST, "event_time": at}
    row |= {"reported_by": reported_by, "detail": ": ".join(filter(None, (reason, detail))) or None}
    held = dict.fromkeys(text for sds_id in ids if (text := to_text(sds_id)))
    return (SENDER_EVENTS, [{**row, "sds_id": sds_id} for sds_id in islice(held, MAX_IDS)]) if held else None


def _read_gap(
    fields: dict[str, Any], record: EvidenceRecord, envelopes_topic: str
) -> tuple[Table, list[dict[str, Any]]] | None:
    name, status, to_time = to_text(fields.get("name")), to_text(fields.get("status")), _to_us(fields.get("to_ms"))
    if not name or status not in ("open", "filled", "unfilled") or to_time is None:
        return None
    vantage, cause, attempts = to_text(fields.get("vantage")), to_text(fields.get("cause")), fields.get("attempts")
    row = {
        "kafka_topic": envelopes_topic,
        "kafka_partition": OF_A_BRIDGE,
        "first_offset": record.offset,
        "last_offset": record.offset,
        "cause": cause if cause in BRIDGE_CAUSES else "bridge_restart",  # the only one that earlier bridges knew
        "name": f"{vantage}/{name}" if vantage else name,
        "status": status,
        "from_time": _to_us(fields.get("from_ms")),
        "to_time": to_time,
        "ingest_time": _to_us(fields.get("at_ms")),
        "attempts": attempts if type(attempts) is int and 0 <= attempts < 2**31 else None,
        "vantage": vantage,
        **_read_queried_topics(fields, status),
    }
    return SOURCE_GAPS, [row]


def _read_queried_topics(fields: dict[str, Any], status: str) -> dict[str, list[str] | None]:
    """The topics of which a store returned everything, with message hashes; none if no store did."""
    stores = fields.get("stores")
    if status != "filled" or not isinstance(stores, dict) or "complete" not in stores.values():
        return {}
    named: dict[str, list[str]] = {}
    for name in ("pubsub_topics", "content_topics"):
        values = fields.get(name)
        named[name] = [text for one in values if (text := to_text(one))] if isinstance(values, list) else []
    return {"pubsub_topics": named["pubsub_topics"] or None, "content_topics": named["content_topics"] or None}


def _read_position_of(paths: PathSettings, table: Table, topic: str, partition: int) -> int:
    return open_table(paths, table).transaction_version(_app(topic, partition)) or 0


def _app(topic: str, partition: int) -> str:
    return f"evidence/{topic}/{partition}"


def _to_hash(value: Any) -> bytes | None:
    """Convert hex to bytes, also with the 0x of Waku nodes; ``None`` for anything but 32 bytes in hex."""
    if not isinstance(value, str) or len(digits := value.removeprefix("0x")) != 64:
        return None
    try:
        digest = bytes.fromhex(digits)  # which skips spaces
    except ValueError:
        return None
    return digest if len(digest) == 32 else None


def _names_channel(row: dict[str, Any]) -> bool:
    """Whether the SDS ids in a row can be found: those of two channels may be equal."""
    return all(row[name] for name in CHANNEL_KEY)


def _read_time(fields: dict[str, Any]) -> int | None:
    at = _to_us(fields.get("at_ms"))
    return at if at is not None and at >= _MIN_MS * 1000 else None


def _to_us(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value * 1000 if whole and 0 <= value <= _MAX_MS else None
