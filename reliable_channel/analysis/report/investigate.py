"""Collects everything known about one message on a time line. The causal graph around it is in ``graph.py``.

::

    found = find(source, "9f86d081")                  # a hash or an id, or how it begins
    message = found[0]
    timeline(source, message)                         # frame

============  ==========================================================================================================
``timeline``  time (UTC), lane (envelope, vantage, segment, delivery, acknowledgement, refetch, store, repair, loss,
              sender, channel), what (one of a few words), who (participant, node or source), detail, sds_id
============  ==========================================================================================================
"""
# ruff: noqa: S608 - the text that is put into queries comes from constants of this module

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from reliable_channel.analysis import text
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.core.errors import LocalError
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES

LANES = (
    "sender",
    "envelope",
    "vantage",
    "segment",
    "delivery",
    "acknowledgement",
    "repair",
    "refetch",
    "store",
    "loss",
    "channel",
)
"""The lanes of a time line, from top to bottom."""

MOST_EVENTS = 2_000
_HEX = re.compile(r"(0x)?[0-9a-fA-F]{2,64}")


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """A message that is known to exist: the ids of its SDS messages, and its outcome. Hashes are lower-case hex;
    ``verdict`` is None if there is no verdict yet. Times are UTC."""

    pubsub_topic: str
    content_topic: str
    channel_id: str
    message_key: str
    sender_id: str | None
    payload_hash: str | None
    sds_ids: tuple[str, ...]
    verdict: str | None
    cause: str | None
    detail: str | None
    data_missing: tuple[int, ...]
    acknowledged_by: tuple[str, ...]
    lost_by: tuple[str, ...]
    first_seen: Any
    delivered_at: Any

    def _repr_html_(self) -> str:
        """The message as a notebook shows it. Everything is escaped, because it is untrusted text."""
        verdict = " ".join(filter(None, (self.verdict or "not judged", text.words(self.cause) if self.cause else "")))
        facts = {
            "verdict": verdict + (f": {self.detail}" if self.detail else ""),
            "channel": f"{text.name(self.channel_id)} on {text.name(self.content_topic)}",
            "sender": text.name(self.sender_id),
            "first seen (UTC)": text.time(self.first_seen),
            "delivered (UTC)": text.time(self.delivered_at),
            "acknowledged by": ", ".join(map(text.name, self.acknowledged_by)) or text.DASH,
            "given up by": ", ".join(map(text.name, self.lost_by)) or text.DASH,
            "missing segments": ", ".join(map(str, self.data_missing)) or text.DASH,
            "SDS ids": ", ".join(map(text.short, self.sds_ids)),
        }
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in facts.items())
        return f"<table><caption>Message {html.escape(text.name(self.message_key, 80))}</caption>{rows}</table>"


def find(source: TableWindow, wanted: str, limit: int = 20) -> list[MessageFacts]:
    """The messages whose SDS id, payload hash, envelope hash or key is ``wanted`` or begins with it (at least four
    characters); exact ones first, at most ``limit``. Nothing is found for an empty or too short text."""
    begin = wanted.strip()
    if len(begin) < 4:
        return []
    digits = begin.lower().removeprefix("0x") if _HEX.fullmatch(begin) else None
    ids = source.query(
        """
        SELECT sds_id FROM sds_messages
        WHERE sds_id = $text OR starts_with(sds_id, $text)
           OR ($digits IS NOT NULL AND (starts_with(lower(hex(envelope_hash)), $digits)
                                        OR starts_with(lower(hex(entire_message_hash)), $digits)))
        UNION SELECT sds_id FROM lost_dependencies WHERE sds_id = $text OR starts_with(sds_id, $text)
        LIMIT $limit
        """,
        text=begin,
        digits=digits,
        limit=limit * 10,
    )
    rows = source.select(
        """
        SELECT pubsub_topic, content_topic, channel_id, message_key, sender_id,
               lower(hex(entire_message_hash)) AS payload_hash, sds_ids, verdict, cause, detail, data_missing,
               acknowledged_by, lost_by, first_seen, delivered_at
        FROM delivery_status
        WHERE list_has_any(sds_ids, $ids) OR list_contains(sds_ids, $text) OR starts_with(message_key, $text)
           OR ($digits IS NOT NULL AND starts_with(lower(hex(entire_message_hash)), $digits))
        ORDER BY message_key <> $text AND NOT list_contains(sds_ids, $text), first_seen DESC, message_key,
                 content_topic, channel_id, pubsub_topic LIMIT $limit
        """,
        {"ids": list(ids["sds_id"]), "text": begin, "digits": digits, "limit": limit},
    )
    messages = [make_facts(row) for row in rows]
    judged = {sds_id for message in messages for sds_id in message.sds_ids}
    unjudged = [sds_id for sds_id in ids["sds_id"] if sds_id not in judged]
    return (messages + _find_without_verdict(source, unjudged))[:limit]


