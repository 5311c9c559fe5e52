"""The queries of :mod:`.gather` for DuckDB: the same text, with what DuckDB writes in another way. No Spark."""

from __future__ import annotations

import re

from reliable_channel.lake.tables import CHANNEL_KEY
from reliable_channel.pipeline.verdict.gather import EVIDENCE, FACTS, IDS, NO_SENT_SINCE, SENT_SINCE

_STRUCT = re.compile(r"struct<([^()]*?)>(?= as | *\))")
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\bv_observed\b", "sds_messages"),
        (r"\bv_named_since_gaps\b", "lost_dependencies"),
        (r"\bv_(?=\w)", ""),
        (r"\* except \(", "* exclude ("),
        (r"<=>", "is not distinct from"),
        (r"\bleft semi join\b", "semi join"),
        (r"\bstruct\(", "row("),
        (r"\barray\(", "list_value("),
        (r"\barray_compact\(", "list_distinct("),
        (r"\bcollect_set\((\w+)\)", r"coalesce(list(distinct \1) filter (\1 is not null), [])"),
        (r"\bcollect_list\((\w+)\)", r"coalesce(list(\1) filter (\1 is not null), [])"),
        (r"\bsort_array\(", "list_sort("),
        (r"\barray_min\(", "list_min("),
        (r"\breverse\(", "list_reverse("),
        (r"\btransform\(", "list_transform("),
        (r"\bfilter\((?=\w+,)", "list_filter("),
        (r"\bslice\(", "list_slice("),
        (r"(\w+) -> ", r"lambda \1: "),
        (r"\btimestamp_millis\(", "make_timestamptz(1000 * "),
        (r" as timestamp\)", " as timestamptz)"),
        (r" as binary\)", " as blob)"),
    )
)


def evidence_query(in_gaps: bool) -> str:
    """The query of the row of evidence about each message, over the tables, for the SDS ids ``$ids`` of one channel
    (``$pubsub_topic``, …). ``$suspected``: the ids in records that could not be decoded; ``in_gaps``: there were times
    in which no bridge listened."""
    here = " and ".join(f"{name} is not distinct from ${name}" for name in CHANNEL_KEY)
    views = {
        "suspected": "select unnest($suspected::varchar[]) as sds_id",
        "sent": rewrite(SENT_SINCE if in_gaps else NO_SENT_SINCE),
        "facts": f"select * from ({rewrite(FACTS)}) where {here} and list_contains($ids, sds_id)",  # noqa: S608
        "ids": rewrite(IDS),
    }
    named = ", ".join(f"{name} as ({text})" for name, text in views.items())
    return f"with {named} select * from ({rewrite(EVIDENCE)})"  # noqa: S608 - text of our own only


def rewrite(sql: str) -> str:
    """A query of the verdict job for DuckDB. Of ``slice`` only the uses that begin at 1 mean the same."""
    sql = _STRUCT.sub(_struct, sql)
    for pattern, replacement in _REWRITES:
        sql = pattern.sub(replacement, sql)
    return sql


def _struct(found: re.Match[str]) -> str:
    fields = re.sub(r"array<(\w+)>", r"\1[]", found[1]).replace(": ", " ")
    return f"struct({fields.replace('timestamp', 'timestamptz').replace('binary', 'blob')})"
