"""Builds the page of one channel: acknowledgements, who is behind, missing messages, requests to stores, what each
sender's rate limit was spent on, and its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reliable_channel.analysis.dashboard.figures import read_known_shares
from reliable_channel.analysis.dashboard.messages import MessageFilter, VerdictFilter, newest
from reliable_channel.analysis.dashboard.sections import PageSection, Rows, section
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.figures import CAME, CLAIMED_BY_ONE, SEEN, by_channel, causes
from reliable_channel.analysis.report.acks_matrix import acks_matrix
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.lake.tables import CHANNEL_KEY
from reliable_channel.lake.tables.views import participant_views_sql

TABLES = (
    "clock",
    "delivery_status",
    "delivered_messages",
    "deliveries",
    "acks",
    "refetch_requests",
    "lost_dependencies",
    "store_presence",
    "reassembled_messages",
    "sds_messages",
)
PER_PART = 25
EPOCH_MS = 600_000
"""The epoch of RLN on the public network."""
ROLES = ("content", "parity", "repeat", "sync", "ephemeral")


def page(
    lake: TableSnapshot, key: ChannelFilter, window: TimeWindow, verdict: VerdictFilter, numbers: dict[str, int]
) -> dict[str, Any] | None:
    """The parts of the page; ``None`` when nothing at all is known of the channel."""
    here, values = key.where(), {**key.parameters, **window.bounds}

    def rows(tables: Sequence[str], sql: str, number: int = 1) -> PageSection:
        return section(lake, tables, lambda: Rows.of(lake, sql, values, number, PER_PART))

    parts = {
        "figures": section(lake, ("delivery_status",), lambda: figures(lake, here, values)),
        "matrix": section(lake, ("deliveries", "acks"), lambda: acks_matrix(lake, key, window.since, window.until)),
        "behind": rows(("sds_messages", "acks"), behind_sql(here)),
        "shares": section(lake, ("sds_messages", "acks"), lambda: read_known_shares(lake, window, key)),
        "missing": rows(("refetch_requests",), missing_dependencies_sql(here), numbers["missing"]),
        "refetches": rows(("refetch_requests",), refetches_sql(here), numbers["refetch"]),
        "budget": rows(("sds_messages",), budget_sql(here)),
        "messages": section(
            lake,
            ("delivery_status",),
            lambda: newest(lake, window, MessageFilter(verdict), numbers["page"], key, PER_PART),
        ),
    }
    if all(part.fault is None for part in parts.values()) and not has_channel(lake, key):
        return None
    return parts


def has_channel(lake: TableSnapshot, key: ChannelFilter) -> bool:
    """Whether any table contains the channel."""
    tables = ("delivery_status", "deliveries", "refetch_requests", "lost_dependencies", "sds_messages")
    conditions = (f"EXISTS (SELECT 1 FROM {name} WHERE {key.where()})" for name in tables)  # noqa: S608 - names of tables and columns; values are bound
    return bool(lake.select(f"SELECT {' OR '.join(conditions)} AS known", key.parameters)[0]["known"])


def figures(lake: TableSnapshot, here: str, values: dict[str, Any]) -> dict[str, Any]:
    """The numbers at the top, as the list of channels has them, and the causes."""
    rows = lake.select(causes(f"{here} AND {SEEN}"), values)
    listed = lake.select(by_channel(CHANNEL_KEY, seen=f"{here} AND {SEEN}", came=f"{here} AND {CAME}"), values)
    of_list = next(iter(listed), {"messages": 0, "late": 0, "repaired": 0, "senders": 0, "last_seen": None})
    counted = [r for r in rows if r["cause"] != CLAIMED_BY_ONE]
    totals = {v: sum(r["messages"] for r in counted if r["verdict"] == v) for v in ("delivered", "missing", "unknown")}
    return {**of_list, **totals, "judged": totals["delivered"] + totals["missing"], "causes": rows}


def behind_sql(here: str) -> str:
    """What each participant shows to have and to lack of the others' messages; who lacks most first."""
    views = participant_views_sql(f"{here} AND {CAME}")
    return f"SELECT * FROM ({views}) ORDER BY lacks DESC, may_lack DESC, participant"  # noqa: S608 - text of our own