def example(source: TableWindow) -> MessageFacts:
    """A message to show by default: the newest one that lacks a segment, or else that is missing, or else any. Raises
    :class:`LocalError` when no message is known."""
    rows = source.query(
        """SELECT message_key FROM delivery_status
           ORDER BY (cause = 'segment_missing') IS TRUE DESC, verdict = 'missing' DESC, first_seen DESC, message_key
           LIMIT 1"""
    )
    if rows.empty:
        raise LocalError("No message is known in this window.", "Choose an earlier --from, or look at another channel.")
    return find(source, rows["message_key"][0])[0]


def _find_without_verdict(source: TableWindow, sds_ids: list[str]) -> list[MessageFacts]:
    """Messages without a verdict, from their segments."""
    if not sds_ids:
        return []
    rows = source.select(
        """
        SELECT pubsub_topic, content_topic, channel_id,
               coalesce(lower(hex(entire_message_hash)), min(sds_id)) AS message_key,
               min(sender_id) AS sender_id, lower(hex(entire_message_hash)) AS payload_hash,
               array_agg(DISTINCT sds_id ORDER BY sds_id) AS sds_ids, min(event_time) AS first_seen
        FROM sds_messages WHERE list_contains($ids, sds_id)
        GROUP BY pubsub_topic, content_topic, channel_id, entire_message_hash
        ORDER BY first_seen DESC, message_key, content_topic, channel_id, pubsub_topic
        """,
        {"ids": sds_ids},
    )
    return [make_facts(row) for row in rows]


def timeline(source: TableWindow, message: MessageFacts) -> pd.DataFrame:
    """Every row about ``message`` in any table, in order of time; at most the first 2 000."""
    return source.query(
        _TIMELINE,
        ids=list(message.sds_ids),
        payload=message.payload_hash,
        channel=message.channel_id,
        topic=message.content_topic,
        pubsub=message.pubsub_topic,
        lanes=list(LANES),
        limit=MOST_EVENTS,
    )


_HERE = "channel_id = $channel AND content_topic = $topic AND pubsub_topic = $pubsub"
_MINE = f"{_HERE} AND list_contains($ids, sds_id)"
_ENVELOPES = f"""SELECT envelope_hash, sds_id FROM sds_messages WHERE {_MINE}
                 UNION SELECT envelope_hash, sds_id FROM sender_events WHERE {_MINE}"""
