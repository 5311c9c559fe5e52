"""Finds gaps of a bridge that a store node filled without knowing what was sent: another bridge saw an envelope in the
gap that the store did not return. No Spark.

An envelope speaks against the store only if the store should have it. It is SDS traffic of a topic that the store was
queried for, and not ephemeral; another bridge's own node received it during the gap; and its timestamp is in the gap
too, and close to that sighting, because stores refuse others. So nobody who can only publish can contradict an honest
store, nor can anybody but a bridge (:data:`SIGHTINGS`) speak for one.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.lake.read import in_our_time
from reliable_channel.lake.tables import ENVELOPES, SIGHTINGS, SOURCE_GAPS, Table

TOLERANCE = dt.timedelta(seconds=10)
"""How far the timestamp of an envelope may be from the time at which a bridge saw it. Stores refuse what is 20 s off by
their own clocks; the rest is for the differences of clocks."""
ROWS_AT_ONCE = 2_000_000
"""About how many sightings are held in memory, each of some 100 bytes; more are compared in parts."""
_SPANS = 64
"""The most time spans that a condition on sightings lists: every row is compared with all of them."""
_BY_OWN_NODE = pc.field("source").isin(["relay", "filter"])
_HASH = pc.field("message_hash")
_TIME = pa.timestamp("us", "UTC")

Gap = Mapping[str, Any]
"""A row of ``source_gaps``."""


class ReadRows(Protocol):
    """Reads some columns of the rows of a table ``where``, or of all."""

    def __call__(self, table: Table, columns: Sequence[str], where: pc.Expression | None = None, /) -> pa.Table: ...


def read_last_rows(read: ReadRows) -> list[dict[str, Any]]:
    """The last row of each gap in ``source_gaps``."""
    rows = in_our_time(read(SOURCE_GAPS, [*SOURCE_GAPS.names()]).sort_by("ingest_time"))
    return [*{row["name"]: row for row in rows.to_pylist()}.values()]


def count_lacking(gaps: Iterable[Gap], read: ReadRows) -> dict[str, int]:
    """The number of envelopes that speak against the store that filled a gap, by the gap's name; gaps with none are
    left out.

    ``gaps``: their :func:`read_last_rows`; ``read`` is called if one of them can be compared. The same rows of the
    tables give the same result, in whatever order they came. The tables are read once for each bridge that has gaps,
    not for each gap, and once more for every further :data:`ROWS_AT_ONCE` sightings in them."""
    by_vantage = operator.itemgetter("vantage")
    counts: dict[str, int] = {}
    for vantage, some in groupby(sorted(filter(_can_be_audited, gaps), key=by_vantage), by_vantage):
        of_one = [*some]
        for witnesses in _read_witnesses(vantage, of_one, read):
            for gap in of_one:
                if count := _count_inside(gap, witnesses):
                    counts[gap["name"]] = counts.get(gap["name"], 0) + count
    return counts


def _can_be_audited(gap: Gap) -> bool:
    wanted = ("vantage", "from_time", "to_time", "pubsub_topics")
    return gap["status"] == "filled" and all(gap[name] for name in wanted)


def _read_witnesses(vantage: str, gaps: Sequence[Gap], read: ReadRows) -> Iterator[pa.Table]:
    """The envelopes that other bridges saw during ``gaps`` of one bridge, which does not have them, although stores
    keep such: a row (``message_hash``, topics, ``seen_at``, ``sent_at``) for each sighting, sorted by ``seen_at``, in
    parts. No two parts have the same envelope."""
    at = pc.field("seen_at")
    during = (((at >= since) & (at <= until)) for since, until in _join_spans(gaps))
    by_others = _BY_OWN_NODE & (pc.field("vantage") != vantage) & _HASH.is_valid()
    by_others &= pc.field("pubsub_topic").isin({topic for gap in gaps for topic in gap["pubsub_topics"]})
    by_others &= functools.reduce(operator.or_, during)
    rows = read(SIGHTINGS, ["seen_at"], by_others).num_rows
    for part in _split_hashes(-(-rows // ROWS_AT_ONCE)) if rows else ():
        seen = read(SIGHTINGS, ["message_hash", "pubsub_topic", "seen_at"], by_others & part)
        among = _HASH.isin(pc.unique(seen["message_hash"]))
        own = read(SIGHTINGS, ["message_hash"], among & (pc.field("vantage") == vantage))
        seen = seen.filter(pc.invert(pc.is_in(seen["message_hash"], own["message_hash"])))
        if seen.num_rows:
            yield _join_storable(seen, read)


def _join_storable(seen: pa.Table, read: ReadRows) -> pa.Table:
    """Those of the envelopes ``seen`` that stores keep, with their content topics and the times they were sent at."""
    columns = ["message_hash", "content_topic", "sender_timestamp_ns"]
    kept = (pc.field("kind") == "sds") & ~pc.field("ephemeral") & _HASH.isin(pc.unique(seen["message_hash"]))
    sent = read(ENVELOPES, columns, kept).group_by(columns).aggregate([])  # once, by however many bridges it came
    both = seen.join(sent, "message_hash", join_type="inner")
    seen_at, sent_at = both["seen_at"], pc.divide(both["sender_timestamp_ns"], 1000).cast(_TIME)
    late, early = (
        pc.less_equal(apart, pa.scalar(TOLERANCE))
        for apart in (pc.subtract(seen_at, sent_at), pc.subtract(sent_at, seen_at))
    )
    return both.append_column("sent_at", sent_at).filter(pc.and_(late, early)).sort_by("seen_at")


def _count_inside(gap: Gap, witnesses: pa.Table) -> int:
    """How many of the envelopes ``witnesses`` the store that filled ``gap`` should have returned."""
    begin, end = (pa.scalar(gap[name], _TIME) for name in ("from_time", "to_time"))
    at = witnesses["seen_at"].cast(pa.int64()).to_numpy()
    first = np.searchsorted(at, begin.cast(pa.int64()).as_py(), "left")
    last = np.searchsorted(at, end.cast(pa.int64()).as_py(), "right")
    inside = witnesses.slice(first, last - first)
    fits = pc.and_(pc.greater_equal(inside["sent_at"], begin), pc.less_equal(inside["sent_at"], end))
    for name, topics in (("pubsub_topic", gap["pubsub_topics"]), ("content_topic", gap["content_topics"])):
        if topics is not None:
            fits = pc.and_(fits, pc.is_in(inside[name], pa.array(topics, pa.string())))
    return len(pc.unique(inside["message_hash"].filter(fits)))


def _join_spans(gaps: Iterable[Gap]) -> list[tuple[dt.datetime, dt.datetime]]:
    """At most :data:`_SPANS` time spans that contain all ``gaps``, and what is between them only where pauses are
    short."""
    spans: list[tuple[dt.datetime, dt.datetime]] = []
    for since, until in sorted((gap["from_time"], gap["to_time"]) for gap in gaps):
        if spans and since <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(until, spans[-1][1])
        else:
            spans.append((since, until))
    # Negative pauses, ascending: the longest ones stay between the spans, the others are joined.
    longest_first = sorted(range(1, len(spans)), key=lambda at: spans[at - 1][1] - spans[at][0])
    starts = [0, *sorted(longest_first[: _SPANS - 1]), len(spans)]
    return [(spans[first][0], spans[after - 1][1]) for first, after in pairwise(starts)]


def _split_hashes(parts: int) -> Iterator[pc.Expression]:
    """Conditions that divide envelopes by their hashes into ``parts`` of about the same size."""
    # By their first two bytes, of which a digest has any as often as any other.
    starts = [b"", *((65_536 * part // parts).to_bytes(2) for part in range(1, parts))]
    for begin, after in pairwise([*starts, None]):
        from_begin = pc.greater_equal(_HASH, begin)
        yield from_begin if after is None else from_begin & pc.less(_HASH, after)