def missing_dependencies_sql(here: str) -> str:
    """SDS messages that others name and that have not arrived: still awaited, or given up; the oldest first."""
    return f"""
        WITH asked AS (
            SELECT sds_id, any_value(sender_id) AS sender_id, max(attempt) AS attempts, min(event_time) AS since,
                   any_value(needed_by) AS needed_by, bool_or(octet_length(retrieval_hint) = 32) AS hint
            FROM refetch_requests WHERE {here} AND {CAME} GROUP BY sds_id),
        given_up AS (
            SELECT sds_id, any_value(sender_id) AS sender_id, arg_max(status, event_time) AS status,
                   min(missing_since) AS since, any_value(needed_by) AS needed_by,
                   bool_or(octet_length(retrieval_hint) = 32) AS hint
            FROM lost_dependencies WHERE {here} AND {CAME}
            GROUP BY sds_id),
        here AS (SELECT DISTINCT sds_id FROM deliveries WHERE {here})
        SELECT coalesce(a.sds_id, g.sds_id) AS sds_id, coalesce(a.sender_id, g.sender_id) AS sender_id,
               coalesce(g.status, 'awaited') AS status, coalesce(a.attempts, 0) AS attempts,
               coalesce(g.since, a.since) AS since, coalesce(a.needed_by, g.needed_by) AS needed_by,
               coalesce(a.hint, false) OR coalesce(g.hint, false) AS hint
        FROM asked a FULL JOIN given_up g ON a.sds_id = g.sds_id
        WHERE NOT EXISTS (SELECT 1 FROM here WHERE here.sds_id = coalesce(a.sds_id, g.sds_id))
          AND coalesce(g.status, '') <> 'recovered'
        ORDER BY status <> 'awaited', since, sds_id
        """  # noqa: S608 - names of columns; values are bound


def refetches_sql(here: str) -> str:
    """Attempts to fetch a message again, newest first, and what each store node answered."""
    return f"""
        WITH answers AS (
            SELECT sds_id, attempt, list({{'node': node, 'outcome': outcome}} ORDER BY node) AS answers
            FROM store_presence WHERE {here} AND purpose IN ('refetch', 'range') GROUP BY ALL)
        SELECT r.sds_id, r.sender_id, r.attempt, r.needed_by, r.event_time, answers
        FROM refetch_requests r LEFT JOIN answers USING (sds_id, attempt)
        WHERE {here} AND {CAME}
        ORDER BY event_time DESC, sds_id, attempt
        """  # noqa: S608 - names of columns; values are bound


def budget_sql(here: str) -> str:
    """What each sender's envelopes were for, how many it sent in its fullest epoch, and its wire family and encryption
    layer; those with the most first."""
    by_role = ", ".join(f"count(*) FILTER (role = '{role}') AS {role}" for role in ROLES)
    return f"""
        WITH epochs AS (
            SELECT sender_id, count(*) AS used, {by_role}
            FROM dispatches WHERE {here} AND {SEEN}
            GROUP BY sender_id, sent_ms - sent_ms % {EPOCH_MS}),
        delivered AS (
            SELECT sender_id, count(*) AS delivered FROM delivery_status
            WHERE {here} AND verdict = 'delivered' AND {SEEN}
            GROUP BY sender_id),
        formats AS (
            SELECT sender_id, concat_ws(', ', string_agg(DISTINCT family, ', ' ORDER BY family),
                   string_agg(DISTINCT encryption_layer, ', ' ORDER BY encryption_layer)) AS format
            FROM sds_messages WHERE {here} AND {CAME}
            GROUP BY sender_id)
        SELECT sender_id, any_value(format) AS format, sum(used)::BIGINT AS envelopes, max(used) AS busiest,
               any_value(delivered) AS delivered,
               {", ".join(f"sum({role})::BIGINT AS {role}" for role in ROLES)}
        FROM epochs LEFT JOIN delivered USING (sender_id) LEFT JOIN formats USING (sender_id)
        GROUP BY sender_id ORDER BY envelopes DESC, sender_id
        """  # noqa: S608 - names of columns; values are bound