_EVENTS = (
    f"""SELECT event_time AS time, 'sender' AS lane, event AS what, sender_id AS who, detail, sds_id
        FROM sender_events WHERE {_MINE}""",
    """SELECT e.event_time, 'envelope', 'received', e.source,
               e.value_bytes || ' bytes at ' || e.kafka_partition || '/' || e.kafka_offset, s.sds_id
        FROM envelopes e JOIN sds_messages s USING (kafka_topic, kafka_partition, kafka_offset)
        WHERE s.channel_id = $channel AND s.content_topic = $topic AND s.pubsub_topic = $pubsub
              AND list_contains($ids, s.sds_id)""",
    f"""SELECT g.seen_at, 'vantage', CASE WHEN g.source = 'sender' THEN 'dispatched'
               WHEN g.source = 'store' THEN 'a store had it' WHEN g.source IN {BRIDGE_SOURCES} THEN 'seen'
               ELSE replace(g.source, '_', ' ') END, g.vantage,
               CASE WHEN g.source IN {BRIDGE_SOURCES} THEN g.source || ' of ' || g.node
               ELSE 'its log' || coalesce(', peer ' || g.node, '') END, m.sds_id
        FROM ({_ENVELOPES}) m JOIN sightings g ON g.message_hash = m.envelope_hash""",
    f"""SELECT min(o.seen_at), 'vantage', 'not seen', v.vantage, 'others saw it', m.sds_id
        FROM ({_ENVELOPES}) m JOIN sightings o ON o.message_hash = m.envelope_hash
        JOIN (SELECT DISTINCT vantage FROM sightings WHERE source IN {BRIDGE_SOURCES}) v ON NOT EXISTS (
            SELECT 1 FROM sightings g
            WHERE g.message_hash = m.envelope_hash AND g.vantage = v.vantage AND g.source <> 'store')
        GROUP BY m.envelope_hash, m.sds_id, v.vantage""",
    f"""SELECT event_time, 'segment', coalesce(segment_kind, sds_kind), sender_id,
               CASE WHEN segment_kind IN ('data', 'parity') THEN segment_kind || ' segment ' || segment_index || ' of '
                    || coalesce(data_count::VARCHAR, '?') || ' + ' || coalesce(parity_count, 0) ELSE sds_kind END,
               sds_id
        FROM sds_messages WHERE {_MINE}""",
    f"""SELECT event_time, 'segment', 'repaired', sender_id, 'rebuilt by ' || repaired_by, sds_id
        FROM deliveries WHERE {_MINE} AND repaired_by IS NOT NULL""",
    f"""SELECT event_time, 'delivery', row_kind, sender_id,
               CASE WHEN late THEN 'late, ' ELSE '' END || CASE WHEN row_kind = 'message' THEN
               'number ' || delivery_seq || ', ' || payload_bytes || ' bytes' ELSE 'row ' || row_seq END, sds_id
        FROM deliveries WHERE {_MINE}""",
    f"""SELECT event_time, 'acknowledgement', evidence, acknowledged_by,
               certainty || ', after ' || latency_ms || ' ms', sds_id
        FROM acks WHERE {_MINE}""",
    f"""SELECT event_time, 'repair', 'asked for', requested_by,
               CASE WHEN held_here THEN 'it was here' ELSE 'it was not here' END, sds_id
        FROM repair_requests WHERE {_MINE}""",
    f"""SELECT event_time, 'refetch', 'attempt ' || attempt, NULL,
               CASE WHEN octet_length(retrieval_hint) IS DISTINCT FROM 32 THEN 'no hash to ask for'
                    ELSE 'needed by ' || needed_by END, sds_id
        FROM refetch_requests WHERE {_MINE}""",
    f"""SELECT asked_at, 'store', outcome, node, purpose || coalesce(': ' || detail, ''), sds_id
        FROM store_presence
        WHERE {_HERE} AND (list_contains($ids, sds_id) OR (purpose = 'set' AND detail = $payload))""",
    f"""SELECT event_time, 'loss', status, sender_id, 'needed by ' || needed_by, sds_id
        FROM lost_dependencies WHERE {_MINE}""",
    f"""SELECT event_time, 'loss', replace(status, '_', ' ') || ' (' || replace(reason, '_', ' ') || ')', sender_id,
               'held ' || len(data_held) || ' + ' || len(parity_held) || ' of ' || coalesce(data_count::VARCHAR, '?')
               || coalesce(', missing ' || array_to_string(data_missing, ', '), ''), NULL
        FROM incomplete_messages WHERE {_HERE} AND lower(hex(entire_message_hash)) = $payload
              AND list_has_any(sds_ids, $ids)""",
    f"""SELECT event_time, 'channel', event, sender_id, detail, sds_id
        FROM channel_events WHERE {_MINE}""",
)
_TIMELINE = f"""SELECT * FROM ({" UNION ALL ".join(_EVENTS)})
    ORDER BY time, list_position($lanes, lane), what, sds_id LIMIT $limit"""


def make_facts(row: Mapping[str, Any]) -> MessageFacts:
    """A message from a row with at least its channel, key, sender, hash, ids and time; without a verdict, the rest is
    left out."""
    values: dict[str, Any] = {field.name: row.get(field.name) for field in fields(MessageFacts)}
    for name in ("data_missing", "acknowledged_by", "lost_by"):
        values[name] = tuple(values[name] or ())
    return MessageFacts(**values | {"sds_ids": tuple(filter(None, values["sds_ids"] or ()))})
