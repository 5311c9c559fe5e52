"""Finds messages and channels by name, and collects everything known about a message on a time line.

The causal graph around a message is in ``graph.py``.

::

    message = find(source, "9f86d081")[0]             # a hash or an id, or how it begins
    timeline(source, message)                         # frame

============  ==========================================================================================================
``timeline``  time (UTC), lane (envelope, vantage, segment, delivery, acknowledgement, refetch, store, repair, loss,
              sender, channel), what (one of a few words), who (participant, node or source), detail, sds_id
============  ==========================================================================================================
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from reliable_channel.analysis import text
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.core.errors import LocalError
from reliable_channel.lake.tables import CHANNEL_KEY
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
LEAST = 4
"""The fewest characters that are searched for as the beginning of a name."""
MOST_IDS = 500
"""The most SDS ids that a search follows to their messages."""
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

    @property
    def channel(self) -> ChannelFilter:
        """Its channel."""
        return ChannelFilter(self.pubsub_topic, self.content_topic, self.channel_id)

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


def find(tables: TableSnapshot | TableWindow, wanted: str, limit: int = 20) -> list[MessageFacts]:
    """The messages with the key or SDS id ``wanted``, then those whose key, SDS id, payload hash or envelope hash
    begins with it (at least four characters); at most ``limit``. A name may be shortened as pages and reports print
    it: ``ab12…9f``, ``ab12…``."""
    name = wanted.strip()
    matches = find_exact(tables, name, limit=limit)
    head, _, tail = name.partition("…")
    if len(head) >= LEAST:
        known = {(*message.channel, message.message_key) for message in matches}
        ids = {sds_id for message in matches for sds_id in message.sds_ids}
        matches += [
            message
            for message in _find_beginning(tables, head, tail, limit)
            if (*message.channel, message.message_key) not in known and ids.isdisjoint(message.sds_ids)
        ]
    return matches[:limit]


def find_exact(
    tables: TableSnapshot | TableWindow, name: str, key: ChannelFilter | None = None, limit: int = 20
) -> list[MessageFacts]:
    """The messages with exactly this key or SDS id, in one channel or in all; those with a verdict if there are any.
    The filters reach the files of a snapshot, so that a link to a message opens fast in large tables."""
    here = "true" if key is None else key.where()
    values = {"name": name, "limit": limit, **(key.parameters if key else {})}
    judged = select_judged(tables, f"{here} AND (message_key = $name OR list_contains(sds_ids, $name))", values)
    return judged or _find_without_verdict(tables, f"{here} AND sds_id = $name", values)


def find_judged(tables: TableSnapshot | TableWindow, wanted: str) -> list[MessageFacts]:
    """The messages with a verdict that a command names, by any name that :func:`find` knows. Raises ``LocalError`` if
    there are none."""
    matches = find_exact(tables, wanted.strip()) or find(tables, wanted)
    if judged := [message for message in matches if message.verdict]:
        return judged
    raise LocalError(
        f"No message with a verdict has the id {text.name(wanted)}.", "`reliable-channel report --missing` lists ids."
    )


def require_channel(source: TableWindow) -> None:
    """Raise :class:`LocalError` with the known channels when the window names a channel that is in no table at any
    time. A channel that was only silent in the window is not an error."""
    wanted, tables = source.window.channel_id, ("delivery_status", "deliveries", "sds_messages")
    if wanted is None or any(source.rows(table, ["channel_id"]).num_rows for table in tables):
        return
    query = " UNION ".join(f"SELECT channel_id FROM {table} WHERE channel_id IS NOT NULL" for table in tables)  # noqa: S608 - names of our own
    known = sorted(TableWindow(source.snapshot).query(query)["channel_id"])
    if wanted in known:
        return
    like = ", ".join(map(text.name, difflib.get_close_matches(wanted, known, n=3) or known[:5]))
    raise LocalError(
        f"There is no channel {text.name(wanted)!r} in the tables.",
        f"Known channels: {like}." if like else "There is no channel in them yet.",
    )


def example(source: TableWindow) -> MessageFacts:
    """A message to show by default: the newest one that lacks a segment, or else that is missing, or else any. Raises
    :class:`LocalError` when no message is known."""
    rows = source.select(
        f"""SELECT {_FACTS} FROM delivery_status
            ORDER BY (cause = 'segment_missing') IS TRUE DESC, verdict = 'missing' DESC, first_seen DESC, message_key
            LIMIT 1"""  # noqa: S608 - constants of our own
    )
    if not rows:
        raise LocalError("No message is known in this window.", "Choose an earlier --from, or look at another channel.")
    return make_facts(rows[0])


def _find_beginning(tables: TableSnapshot | TableWindow, head: str, tail: str, limit: int) -> list[MessageFacts]:
    digits = head.lower().removeprefix("0x") if _HEX.fullmatch(head) else None
    name = {"name": head, "digits": digits, "tail": tail, "last_digits": tail.lower()}
    rows = tables.select(
        f"""
        SELECT DISTINCT sds_id FROM (
            SELECT sds_id, envelope_hash, entire_message_hash FROM sds_messages
            UNION ALL SELECT sds_id, envelope_hash, entire_message_hash FROM sender_events
            UNION ALL SELECT sds_id, retrieval_hint, NULL FROM lost_dependencies)
        WHERE {_IS_NAMED.format("sds_id")} OR {_IS_HASHED.format("envelope_hash")}
           OR {_IS_HASHED.format("entire_message_hash")}
        LIMIT {MOST_IDS}
        """,  # noqa: S608 - constants of our own
        name,
    )
    ids = [row["sds_id"] for row in rows]
    messages = select_judged(
        tables,
        f"""list_has_any(sds_ids, $ids) OR {_IS_NAMED.format("message_key")}
            OR {_IS_HASHED.format("entire_message_hash")}""",
        {"ids": ids, **name, "limit": limit},
    )
    known = {sds_id for message in messages for sds_id in message.sds_ids}
    values = {"ids": [sds_id for sds_id in ids if sds_id not in known], "limit": limit}
    return messages + (_find_without_verdict(tables, "list_contains($ids, sds_id)", values) if values["ids"] else [])


def _find_without_verdict(
    tables: TableSnapshot | TableWindow, where: str, values: Mapping[str, Any]
) -> list[MessageFacts]:
    """Messages from their segments, grouped by the hash of the payload; if there are none, those that others name."""
    rows = tables.select(_segments_sql(where), values) or tables.select(_named_sql(where), values)
    return [make_facts(row) for row in rows]


_IS_NAMED = "(starts_with({0}, $name) AND ends_with({0}, $tail))"
_IS_HASHED = "(starts_with(lower(hex({0})), $digits) AND ends_with(lower(hex({0})), $last_digits))"
"""False or null where the name is no hexadecimal number."""
_CHANNEL = ", ".join(CHANNEL_KEY)
_FACTS = f"""{_CHANNEL}, message_key, sender_id, lower(hex(entire_message_hash)) AS payload_hash, sds_ids, verdict,
    cause, detail, data_missing, acknowledged_by, lost_by, first_seen, delivered_at"""


def select_judged(tables: TableSnapshot | TableWindow, where: str, parameters: Mapping[str, Any]) -> list[MessageFacts]:
    """The newest ``$limit`` messages with a verdict for which a condition holds, those with the key ``$name`` first."""
    rows = tables.select(
        f"""SELECT {_FACTS} FROM delivery_status WHERE {where}
            ORDER BY message_key <> $name, first_seen DESC, message_key, {_CHANNEL} LIMIT $limit""",  # noqa: S608 - names of columns; values are bound
        parameters,
    )
    return [make_facts(row) for row in rows]


def _segments_sql(where: str) -> str:
    return f"""
    WITH wanted AS (
        SELECT DISTINCT {_CHANNEL}, sender_id, entire_message_hash, sds_id FROM sds_messages
        WHERE {where} ORDER BY ALL LIMIT {MOST_IDS})
    SELECT w.pubsub_topic, w.content_topic, w.channel_id, min(w.sds_id) AS message_key, w.sender_id,
           lower(hex(w.entire_message_hash)) AS payload_hash, list_sort(list_distinct(list(s.sds_id))) AS sds_ids,
           min(s.event_time) AS first_seen
    FROM wanted w JOIN sds_messages s ON w.pubsub_topic IS NOT DISTINCT FROM s.pubsub_topic
         AND w.content_topic IS NOT DISTINCT FROM s.content_topic AND w.channel_id IS NOT DISTINCT FROM s.channel_id
         AND (s.sds_id = w.sds_id OR (s.entire_message_hash = w.entire_message_hash AND s.sender_id = w.sender_id))
    GROUP BY w.pubsub_topic, w.content_topic, w.channel_id, w.sender_id, w.entire_message_hash,
             coalesce(hex(w.entire_message_hash), w.sds_id)
    ORDER BY first_seen DESC, w.pubsub_topic, w.content_topic, w.channel_id, w.sender_id, message_key LIMIT $limit
