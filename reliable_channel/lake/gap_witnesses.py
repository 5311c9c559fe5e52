"""Finds gaps of a bridge that a store node filled without knowing what was sent: another bridge saw an envelope in the
gap that the store did not return. No Spark.

An envelope speaks against the store only if the store should have it. It is SDS traffic of a topic that the store was
queried for, and not ephemeral; another bridge's own node received it during the gap; and its timestamp is in the gap
too, and close to that sighting, because stores refuse others. So nobody who can only publish can contradict an honest
store, nor can anybody but a bridge (:data:`SIGHTINGS`) speak for one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.lake.read import in_our_time
from reliable_channel.lake.tables import ENVELOPES, SIGHTINGS, SOURCE_GAPS, Table

TOLERANCE = dt.timedelta(seconds=10)
"""How far the timestamp of an envelope may be from the time at which a bridge saw it. Stores refuse what is 20 s off by
their own clocks; the rest is for the differences of clocks."""
_BY_OWN_NODE = pc.field("source").isin(["relay", "filter"])
_TIME = pa.timestamp("us", "UTC")


class ReadRows(Protocol):
    """Reads some columns of the rows of a table ``where``, or of all."""

    def __call__(self, table: Table, columns: Sequence[str], where: pc.Expression | None = None, /) -> pa.Table: ...


def last_rows(read: ReadRows) -> list[dict[str, Any]]:
    """The last row of each gap in ``source_gaps``."""
    rows = in_our_time(read(SOURCE_GAPS, [*SOURCE_GAPS.names()]).sort_by("ingest_time"))
    return [*{row["name"]: row for row in rows.to_pylist()}.values()]


def count_lacking(gaps: Iterable[Mapping[str, Any]], read: ReadRows) -> dict[str, int]:
    """The number of envelopes that speak against the store that filled a gap, by the gap's name; gaps with none are
    left out.

    ``gaps``: their :func:`last_rows`; ``read`` is called if one of them can be compared. The same rows of the tables
    give the same result, in whatever order they came."""
    audited = [gap for gap in gaps if _can_be_audited(gap)]
    if not audited:
        return {}
    times = read(SIGHTINGS, ["vantage", "seen_at"], _BY_OWN_NODE & pc.field("seen_at").is_valid())
    spans = times.group_by("vantage").aggregate([("seen_at", "min"), ("seen_at", "max")]).to_pylist()
    counts: dict[str, int] = {}
    for gap in audited:
        since, until = gap["from_time"], gap["to_time"]
        others = {span["vantage"] for span in spans if span["seen_at_min"] <= until and since <= span["seen_at_max"]}
        if others - {gap["vantage"]}:
            elsewhere = _read_seen_elsewhere(gap, read)
            if elsewhere.num_rows and (count := _count_storable(gap, elsewhere, read)):
                counts[gap["name"]] = count
    return counts


def _can_be_audited(gap: Mapping[str, Any]) -> bool:
    wanted = ("vantage", "from_time", "to_time", "pubsub_topics")
    return gap["status"] == "filled" and all(gap[name] for name in wanted)


def _read_seen_elsewhere(gap: Mapping[str, Any], read: ReadRows) -> pa.Table:
    """The sightings of other bridges' nodes in a gap (``message_hash``, ``seen_at``), except of what the bridge of the
    gap has, by its own node or from a store."""
    at, vantage = pc.field("seen_at"), pc.field("vantage")
    inside = (at >= gap["from_time"]) & (at <= gap["to_time"]) & _BY_OWN_NODE & (vantage != gap["vantage"])
    inside &= pc.field("pubsub_topic").isin(gap["pubsub_topics"]) & pc.field("message_hash").is_valid()
    seen = read(SIGHTINGS, ["message_hash", "seen_at"], inside)
    if not seen.num_rows:
        return seen
    among = pc.field("message_hash").isin(pc.unique(seen["message_hash"]))
    own = read(SIGHTINGS, ["message_hash"], among & (vantage == gap["vantage"]))
    return seen.filter(pc.invert(pc.is_in(seen["message_hash"], own["message_hash"])))


def _count_storable(gap: Mapping[str, Any], seen: pa.Table, read: ReadRows) -> int:
    """How many of the envelopes that were ``seen`` a store should have returned for a gap."""
    wanted = pc.field("message_hash").isin(pc.unique(seen["message_hash"]))
    wanted &= (pc.field("kind") == "sds") & ~pc.field("ephemeral")
    if gap["content_topics"] is not None:
        wanted &= pc.field("content_topic").isin(gap["content_topics"])
    both = seen.join(
        read(ENVELOPES, ["message_hash", "sender_timestamp_ns"], wanted), "message_hash", join_type="inner"
    )
    sent_at, seen_at = pc.divide(both["sender_timestamp_ns"], 1000).cast(_TIME), both["seen_at"]
    begin, end = (pa.scalar(gap[name], _TIME) for name in ("from_time", "to_time"))
    fits = pc.and_(pc.greater_equal(sent_at, begin), pc.less_equal(sent_at, end))
    for apart in (pc.subtract(seen_at, sent_at), pc.subtract(sent_at, seen_at)):
        fits = pc.and_(fits, pc.less_equal(apart, pa.scalar(TOLERANCE)))
    return len(pc.unique(both.filter(fits)["message_hash"]))