"""  # noqa: S608 - names of columns; values are bound


def _named_sql(where: str) -> str:
    return f"""
    SELECT {_CHANNEL}, sds_id AS message_key, min(sender_id) AS sender_id, NULL AS payload_hash,
           [sds_id] AS sds_ids, min(event_time) AS first_seen
    FROM (SELECT {_CHANNEL}, sds_id, sender_id, event_time FROM lost_dependencies
          UNION ALL SELECT {_CHANNEL}, sds_id, sender_id, event_time FROM refetch_requests)
    WHERE {where} GROUP BY {_CHANNEL}, sds_id ORDER BY first_seen DESC, {_CHANNEL} LIMIT $limit
"""  # noqa: S608 - names of columns; values are bound


def timeline(source: TableWindow, message: MessageFacts) -> pd.DataFrame:
    """Every row about ``message`` in any table, at any time, in order of time; at most the first 2 000."""
    of_channel = Window(channel_id=message.channel_id, content_topic=message.content_topic)
    source = TableWindow(source.snapshot, of_channel)
    here = message.channel.where()
    mine = f"{here} AND list_contains($ids, sds_id)"
    events = _EVENTS.format(here=here, mine=mine, envelopes=list_envelopes(here), bridges=BRIDGE_SOURCES)
    return source.query(
        f"SELECT * FROM ({events}) ORDER BY time, list_position($lanes, lane), what, sds_id, who, detail LIMIT $limit",  # noqa: S608 - names of columns; values are bound
        ids=list(message.sds_ids),
        payload=message.payload_hash,
        lanes=list(LANES),
        limit=MOST_EVENTS,
        **message.channel.parameters,
    )


def list_envelopes(here: str) -> str:
    """SQL for the envelopes of the SDS messages ``$ids`` of a channel (the condition ``here``): of those that arrived,
    and those that their sender names."""
    mine = f"{here} AND list_contains($ids, sds_id)"
    return f"""SELECT envelope_hash, sds_id FROM sds_messages WHERE {mine}
               UNION SELECT envelope_hash, sds_id FROM sender_events WHERE {mine}"""  # noqa: S608 - names of columns


_EVENTS = " UNION ALL ".join(
    (
        """SELECT event_time AS time, 'sender' AS lane, event AS what, coalesce(reported_by, sender_id) AS who, detail,
               sds_id
        FROM sender_events WHERE {mine}""",
        """SELECT e.event_time, 'envelope', 'received', e.source,
               e.value_bytes || ' bytes at ' || e.kafka_partition || '/' || e.kafka_offset, s.sds_id
        FROM envelopes e JOIN (
            SELECT kafka_topic, kafka_partition, kafka_offset, sds_id FROM sds_messages WHERE {mine}) s
            USING (kafka_topic, kafka_partition, kafka_offset)""",
        """SELECT g.seen_at, 'vantage', CASE WHEN g.source = 'sender' THEN 'dispatched'
               WHEN g.source = 'store' THEN 'a store had it' WHEN g.source IN {bridges} THEN 'seen'
               ELSE replace(g.source, '_', ' ') END, g.vantage,
               CASE WHEN g.source IN {bridges} THEN g.source || ' of ' || g.node
               ELSE 'its log' || coalesce(', peer ' || g.node, '') END, m.sds_id
        FROM ({envelopes}) m JOIN sightings g ON g.message_hash = m.envelope_hash""",
        """SELECT min(o.seen_at), 'vantage', 'not seen', v.vantage, 'others saw it', m.sds_id
        FROM ({envelopes}) m JOIN sightings o ON o.message_hash = m.envelope_hash
        JOIN (SELECT DISTINCT vantage FROM sightings WHERE source IN {bridges}) v ON NOT EXISTS (
            SELECT 1 FROM sightings g
            WHERE g.message_hash = m.envelope_hash AND g.vantage = v.vantage AND g.source <> 'store')
        GROUP BY m.envelope_hash, m.sds_id, v.vantage""",
        """SELECT event_time, 'segment', coalesce(segment_kind, sds_kind), sender_id,
               CASE WHEN segment_kind IN ('data', 'parity') THEN segment_kind || ' segment ' || segment_index || ' of '
                    || coalesce(data_count::VARCHAR, '?') || ' + ' || coalesce(parity_count, 0) ELSE sds_kind END,
               sds_id
        FROM sds_messages WHERE {mine}""",
        """SELECT event_time, 'segment', 'repaired', sender_id, 'rebuilt by ' || repaired_by, sds_id
        FROM deliveries WHERE {mine} AND repaired_by IS NOT NULL""",
        """SELECT event_time, 'delivery', row_kind, sender_id,
               CASE WHEN late THEN 'late, ' ELSE '' END || CASE WHEN row_kind = 'message' THEN
               'number ' || delivery_seq || ', ' || payload_bytes || ' bytes' ELSE 'row ' || row_seq END, sds_id
        FROM deliveries WHERE {mine}""",
        """SELECT event_time, 'acknowledgement', evidence, acknowledged_by,
               certainty || ', after ' || latency_ms || ' ms', sds_id
        FROM acks WHERE {mine}""",
        """SELECT event_time, 'repair', 'asked for', requested_by,
               CASE WHEN held_here THEN 'it was here' ELSE 'it was not here' END, sds_id
        FROM repair_requests WHERE {mine}""",
        """SELECT event_time, 'refetch', 'attempt ' || attempt, NULL,
               CASE WHEN octet_length(retrieval_hint) IS DISTINCT FROM 32 THEN 'by topic and time: no hash is known'
                    ELSE 'needed by ' || needed_by END, sds_id
        FROM refetch_requests WHERE {mine}""",
        """SELECT asked_at, 'store', outcome, node, purpose || coalesce(': ' || detail, ''), sds_id
        FROM store_presence
        WHERE {here} AND (list_contains($ids, sds_id) OR (purpose = 'set' AND detail = $payload))""",
        """SELECT event_time, 'loss', status, sender_id, 'needed by ' || needed_by, sds_id
        FROM lost_dependencies WHERE {mine}""",
        """SELECT event_time, 'loss', replace(status, '_', ' ') || ' (' || replace(reason, '_', ' ') || ')', sender_id,
               'held ' || len(data_held) || ' + ' || len(parity_held) || ' of ' || coalesce(data_count::VARCHAR, '?')
               || coalesce(', missing ' || array_to_string(data_missing, ', '), ''), NULL
        FROM incomplete_messages WHERE {here} AND lower(hex(entire_message_hash)) = $payload
              AND list_has_any(sds_ids, $ids)""",
        """SELECT event_time, 'channel', event, sender_id, detail, sds_id
        FROM channel_events WHERE {mine}""",
    )
)


def make_facts(row: Mapping[str, Any]) -> MessageFacts:
    """A message from a row with at least its channel, key, sender, hash, ids and time; without a verdict, the rest is
    left out."""
    values: dict[str, Any] = {field.name: row.get(field.name) for field in fields(MessageFacts)}
    for name in ("data_missing", "acknowledged_by", "lost_by"):
        values[name] = tuple(values[name] or ())
    return MessageFacts(**values | {"sds_ids": tuple(filter(None, values["sds_ids"] or ()))})
